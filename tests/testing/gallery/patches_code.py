"""Changes the code inside a function of the meter, which stays the same object."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilevelbench import Algorithm, Oracle
from bilevelbench.oracle.meter import F64, Meter


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


def _free(self: Meter) -> F64:
    return self.samples.sum(0) * 0


class PatchesCode(Algorithm):
    name = "patches_code"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        Meter.cost.__code__ = _free.__code__
        f_x, _ = oracle.grad_f(s.x, s.y)
        g_y = oracle.grad_g_y(s.x, s.y)
        return State(s.x - self.a * f_x, s.y - self.a * g_y)
