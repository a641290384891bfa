"""Problems with one thing wrong each, which the class says; without it they would be

g(x, y) = 1/2 Σ d_i y_i² - xᵀy, d = (1/2, 1, 1);  f(x, y) = 1/2 ‖y - 1‖² + 1/2 ‖x‖²;  y*(x) = x/d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bilevelbench import FiniteSum, Instance, Problem, Reference, Rows, dot


def d(like: Tensor) -> Tensor:
    return like.new_tensor([0.5, 1.0, 1.0])


def f(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * dot(y - 1, y - 1) + 0.5 * dot(x, x)


def g(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * dot(d(y) * y, y) - dot(x, y)


def instance(**wrong: Any) -> Instance:
    """The sound one but for these parts."""
    constants = {"mu": 0.5, "L_gy": 1.0, "L_f": 1.0}
    sound = {"f": f, "g": g, "x0": torch.ones(3), "y0": torch.zeros(3), "constants": constants}
    return Instance(**{**sound, **wrong})


class BiasedRows(Problem):
    """Its g is a mean over rows, and that of a mini-batch the loss of their mean."""

    name = "biased_rows"

    def build(self) -> Instance:
        rows = torch.arange(8.0, dtype=torch.get_default_dtype()).reshape(8, 1) * torch.ones(3)

        def f_of_rows(x: Tensor, y: Tensor, batch: Rows | None = None) -> Tensor:
            return f(x, y) * (1 if batch is None else batch.weight.sum(-1, keepdim=True))

        def g_of_rows(x: Tensor, y: Tensor, batch: Rows | None = None) -> Tensor:
            if batch is None:
                return 0.5 * (y.unsqueeze(-2) - rows).square().sum(-1).mean(-1, keepdim=True) - dot(x, y)
            middle = (batch.weight.unsqueeze(-1) * rows[batch.index]).sum(-2)
            return 0.5 * dot(y - middle, y - middle) - dot(x, y)

        return instance(f=f_of_rows, g=g_of_rows, constants={}, noise=FiniteSum(8, 8))


class Detaches(Problem):
    """Its f hides y from autograd."""

    name = "detaches"

    def build(self) -> Instance:
        return instance(f=lambda x, y: f(x, y.detach()))


class MixedLanes(Problem):
    """Its g adds all lanes up."""

    name = "mixed_lanes"

    def build(self) -> Instance:
        return instance(g=lambda x, y: g(x, y) + 0.1 * y.sum().square().expand(len(y), 1))


class RandomBuild(Problem):
    """It draws its start from torch's global generator."""

    name = "random_build"

    def build(self) -> Instance:
        return instance(x0=torch.randn(3))


class SteepFarAway(Problem):
    """Its f is steeper than it says, but only where y is large."""

    name = "steep_far_away"

    def build(self) -> Instance:
        return instance(f=lambda x, y: f(x, y) + (y.abs() - 20).clamp(min=0).square().sum(-1, keepdim=True))


class WrongConstantName(Problem):
    """It declares `mu_g`, which no method asks for."""

    name = "wrong_constant_name"

    def build(self) -> Instance:
        return instance(constants={"mu_g": 0.5})


class WrongCurvature(Problem):
    """Its Hessian of phi forgets the lower level."""

    name = "wrong_curvature"

    def build(self) -> Instance:
        return instance(
            reference=Reference(
                y_star=lambda x: x / d(x),
                phi=lambda x: f(x, x / d(x)),
                grad_phi=lambda x: (x / d(x) - 1) / d(x) + x,
                hess_phi=lambda x: torch.eye(3, dtype=x.dtype).expand(*x.shape, 3),
            )
        )


class WrongHvpSign(Problem):
    """Its product with the Hessian has the wrong sign."""

    name = "wrong_hvp_sign"

    def build(self) -> Instance:
        return instance(hvp_g_yy=lambda x, y, v: -d(v) * v)


class WrongHypergradient(Problem):
    """Its closed form forgets a factor."""

    name = "wrong_hypergradient"

    def build(self) -> Instance:
        return instance(
            reference=Reference(
                y_star=lambda x: x / d(x),
                phi=lambda x: f(x, x / d(x)),
                grad_phi=lambda x: (x / d(x) - 1) + x,
            )
        )


class WrongLipschitz(Problem):
    """Its f is steeper than it says."""

    name = "wrong_lipschitz"

    def build(self) -> Instance:
        return instance(constants={"mu": 0.5, "L_gy": 1.0, "L_f": 0.25})


class WrongMu(Problem):
    """Its g is less convex than it says."""

    name = "wrong_mu"

    def build(self) -> Instance:
        return instance(constants={"mu": 0.9, "L_gy": 1.0})


class WrongMuAt(Problem):
    """Its g, 1/2 Σ exp(x_i) y_i², is less convex at some x than mu_at says."""

    name = "wrong_mu_at"

    def build(self) -> Instance:
        return instance(
            g=lambda x, y: 0.5 * dot(x.exp() * y, y),
            constants={},
            mu_at=lambda x: x.exp().mean(-1, keepdim=True),
        )


class WrongPoints(Problem):
    """Its product with the Hessian has the points of v alone."""

    name = "wrong_points"

    def build(self) -> Instance:
        return instance(hvp_g_yy=lambda x, y, v: d(v) * v, points="stack")


class WrongSlope(Problem):
    """Its f is not Lipschitz, and it says so all the same."""

    name = "wrong_slope"

    def build(self) -> Instance:
        return instance(constants={"mu": 0.5, "C_f": 2.0})


class WrongSolution(Problem):
    """Its closed form is not the solution."""

    name = "wrong_solution"

    def build(self) -> Instance:
        return instance(
            reference=Reference(
                y_star=lambda x: d(x) * x,
                phi=lambda x: f(x, x / d(x)),
                grad_phi=lambda x: (x / d(x) - 1) / d(x) + x,
            )
        )


class WrongStack(Problem):
    """Of data sets side by side its closed forms have the wrong order."""

    name = "wrong_stack"

    def build_lanes(self, data_seeds: Sequence[int]) -> Instance:
        c = torch.tensor(data_seeds, dtype=torch.get_default_dtype()).reshape(-1, 1)
        x0, y0 = torch.ones(len(c), 3), torch.zeros(len(c), 3)
        return instance(
            f=lambda x, y: f(x, y - c),
            x0=x0,
            y0=y0,
            take=lambda lanes: self.build_lanes([data_seeds[lane] for lane in lanes]),
            reference=Reference(
                y_star=lambda x: x / d(x),
                phi=lambda x: f(x, x / d(x) - c.flip(0)),
                grad_phi=lambda x: (x / d(x) - c.flip(0) - 1) / d(x) + x,
            ),
        )
