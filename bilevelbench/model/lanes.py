"""Lanes: the axis before the last. One lane is one trial, so a whole tuning grid is one tensor operation.

x is (*points, L, dx),  y is (*points, L, dy),  a value or a swept parameter is (L, 1)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

T = TypeVar("T")

#: A matrix product rounds a row differently with the number of rows. With MKL in its strict mode (`rounding.py`), widths
#: that are a multiple of this do not, so a padded pack gives each lane the bits that it has alone
#: (tests/model/test_lanes.py). Some elementwise functions still round by place (docs/decisions/001-interface.md).
PAD = 4


class PerLaneMarker:
    """What `PerLane[int]` leaves in a field's metadata."""


#: An integer field that may differ between the lanes of a pack: `K: PerLane[PositiveInt] = 10`.
PerLane = Annotated[T, PerLaneMarker()]


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each lane, (*points, L, 1)."""
    return (a * b).sum(-1, keepdim=True)


def norm(a: Tensor) -> Tensor:
    """Euclidean norm of each lane, (*points, L, 1)."""
    size: Tensor = torch.linalg.vector_norm(a, dim=-1, keepdim=True)
    return size


def keep(on: Tensor | bool, new: Tensor, old: Tensor) -> Tensor:
    """`new` in the lanes that are on, `old` in the others, which were not charged and hold NaN in `new`."""
    if on is True:
        return new
    return torch.where(torch.as_tensor(on, device=new.device), new, old)


def over_points(values: Tensor) -> Tensor:
    """The sum over the first axis. torch's own `sum(0)` rounds by the width of the pack; this adds in a fixed order."""
    return functools.reduce(torch.add, values.unbind(0))


def padded(lanes: Sequence[int], pad: int = PAD) -> list[int]:
    """`lanes`, followed by copies of the first one up to a multiple of `pad`."""
    missing = -len(lanes) % pad
    return [*lanes, *([lanes[0]] * missing)]


def take(value: Any, lanes: Tensor) -> Any:
    """`value` with only these lanes, whatever it is: what a state, a sample or a packed method may hold."""
    if isinstance(value, Tensor):
        if value.dim() == 1:
            raise TypeError(
                f"a tensor of shape {tuple(value.shape)} has no lane axis; keep it as (L, 1), or as a Python number if it "
                "is the same for all lanes"
            )
        return value if value.dim() == 0 else value.index_select(-2, lanes.to(value.device))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "take") and not isinstance(
        value, (np.ndarray, np.generic)
    ):  # an array's own `take` does not know lanes
        return value.take(lanes)
    if isinstance(value, tuple):
        items = [take(item, lanes) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, BaseModel):
        return type(value).model_construct(**{k: take(getattr(value, k), lanes) for k in type(value).model_fields})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: take(getattr(value, name), lanes) for name in names})
    raise TypeError(
        f"a state may hold tensors, numbers, tuples and objects with `take(lanes)`, not {type(value).__name__}; "
        "turn it into a tensor whose second last axis is the lane"
    )
