"""BOME: move (x, y) as close to -grad f as still decreases the value gap of the lower level.

    z  <- K steps of gradient descent on g(x, .) from y
    qx <- g_x(x, y) - g_x(x, z);   qy <- g_y(x, y);   n2 <- |qx|^2 + |qy|^2
    m  <- max((barrier - <f_x, qx> - <f_y, qy>) / (n2 + 1e-8), 0)
    x  <- x - xi_x (f_x + m qx);   y <- y - xi_y (f_y + m qy)          simultaneous, old values on the right

barrier = eta n2 (`norm`), or eta (g(x, y) - g(x, z)) (`gap`, the authors' code; two function values a step).
Liu, Ye, Wright, Stone, Liu, "BOME! Bilevel optimization made easy", NeurIPS 2022, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, Oracle, PerLane, dot
from bilevelbench_methods.descent import lower_gd
from bilevelbench_methods.penalty.pair import WEAKER_NOTION


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    residual: Tensor


class BOME(Algorithm):
    name = "bome"
    title = "BOME"
    paper = "https://arxiv.org/abs/2209.08709"
    family = "penalty"
    uses = frozenset({"grad_f", "grad_g", "grad_g_x", "grad_g_y", "value_g"})
    tuned = {"xi_x": "upper_step", "a": "lower_step"}
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            table=1, setting="deterministic", oracle="gradient", eps_exp=6, tilde=True, log_power=1,
            log_source="other paper",
            footnote=f"{WEAKER_NOTION}; the method's own paper bounds a KKT residual of f subject to g - g* <= 0",
            reference="Liu, Ye, Wright, Stone, Liu 2022",
        ),
    )  # fmt: skip

    K: PerLane[PositiveInt] = 10
    """lower-level steps"""
    eta: PositiveFloat = 0.5
    """strength of the barrier"""
    barrier: Literal["norm", "gap"] = "norm"
    """what the barrier is proportional to"""
    xi_x: PositiveFloat = 0.01
    """x-step"""
    xi_y: PositiveFloat | None = None
    """y-step; default xi_x"""
    a: PositiveFloat | None = None
    """lower-level step; default 1/L_g"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, xi_y=lambda c: self.xi_x, a=lambda c: 1 / c.L_gy)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, residual=torch.full_like(x0[..., :1], torch.inf))

    def step(self, s: State, oracle: Oracle) -> State:
        x, y = s.x, s.y
        z = lower_gd(oracle, x, y, self.K, self.a)
        f_x, f_y = oracle.grad_f(x, y)
        g_x, qy = oracle.grad_g(x, y)
        qx = g_x - oracle.grad_g_x(x, z)
        f_x, f_y, qx, qy = oracle.mean(f_x, f_y, qx, qy)
        n2 = dot(qx, qx) + dot(qy, qy)
        gap = n2 if self.barrier == "norm" else oracle.mean(oracle.value_g(x, y) - oracle.value_g(x, z))
        m = ((self.eta * gap - dot(f_x, qx) - dot(f_y, qy)) / (n2 + 1e-8)).clamp(min=0)
        dx, dy = f_x + m * qx, f_y + m * qy
        return State(x=x - self.xi_x * dx, y=y - self.xi_y * dy, residual=(dot(dx, dx) + dot(dy, dy)).sqrt())

    def extras(self, s: State) -> dict[str, Tensor]:
        return {"kkt_residual": s.residual}

    def calls(self, step: int) -> dict[str, int]:
        values = {} if self.barrier == "norm" else {"value_g": 2}
        return {"grad_f": 1, "grad_g": 1, "grad_g_x": 1, "grad_g_y": self.K, **values}

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0, power: float = 0.5) -> Self:
        """xi ~ T^-power for both levels, K = 20; the power 1/2 is that of the method's paper."""
        xi = 0.25 * scale * (steps / 64) ** -power
        return cls(K=20, xi_x=xi, xi_y=xi, a=1 / (2 * constants.L_gy))
