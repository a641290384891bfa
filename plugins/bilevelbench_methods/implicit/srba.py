"""SRBA: the directions of SOBA by recursive differences (SARAH), made anew in every q-th step.

    k mod q = 0:  D <- the directions of SOBA with the whole sums at (x, y, v)
    otherwise:    D <- D + d(x, y, v; xi, zeta) - d(x', y', v'; xi, zeta)      (x', y', v'): the point before, the same samples
    y <- y - a D_y,   v <- P(v - a D_v),   x <- x - b D_x                      all at the old (x, y, v)

P projects on the ball of radius `radius`, where one is given: the paper's is C_f/mu, the released program has none.
Dagreou, Moreau, Vaiter, Ablin, "A lower bound and a near-optimal algorithm for bilevel empirical risk minimization", AISTATS
2024, for finite sums only. There single data, a period q = n + m of the data of both levels, and steps ~ (n+m)^-1/2
(`from_rate`). v' belongs to the old point: the difference of the products is H v - H' v', not (H - H') v.

Our choices: the default period (n+m)/(2 batch), as in the authors' program; the default steps; rows are drawn independently.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, PerLane
from bilevelbench_methods.implicit.single_loop import CALLS, Recursive, State, claimed, data, followed, in_ball


class SRBA(Recursive):
    name = "srba"
    title = "SRBA"
    paper = "https://arxiv.org/abs/2302.08766"
    finite_sum_only = True
    claims: ClassVar[tuple[Claim, ...]] = (
        claimed("finite_sum", 2, "Dagreou, Moreau, Vaiter, Ablin 2024", n_exp=1 / 2),
    )

    period: PerLane[PositiveInt] | None = None
    """steps from one refresh to the next; default (n_f + n_g)/(2 batch), rounded up"""
    radius: PositiveFloat | None = None
    """v is kept in a ball of this radius; default: it is not"""

    def resolve(self, constants: Constants) -> Self:
        return super().resolve(constants).fill(constants, period=lambda c: math.ceil(data(c) / (2 * self.batch)))

    def refreshes(self, s: State, oracle: Oracle) -> Tensor:
        return torch.as_tensor(s.k % self.period == 0)

    def confined(self, v: Tensor) -> Tensor:
        return v if self.radius is None else in_ball(v, self.radius)

    def calls(self, step: int) -> dict[str, int] | None:
        if self.period is None:
            return None
        return CALLS if (step - 1) % self.period == 0 else {query: 2 * n for query, n in CALLS.items()}

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """Single data, a refresh every n + m steps, and steps ~ (n+m)^-1/2; nothing depends on eps."""
        a = min(1.0, scale * data(constants) ** -0.5) / constants.L_gy
        return cls(a=a, b=followed(constants, a), batch=1, period=data(constants))
