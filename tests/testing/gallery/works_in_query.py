"""Computes by itself while the oracle answers something else."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class WorksInQuery(Algorithm):
    name = "works_in_query"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        ask, y = oracle._instance._raw["grad_g_y"], s.y

        def work(frame: Any, event: str, _: Any) -> None:
            nonlocal y
            if event == "call" and frame.f_code.co_name == "counted":
                sys.setprofile(None)
                for _ in range(20):
                    y = y - self.a * ask(s.x, y)

        sys.setprofile(work)
        f_x, _ = oracle.grad_f(s.x, s.y)
        sys.setprofile(None)
        return State(s.x - self.a * f_x, y)
