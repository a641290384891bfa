"""Asks for the answer in a thread, where nobody looks."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class AsksInThread(Algorithm):
    name = "asks_in_thread"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        answers: list[Tensor] = []
        reference = oracle._instance.reference
        thread = threading.Thread(target=lambda: answers.append(reference.grad_phi(s.x)))
        thread.start()
        thread.join()
        return State(s.x - self.a * answers[0], s.y)
