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

from typing import ClassVar, Self

import torch
from pydantic import PositiveFloat
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle
from bilevelbench_methods.implicit.single_loop import Decreasing, State, Triple, claimed, directions, followed


class MASOBA(Decreasing):
    name = "ma_soba"
    reports = "random"
    claims: ClassVar[tuple[Claim, ...]] = (claimed("full", 4, "Chen, Xiao, Balasubramanian 2024"),)

    w: PositiveFloat = 1.0
    """weight of the newest direction in the average at the first step; it decays as the steps do"""

    def estimate(self, s: State, oracle: Oracle) -> tuple[Triple, Tensor]:
        D = directions(oracle, s.at, *self.draw(oracle, self.sampling))
        h = torch.zeros_like(s.x) if s.memory is None else s.memory
        w = torch.as_tensor(self.w * self.decay(s.k)).clamp(max=1)
        h = (1 - w) * h + w * D.x
        return Triple(x=h, y=D.y, v=D.v), h

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """a, b and w ~ T^-1/2 throughout, single data."""
        size = min(1.0, scale * steps**-0.5)
        a = size / constants.L_gy
        return cls(a=a, b=followed(constants, a), w=min(1.0, 4 * size), power=0, batch=1)
