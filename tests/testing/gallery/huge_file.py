"""Writes a file of eight gigabytes, and leaves another one behind."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class HugeFile(Algorithm):
    name = "huge_file"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        tempfile.mkstemp(prefix="left-behind-")
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.truncate(2**33)
        f_x, _ = oracle.grad_f(s.x, s.y)
        g_y = oracle.grad_g_y(s.x, s.y)
        return State(s.x - self.a * f_x, s.y - self.a * g_y)
