"""Makes ten gradients of one call with vmap."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class MapsOracle(Algorithm):
    name = "maps_oracle"
    uses = frozenset({"grad_f", "grad_g_y"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        ten = torch.stack([s.y + 0.01 * i for i in range(10)])
        g_y = torch.vmap(lambda y: oracle.grad_g_y(s.x, y))(ten).mean(0)
        f_x, _ = oracle.grad_f(s.x, s.y)
        return State(s.x - self.a * f_x, s.y - self.a * g_y)
