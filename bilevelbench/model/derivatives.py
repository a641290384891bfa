"""Derivatives of f and g by automatic differentiation, for whatever a problem does not bring itself.

Lanes and points are independent, so the gradient of the sum over all of them is each one's gradient: one backward pass
serves every lane. An input that a function does not use has gradient zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bilevelbench.model.queries import PRODUCTS, QUERIES

Function = Callable[..., Any]


def derive(f: Function, g: Function, given: Mapping[str, Function]) -> dict[str, Function]:
    """Every query as a function: the given derivative where there is one, else by autograd."""
    table = {
        "value_f": f,
        "value_g": g,
        **_blocks(("grad_f", "grad_f_x", "grad_f_y"), given, _gradient(f), functools.partial(_gradient_in, f)),
        **_blocks(("grad_g", "grad_g_x", "grad_g_y"), given, _gradient(g), functools.partial(_gradient_in, g)),
        **_blocks(("vp_g", "jvp_g_xy", "hvp_g_yy"), given, _products(g), functools.partial(_product, g)),
    }
    for name in PRODUCTS:  # a kind that the table of queries has and this one does not know
        if name not in table:
            block = "xy".index(QUERIES[name].outputs[0])
            table[name] = given.get(name) or _product(f if QUERIES[name].level == "f" else g, block)
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


def _product(function: Function, block: int) -> Function:
    """The derivative of <g_y(x, y), v> in x (block 0: J v) or in y (block 1: H v); g is any function."""

    def product(x: Tensor, y: Tensor, v: Tensor, *rows: Any) -> Tensor:
        with torch.enable_grad():
            leaves, slope = _slope(function, x, y, v, *rows)
            return _grad(slope, (leaves[block],))[0]

    return product


def _products(function: Function) -> Function:
    """Both of them: the same two passes as one of them, with one more output of the second."""

    def products(x: Tensor, y: Tensor, v: Tensor, *rows: Any) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves, slope = _slope(function, x, y, v, *rows)
            return _grad(slope, leaves)

    return products


def _slope(function: Function, x: Tensor, y: Tensor, v: Tensor, *rows: Any) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Fresh leaves, and g_y v there, whose sum is to be differentiated."""
    points = torch.broadcast_shapes(v.shape[:-2], x.shape[:-2])
    leaves = _leaves(x.expand(*points, *x.shape[-2:]), y)
    (g_y,) = _grad(function(*leaves, *rows), (leaves[1],), create_graph=True)
    return leaves, g_y * v.detach()
