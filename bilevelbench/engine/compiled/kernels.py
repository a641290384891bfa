"""Loops of C++ for what has to be stored, each a function that all kernels of the same text share.

The rounds of a loop of a method are unrolled in a graph, and are kernels of the same text: what is compiled is one round.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from bilevelbench.engine.compiled.values import TYPES, Body, Buffered, Lazy, Unknown, Value, steps

#: Sums along the memory of their results are kept for so many results at a time: these are registers.
_TILE = 64
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


def _reduced(value: Lazy, out: Buffered, axes: Sequence[int], index: list[str]) -> str:
    """A sum, or a maximum, for each element.

    Along the memory of what is summed, if that is what lies together; otherwise many sums at a time, along the axis that
    does. What the larger operand does not depend on comes inside of what it does, so that its numbers are read once.
    """
    along = steps(value)
    of = TYPES[value.meta.dtype]
    first = f"-std::numeric_limits<{of}>::infinity()" if value.maximum else "0"
    add = _more if value.maximum else _sum
    wide = [a for a in axes if along[a] == 1]
    others = sorted((a for a in axes if a not in wide[:1]), key=lambda a: not along[a])
    loops = [(f"i{a}", value.meta.shape[a]) for a in others]
    term, body = _term(value, index)
    if along[-1] == 1 or not wide:
        loops += [(f"i{a}", value.meta.shape[a]) for a in wide[:1]]
        inner = _nested([("k", value.over)], [*body.lines, add("sum", term)])
        return _nested(loops, [f"{of} sum = {first};", inner, f"{out.at(index)} = sum;"])
    n, j = value.meta.shape[wide[0]], f"i{wide[0]}"
    tiles = [(0, _TILE, n // _TILE)] if n >= _TILE else []
    tiles += [(n - n % _TILE, n % _TILE, 1)] if n % _TILE else []
    depends = sum(1 for a in others if along[a])
    parts = []
    for start, size, times in tiles:
        place = f"const int64_t {j} = {start} + {_TILE} * tile + j;"
        inner = _nested([("k", value.over), ("j", size)], [place, *body.lines, add("sum[j]", term)])
        ends = _nested([("j", size)], [place, f"{out.at(index)} = sum[j];"])
        begins = f"{of} sum[{size}]; for (int64_t j = 0; j < {size}; ++j) sum[j] = {first};"
        parts.append(_nested([*loops[:depends], ("tile", times), *loops[depends:]], [begins, inner, ends]))
    return "\n".join(parts)


def _term(value: Lazy, index: Sequence[str]) -> tuple[str, Body]:
    body = Body()
    return body.at(value, index, "k"), body


def _sum(name: str, term: str) -> str:
    return f"{name} += {term};"


def _more(name: str, term: str) -> str:
    return f"{name} = {term} > {name} ? {term} : {name};"
