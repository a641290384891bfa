"""Its product with the Hessian has the wrong sign."""

from __future__ import annotations

import torch
from torch import Tensor

from bilevelbench import Instance, Problem, dot


class WrongHvpSign(Problem):
    """g(x, y) = 1/2 Σ d_i y_i² - xᵀy, d = (1/2, 1, 1);  f(x, y) = 1/2 ‖y - 1‖² + 1/2 ‖x‖²."""

    name = "wrong_hvp_sign"

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
            hvp_g_yy=lambda x, y, v: -d * v,
        )
