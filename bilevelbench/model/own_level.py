"""f or g of one's own over lanes: on all its rows, or in each lane on a batch of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bilevelbench.model.noise import Rows
from bilevelbench.model.one_lane import OneLane
from bilevelbench.model.pytrees import Variables
from bilevelbench.model.vmapped import OverLanes


class OwnLevel:
    """(L, dx), (L, dy) to (L, 1); autograd asks `on_parts`, with the tensors that the owner of the function has.

    Those of several lanes have the lane in front. Those of a single lane are without it, as the owner gave them: every view
    would be one node more for each product.
    """

    def __init__(self, level: OneLane) -> None:
        self._level, self._over_lanes = level, OverLanes(level.name, level)
        x, y = level.variables
        self.split = _Split(x), _Split(y)

    def __call__(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        of_x, of_y = self.split
        return self.on_parts(of_x(x), of_y(y), rows).reshape(-1, 1)

    def on_parts(self, x: Sequence[Tensor], y: Sequence[Tensor], rows: Rows | None = None) -> Tensor:
        """(L, 1), or of a single lane on all its rows the number as its owner returned it."""
        level, data = self._level, self._level.data
        alone = self.split[0].is_of_one_lane(x)
        if data is None or rows is None:  # with rows of the other level's finite sum it is one row, and whole
            return level(x, y, *level.whole) if alone else self._over_lanes(x, y, shared=level.whole)
        # The rows of a lane weigh the same, but for some at its end that weigh nothing.
        total = rows.weight.sum(-1, keepdim=True)
        if alone:
            return total * level(x, y, data.at(rows.index[0, : int(rows.weight.count_nonzero())]))
        if bool(rows.weight.all()):
            return total * self._over_lanes(x, y, data.at(rows.index))
        counts, value = rows.weight.count_nonzero(-1), torch.zeros_like(total)
        for count in counts.unique():  # lanes with equally many are asked together
            lanes = (counts == count).nonzero().squeeze(-1)
            some = ([part[lanes] for part in parts] for parts in (x, y))
            value = value.index_copy(0, lanes, self._over_lanes(*some, data.at(rows.index[lanes, :count])))
        return total * value


class _Split:
    """A variable's tensors, of (L, d)."""

    def __init__(self, variable: Variables) -> None:
        self._variable = variable

    def __call__(self, lanes: Tensor) -> list[Tensor]:
        return self._variable.split(lanes.squeeze(0) if len(lanes) == 1 else lanes)

    def is_of_one_lane(self, tensors: Sequence[Tensor]) -> bool:
        return tensors[0].dim() == len(self._variable.shapes[0])
