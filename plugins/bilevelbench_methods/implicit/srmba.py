"""SRMBA: the directions of SOBA with recursive momentum (STORM).

    d(.) <- the directions of SOBA from one sample of g and one of f, the same at both points
    D <- d(x, y, v) + (1 - w_k) (D - d(x', y', v'))                    (x', y', v'): the point before; k = 0: D <- d(x, y, v)
    y <- y - a_k D_y,   v <- v - a_k D_v,   x <- x - b_k D_x           all at the old (x, y, v)

with a_k = a (k+1)^-power, b_k = b (k+1)^-power and w_k = min(1, w (k+1)^(-2 power)): the weight goes with the square of the
steps. Chu, Xu, Yao, Zhang, "SPABA: a single-loop and probabilistic stochastic bilevel algorithm achieving optimal sample
complexity", ICML 2024, where it is a sibling of SPABA. The theorem asks for power = 1/3 and mean-squared smooth samples; for a
known number of steps T the steps are constants ~ T^-1/3 and the weight ~ T^-2/3 (`from_horizon`). v' belongs to the old
point as x' and y' do: the difference of the products is H v - H' v', not (H - H') v.

Our choices: one weight for the three directions, one step for y and v, the default steps and w.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeFloat

from bilevelbench import Claim, Oracle
from bilevelbench_methods.implicit.single_loop import Decreasing, State, Triple, Weighted, claimed


class SRMBA(Weighted, Decreasing):
    name = "srmba"
    title = "SRMBA"
    paper = "https://arxiv.org/abs/2405.18777"
    reports = "random"
    weight_power = 2
    claims: ClassVar[tuple[Claim, ...]] = (
        claimed("full", 3, "Chu, Xu, Yao, Zhang 2024", tilde=True, mean_squared_smooth=True),
    )

    power: NonNegativeFloat = 1 / 3
    """decay of both steps"""

    def estimate(self, s: State, oracle: Oracle) -> tuple[Triple, tuple[Triple, Triple]]:
        xi, zeta = self.draw(oracle, self.sampling)
        D = self.directions(oracle, s.at, xi, zeta)
        if s.memory is not None:
            last, before = s.memory
            D = D + (last - self.directions(oracle, before, xi, zeta)).times(1 - self.weight(s.k))
        return D, (D, s.at)

    def calls(self, step: int) -> dict[str, int] | None:
        return {query: n if step == 1 else 2 * n for query, n in self.calls_of_a_point.items()}
