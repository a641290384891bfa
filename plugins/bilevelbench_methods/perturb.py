"""What perturbed methods share: a point drawn from a ball, the rule that says when, and the theorem that says how far.

    due  <-  |d| <= 0.8 eps  and  t - last > T_p
    xi   <-  uniform in the ball of radius r where due, else 0

Huang, Chen, Ji, Ma, Lai, "Efficiently escaping saddle points in bilevel optimization", 2022; Chen, Ma, Zhang, JMLR 2025,
Algorithm 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from bilevelbench import Algorithm, InvalidInput, Oracle, PerLane, keep, norm

_ROUNDING = torch.finfo(torch.float64).eps


def ball(oracle: Oracle, r: Tensor | float) -> Tensor:
    """(L, dx), uniform in the ball of radius r: a normal direction, then U^(1/dx) for the radius.

    A power with a fractional exponent rounds by the place in the tensor, hence exp(log(U)/dx).
    """
    u = oracle.normal(oracle.dx)
    return r * torch.exp(torch.log(oracle.uniform(1)) / oracle.dx) * u / norm(u)


def kick(oracle: Oracle, due: Tensor, r: Tensor | float) -> Tensor:
    """xi (L, dx): from the ball where `due` (L, 1) says so, else zero."""
    xi = torch.zeros(oracle.L, oracle.dx, dtype=oracle.dtype, device=oracle.device)
    for on in oracle.when(due):
        xi = keep(on, ball(oracle, r), xi)
    return xi


@dataclass(frozen=True)
class Kicks:
    """The step t, that of the last kick, how many there were, and the point that was kicked last (NaN: none yet)."""

    t: Tensor
    last: Tensor
    count: Tensor
    x: Tensor
    y: Tensor

    @classmethod
    def none(cls, x0: Tensor, y0: Tensor) -> Kicks:
        zero = torch.zeros_like(x0[..., :1])
        nowhere = torch.full_like(x0, torch.nan), torch.full_like(y0, torch.nan)
        return cls(zero, zero - torch.inf, zero, *nowhere)

    def due(self, d: Tensor, eps: float | Tensor, T_p: int | Tensor) -> Tensor:
        """(L, 1): a small gradient, and the last kick has had its T_p steps."""
        return (norm(d) <= 0.8 * eps) & (self.t - self.last > T_p)

    def after(self, due: Tensor, x: Tensor, y: Tensor) -> Kicks:
        """One step later; x and y are where d was formed."""
        return replace(
            self,
            t=self.t + 1,
            last=keep(due, self.t, self.last),
            count=self.count + due,
            x=keep(due, x, self.x),
            y=keep(due, y, self.y),
        )


def check_radius(r: float | None, eta_x: float | None) -> None:
    """A kick moves x by at most eta_x r. One that rounding swallows is refused: the saddle would never be left."""
    if r is not None and (1.0 if eta_x is None else eta_x) * r < _ROUNDING:
        longest = f"r = {r:g}" if eta_x is None else f"eta_x r = {eta_x:g} * {r:g}"
        raise ValueError(f"a kick of length {longest} is below rounding at |x| = 1; choose a larger radius r")


@dataclass(frozen=True)
class Escape:
    """The theorem's step, radius of the kick, steps between two kicks, and accuracy of d."""

    eta_x: float
    r: float
    T_p: int
    zeta: float

    @classmethod
    def from_theory(cls, L: float, rho: float, eps: float, dx: int, delta_fail: float) -> Escape:
        """For an L-smooth function with a rho-Lipschitz Hessian; it may fail with probability delta_fail.

        iota is the smallest number >= 1 with L sqrt(dx) iota^2 2^(8-iota)/sqrt(rho eps) <= delta_fail.
        """
        from scipy.optimize import brentq  # here: it takes a worker process a third of a second

        if not rho > 0:
            raise InvalidInput(
                f"the theory preset divides by the Hessian-Lipschitz constant of phi, and rho = {rho:g} here; "
                "take the rate preset, or set eta_x, r and T_p yourself"
            )
        crossing = math.sqrt(rho * eps)
        level = math.log2(L * math.sqrt(dx) / (crossing * delta_fail)) + 8

        def excess(iota: float) -> float:
            return level + 2 * math.log2(iota) - iota

        # it grows until 2/ln 2 and falls from there
        iota = 1.0 if excess(1.0) <= 0 else float(brentq(excess, 2 / math.log(2), 2 * level + 20, xtol=1e-12))
        return cls(
            eta_x=1 / L,
            r=eps / (400 * iota**3),
            T_p=max(1, math.ceil(iota * L / crossing)),
            zeta=eps * min(1 / (20 * iota**2), 1 / (16 * iota**2 * 2**iota)),
        )


class Perturbed(Algorithm):
    """A method with kicks, whose state has `kicks`; the answer is the last x that was kicked, with its y."""

    reports = "own"

    eps: PositiveFloat = 1e-2
    """accuracy; a kick is due where |d| <= 0.8 eps"""
    T_p: PerLane[PositiveInt] = 50
    """steps between two kicks, at least"""
    r: PositiveFloat | None = None
    """radius of the kick, before it is scaled by eta_x; default eps/10"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""

    @model_validator(mode="after")
    def _kick_above_rounding(self) -> Self:
        check_radius(self.r, self.eta_x)
        return self

    def answer(self, s: Any) -> tuple[Tensor, Tensor]:
        return s.kicks.x, s.kicks.y

    def x_step(self) -> float | None:
        return self.eta_x
