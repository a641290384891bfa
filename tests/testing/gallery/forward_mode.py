"""Takes a Hessian product out of a gradient by forward-mode differentiation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.autograd import forward_ad

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class ForwardMode(Algorithm):
    name = "forward_mode"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        with forward_ad.dual_level():
            g_y = oracle.grad_g_y(s.x, forward_ad.make_dual(s.y, s.y))
            Hy = forward_ad.unpack_dual(g_y).tangent
        f_x, _ = oracle.grad_f(s.x, s.y)
        return State(s.x - self.a * f_x, s.y - self.a * Hy)
