"""Loops of C++ for what has to be stored, each a function that all kernels of the same text share.

The rounds of a loop of a method are unrolled in a graph, and are kernels of the same text: what is compiled is one round.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from bilevelbench.engine.compiled.values import TYPES, Body, Buffered, Lazy, Unknown, Value, factor_axes, steps

#: Sums along the memory of their results are kept for so many results at a time: these are registers.
_TILE = 64
#: Of a product a block of elements is summed at a time: at most so many along its two axes, more along the longer one. Where
#: the sums of neighbours are kept together, at most so many rows of so many neighbours. For sixteen registers of four numbers,
#: by benchmarks/test_jax.py (logreg_digits, compiled).
_BLOCK, _ROWS, _NEIGHBOURS = (4, 2), 5, 8
_BUFFER = re.compile(r"\bb(\d+)o(\d+)\b")


class Kernels:
    """The functions of a program, the calls of them that make a step, and the buffers that they need."""

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []  # of what shape and type
        self.calls: list[
            tuple[str, list[tuple[int, int]]]
        ] = []  # of a function with (buffer, offset), the result first
        self.functions: dict[str, str] = {}  # names by their text
        self._stored: dict[int, tuple[Value, Buffered]] = {}

    def new(self, like: Tensor) -> Buffered:
        """A buffer for numbers of this shape and type."""
        if like.dtype not in TYPES:
            raise Unknown(f"numbers of type {like.dtype}")
        self.buffers.append(torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta"))
        return Buffered(self.buffers[-1], len(self.buffers) - 1)

    def stored(self, value: Value) -> Buffered:
        """The numbers of a value in a buffer of theirs, where they are computed once."""
        if isinstance(value, Buffered):
            return value
        if id(value) not in self._stored:
            out = self.new(torch.empty(value.meta.shape, dtype=value.meta.dtype, device="meta"))
            self.store(value, out)
            self._stored[id(value)] = value, out  # the value is held: another would have its id
        return self._stored[id(value)][1]

    def store(self, value: Value, out: Buffered) -> None:
        """Put the numbers of a value there."""
        shape = value.meta.shape
        axes = [axis for axis, n in enumerate(shape) if n > 1]
        index = [f"i{axis}" if n > 1 else "0" for axis, n in enumerate(shape)]
        if isinstance(value, Lazy) and value.over:
            text = _reduced(value, out, axes, index)
        else:
            body = Body()
            result = body.at(value, index)
            text = _nested([(f"i{a}", shape[a]) for a in axes], [*body.lines, f"{out.at(index)} = {result};"])
        self._call(text, out)

    def _call(self, text: str, out: Buffered) -> None:
        given: list[tuple[int, int]] = [(out.buffer, int(out.meta.storage_offset()))]

        def named(match: re.Match[str]) -> str:
            one = int(match[1]), int(match[2])
            if one not in given:
                given.append(one)
            return f"p{given.index(one)}"

        text = _BUFFER.sub(named, text)
        types = [TYPES[self.buffers[buffer].dtype] for buffer, _ in given]
        names = [f"{'const ' if i else ''}{t}* __restrict p{i}" for i, t in enumerate(types)]
        text = f"({', '.join(names)}) {{\n{text}\n}}"
        name = self.functions.setdefault(text, f"kernel_{len(self.functions)}")
        self.calls.append((name, given))


def _nested(loops: Sequence[tuple[str, int]], inside: Sequence[str]) -> str:
    heads = [f"for (int64_t {name} = 0; {name} < {n}; ++{name}) {{" for name, n in loops]
    return "\n".join([*heads, *inside, "}" * len(loops)])


@dataclass(frozen=True)
class _Cut:
    """A part of an axis: `times` blocks of so many elements, all of which are computed in one round of a loop."""

    axis: int
    start: int
    size: int
    times: int

    @property
    def loop(self) -> tuple[str, int]:
        return f"n{self.axis}", self.times

    def place(self, element: int | str) -> str:
        """The index of an element of a block."""
        first = [str(self.start)] if self.start else []
        block = [f"{self.size} * n{self.axis}"] if self.times > 1 else []
        inside = [str(element)] if element else []
        return " + ".join([*first, *block, *inside]) or "0"


def _cuts(axis: int, n: int, size: int) -> list[_Cut]:
    whole, rest = divmod(n, size)
    return [cut for cut in (_Cut(axis, 0, size, whole), _Cut(axis, n - rest, rest, 1)) if cut.size and cut.times]


def _even(n: int, most: int) -> int:
    """The size of as few blocks as can be, none of which is much smaller than the others."""
    return -(-n // -(-n // most))


def _reduced(value: Lazy, out: Buffered, axes: Sequence[int], index: Sequence[str]) -> str:
    """A sum, or a maximum, for each element.

    Along the memory of what is summed, if that is what lies together; otherwise many sums at a time, along the axis that
    does. What the larger operand does not depend on comes inside of what it does, so that its numbers are read once. Of a
    product a block of elements is computed at a time, whose rows and columns are in registers.
    """
    along, sizes = steps(value), value.meta.shape
    wide = [a for a in axes if along[a] == 1 and along[-1] != 1][:1]
    outer = sorted((a for a in axes if a not in wide), key=lambda a: not along[a])
    blocked = sorted((a for a in factor_axes(value) if a in outer), key=lambda a: sizes[a], reverse=True)
    most = (_ROWS,) if wide else _BLOCK
    tiles = [_cuts(a, sizes[a], _NEIGHBOURS if blocked else _TILE) for a in wide]
    parts = []
    for cuts in product(*(_cuts(a, sizes[a], _even(sizes[a], n)) for a, n in zip(blocked, most, strict=False))):
        cut_of = {cut.axis: cut for cut in cuts}
        loops = [cut_of[a].loop if a in cut_of else (f"i{a}", sizes[a]) for a in outer]
        depends = sum(1 for a in outer if along[a])
        for tile in product(*tiles):
            nest = [*loops[:depends], *(cut.loop for cut in tile), *loops[depends:]]
            parts.append(_nested(nest, _block(value, out, index, cuts, *tile)))
    return "\n".join(parts)


def _block(
    value: Lazy, out: Buffered, index: Sequence[str], cuts: Sequence[_Cut], tile: _Cut | None = None
) -> list[str]:
    """The sums of a block of elements; with a tile, of as many neighbours of each."""
    of = TYPES[value.meta.dtype]
    first = f"-std::numeric_limits<{of}>::infinity()" if value.maximum else "0"
    add = _more if value.maximum else _sum
    neighbours = [("j", tile.size)] if tile else []
    which = "[j]" if tile else ""
    body, begins, adds, ends = Body(), [], [], []
    for i, elements in enumerate(product(*(range(cut.size) for cut in cuts))):
        place = list(index)
        for cut, element in zip(cuts, elements, strict=True):
            place[cut.axis] = cut.place(element)
        if tile:
            place[tile.axis] = tile.place("j")
        begins += [f"{of} sum{i}[{tile.size}];"] if tile else []
        begins += [_nested(neighbours, [f"sum{i}[j] = {first};"]) if tile else f"{of} sum{i} = {first};"]
        adds.append(add(f"sum{i}{which}", body.at(value, place, "k")))
        ends.append(_nested(neighbours, [f"{out.at(place)} = sum{i}{which};"]))
    return [*begins, _nested([("k", value.over), *neighbours], [*body.lines, *adds]), *ends]


def _sum(name: str, term: str) -> str:
    return f"{name} += {term};"


def _more(name: str, term: str) -> str:
    return f"{name} = {term} > {name} ? {term} : {name};"
