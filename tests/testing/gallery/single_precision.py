"""Makes a tensor in torch's default dtype, whatever the trial says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    m: Tensor


class SinglePrecision(Algorithm):
    name = "single_precision"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0, torch.zeros(oracle.L, oracle.dy))

    def step(self, s: State, oracle: Oracle) -> State:
        g_y = oracle.grad_g_y(s.x, s.y)
        f_x, _ = oracle.grad_f(s.x, s.y)
        m = 0.5 * s.m + g_y
        return State(s.x - self.a * f_x, s.y - self.a * m, m)
