"""Leaves a thread behind that goes on computing, and changes what the step has returned."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class GoesOnInThread(Algorithm):
    name = "goes_on_in_thread"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        f_x, _ = oracle.grad_f(s.x, s.y)
        g_y = oracle.grad_g_y(s.x, s.y)
        new = State(s.x - self.a * f_x, s.y - self.a * g_y)

        def go_on() -> None:
            while True:
                new.y.mul_(1.0)
                torch.ones(50, 50) @ torch.ones(50, 50)

        threading.Thread(target=go_on, daemon=True).start()
        return new
