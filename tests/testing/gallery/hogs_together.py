"""Has processes each of which takes a modest amount of memory, and there are many."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class HogsTogether(Algorithm):
    name = "hogs_together"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        for _ in range(6):
            if not (child := os.fork()):
                taken = bytearray(os.urandom(1)) * 150_000_000
                time.sleep(600 if taken else 0)
                os._exit(0)
            print("process", child, flush=True)
        time.sleep(5)
        f_x, _ = oracle.grad_f(s.x, s.y)
        g_y = oracle.grad_g_y(s.x, s.y)
        return State(s.x - self.a * f_x, s.y - self.a * g_y)
