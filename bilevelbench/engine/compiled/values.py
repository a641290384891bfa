"""What a generated program computes with: numbers that lie in a buffer, and numbers that are computed where they are read.

Shape, strides and offset of either are those of a tensor on torch's device `meta`, so that every view is torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

#: Types of C++ by those of torch; a graph with any other is not for this program.
TYPES = {torch.float64: "double", torch.float32: "float", torch.int64: "int64_t", torch.bool: "bool"}


class Unknown(Exception):
    """There is something in the graph that this program has no words for."""


@dataclass(frozen=True, eq=False)
class Buffered:
    """Numbers in buffer `buffer`."""

    meta: Tensor
    buffer: int

    def at(self, index: Sequence[str]) -> str:
        """The element with these indices. The offset is part of the name: kernels that differ in it are one function."""
        terms = [_times(i, s) for i, s in zip(index, self.meta.stride(), strict=True) if i != "0" and s]
        return f"b{self.buffer}o{self.meta.storage_offset()}[{' + '.join(terms) or '0'}]"


@dataclass(frozen=True, eq=False)
class Lazy:
    """Numbers that are computed where they are read.

    `meta` is a view of a contiguous base. `read(body, index)` is the expression of the base's element; `steps` says how far
    apart neighbours along each axis of the base are in the memory that is read. With `over`, an element is a sum, or a
    maximum, of so many, and both have one more axis at the end; those of a `product` share rows and columns, the last two axes
    of the base.
    """

    meta: Tensor
    base: tuple[int, ...]
    read: Callable[[Body, Sequence[str]], str]
    steps: tuple[int, ...]
    depth: int = 1
    over: int = 0
    maximum: bool = False
    product: bool = False

    @property
    def is_cheap(self) -> bool:
        """Nothing but a place in memory, that of a gathered row."""
        return not self.depth and not self.over


Value = Buffered | Lazy


class Body:
    """The inside of the innermost loop: what is used twice in it is computed once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[tuple[int, tuple[str, ...]], str] = {}

    def at(self, value: Value, index: Sequence[str], along: str = "") -> str:
        """The element of a value with these indices; of a sum its term `along`."""
        if isinstance(value, Buffered):
            return value.at(index)
        place = [" + ".join(_times(index[a], s) for a, s in terms) or "0" for terms in _digits(value)]
        place = [_shifted(text, by) for text, by in zip(place, _offsets(value), strict=True)]
        place += [along] if value.over else []
        key = id(value.read), tuple(place)
        if key not in self._known:
            text = value.read(self, place)
            if value.is_cheap:
                return text
            self._known[key] = f"t{len(self._known)}"
            self.lines.append(f"const {TYPES[value.meta.dtype]} {self._known[key]} = {text};")
        return self._known[key]


def steps(value: Value) -> tuple[int, ...]:
    """How far apart neighbours along each axis are in memory; of a sum, the axis that is summed over comes last."""
    if isinstance(value, Buffered):
        return value.meta.stride()
    out = [0] * value.meta.dim()
    for d, terms in enumerate(_digits(value)):
        for axis, by in terms:
            out[axis] = by * value.steps[d]
    return (*out, *value.steps[len(value.base) :])


def factor_axes(value: Lazy) -> list[int]:
    """Of a product, the axes along which one of its factors is the same."""
    return [terms[-1][0] for terms in _digits(value)[-2:] if terms] if value.product else []


def made(like: Tensor, read: Callable[[Body, Sequence[str]], str], along: Sequence[int], **more: Any) -> Lazy:
    """Numbers of this shape and type, computed where they are read."""
    meta = torch.empty(like.shape, dtype=like.dtype, device="meta")
    return Lazy(meta, tuple(like.shape), read, tuple(along), **more)


def viewed(value: Value, change: Callable[[Tensor], Any]) -> Any:
    """What a view of torch makes of a value: one, or a list of them. None if the value has to be stored first."""
    try:
        metas = change(value.meta)
    except RuntimeError:
        return None
    many = isinstance(metas, (list, tuple))
    out = [_with(value, meta) for meta in (metas if many else [metas])]
    if any(isinstance(one, Lazy) and _places(one) is None for one in out):
        return None
    return out if many else out[0]


def _with(value: Value, meta: Tensor) -> Value:
    if isinstance(value, Buffered):
        return Buffered(meta, value.buffer)
    return replace(value, meta=meta)


def _times(index: str, by: int) -> str:
    return index if by == 1 else f"{by} * ({index})"


def _shifted(text: str, by: int) -> str:
    return text if not by else f"{by}" if text == "0" else f"{text} + {by}"


def _digits(value: Lazy) -> list[list[tuple[int, int]]]:
    places = _places(value)
    assert places is not None
    return places


def _offsets(value: Lazy) -> list[int]:
    """Where a view begins, along each axis of the base."""
    out, rest = [], value.meta.storage_offset()
    for stride in _strides(value.base):
        out.append(rest // stride)
        rest %= stride
    return out


def _places(value: Lazy) -> list[list[tuple[int, int]]] | None:
    """For each axis of the base, the axes of the view that run along it, and how fast; None: one runs along several."""
    strides = _strides(value.base)
    out: list[list[tuple[int, int]]] = [[] for _ in strides]
    ends = _offsets(value)
    for axis, (n, step) in enumerate(zip(value.meta.shape, value.meta.stride(), strict=True)):
        if n == 1 or not step:
            continue
        d = next(
            d for d, (stride, size) in enumerate(zip(strides, value.base, strict=True)) if stride <= step and size > 1
        )
        if step % strides[d]:
            return None
        out[d].append((axis, step // strides[d]))
        ends[d] += (n - 1) * (step // strides[d])
    return out if all(end < size for end, size in zip(ends, value.base, strict=True)) else None


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta").stride()
