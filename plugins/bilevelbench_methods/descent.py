"""Gradient descent on the lower level, plain and accelerated."""

from __future__ import annotations

import math

from torch import Tensor

from bilevelbench import Constants, Oracle, keep


def lower_gd(oracle: Oracle, x: Tensor, y: Tensor, n: int | Tensor, a: float | Tensor) -> Tensor:
    """n times `y <- y - a g_y(x, y)`."""
    for on in oracle.repeat(n):
        y = keep(on, y - a * oracle.mean(oracle.grad_g_y(x, y)), y)
    return y


def lower_agd(oracle: Oracle, x: Tensor, y: Tensor, n: int | Tensor, a: float | Tensor, beta: float | Tensor) -> Tensor:
    """n times `q <- y + beta (y - y_prev); y_prev <- y; y <- q - a g_y(x, q)`, from y_prev = y."""
    y_prev = y
    for on in oracle.repeat(n):
        q = y + beta * (y - y_prev)
        y_prev, y = keep(on, y, y_prev), keep(on, q - a * oracle.mean(oracle.grad_g_y(x, q)), y)
    return y


def momentum(c: Constants) -> float:
    """Nesterov's weight for a lower level of condition number L_g/mu."""
    root = math.sqrt(c.L_gy / c.mu)
    return (root - 1) / (root + 1)
