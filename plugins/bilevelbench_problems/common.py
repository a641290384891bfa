"""What several problems share: a spectrum, the noise model, rotations, point axes, constants, Newton's method."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from pydantic import PositiveFloat, model_validator
from torch import Generator, Tensor

from bilevelbench import Additive, Affine, Constant, Exact, InvalidInput, Problem, norm

NoiseKind = Literal["additive", "affine"]


class Stretched(Problem):
    """A problem whose lower level has the curvature H, its eigenvalues evenly from mu to L."""

    mu: PositiveFloat = 1.0
    """smallest eigenvalue of H"""
    L: PositiveFloat = 2.0
    """largest eigenvalue of H"""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.mu > self.L:
            raise ValueError(f"mu = {self.mu} is larger than L = {self.L}")
        return self

    def sweep(self, over: str, value: float) -> dict[str, Any]:
        return {"mu": self.L / value} if over == "kappa" else super().sweep(over, value)


def noise_model(
    sigma_f: float, sigma_g: float, sigma_h: float, kind: NoiseKind = "additive"
) -> Exact | Additive | Affine:
    """Without any noise the problem is exact: a call is one sample."""
    if not (sigma_f or sigma_g or sigma_h):
        return Exact()
    return (Additive if kind == "additive" else Affine)(sigma_f, sigma_g, sigma_h)


def random_orthogonal(d: int, rng: Generator) -> Tensor:
    """Uniform on the orthogonal group, (d, d) in float64."""
    Q, R = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=torch.float64))
    out: Tensor = Q * R.diagonal().sign()
    return out


def spread(value: Tensor, *arguments: Tensor) -> Tensor:
    """A derivative that does not depend on some argument, over all points and lanes of the arguments."""
    axes = value.shape[:-1]
    if all(argument.shape[:-1] == axes for argument in arguments):
        return value
    axes = torch.broadcast_shapes(axes, *(argument.shape[:-1] for argument in arguments))
    return value.expand(*axes, value.shape[-1])


def of_each_lane(values: Tensor, kind: Literal["exact", "estimated"] = "exact") -> Constant:
    """A constant that each data set has for itself, from (L,)."""
    return Constant(values.item() if len(values) == 1 else tuple(values.tolist()), kind)


def joint_norm(g_xx: Tensor | float, g_xy: Tensor | float, g_yy: float) -> float:
    """The norm of [[g_xx, g_xy], [g_xy, g_yy]]: bounds on the blocks of a Hessian bound the whole. Of several, the largest."""
    xx, xy = (torch.as_tensor(block, dtype=torch.float64) for block in (g_xx, g_xy))
    return float(((xx + g_yy) / 2 + torch.hypot((g_yy - xx) / 2, xy)).max())


def evenly(rows: tuple[Tensor, Tensor], agents: int) -> tuple[Tensor, Tensor]:
    """Features and labels, without the last ones if they cannot be dealt out to so many agents."""
    A, b = rows
    n = len(b) - len(b) % agents
    if not n:
        raise InvalidInput(f"agents = {agents} cannot share {len(b)} rows; take {len(b)} agents at most")
    return A[:n], b[:n]


class LastOne:
    """A function that remembers its last answer: products with one Hessian come one after the other, at the same point."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function
        self.kept: tuple[weakref.ref[Tensor], int, Tensor] | None = None

    def __call__(self, y: Tensor) -> Tensor:
        if y.requires_grad:
            return self.function(y)
        if self.kept is None or self.kept[0]() is not y or self.kept[1] != y._version:
            self.kept = weakref.ref(y), y._version, self.function(y)
        return self.kept[2]


def newton(force: Callable[[Tensor], Tensor], hessian: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    """Where the gradient `force` of a strongly convex function is zero, (points, d), from y; `hessian` is (points, d, d).

    A step is halved until the norm of the gradient falls, as it does in that direction.
    """
    pull = force(y)
    enough = 1e-13 * (1 + norm(pull))
    for _ in range(100):
        size = norm(pull)
        going = size > enough
        if not bool(going.any()):
            break
        direction = torch.linalg.solve(hessian(y), pull)
        step = torch.ones_like(size)
        for _ in range(40):
            worse = going & (norm(force(y - step * direction)) > (1 - 1e-4 * step) * size)
            if not bool(worse.any()):
                break
            step = torch.where(worse, step / 2, step)
        y = y - step * direction
        pull = force(y)
    return y
