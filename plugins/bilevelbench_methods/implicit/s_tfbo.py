"""S-TFBO: one step on each of three coupled equations, with step lengths that need no tuning.

    D_y <- g_y(x, y),   D_v <- H(x, y) v - f_y(x, y),   D_x <- f_x(x, y) - J(x, y) v
    beta^2 <- beta^2 + |D_y|^2,   gamma^2 <- gamma^2 + |D_v|^2,   alpha^2 <- alpha^2 + |D_x|^2
    y <- y - D_y/beta,   v <- v - D_v/max(beta, gamma),   x <- x - D_x/(alpha max(beta, gamma))

All directions at the old (x, y, v). Yang, Ban, Huang, Ma, Ji, "Tuning-free bilevel optimization: new algorithms and convergence
analysis", ICLR 2025; the pairing of accumulators and variables is that of the authors' code. Their abstract counts
eps^-1 log^4(1/eps) steps for |grad phi|^2 <= eps, each of a bounded number of calls.

Our choices: v starts at zero; exact answers alone; nothing is added to the accumulators against division by zero, which start
above zero; (J v, H v) is one joint query.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch

from bilevelbench import Claim, Constants, KnownFailure, Oracle
from bilevelbench_methods.implicit.single_loop import CALLS, Triple, directions
from bilevelbench_methods.implicit.tuning_free import State, TuningFree, grown


class STFBO(TuningFree):
    name = "s_tfbo"
    title = "S-TFBO"
    paper = "https://arxiv.org/abs/2410.05140"
    uses = frozenset(CALLS)
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            setting="deterministic", oracle="HVP", eps_exp=2, tilde=True, log_power=4, source="other paper",
            log_source="other paper", reference="Yang, Ban, Huang, Ma, Ji 2025",
        ),
    )  # fmt: skip
    known_exceptions = {
        "progress": KnownFailure(
            reason="a step of x is divided by two accumulators, which long remember large first directions: from "
            "|grad phi| = 10 it takes about 1000 steps to halve it, and 20,000 to come to 3e-3",
            says="to half of that within 300 steps",
        )
    }

    def step(self, s: State, oracle: Oracle) -> State:
        D = directions(oracle, Triple(s.x, s.y, s.v), None, None)
        alpha, beta, gamma = grown(s.alpha, D.x), grown(s.beta, D.y), grown(s.gamma, D.v)
        larger = torch.maximum(beta, gamma)
        return State(
            x=s.x - D.x / (alpha * larger),
            y=s.y - D.y / beta,
            v=s.v - D.v / larger,
            alpha=alpha,
            beta=beta,
            gamma=gamma,
            k=s.k + 1,
        )

    def calls(self, step: int) -> dict[str, int]:
        return CALLS

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """Nothing depends on eps or on a constant; `scale` is that of the first step of x."""
        return cls(alpha0=1 / scale)
