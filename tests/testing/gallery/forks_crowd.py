"""Starts more processes than anyone needs."""

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


class ForksCrowd(Algorithm):
    name = "forks_crowd"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        for _ in range(200):
            if not os.fork():
                os.write(1, b"process %d\n" % os.getpid())
                time.sleep(600)
        time.sleep(600)
        return s
