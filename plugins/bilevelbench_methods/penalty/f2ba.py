"""F2BA: fully first-order bilevel approximation.

    K times:  z <- z - a_z g_y(x, z)                          z follows y*(x)
              y <- y - a_y (f_y(x, y)/lam + g_y(x, y))        y follows y_lam*(x)
    d <- f_x(x, y) + lam (g_x(x, y) - g_x(x, z))              d is close to grad phi(x)
    x <- x - eta_x d

y and z are both warm-started; z is never reset to y. Chen, Ma, Zhang, "Near-Optimal Nonconvex-Strongly-Convex Bilevel
Optimization with Fully First-Order Oracles", JMLR 2025, Algorithm 1, in the scale-free form a = lam eta. The paper's
algorithm names no output; ours is the visited x with the smallest |d|, with its y. With `momentum` the steps of y and z are
those of Nesterov's method: F2BA+, `penalty/lower_pair.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from pydantic import PositiveFloat
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, keep, norm
from bilevelbench_methods.penalty.lower_pair import LowerPair
from bilevelbench_methods.penalty.pair import USES, penalty_gradient


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    z: Tensor
    best_x: Tensor
    best_y: Tensor
    best_d: Tensor
    size_y: Tensor
    size_z: Tensor


class F2BA(LowerPair):
    name = "f2ba"
    title = "F²BA"
    paper = "https://arxiv.org/abs/2306.14853"
    family = "penalty"
    uses = USES | {"mu"}
    tuned = {"eta_x": "upper_step", "a_y": "lower_step", "a_z": "lower_step", "lam": "penalty"}
    reports = "own"
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            table=1, setting="deterministic", oracle="gradient", eps_exp=2, tilde=True, log_power=1, kappa_exp=4,
            extra="ell", reference="Chen, Ma, Zhang 2025, Theorem 1",
        ),
    )  # fmt: skip

    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill_lower(constants, eta_x=lambda c: 1 / (2 * c.L_phi))

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        unknown = torch.full_like(x0[..., :1], torch.nan)
        worst = torch.full_like(unknown, torch.inf)
        return State(x=x0, y=y0, z=y0, best_x=x0, best_y=y0, best_d=worst, size_y=unknown, size_z=unknown)

    def step(self, s: State, oracle: Oracle) -> State:
        x = s.x
        y, z, U, V = self.lower_level(oracle, x, s.y, s.z, self.K)
        d = penalty_gradient(oracle, x, y, z, self.lam)
        size = norm(d)
        better = size < s.best_d
        return State(
            x=x - self.eta_x * d,
            y=y,
            z=z,
            best_x=keep(better, x, s.best_x),
            best_y=keep(better, y, s.best_y),
            best_d=keep(better, size, s.best_d),
            size_y=norm(U),
            size_z=norm(V),
        )

    def answer(self, s: State) -> tuple[Tensor, Tensor]:
        return s.best_x, s.best_y

    def extras(self, s: State) -> dict[str, Tensor]:
        """|f_y + lam g_y| at y (the paper's scale of the penalty function) and |g_y| at z, as the last lower step saw them."""
        return {"L_lam_y": self.lam * s.size_y, "g_y_z": s.size_z}

    def x_step(self) -> float | None:
        return self.eta_x

    @classmethod
    def from_theory(cls, constants: Constants, eps: float) -> Self:
        """Theorem 1 with its constants repaired: lam, K and eta_x from the problem's constants."""
        c = constants
        lam = max(2 * c.L_f / c.mu, 2 * c.D1 / eps)
        if "Delta" in c and c.Delta > 0:
            lam = max(lam, c.D0 / c.Delta)
        if "R" in c and c.R > 0:
            lam = max(lam, c.C_f / (c.mu * math.sqrt(c.R)))
        eta_x = 1 / (2 * c.L_star)
        ratio, steps = c.L_gy / c.mu, cls().steps_to_shrink
        inside = max(1360 * eta_x**2 * c.L_g**2 / c.mu**2, 5 * eta_x)
        shrink = max(2 * math.log(lam * c.L_g) + math.log(inside), 2)
        K = max(1, math.ceil(steps(shrink, ratio)))
        return cls(lam=lam, K=K, eta_x=eta_x).resolve(c)

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """lam ~ 1/eps, K ~ kappa log lam, with momentum the root of kappa, a constant x-step."""
        c = constants
        lam = 2 * scale / eps
        K = max(1, math.ceil(cls().steps_to_shrink(math.log(lam) / 2, c.L_gy / c.mu)))
        return cls(lam=lam, K=K, eta_x=0.4 / c.L_phi).resolve(c)
