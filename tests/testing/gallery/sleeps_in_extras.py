"""Sleeps where it is only asked what it has seen."""

from __future__ import annotations

import time
from dataclasses import dataclass

from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class SleepsInExtras(Algorithm):
    name = "sleeps_in_extras"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        f_x, _ = oracle.grad_f(s.x, s.y)
        g_y = oracle.grad_g_y(s.x, s.y)
        return State(s.x - self.a * f_x, s.y - self.a * g_y)

    def extras(self, s: State) -> dict[str, Tensor]:
        time.sleep(0.3)
        return {}
