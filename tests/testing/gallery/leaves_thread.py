"""Leaves a thread behind that never ends."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class LeavesThread(Algorithm):
    name = "leaves_thread"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        threading.Thread(target=time.sleep, args=(3600,)).start()
        f_x, _ = oracle.grad_f(s.x, s.y)
        g_y = oracle.grad_g_y(s.x, s.y)
        return State(s.x - self.a * f_x, s.y - self.a * g_y)
