"""Prints 50 MB."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class PrintsMuch(Algorithm):
    name = "prints_much"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        for _ in range(50):
            sys.stdout.write("x" * 2**20 + "\n")
        raise RuntimeError("nothing more to say")
