"""Does not hear the alarm, and sleeps."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class IgnoresAlarm(Algorithm):
    name = "ignores_alarm"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        time.sleep(3600)
        return s
