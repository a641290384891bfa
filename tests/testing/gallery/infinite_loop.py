"""Never comes back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class InfiniteLoop(Algorithm):
    name = "infinite_loop"
    uses = frozenset({"grad_f"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        while True:
            pass
