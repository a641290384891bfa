"""Takes a Hessian product out of a gradient with an imaginary step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class ComplexStep(Algorithm):
    name = "complex_step"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        g_y = oracle.grad_g_y(s.x + 0j, s.y + 1e-20j * s.y)
        f_x, _ = oracle.grad_f(s.x, s.y)
        return State(s.x - self.a * f_x, s.y - self.a * g_y.imag * 1e20)
