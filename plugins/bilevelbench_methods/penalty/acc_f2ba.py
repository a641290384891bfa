"""AccF2BA: F2BA with Nesterov's momentum on x, restarts, and kicks that leave saddles.

    w <- x + (1 - theta)(x - x_prev)
    K_t times:  z <- z - a_z g_y(w, z);   y <- y - a_y (f_y(w, y)/lam + g_y(w, y))
    d <- f_x(w, y) + lam (g_x(w, y) - g_x(w, z))
    x <- w - eta_x d, then the test for a restart: `bilevelbench_methods/restarted.py`

y and z are warm-started, also across a restart. Chen, Ma, Zhang, "Near-Optimal Nonconvex-Strongly-Convex Bilevel Optimization
with Fully First-Order Oracles", JMLR 2025, Algorithm 4, in the scale-free form a = lam eta. The defaults are those of its
experiment, with the thresholds 10 and 0.1 of the authors' script. With `zeta`,

    K_t = max(K, (8 L_g/mu) log(4 lam L_g sqrt(delta)/zeta)),   c = 34 (L_g/mu)^2:

delta is a squared distance, so its root belongs into the logarithm, and twice the printed factor before it.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, PerLane, dot
from bilevelbench_methods.penalty.pair import USES, lower_steps, pen_pair, penalty_gradient
from bilevelbench_methods.penalty.pf2ba import second_order_penalty
from bilevelbench_methods.restarted import Restarted, State


class AccF2BA(Restarted):
    name = "acc_f2ba"
    loop = "K_t"
    family = "penalty"
    uses = USES | {"mu", "L_g", "L_gy", "C_f"}
    tuned = {"eta_x": "upper_step", "a_y": "lower_step", "a_z": "lower_step", "lam": "penalty"}
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            table=3, setting="deterministic", oracle="gradient", eps_exp=1.75, tilde=True, log_power=7, kappa_exp=3.75,
            log_source="derived",  # chi^6 steps of log lower-level steps
            reference="Chen, Ma, Zhang 2025",
        ),
    )  # fmt: skip

    lam: PositiveFloat = 1000.0
    """penalty"""
    K: PerLane[PositiveInt] = 10
    """lower-level steps; with zeta the fewest"""
    a_y: PositiveFloat | None = None
    """effective step of y; default 1/(2 L_g)"""
    a_z: PositiveFloat | None = None
    """effective step of z; default 1/(2 L_g)"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(
            constants,
            eta_x=lambda c: 1 / (4 * c.L_phi),
            a_y=lambda c: 1 / (2 * c.L_gy),
            a_z=lambda c: 1 / (2 * c.L_gy),
        )

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        delta: float | Tensor | None = self.delta0
        if self.zeta is not None and delta is None:
            g_y, mu = oracle.mean(oracle.grad_g_y(x0, y0)), oracle.constant("mu")
            away = oracle.constant("C_f") / (self.lam * mu)  # |y_lam* - y*| is at most this
            delta = 3 * dot(g_y, g_y) / (mu * mu) + 2 * away * away
        return self.start(x0, (y0, y0), delta)

    def hypergradient(
        self, w: Tensor, s: State, delta: Tensor, oracle: Oracle
    ) -> tuple[Tensor, tuple[Tensor, Tensor], int | Tensor]:
        K = self.K if self.zeta is None else lower_steps(oracle, delta, self.lam, self.zeta, self.K)
        y, z, *_ = pen_pair(oracle, w, *s.lower, K, self.lam, self.a_y, self.a_z)
        return penalty_gradient(oracle, w, y, z, self.lam), (y, z), K

    def response(self, oracle: Oracle) -> float | Tensor:
        ratio = oracle.constant("L_g") / oracle.constant("mu")
        return 34 * ratio * ratio

    def calls(self, step: int) -> dict[str, int] | None:
        if self.zeta is not None:
            return None
        return {"grad_f_x": 1, "grad_f_y": self.K, "grad_g_x": 2, "grad_g_y": 2 * self.K}

    @classmethod
    def from_theory(cls, constants: Constants, eps: float, dx: int = 100, delta_fail: float = 0.1) -> Self:
        """The theorem with its constants repaired. dx bounds the dimension of x: only its logarithm matters."""
        c = constants
        outer = cls.theory(c.L_star, c.rho_star, eps, dx, delta_fail)
        lam = second_order_penalty(c, eps)
        delta0 = 3 * c.R + 2 * (c.C_f / (lam * c.mu)) ** 2 if "R" in c else None
        a = 1 / (2 * c.L_gy)
        return cls(lam=lam, K=math.ceil(8 * c.L_gy / c.mu), a_y=a, a_z=a, delta0=delta0, **outer)

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """lam ~ 1/eps, K ~ kappa log lam, theta ~ eps^(1/4), B ~ eps^(1/2); `scale` is that of B."""
        c = constants
        lam, a = 2 / eps, 1 / (2 * c.L_gy)
        K = max(1, math.ceil(2 * (c.L_gy / c.mu) * math.log(lam)))
        return cls(lam=lam, K=K, a_y=a, a_z=a, **cls.rate(c.L_phi, eps, scale))
