"""Its g adds all lanes up."""

from __future__ import annotations

import torch
from torch import Tensor

from bilevelbench import Instance, Problem, dot


class MixedLanes(Problem):
    """g(x, y) = 1/2 Σ d_i y_i² - xᵀy, d = (1/2, 1, 1);  f(x, y) = 1/2 ‖y - 1‖² + 1/2 ‖x‖²."""

    name = "mixed_lanes"

    def build(self) -> Instance:
        d = torch.tensor([0.5, 1.0, 1.0])

        def f(x: Tensor, y: Tensor) -> Tensor:
            return 0.5 * dot(y - 1, y - 1) + 0.5 * dot(x, x)

        return Instance(
            f=f,
            g=lambda x, y: 0.5 * dot(d * y, y) - dot(x, y) + 0.1 * y.sum().square().expand(len(y), 1),
            x0=torch.ones(3),
            y0=torch.zeros(3),
            constants={"mu": 0.5, "L_gy": 1.0, "L_f": 1.0},
        )
