"""SABA: SOBA whose five sampled quantities are each corrected by a table of their last values (SAGA).

    i, j <- a random block of g's data and one of f's
    e_g <- g_y(x, y; i) - T_g[i] + mean T_g;   the same for H v and J v with T_h, T_j, and on block j for f_x, f_y with T_x, T_y
    y <- y - a e_g,   v <- v - a (e_h - e_y),   x <- x - b (e_x - e_j)         all at the old (x, y, v)
    T_g[i] <- g_y(x, y; i), and so on

Dagreou, Ablin, Vaiter, Moreau, "A framework for bilevel optimization that enables stochastic and global variance reduction
algorithms", NeurIPS 2022, for finite sums only: single data and constant steps ~ (n+m)^-2/3 of the data of both levels
(`from_rate`), with linear convergence where phi satisfies a Polyak-Lojasiewicz inequality. An estimate is unbiased whatever the
tables hold; `start` = "zero" leaves them zero at first, "full" pays for one pass over the data.

A block is `batch` rows of a fixed partition, the last one smaller, weighted so that the mean over blocks is the whole sum.
The tables keep (2 dy + dx) numbers for each block of g and dy + dx for each of f. Where x has a coordinate for each datum that
is the square of the data: refused with a sentence if it is too large to keep.

Our choices: v starts at zero, so T_h and T_j do in either case; the size of a block; the default steps, with a = 1/(3 L_g) as
for SAGA, since 1/L_g is unstable.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import PositiveFloat
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, Table
from bilevelbench_methods.implicit.single_loop import (
    Five,
    SingleLoop,
    State,
    Triple,
    answers,
    claimed,
    composed,
    data,
    followed,
)


class SABA(SingleLoop):
    name = "saba"
    title = "SABA"
    paper = "https://arxiv.org/abs/2201.13409"
    finite_sum_only = True
    claims: ClassVar[tuple[Claim, ...]] = (
        claimed("finite_sum", 2, "Dagreou, Ablin, Vaiter, Moreau 2022", n_exp=2 / 3),
    )

    a: PositiveFloat | None = None
    """step of y and v; default 1/(3 L_g)"""
    start: Literal["zero", "full"] = "zero"
    """what the tables hold at first: zero, or the values at the start, for one pass over the data"""

    def default_a(self, c: Constants) -> float:
        return 1 / (3 * c.L_gy)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        i, j = (-(-n // min(self.batch, n)) for n in (oracle.n_g, oracle.n_f))  # blocks of g and of f
        sizes = Five(f_x=(j, x0), f_y=(j, y0), g_y=(i, y0), Jv=(i, x0), Hv=(i, y0))
        tables = Five(*(Table.zeros(blocks, like) for blocks, like in sizes))
        if self.start == "full":
            tables = self._filled(tables, x0, y0, oracle)
        return replace(super().init(x0, y0, oracle), memory=tables)

    def _filled(self, tables: Five[Table], x0: Tensor, y0: Tensor, oracle: Oracle) -> Five[Table]:
        f_x, f_y, g_y, *products = tables
        for xi in oracle.blocks_g(self.batch):
            _, g_y = g_y.replace(xi.block, oracle.grad_g_y(x0, y0, xi))
        for zeta in oracle.blocks_f(self.batch):
            in_x, in_y = oracle.grad_f(x0, y0, zeta)
            (_, f_x), (_, f_y) = f_x.replace(zeta.block, in_x), f_y.replace(zeta.block, in_y)
        return Five(f_x, f_y, g_y, *products)

    def estimate(self, s: State, oracle: Oracle) -> tuple[Triple, Five[Table]]:
        xi, zeta = self.draw(oracle, "block")
        new = answers(oracle, s.at, xi, zeta)
        blocks = Five(zeta.block, zeta.block, xi.block, xi.block, xi.block)
        corrected = [table.replace(i, value) for table, i, value in zip(s.memory, blocks, new, strict=True)]
        return composed(Five(*(e for e, _ in corrected))), Five(*(table for _, table in corrected))

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """Single data and steps ~ (n+m)^-2/3; nothing depends on eps."""
        a = min(1.0, scale * data(constants) ** (-2 / 3)) / constants.L_gy
        return cls(a=a, b=followed(constants, a), batch=1)
