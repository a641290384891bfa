"""A sample: data that several queries may share, kept as an object and used again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from bilevelbench.errors import InvalidInput
from bilevelbench.model.lanes import take
from bilevelbench.model.noise import Rows
from bilevelbench.model.queries import Level

Order = Literal["replacement", "epoch", "block"]


@dataclass(frozen=True, eq=False)
class Sample:
    """A mini-batch: `size` data of one level, f or g.

    The same Sample in two queries is the same data; two Samples are independent.
    Opaque to a method, but for `block`: the number of the block drawn in each lane, (L,), with `order="block"`.
    """

    level: Level
    size: int | Tensor
    place: tuple[int, ...]
    indices: tuple[int, ...]
    longest: int
    each: int | None = None  # `size` as a number, if it is the same in every lane
    points: int | None = None
    rows: Rows | None = None
    block: Tensor | None = None
    noise: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def take(self, lanes: Tensor) -> Sample:
        block = None if self.block is None else self.block.index_select(0, lanes.to(self.block.device))
        return replace(self, size=take(self.size, lanes), rows=take(self.rows, lanes), block=block, noise={})


#: Numbers of one lane in a table, at most: 32 MiB of doubles, and a method may keep several tables in each of many lanes.
_MOST = 1 << 22


class Table:
    """Memory of SAGA: the last value of a quantity on each block, (blocks, L, d), and their mean.

    A table never changes for those who hold it, and yet `replace` costs one row: the old table and the new one share their
    rows, and the old one knows where it differs. Whoever reads it again, since a step was refused or is made once more, gets
    that row put back first. (A persistent array: H. Baker, "Shallow binding in Lisp 1.5", 1978.)
    """

    def __init__(self, rows: Tensor) -> None:
        # over the last axis: a sum over the first one rounds with the number of lanes
        self._begin(rows.clone(), rows.movedim(0, -1).contiguous().mean(-1))

    @classmethod
    def zeros(cls, blocks: int, like: Tensor) -> Table:
        """Zero on every block, with the lanes, the width and the dtype of `like`; refused if that is too large to keep."""
        width = like.shape[-1]
        if blocks * width > _MOST:
            raise InvalidInput(
                f"a table of {blocks:,} blocks times {width:,} numbers would keep {blocks * width:,} of them for every "
                f"trial, and {_MOST:,} is the most; draw larger batches, which makes fewer blocks, or take a method that "
                "keeps no table"
            )
        return cls._of(like.new_zeros(blocks, *like.shape), torch.zeros_like(like))

    @classmethod
    def _of(cls, rows: Tensor, mean: Tensor) -> Table:
        """A table that may change these rows."""
        table = cls.__new__(cls)
        table._begin(rows, mean)
        return table

    def _begin(self, rows: Tensor, mean: Tensor) -> None:
        self.mean = mean
        self._rows: Tensor | None = rows
        self._newer: Table | None = None  # who has the rows, if they are not here
        self._change: tuple[Tensor, Tensor] | None = None  # a block for each lane, and what it holds here and not there

    @property
    def rows(self) -> Tensor:
        """For reading, and at once: the same tensor serves the next table."""
        path, table = [], self
        while table._newer is not None:
            path.append(table)
            table = table._newer
        for older in reversed(path):
            older._fetch()
        assert self._rows is not None
        return self._rows

    def _fetch(self) -> None:
        """The rows come here from the newer table, which remembers the difference from now on."""
        newer = self._newer
        assert newer is not None
        assert newer._rows is not None
        assert self._change is not None
        rows, (block, mine) = newer._rows, self._change
        lanes = torch.arange(rows.shape[-2])
        newer._change, newer._newer, newer._rows = (block, rows[block, lanes]), self, None
        rows[block, lanes] = mine
        self._change, self._newer, self._rows = None, None, rows

    def replace(self, block: Tensor, new: Tensor) -> tuple[Tensor, Table]:
        """`new - old + mean` with the old mean, and the table with `new` in its place."""
        rows, lanes = self.rows, torch.arange(new.shape[-2], device=new.device)
        old = rows[block, lanes]
        rows[block, lanes] = new
        change = new - old
        table = Table._of(rows, self.mean + change / len(rows))
        self._change, self._newer, self._rows = (block, old), table, None
        return change + self.mean, table

    def take(self, lanes: Tensor) -> Table:
        return Table._of(self.rows.index_select(-2, lanes), self.mean.index_select(-2, lanes))
