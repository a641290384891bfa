"""MA-SOBA: SOBA with a moving average of the x-direction.

    D_y, D_v, D_x <- the directions of SOBA at (x, y, v), from one sample of g and one of f
    h <- (1 - w_k) h + w_k D_x
    y <- y - a_k D_y,   v <- v - a_k D_v,   x <- x - b_k h

with a_k = a (k+1)^-power, b_k = b (k+1)^-power and w_k = min(1, w (k+1)^-power). Chen, Xiao, Balasubramanian, "Optimal
algorithms for stochastic bilevel optimization under relaxed smoothness conditions", JMLR 2024: the average takes the place of
the higher derivatives that SOBA's theorem asks for. There all four are proportional to T^-1/2 for a known number of steps T
(`from_horizon`); the theorem is about a uniformly random iterate.

Our choices: x moves with the new h, which is immaterial to the rate; y and v have one step; with the default w = 1 the first h
is the first direction, where a smaller w would damp the first 1/w steps, since h starts at zero and the original has no
correction of that bias; the default steps are those of SOBA.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from bilevelbench import Claim, Oracle
from bilevelbench_methods.implicit.single_loop import Decreasing, State, Triple, Weighted, claimed, directions


class MASOBA(Weighted, Decreasing):
    name = "ma_soba"
    title = "MA-SOBA"
    paper = "https://arxiv.org/abs/2306.12067"
    reports = "random"
    claims: ClassVar[tuple[Claim, ...]] = (claimed("full", 4, "Chen, Xiao, Balasubramanian 2024"),)

    def estimate(self, s: State, oracle: Oracle) -> tuple[Triple, Any]:
        D, h = self.averaged(s, torch.zeros_like(s.x) if s.memory is None else s.memory, oracle)
        return Triple(x=h, y=D.y, v=D.v), h

    def averaged(self, s: State, h: Tensor, oracle: Oracle) -> tuple[Triple, Tensor]:
        """The directions, and h with that of x in it."""
        D, w = directions(oracle, s.at, *self.draw(oracle, self.sampling)), self.weight(s.k)
        return D, (1 - w) * h + w * D.x
