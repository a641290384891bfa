"""A function of one's own at one point: one number, on all its rows or on a batch of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bilevelbench.errors import InvalidInput
from bilevelbench.model.own_data import OwnData
from bilevelbench.model.pytrees import Call


class OneLane:
    """f, g, or another function that has to return one number; over lanes it is an `OverLanes`."""

    def __init__(self, name: str, call: Call, data: OwnData | None = None) -> None:
        self.name, self._call, self.data, self.variables = name, call, data, call.variables

    def __call__(self, *arguments: Any) -> Tensor:
        value = self._call(*arguments)
        if not isinstance(value, Tensor):
            raise InvalidInput(
                f"{self.name} returned {type(value).__name__}; it has to return a torch tensor, one number"
            )
        if value.numel() != 1:
            raise InvalidInput(
                f"{self.name} returned a tensor of shape {tuple(value.shape)}; it has to return one number"
            )
        return value.reshape(()) if value.dim() else value  # a view would be a node of every graph

    @property
    def whole(self) -> tuple[Any, ...]:
        """The batch of all rows, if it takes one."""
        return () if self.data is None else (self.data.rows,)
