"""Linear systems `A u = b` with a symmetric positive definite A, given by its products: all lanes at once.

`A` is usually `lambda u: oracle.hvp_g_yy(x, y, u)`, so each product is on the meter, and a lane that has converged is
switched off and pays no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from bilevelbench.model.lanes import dot, keep

Product = Callable[[Tensor], Tensor]

_RISE = 0.5


class LaneLoops(Protocol):
    """What an oracle offers for loops; the evaluator has an unmetered one."""

    def repeat(self, times: int | Tensor) -> Iterator[Tensor | bool]: ...
    def until(self, most: int | Tensor, going: Tensor) -> Iterator[Tensor | bool]: ...


class LaneMasks(LaneLoops, Protocol):
    """What an oracle offers to charge some lanes only."""

    def only(self, mask: Tensor) -> AbstractContextManager[None]: ...


class Unmetered:
    """Loops of every lane, without an oracle."""

    def repeat(self, times: int | Tensor) -> Iterator[Tensor | bool]:
        for _ in range(int(times)):
            yield True

    def until(self, most: int | Tensor, going: Tensor) -> Iterator[Tensor | bool]:
        for _ in range(int(most)):
            if not bool(going.any()):
                return
            yield going.clone()


def conjugate_gradient(
    oracle: LaneLoops, A: Product, b: Tensor, v: Tensor, n: int | Tensor, tol: float | Tensor = 0.0, cold: bool = False
) -> Tensor:
    """Solve A v = b by conjugate gradients: at most n products from v, and one for the first residual unless `cold`, v = 0.

    A lane stops when its residual norm is at most `tol`, or when a direction shows no positive curvature: the matrix is
    then not positive definite and the iterate before that direction is the answer.
    """
    r = b if cold else b - A(v)
    q, s = r, dot(r, r)
    least = torch.as_tensor(tol, dtype=b.dtype, device=b.device) ** 2
    going = s > least
    for on in oracle.until(n, going):
        active = going.clone() if on is True else torch.as_tensor(on)
        w = A(q)
        curvature = dot(q, w)
        c = s / curvature
        moved = active & (curvature > 0)
        move = True if bool(moved.all()) else moved
        if move is not True:
            going &= ~(active ^ moved)  # no positive curvature: the lane stays where it is
        v, r_new = keep(move, v + c * q, v), keep(move, r - c * w, r)
        s_new = dot(r_new, r_new)
        q, r, s = keep(move, r_new + (s_new / s) * q, q), r_new, s_new
        going &= s > least
    return v


def richardson(oracle: LaneLoops, A: Product, b: Tensor, v: Tensor, n: int | Tensor, a: float | Tensor) -> Tensor:
    """Solve A v = b by n steps `v <- v - a (A v - b)`; from zero it is `a sum_{q<n} (I - aA)^q b`."""
    for on in oracle.repeat(n):
        v = keep(on, v - a * (A(v) - b), v)
    return v


def neumann_sum(oracle: LaneLoops, A: Product, b: Tensor, n: int | Tensor, a: float | Tensor) -> Tensor:
    """The first terms of the Neumann series of A^-1 b: `a sum_{q=0}^{n} (I - aA)^q b`, with n products."""
    r = s = b
    for on in oracle.repeat(n):
        r = keep(on, r - a * A(r), r)
        s = keep(on, s + r, s)
    return a * s


def newton_step(
    oracle: LaneMasks, gradient: Product, H: Product, y: Tensor, g_y: Tensor, n: int | Tensor, a: float | Tensor
) -> tuple[Tensor, Tensor]:
    """One Newton step: `y <- y - v`, v from n products of conjugate gradients on H v = g_y; the new y, and the gradient there.

    `gradient` is asked at any point, `H` has the products at y, where the gradient is g_y. Conjugate gradients lower the
    quadratic model, not |g_y|, so the step is judged by the slope along it. Where the function rises at its end by more than
    `_RISE` of the slope at its start, or where the first direction shows no positive curvature, the step is `y <- y - a g_y`.
    """
    v = conjugate_gradient(oracle, H, g_y, torch.zeros_like(y), n, cold=True)
    new = y - v
    there = gradient(new)
    is_good = (dot(g_y, v) > 0) & (-dot(there, v) <= _RISE * dot(g_y, v))
    if bool(is_good.all()):
        return new, there
    new = keep(is_good, new, y - a * g_y)
    with oracle.only(~is_good):
        return new, keep(is_good, there, gradient(new))
