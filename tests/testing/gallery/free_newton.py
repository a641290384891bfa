"""A Newton method that declares gradients alone: every Hessian product comes from one gradient, all in one call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class FreeNewton(Algorithm):
    name = "free_newton"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        f_x, _ = oracle.grad_f(s.x, s.y)

        def product(v: Tensor) -> Tensor:
            return torch.func.jvp(lambda y: oracle.grad_g_y(s.x, y), (s.y,), (v,))[1]

        units = torch.eye(oracle.dy, dtype=oracle.dtype).unsqueeze(1).expand(-1, oracle.L, -1)
        H = torch.vmap(product)(units).permute(1, 0, 2)
        g_y = oracle.grad_g_y(s.x, s.y)
        return State(s.x - self.a * f_x, s.y - torch.linalg.solve(H, g_y.unsqueeze(-1)).squeeze(-1))
