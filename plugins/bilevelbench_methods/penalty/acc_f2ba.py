"""AccF2BA: F2BA with Nesterov's momentum on x, restarts, and kicks that leave saddles.

    w <- x + (1 - theta)(x - x_prev)
    K_t times:  z <- z - a_z g_y(w, z);   y <- y - a_y (f_y(w, y)/lam + g_y(w, y))
    d <- f_x(w, y) + lam (g_x(w, y) - g_x(w, z))
    x <- w - eta_x d, then the test for a restart: `bilevelbench_methods/restarted.py`

y and z are warm-started, also across a restart. Chen, Ma, Zhang, "Near-Optimal Nonconvex-Strongly-Convex Bilevel Optimization
with Fully First-Order Oracles", JMLR 2025, Algorithm 4, in the scale-free form a = lam eta. The defaults are those of its
experiment, with the thresholds 10 and 0.1 of the authors' script. With `zeta`,

    K_t = max(K, (8 L_g/mu) log(4 lam L_g sqrt(delta)/zeta)),   c = 34 (L_g/mu)^2:

delta is a squared distance, so its root belongs into the logarithm, and twice the printed factor before it. With `momentum`
the steps of y and z are those of Nesterov's method: AccF2BA+, `penalty/lower_pair.py`.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

from pydantic import PositiveInt
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, PerLane, dot
from bilevelbench_methods.penalty.lower_pair import LowerPair
from bilevelbench_methods.penalty.pair import USES, lower_steps, penalty_gradient
from bilevelbench_methods.penalty.pf2ba import second_order_penalty
from bilevelbench_methods.restarted import Restarted, State


class AccF2BA(LowerPair, Restarted):
    name = "acc_f2ba"
    title = "AccF²BA"
    paper = "https://arxiv.org/abs/2306.14853"
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

    K: PerLane[PositiveInt] = 10
    """lower-level steps; with zeta the fewest"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill_lower(constants, eta_x=lambda c: 1 / (4 * c.L_phi))

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
        K: int | Tensor = self.K
        if self.zeta is not None:
            K = lower_steps(oracle, delta, self.lam, self.zeta, self.K, self.steps_to_shrink)
        y, z, *_ = self.lower_level(oracle, w, *s.lower, K)
        return penalty_gradient(oracle, w, y, z, self.lam), (y, z), K

    def response(self, oracle: Oracle) -> float | Tensor:
        ratio = oracle.constant("L_g") / oracle.constant("mu")
        return 34 * ratio * ratio

    def calls(self, step: int) -> dict[str, int] | None:
        return super().calls(step) if self.zeta is None else None

    @classmethod
    def from_theory(cls, constants: Constants, eps: float, dx: int = 100, delta_fail: float = 0.1) -> Self:
        """The theorem with its constants repaired. dx bounds the dimension of x: only its logarithm matters."""
        c = constants
        outer = cls.theory(c.L_star, c.rho_star, eps, dx, delta_fail)
        lam = second_order_penalty(c, eps)
        delta0 = 3 * c.R + 2 * (c.C_f / (lam * c.mu)) ** 2 if "R" in c else None
        K = math.ceil(cls().steps_to_shrink(2, c.L_gy / c.mu))
        return cls(lam=lam, K=K, delta0=delta0, **outer).resolve(c)

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """lam ~ 1/eps, K as that of F2BA, theta ~ eps^(1/4), B ~ eps^(1/2); `scale` is that of B."""
        c = constants
        lam = 2 / eps
        K = max(1, math.ceil(cls().steps_to_shrink(math.log(lam) / 2, c.L_gy / c.mu)))
        return cls(lam=lam, K=K, **cls.rate(c, eps, scale)).resolve(c)
