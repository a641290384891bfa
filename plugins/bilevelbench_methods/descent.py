"""Gradient descent on the lower level."""

from __future__ import annotations

from torch import Tensor

from bilevelbench import Oracle, keep


def lower_gd(oracle: Oracle, x: Tensor, y: Tensor, n: int | Tensor, a: float | Tensor) -> Tensor:
    """n times `y <- y - a g_y(x, y)`."""
    for on in oracle.repeat(n):
        y = keep(on, y - a * oracle.grad_g_y(x, y), y)
    return y
