"""PZOBO: the response Jacobian of the lower level by finite differences along random directions.

    y+ <- D steps of gradient descent on g(x, .) from s
    j = 1..Q:  u_j normal,  w_j <- the same D steps on g(x + h u_j, .) from the same s
    d <- f_x(x, y+) + (1/Q) sum_j <(w_j - y+)/h, f_y(x, y+)> u_j
    x <- x - eta_x d;  y <- y+

s is the previous y (`warm_start`) or y0. Sow, Ji, Liang, "On the convergence theory for Hessian-free bilevel algorithms",
NeurIPS 2022. Our choice: Gaussian directions, which need no factor dx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, InvalidInput, Oracle, PerLane, dot, keep, norm, over_points
from bilevelbench_methods.descent import lower_gd

_FAR = 1e8  # beyond this it is x that has diverged, not h that is too small


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    y0: Tensor


class PZOBO(Algorithm):
    name = "pzobo"
    family = "zeroth-order"
    uses = frozenset({"grad_f", "grad_g_y"})
    tuned = {"eta_x": "upper_step", "a": "lower_step"}
    claims = (
        Claim(
            table=1, setting="deterministic", oracle="gradient", eps_exp=4, tilde=True, log_power=1, extra="dx^2",
            log_source="other paper", reference="Sow, Ji, Liang 2022",
        ),
    )  # fmt: skip

    Q: PositiveInt = 5
    """random directions"""
    D: PerLane[PositiveInt] = 10
    """lower-level steps"""
    h: PositiveFloat = 1e-2
    """smoothing radius"""
    warm_start: bool = True
    """start the lower level at the previous y instead of y0"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(8 L_phi)"""
    a: PositiveFloat | None = None
    """lower-level step; default 1/L_g"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, eta_x=lambda c: 1 / (8 * c.L_phi), a=lambda c: 1 / c.L_gy)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, y0=y0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, u = s.x, oracle.normal(self.Q, oracle.dx)
        X, lost = perturbed(x, u, self.h)
        start = (s.y if self.warm_start else s.y0).expand(self.Q + 1, -1, -1)
        W = lower_gd(oracle, X, start, self.D, self.a)
        y, w = W[0], W[1:]
        f_x, f_y = oracle.grad_f(x, y)
        d = keep(~lost, f_x + over_points(dot((w - y) / self.h, f_y) * u) / self.Q, torch.full_like(x, torch.nan))
        return State(x=x - self.eta_x * d, y=y, y0=s.y0)

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_f": 1, "grad_g_y": (self.Q + 1) * self.D}

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """eta_x ~ 1/(dx sqrt(T)) with one direction; dx is that of the default instance, 2."""
        eta_x = scale / steps**0.5
        return cls(Q=1, D=10, h=1e-4, a=1 / constants.L_gy, eta_x=eta_x)


def perturbed(x: Tensor, u: Tensor, h: float | Tensor) -> tuple[Tensor, Tensor]:
    """x and the points x + h u_j, (Q + 1, L, dx), and the lanes, diverged ones, where rounding loses most of h u."""
    X = torch.cat([x[None], x + h * u])
    lost = (norm((X[1:] - x) / h - u) > 0.5 * norm(u)).any(0)
    if bool((lost & (norm(x) < _FAR)).any()):
        raise InvalidInput(
            f"h = {torch.as_tensor(h).max().item():g} is below rounding at |x| = {norm(x).max().item():.3g}: x + h u loses "
            "most of h u; choose a larger radius h"
        )
    return X, lost
