"""Its g is less convex at some x than mu_at says."""

from __future__ import annotations

import torch
from torch import Tensor

from bilevelbench import Instance, Problem, dot


class WrongMuAt(Problem):
    """g(x, y) = 1/2 Σ exp(x_i) y_i²;  f(x, y) = 1/2 ‖y - 1‖² + 1/2 ‖x‖²."""

    name = "wrong_mu_at"

    def build(self) -> Instance:
        def f(x: Tensor, y: Tensor) -> Tensor:
            return 0.5 * dot(y - 1, y - 1) + 0.5 * dot(x, x)

        return Instance(
            f=f,
            g=lambda x, y: 0.5 * dot(x.exp() * y, y),
            x0=torch.ones(3),
            y0=torch.zeros(3),
            mu_at=lambda x: x.exp().mean(-1, keepdim=True),
        )
