"""SOBA: one stochastic step on each of three coupled equations.

    y <- y - a_k  g_y(x, y; xi)                             y follows y*(x)
    v <- v - a_k (H(x, y; xi) v - f_y(x, y; zeta))          v follows H^-1 f_y
    x <- x - b_k (f_x(x, y; zeta) - J(x, y; xi) v)          H = g_yy, J = g_xy

All right-hand sides use the old (x, y, v); one sample xi of g serves g_y, H v and J v, one sample zeta of f serves f_x and
f_y; a_k = a (k+1)^-power and b_k = b (k+1)^-power. Dagreou, Ablin, Vaiter, Moreau, "A framework for bilevel optimization that
enables stochastic and global variance reduction algorithms", NeurIPS 2022. For a known number of steps T the steps are
constants ~ T^-1/2 (`from_horizon`); a decay of 1/2 costs a logarithm more. Their theorem bounds the mean over the iterates, so
the answer is a uniformly random one. With equal decays the ratio b/a decides: both are tuned.

Our choices: v starts at zero; the batches of f and g have one size; the default steps, of which that of x is one that y and v
can follow; (J v, H v) is one joint query, since both are products at the same point, with the same vector and the same sample.
"""

from __future__ import annotations

from typing import ClassVar, Self

from bilevelbench import Claim, Constants, Oracle
from bilevelbench_methods.implicit.single_loop import Decreasing, State, Triple, claimed, directions, followed


class SOBA(Decreasing):
    name = "soba"
    title = "SOBA"
    paper = "https://arxiv.org/abs/2201.13409"
    reports = "random"
    claims: ClassVar[tuple[Claim, ...]] = (
        claimed(
            "full", 4, "Dagreou, Ablin, Vaiter, Moreau 2022; kappa: Zhou, Luo, Dai, Ye 2026",
            note="and Lipschitz second derivatives of f and third derivatives of g",
            kappa_exp=7, kappa_source="other paper",
        ),
    )  # fmt: skip

    def estimate(self, s: State, oracle: Oracle) -> tuple[Triple, None]:
        return directions(oracle, s.at, *self.draw(oracle, self.sampling)), None

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """a and b ~ T^-1/2 throughout, single data."""
        a = min(1.0, scale * steps**-0.5) / constants.L_gy
        return cls(a=a, b=followed(constants, a), power=0, batch=1)
