"""Derivatives of f and g by automatic differentiation, for whatever a problem does not bring itself.

Lanes and points are independent, so the gradient of the sum over all of them is each one's gradient: one backward pass
serves every lane. An input that a function does not use has gradient zero.
"""

from __future__ import annotations

import functools
import itertools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bilevelbench.model.queries import PRODUCTS, QUERIES

Function = Callable[..., Any]
Tensors = tuple[Tensor, ...]
Split = Callable[[Tensor], Sequence[Tensor]]

_BOTH, _ONE = slice(2), (slice(1), slice(1, 2))  # of (x, y)


def derive(f: Function, g: Function, given: Mapping[str, Function]) -> dict[str, Function]:
    """Every query as a function: the given derivative where there is one, else by autograd."""
    parts = {"f": _in_parts(f), "g": _in_parts(g)}
    products = {level: _Products(function) for level, function in parts.items()}
    table: dict[str, Function] = {"value_f": f, "value_g": g}
    for level, function in parts.items():
        names = f"grad_{level}", f"grad_{level}_x", f"grad_{level}_y"
        table |= _blocks(names, given, _gradient(function), functools.partial(_gradient_in, function))
    of_g = products["g"]
    table |= _blocks(("vp_g", "jvp_g_xy", "hvp_g_yy"), given, of_g.of(_BOTH), lambda block: of_g.of(_ONE[block]))
    for name in PRODUCTS:  # a kind that the table of queries has and this one does not know
        if name not in table:
            block = "xy".index(QUERIES[name].outputs[0])
            table[name] = given.get(name) or products[QUERIES[name].level].of(_ONE[block])
    return table


def _blocks(
    names: tuple[str, str, str], given: Mapping[str, Function], both: Function, one: Callable[[int], Function]
) -> dict[str, Function]:
    """A joint query and its blocks in x and in y; a block that is not given is a part of a given joint one."""
    joint, in_x, in_y = names
    if joint in given:
        whole = given[joint]
        return {
            joint: whole,
            in_x: given.get(in_x) or _part(whole, 0),
            in_y: given.get(in_y) or _part(whole, 1),
        }
    pair = _pair(given[in_x], given[in_y]) if in_x in given and in_y in given else both
    return {joint: pair, in_x: given.get(in_x) or one(0), in_y: given.get(in_y) or one(1)}


def _part(joint: Function, block: int) -> Function:
    return lambda x, y, *rest: joint(x, y, *rest)[block]


def _pair(in_x: Function, in_y: Function) -> Function:
    return lambda x, y, *rest: (in_x(x, y, *rest), in_y(x, y, *rest))


class InParts(Protocol):
    """A function whose variables are several tensors each: it takes them so, and splits a vector into them."""

    @property
    def split(self) -> tuple[Split, Split]: ...  # x and y

    def on_parts(self, x: Sequence[Tensor], y: Sequence[Tensor], *rows: Any) -> Tensor: ...


@dataclass(frozen=True)
class _InOne:
    """Any other function: one tensor each."""

    function: Function
    split: tuple[Split, Split] = (lambda x: (x,), lambda y: (y,))

    def on_parts(self, x: Sequence[Tensor], y: Sequence[Tensor], *rows: Any) -> Any:
        return self.function(x[0], y[0], *rows)


def _in_parts(function: Any) -> InParts:
    return function if hasattr(function, "on_parts") else _InOne(function)


def _gradient(function: InParts) -> Function:
    def gradient(x: Tensor, y: Tensor, *rows: Any) -> Tensors:
        at = _Point.of(function, x, y)
        return at.joined(at.slopes(_BOTH, *rows), _BOTH)

    return gradient


def _gradient_in(function: InParts, block: int) -> Function:
    def gradient(x: Tensor, y: Tensor, *rows: Any) -> Tensor:
        at = _Point.of(function, x, y, moving=(block,))
        return at.joined(at.slopes(_ONE[block], *rows), _ONE[block])[0]

    return gradient


@dataclass(frozen=True)
class _Point:
    """Leaves at (x, y). Parts of a vector are leaves themselves: views of it would cost more than a small function."""

    function: InParts
    shapes: tuple[torch.Size, ...]
    leaves: tuple[Tensors, ...]

    @classmethod
    def of(cls, function: InParts, x: Tensor, y: Tensor, moving: Sequence[int] = (0, 1)) -> _Point:
        if x.dim() > 2 or y.dim() > 2:  # all points are written out, so that a gradient has a value for each
            points = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
            x, y = x.expand(*points, *x.shape[-2:]), y.expand(*points, *y.shape[-2:])
        of_x, of_y = (
            tuple(part.requires_grad_(block in moving) for part in split(vector.detach().contiguous()))
            for block, (split, vector) in enumerate(zip(function.split, (x, y), strict=True))
        )
        return cls(function, (x.shape, y.shape), (of_x, of_y))

    def of_blocks(self, blocks: slice) -> Tensors:
        return sum(self.leaves[blocks], ())

    def slopes(self, blocks: slice, *rows: Any, create_graph: bool = False) -> Tensors:
        """The gradient, in parts, of the sum over all lanes."""
        with torch.enable_grad():
            value = self.function.on_parts(*self.leaves, *rows)
            ones = None if value.numel() == 1 else value.new_ones(()).expand(value.shape)
            return _pulled_back((value,), self.of_blocks(blocks), (ones,), create_graph=create_graph)

    def joined(self, parts: Tensors, blocks: slice) -> Tensors:
        """Parts that belong to x, to y or to both, as vectors."""
        answer, parts_left = [], iter(parts)
        for shape, leaves in zip(self.shapes[blocks], self.leaves[blocks], strict=True):
            flat = [part.reshape(*shape[:-1], -1) for part in itertools.islice(parts_left, len(leaves))]
            answer.append(flat[0] if len(flat) == 1 else torch.cat(flat, -1))
        return tuple(answer)


def _pulled_back(values: Tensors, inputs: Tensors, weights: Sequence[Tensor | None], **graph: bool) -> Tensors:
    """The derivative of <values, weights> in each input; a single number needs no weight."""
    on = [(value, weight) for value, weight in zip(values, weights, strict=True) if value.requires_grad]
    if not on:
        return tuple(torch.zeros_like(t) for t in inputs)
    outputs, along = zip(*on, strict=True)
    grads = torch.autograd.grad(outputs, inputs, along, allow_unused=True, **graph)
    return tuple(torch.zeros_like(t) if g is None else g for g, t in zip(grads, inputs, strict=True))


def through_descent(f: InParts, g: InParts, x: Tensor, y: Tensor, steps: int, step: float) -> tuple[Tensor, Tensor]:
    """The gradient in x of f(x, Y), Y the end of gradient steps on g(x, .) from y, by one graph of them all; and Y."""
    at = _Point.of(g, x, y)
    of_x, of_y = at.leaves
    with torch.enable_grad():
        for _ in range(steps):
            slopes = _pulled_back((g.on_parts(of_x, of_y),), of_y, (None,), create_graph=True)
            of_y = tuple(part - step * slope for part, slope in zip(of_y, slopes, strict=True))
        grads = _pulled_back((f.on_parts(of_x, of_y),), of_x, (None,))
    return at.joined(grads, _ONE[0])[0], at.joined(tuple(part.detach() for part in of_y), _ONE[1])[0]


class _Products:
    """The products of one function. Its last graph is kept for as long as its point is: cg builds one for all its products.

    The point is known by its tensors and their versions, and held weakly, so that the graph, which may be large, goes with it.
    """

    def __init__(self, function: InParts) -> None:
        self._function = function
        self._kept: tuple[tuple[object, ...], tuple[weakref.ref[Tensor], ...], _Point, Tensors] | None = None

    def of(self, blocks: slice) -> Function:
        """The derivative of <g_y, v> in x (J v), in y (H v), or in both, which is one pass as well."""

        def product(x: Tensor, y: Tensor, v: Tensor, *rows: Any) -> Any:
            at, g_y = self._linearised(x, y, v, *rows)
            v = v.detach().expand(at.shapes[1]).clone()  # a copy: of a linear g_y the answer would be v itself
            weights = tuple(self._function.split[1](v))
            answer = at.joined(_pulled_back(g_y, at.of_blocks(blocks), weights, retain_graph=True), blocks)
            return answer if len(answer) > 1 else answer[0]

        return product

    def _linearised(self, x: Tensor, y: Tensor, v: Tensor, *rows: Any) -> tuple[_Point, Tensors]:
        """g_y at the point, with its graph."""
        points = None if x.dim() == v.dim() == 2 else torch.broadcast_shapes(v.shape[:-2], x.shape[:-2])
        where = (points, x._version, y._version, *rows)
        if self._kept is not None:
            there, (at_x, at_y), at, g_y = self._kept
            if at_x() is x and at_y() is y and _same(there, where):
                return at, g_y
        self._kept = None  # before another one is made: two may be too large
        at = _Point.of(self._function, x if points is None else x.expand(*points, *x.shape[-2:]), y)
        g_y = at.slopes(_ONE[1], *rows, create_graph=True)
        self._kept = where, (weakref.ref(x, self._drop), weakref.ref(y, self._drop)), at, g_y
        return at, g_y

    def _drop(self, _: object) -> None:
        self._kept = None


def _same(there: tuple[object, ...], here: tuple[object, ...]) -> bool:
    """Numbers and shapes by value; rows, which nobody changes, by identity."""
    return there[:3] == here[:3] and len(there) == len(here) and all(map(operator.is_, there[3:], here[3:]))
