"""Its closed form forgets a factor."""

from __future__ import annotations

import torch
from torch import Tensor

from bilevelbench import Instance, Problem, Reference, dot


class WrongHypergradient(Problem):
    """g(x, y) = 1/2 Σ d_i y_i² - xᵀy, d = (1/2, 1, 1);  f(x, y) = 1/2 ‖y - 1‖² + 1/2 ‖x‖²."""

    name = "wrong_hypergradient"

    def build(self) -> Instance:
        d = torch.tensor([0.5, 1.0, 1.0])

        def f(x: Tensor, y: Tensor) -> Tensor:
            return 0.5 * dot(y - 1, y - 1) + 0.5 * dot(x, x)

        return Instance(
            f=f,
            g=lambda x, y: 0.5 * dot(d * y, y) - dot(x, y),
            x0=torch.ones(3),
            y0=torch.zeros(3),
            constants={"mu": 0.5, "L_gy": 1.0, "L_f": 1.0},
            reference=Reference(
                y_star=lambda x: x / d,
                phi=lambda x: f(x, x / d),
                grad_phi=lambda x: (x / d - 1) + x,
            ),
        )
