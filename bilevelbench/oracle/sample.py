"""A sample: data that several queries may share, kept as an object and used again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from bilevelbench.model.lanes import take
from bilevelbench.model.noise import Rows
from bilevelbench.model.queries import Level

Order = Literal["replacement", "epoch", "block"]


@dataclass(frozen=True, eq=False)
class Sample:
    """`size` data of one level. The same Sample in two queries is the same data; two Samples are independent.

    Opaque to a method, but for `block`: the number of the block drawn in each lane, (L,), with `order="block"`.
    """

    level: Level
    size: int | Tensor
    place: tuple[int, ...]
    indices: tuple[int, ...]
    longest: int
    points: int | None = None
    rows: Rows | None = None
    block: Tensor | None = None
    noise: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def take(self, lanes: Tensor) -> Sample:
        block = None if self.block is None else self.block.index_select(0, lanes.to(self.block.device))
        return replace(self, size=take(self.size, lanes), rows=take(self.rows, lanes), block=block, noise={})


@dataclass(frozen=True)
class Table:
    """Memory of SAGA: the last value of a quantity on each block, (blocks, L, d), and their mean."""

    rows: Tensor
    mean: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.mean is None:  # over the last axis: a sum over the first one rounds with the number of lanes
            object.__setattr__(self, "mean", self.rows.movedim(0, -1).contiguous().mean(-1))

    def replace(self, block: Tensor, new: Tensor) -> tuple[Tensor, Table]:
        """`new - old + mean` with the old mean, and the table with `new` in its place."""
        lanes = torch.arange(new.shape[-2], device=new.device)
        old = self.rows[block, lanes]
        rows = self.rows.clone()
        rows[block, lanes] = new
        change = new - old
        return change + self.mean, Table(rows, self.mean + change / len(rows))

    def take(self, lanes: Tensor) -> Table:
        return Table(self.rows.index_select(-2, lanes), self.mean.index_select(-2, lanes))
