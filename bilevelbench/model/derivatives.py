"""Derivatives of f and g by automatic differentiation, for whatever a problem does not bring itself.

Lanes and points are independent, so the gradient of the sum over all of them is each one's gradient: one backward pass
serves every lane. An input that a function does not use has gradient zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bilevelbench.model.queries import PRODUCTS, QUERIES

Function = Callable[..., Any]


def derive(f: Function, g: Function, given: Mapping[str, Function]) -> dict[str, Function]:
    """Every query as a function: the given derivative where there is one, else by autograd."""
    table: dict[str, Function] = {"value_f": f, "value_g": g}
    for level, function in (("f", f), ("g", g)):
        joint, in_x, in_y = f"grad_{level}", f"grad_{level}_x", f"grad_{level}_y"
        if joint in given:
            table[joint] = given[joint]
            table[in_x] = given.get(in_x) or _part(given[joint], 0)
            table[in_y] = given.get(in_y) or _part(given[joint], 1)
        else:
            table[in_x] = given.get(in_x) or _gradient_in(function, 0)
            table[in_y] = given.get(in_y) or _gradient_in(function, 1)
            both = in_x in given and in_y in given
            table[joint] = _pair(given[in_x], given[in_y]) if both else _gradient(function)
    for name in PRODUCTS:
        query = QUERIES[name]
        table[name] = given.get(name) or _second(f if query.level == "f" else g, "xy".index(query.outputs[0]))
    return table


def _part(joint: Function, block: int) -> Function:
    return lambda x, y, *rows: joint(x, y, *rows)[block]


def _pair(in_x: Function, in_y: Function) -> Function:
    return lambda x, y, *rows: (in_x(x, y, *rows), in_y(x, y, *rows))


def _leaves(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Fresh leaves with all points written out, so that a gradient has a value for each point."""
    points = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x = x.detach().expand(*points, *x.shape[-2:]).contiguous().requires_grad_(True)
    y = y.detach().expand(*points, *y.shape[-2:]).contiguous().requires_grad_(True)
    return x, y


def _grad(value: Tensor, inputs: tuple[Tensor, ...], create_graph: bool = False) -> tuple[Tensor, ...]:
    total = value.sum()
    if not total.requires_grad:
        return tuple(torch.zeros_like(t) for t in inputs)
    grads = torch.autograd.grad(total, inputs, create_graph=create_graph, allow_unused=True)
    return tuple(torch.zeros_like(t) if g is None else g for g, t in zip(grads, inputs, strict=True))


def _gradient(function: Function) -> Function:
    def gradient(x: Tensor, y: Tensor, *rows: Any) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            x, y = _leaves(x, y)
            return _grad(function(x, y, *rows), (x, y))

    return gradient


def _gradient_in(function: Function, block: int) -> Function:
    def gradient(x: Tensor, y: Tensor, *rows: Any) -> Tensor:
        with torch.enable_grad():
            leaves = _leaves(x, y)
            mine = leaves[block]
            arguments = [leaf if leaf is mine else leaf.detach() for leaf in leaves]
            return _grad(function(*arguments, *rows), (mine,))[0]

    return gradient


def _second(function: Function, block: int) -> Function:
    """The derivative of <g_y(x, y), v> in x (block 0: J v) or in y (block 1: H v); g is any function."""

    def product(x: Tensor, y: Tensor, v: Tensor, *rows: Any) -> Tensor:
        with torch.enable_grad():
            points = v.shape[:-2]
            leaves = _leaves(x.expand(*torch.broadcast_shapes(points, x.shape[:-2]), *x.shape[-2:]), y)
            (g_y,) = _grad(function(*leaves, *rows), (leaves[1],), create_graph=True)
            return _grad(g_y * v.detach(), (leaves[block],))[0]

    return product
