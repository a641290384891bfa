"""Counts its steps outside of the state."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilevelbench import Algorithm, Oracle

COUNT = [0]


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class HiddenState(Algorithm):
    name = "hidden_state"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        COUNT[0] += 1
        g_y = oracle.grad_g_y(s.x, s.y)
        f_x, _ = oracle.grad_f(s.x, s.y)
        return State(s.x - self.a / COUNT[0] * f_x, s.y - self.a * g_y)
