"""A lower level that is convex and no more: it has many solutions, and f chooses among them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from bilevelbench import Instance, Problem, Reference, dot, exact, norm
from bilevelbench_problems.common import noise_model, of_each_lane, spread


class ConvexToy(Problem):
    """f(x, y) = 1/2 ‖x - y_b‖² + 1/2 ‖y_a - e‖²;  g(x, y) = 1/2 ‖y_a‖² - x·y_a;  y = (y_a, y_b), e = (1, .., 1).

    g does not see y_b: its minimisers are y_a = x with any y_b, and the Hessian of g in y is singular. φ is the optimistic
    value, that of the minimiser which f likes best:

        y*(x) = (x, x),   φ(x) = 1/2 ‖x - e‖²,   ∇φ = x - e,   and the solution is x = y_a = y_b = e.

    There is no mu, so what needs it (a default step, a theorem's preset) is refused. No theorem of a method that needs
    strong convexity says anything here. One that moves y along g alone never moves y_b and ends at a wrong x; the minimum
    over x with y_b held fixed is x = (y_b + e)/2. A penalty method moves y_b through f_y/lam.

    x0 and y0 are normal. Metric `distance`: ‖x - e‖.
    """

    name = "convex_toy"

    dim: PositiveInt = 5
    """of x, of y_a and of y_b"""
    sigma_f: NonNegativeFloat = 0.0
    """noise of a sampled gradient of f"""
    sigma_g: NonNegativeFloat = 0.0
    """noise of a sampled gradient of g"""
    sigma_h: NonNegativeFloat = 0.0
    """noise of a sampled product with second derivatives of g"""

    def build_lanes(self, data_seeds: Sequence[int]) -> Instance:
        starts = [torch.randn(3 * self.dim, generator=self.generator(seed), dtype=torch.float64) for seed in data_seeds]
        return self._instance(torch.stack(starts))

    def _instance(self, start: Tensor) -> Instance:
        """`start`: x0 and y0 of each lane, (L, 3 dim) in float64."""
        d, dtype = self.dim, torch.get_default_dtype()
        x0, y0 = start[:, :d], start[:, d:]

        def grad_f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            apart = x - y[..., d:]
            return apart, torch.cat([spread(y[..., :d] - 1, x), -apart], -1)

        def take(lanes: Tensor) -> Instance:
            return self._instance(start.index_select(0, lanes))

        return Instance(
            f=lambda x, y: 0.5 * (norm(x - y[..., d:]).square() + norm(y[..., :d] - 1).square()),
            g=lambda x, y: dot(y[..., :d], 0.5 * y[..., :d] - x),
            grad_f=grad_f,
            grad_f_x=lambda x, y: x - y[..., d:],
            grad_g_x=lambda x, y: spread(-y[..., :d], x),
            grad_g_y=lambda x, y: _above(y[..., :d] - x),
            hvp_g_yy=lambda x, y, v: spread(_above(v[..., :d]), x, y),
            jvp_g_xy=lambda x, y, v: spread(-v[..., :d], x, y),
            x0=x0.to(dtype),
            y0=y0.to(dtype),
            constants={
                "L_gy": exact(1),
                "L_g": exact((1 + 5**0.5) / 2),
                "L_f": exact(2),
                "rho_f": exact(0),
                "rho_g": exact(0),
                "nu_g": exact(0),
                "C_f": of_each_lane(torch.cat([y0[:, :d] - 1, y0[:, d:] - x0], -1).norm(dim=-1), "estimated"),
                "L_phi": exact(1),
                "rho_phi": exact(0),
                "Delta": of_each_lane(0.5 * (x0 - 1).square().sum(-1)),
                "R": of_each_lane((y0 - torch.cat([x0, x0], -1)).square().sum(-1)),
            },
            noise=noise_model(self.sigma_f, self.sigma_g, self.sigma_h),
            reference=Reference(
                y_star=lambda x: torch.cat([x, x], -1),
                phi=lambda x: 0.5 * norm(x - 1).square(),
                grad_phi=lambda x: x - 1,
                hess_phi=lambda x: torch.eye(d, dtype=dtype).expand(*x.shape, d),
            ),
            points="stack",
            metrics={"distance": lambda x, y: norm(x - 1)},
            take=take if len(start) > 1 else None,  # a single data set serves any lanes
        )


def _above(a: Tensor) -> Tensor:
    """(a, 0): what lies along y_a."""
    return torch.cat([a, torch.zeros_like(a)], -1)
