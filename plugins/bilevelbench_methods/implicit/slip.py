"""SLIP: SOBA with a moving average of the x-direction and x-steps whose length does not depend on it.

    D_y, D_v, D_x <- the directions of SOBA at (x, y, v), from one sample of g and one of f
    before the first step, T0 times:  y <- y - a D_y,   v <- v - a D_v;         r <- |D_x| of the last time
    m <- (1 - w_k) m + w_k D_x
    y <- y - a_k D_y,   v <- v - a_k D_v,   x <- x - b_k r m/|m|                x stays where m = 0

with a_k = a (k+1)^-power, w_k = min(1, w (k+1)^-power) and b_k = b (k+1)^(-3/2 power). Gong, Hao, Liu, "A nearly optimal single
loop algorithm for stochastic bilevel optimization under unbounded smoothness", ICML 2024: a normalised step does not need a
smoothness constant that holds everywhere. For accuracy eps the theorem's weight and step of y are ~ eps^2 and the length of
an x-step ~ eps^3; with T ~ eps^-4 steps these are T^-1/2 and T^-3/4 (`from_horizon`), and the decays are the same powers of k.

Our choices: lengths are in units of r, about |grad phi(x0)|, so that b is a step as in other methods and not a length, which
would depend on the scale of the problem; r is one where it would be zero. The paper brings y alone near to y*(x0) before the
first step; r needs v as well, which starts at zero, where the authors' program takes a random vector. y and v have one
step. Steps and weight decay, where that program has constants and 1 - w = 0.9. T0, w and the default steps.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, norm
from bilevelbench_methods.implicit.ma_soba import MASOBA
from bilevelbench_methods.implicit.single_loop import State, Triple, claimed, decayed, directions, or_one


class SLIP(MASOBA):
    name = "slip"
    title = "SLIP"
    paper = "https://arxiv.org/abs/2412.20017"
    claims: ClassVar[tuple[Claim, ...]] = (
        claimed(
            "full", 4, "Gong, Hao, Liu 2024", note="also where the smoothness of f grows with |grad phi|", tilde=True
        ),
    )  # fmt: skip

    b: PositiveFloat | None = None
    """length of an x-step over that of the first hypergradient; default 1/L_phi"""
    w: PositiveFloat = 4.0
    """weight of the newest direction in the average at the first step, one at most; it decays as the step of y"""
    T0: PositiveInt = 10
    """steps of y and v before x moves"""

    def resolve(self, constants: Constants) -> Self:
        known = self.fill(constants, b=lambda c: 1 / c.L_phi)  # twice the usual one: lengths decay faster than steps
        return super(SLIP, known).resolve(constants)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        y, v, r = y0, torch.zeros_like(y0), torch.ones_like(x0[..., :1])
        for _ in oracle.repeat(self.T0):
            D = directions(oracle, Triple(x0, y, v), *self.draw(oracle, self.sampling))
            y, v, r = y - self.a * D.y, v - self.a * D.v, norm(D.x)
        return State(x=x0, y=y, v=v, k=0, memory=(torch.zeros_like(x0), or_one(r)))

    def estimate(self, s: State, oracle: Oracle) -> tuple[Triple, tuple[Tensor, Tensor]]:
        m, r = s.memory
        D, m = self.averaged(s, m, oracle)
        slower = decayed(0.5 * self.power, s.k)  # x-steps decay by half a power more
        return Triple(x=slower * r * m / or_one(norm(m)), y=D.y, v=D.v), (m, r)

    def x_step(self) -> float | None:
        return None  # a length, whatever the gradient

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """a and w ~ T^-1/2 and b ~ T^-3/4 throughout, single data."""
        b = min(1 / constants.L_phi, scale * steps**-0.75)
        return super().from_horizon(constants, steps, scale).model_copy(update={"b": b})
