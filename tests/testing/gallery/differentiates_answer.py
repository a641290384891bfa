"""Wants a Hessian for the price of a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class DifferentiatesAnswer(Algorithm):
    name = "differentiates_answer"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        f_x, _ = oracle.grad_f(s.x, s.y)
        with torch.enable_grad():
            y = s.y.detach().requires_grad_(True)
            g_y = oracle.grad_g_y(s.x, y)
            (Hg,) = torch.autograd.grad(0.5 * (g_y * g_y).sum(), y)
        return State(s.x - self.a * f_x, s.y - self.a * Hg)
