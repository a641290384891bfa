"""Lanes for a function that was written for one of them: `torch.func.vmap`, and one lane after another where it cannot.

A gradient is taken outside of vmap (`derivatives.py`): autograd sees plain operations over all lanes, so that one backward
pass serves them all, products with second derivatives included.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

#: What torch says when vmap cannot, and what that means for the reader of the function.
_REASONS = (
    ("data-dependent control flow", "it branches on the value of a tensor; torch.where does not"),
    (".item()", "it makes a Python number of a tensor (.item(), float, int); keep it a tensor"),
    ("dynamic shape", "the shape of a tensor depends on values (a boolean mask, nonzero); torch.where has a fixed one"),
    ("data pointer", "it takes a tensor to numpy; use torch's own functions"),
    ("in-place", "it changes a tensor in place; make a new one"),
    ("inplace", "it changes a tensor in place; make a new one"),
    ("broadcast shape", "it changes a tensor in place that all lanes share; make a new one"),
    ("does not require grad", "it calls torch.autograd.grad; torch.func.grad can be run over lanes"),
    ("requires_grad_()", "it calls torch.autograd.grad; torch.func.grad can be run over lanes"),
    ("random operation", "it draws random numbers; draw them once, outside of it"),
)


class OverLanes:
    """`one_lane(x, y, ...)`, a number, over (L, dx), (L, dy), ...: (L, 1).

    A single lane is the function itself. Whether vmap can is found out at the first call with several lanes.
    """

    def __init__(self, name: str, one_lane: Callable[..., Tensor]) -> None:
        self._name, self._one_lane = name, one_lane
        self.loops = False  # vmap has failed where a loop did not

    def __call__(self, *lanes: Any, shared: tuple[Any, ...] = ()) -> Tensor:
        """`lanes` are tensors, or trees of them, with the lane in front; what is `shared` is the same for all."""
        if _width(lanes) == 1 or self.loops:
            return self._by_loop(lanes, shared)
        dims = (0,) * len(lanes) + (None,) * len(shared)
        try:
            values: Tensor = vmap(self._one_lane, in_dims=dims, randomness="error")(*lanes, *shared)
        except Exception as error:
            out = self._by_loop(lanes, shared)  # raises what the function raises by itself
            self.loops = True
            warnings.warn(self._note(error), stacklevel=2)
            return out
        return values.reshape(-1, 1)

    def _by_loop(self, lanes: tuple[Any, ...], shared: tuple[Any, ...]) -> Tensor:
        values = [self._one_lane(*tree_map(lambda t, i=i: t[i], lanes), *shared) for i in range(_width(lanes))]
        return torch.stack(values).reshape(-1, 1)

    def _note(self, error: Exception) -> str:
        said = str(error).strip() or type(error).__name__
        told = next((reason for sign, reason in _REASONS if sign in said), said.splitlines()[0].rstrip("."))
        return (
            f"{self._name} cannot be run over several lanes at once: {told}. Its lanes are run one after another, each of "
            "which takes as long as one setting alone."
        )


def _width(lanes: tuple[Any, ...]) -> int:
    first = lanes[0] if isinstance(lanes[0], Tensor) else tree_leaves(lanes[0])[0]
    return len(first)
