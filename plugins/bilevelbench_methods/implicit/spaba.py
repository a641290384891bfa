"""SPABA: the directions of SOBA by recursive differences, made anew by the toss of a coin (PAGE).

    with probability p, and at first:  D <- the directions of SOBA with the whole sums, or with `big` data of each level
    otherwise:  D <- D + d(x, y, v; xi, zeta) - d(x', y', v'; xi, zeta)        (x', y', v'): the point before, the same samples
    y <- y - a D_y,   v <- v - a D_v,   x <- x - b D_x                         all at the old (x, y, v)

One coin for the three directions. Chu, Xu, Yao, Zhang, "SPABA: a single-loop and probabilistic stochastic bilevel algorithm
achieving optimal sample complexity", ICML 2024. For finite sums batch ~ (n+m)^1/2 and p = batch/(batch + n + m), with steps
that do not depend on n; for expectations big ~ eps^-2, batch ~ big^1/2 and p = batch/(batch + big) (`from_rate`). v' belongs to
the old point: the difference of the products is H v - H' v', not (H - H') v.

Our choices: one step for y and v; the default steps and batch; where there is no finite sum `big` is the square of the batch.
The authors' program tosses one coin for a whole block of steps and keeps the old directions after a refresh; this is
the method of the paper.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveInt
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle
from bilevelbench_methods.implicit.single_loop import (
    Recursive,
    State,
    Triple,
    claimed,
    data,
    directions,
    followed,
    noise_batch,
)


class SPABA(Recursive):
    name = "spaba"
    title = "SPABA"
    paper = "https://arxiv.org/abs/2405.18777"
    claims: ClassVar[tuple[Claim, ...]] = (
        claimed("finite_sum", 2, "Chu, Xu, Yao, Zhang 2024", n_exp=1 / 2, mean_squared_smooth=True),
        claimed("full", 3, "Chu, Xu, Yao, Zhang 2024", mean_squared_smooth=True),
    )

    p: Annotated[float, Field(gt=0, le=1)] | None = None
    """probability of a refresh; default batch/(batch + data of a refresh)"""
    big: PositiveInt | None = None
    """data of a refresh; default: the whole sums, or the square of the batch where there is no finite sum"""

    def resolve(self, constants: Constants) -> Self:
        big = self.big
        if big is None and "n_g" not in constants:
            big = self.batch**2
        refresh = data(constants) if big is None else big
        known = self.model_copy(update={"big": big})
        return super(SPABA, known).resolve(constants).fill(constants, p=lambda c: self.batch / (self.batch + refresh))

    def refreshes(self, s: State, oracle: Oracle) -> Tensor:
        return oracle.uniform(1) < self.p

    def refreshed(self, at: Triple, oracle: Oracle) -> Triple:
        if self.big is None:
            return super().refreshed(at, oracle)
        return directions(oracle, at, oracle.sample_g(self.big), oracle.sample_f(self.big))

    def calls(self, step: int) -> dict[str, int] | None:
        return None  # two calls of each query, or one by chance

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """Steps of order one; the batches of a finite sum do not depend on eps, those of an expectation do."""
        c, big = constants, None
        if "n_g" in c:
            refresh = data(c)
        else:
            refresh = big = noise_batch(c, eps, scale)
        batch = math.ceil(refresh**0.5)
        a = 1 / (2 * c.L_gy)
        return cls(a=a, b=followed(c, a), batch=batch, big=big, p=batch / (batch + refresh))
