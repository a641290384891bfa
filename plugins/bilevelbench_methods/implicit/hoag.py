"""HOAG: the lower level and the linear system to tolerances that fall from step to step, and an x-step that adapts.

    y <- L-BFGS on g(x, .) from y until |g_y| <= tol_k |g_y(x0, y0)|
    v <- cg on H(x, y) v = f_y(x, y) from v until the residual is tol_k |f_y|
    d <- f_x(x, y) - J(x, y) v;   F <- f(x, y);   s <- |x - x'|                      x', d', F': of the accepted point before
    e <- F' + tol_k/4 + (5/4) tol_{k-1} s                                            what the tolerances explain
    if F <= e - L s^2:  L <- 0.95 L                                                  more than enough: longer steps
    elif F >= e + rise |F'|:  L <- 2 L;  x, y, v, d, F <- those before;  tol <- tol/2    worse: back
    x' <- x;   x <- x - d/L

Pedregosa, "Hyperparameter optimization with approximate gradient", ICML 2016, which shows convergence for summable tolerances
and no rate: no claim is made. L starts at |d|/sqrt(dx), or at 1 where |d| <= 1e-3; tol_k is tol 0.9^k, tol/(k+1)^2 or
tol/(k+1)^3, and at least `floor`. The other constants are those of the released code.

Our choices: s is the step that led from F' to F, where the released code takes the one that follows; a step that is refused
leads back to the point before it; rise = 0 where the code refuses F >= 1.2 F', with which x can go back and forth between two
sides of a valley for ever; floor = 1e-8, since the searches of L-BFGS compare values, which know no better, where the code has
1e-12. The released code clips x, and scales the lower tolerance by the smallest coordinate of x: this does neither. The point
that is looked at is the last accepted one with its y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Oracle, PerLane, keep, norm
from bilevelbench_methods.implicit.hypergradient import hypergradient
from bilevelbench_methods.lower_search import lower_lbfgs

_FLAT = 1e-3  # a first |d| below this says nothing about L


@dataclass(frozen=True)
class Accepted:
    """A point with its y, v, d and F."""

    x: Tensor
    y: Tensor
    v: Tensor
    d: Tensor
    F: Tensor


@dataclass(frozen=True)
class State:
    """The point to be tried next, and the last accepted one."""

    x: Tensor
    last: Accepted
    L: Tensor
    tol: Tensor
    share: Tensor  # of the schedule, after halvings
    scale: Tensor  # |g_y(x0, y0)|
    k: int

    @property
    def y(self) -> Tensor:
        return self.last.y


class HOAG(Algorithm):
    name = "hoag"
    title = "HOAG"
    paper = "https://arxiv.org/abs/1602.02355"
    family = "implicit"
    uses = frozenset({"grad_f", "value_f", "grad_g_y", "value_g", "hvp_g_yy", "jvp_g_xy"})

    tol: PositiveFloat = 1e-3
    """tolerance of the first step"""
    decrease: Literal["exponential", "quadratic", "cubic"] = "exponential"
    """how the tolerance falls: 0.9^k, (k+1)^-2 or (k+1)^-3"""
    floor: PositiveFloat = 1e-8
    """smallest tolerance"""
    rise: NonNegativeFloat = 0.0
    """share of |f| by which f may rise in a step that is accepted"""
    D: PerLane[PositiveInt] = 100
    """steps of L-BFGS at most"""
    memory: PositiveInt = 10
    """moves that L-BFGS remembers"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        size = norm(oracle.grad_g_y(x0, y0))
        one, zero = torch.ones_like(size), torch.zeros_like(y0)
        scale = torch.where(size > 0, size, one)
        last = Accepted(x=x0, y=y0, v=zero, d=torch.zeros_like(x0), F=torch.inf * one)
        return State(x=x0, last=last, L=one, tol=self.tol * one, share=one, scale=scale, k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, last = s.x, s.last
        tol = (self.tol * self.schedule(s.k) * s.share).clamp(min=self.floor)
        y = lower_lbfgs(oracle, x, last.y, self.D, tol * s.scale, self.memory)
        d, v = hypergradient(oracle, x, y, last.v, 10 * oracle.dy, tol, cold=s.k == 0)
        F = oracle.value_f(x, y)
        if s.k == 0:
            L = torch.where(norm(d) > _FLAT, norm(d) / oracle.dx**0.5, torch.ones_like(s.L))
            worse = torch.zeros_like(L, dtype=torch.bool)
        else:
            move = norm(x - last.x)
            explained = last.F + tol / 4 + 1.25 * s.tol * move
            enough = explained - s.L * move * move >= F
            worse = ~enough & ~(explained + self.rise * last.F.abs() > F)  # also where F is not a number
            L = s.L * torch.where(enough, 0.95, torch.where(worse, 2.0, 1.0))
        new = Accepted(
            x=keep(worse, last.x, x),
            y=keep(worse, last.y, y),
            v=keep(worse, last.v, v),
            d=keep(worse, last.d, d),
            F=keep(worse, last.F, F),
        )
        share = torch.where(worse, s.share / 2, s.share)
        return State(x=new.x - new.d / L, last=new, L=L, tol=tol, share=share, scale=s.scale, k=s.k + 1)

    def schedule(self, k: int) -> float:
        return {"exponential": 0.9**k, "quadratic": (k + 1) ** -2, "cubic": (k + 1) ** -3}[self.decrease]

    def point(self, s: State) -> tuple[Tensor, Tensor]:
        return s.last.x, s.last.y

    def extras(self, s: State) -> dict[str, Tensor]:
        return {"L": s.L}
