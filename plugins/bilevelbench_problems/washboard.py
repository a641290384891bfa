"""A lower level whose curvature ripples: the hyper-objective is as rough as the condition number allows."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from bilevelbench import Constant, Instance, Problem, Reference, exact
from bilevelbench_problems.common import noise_model, of_each_lane, spread
from bilevelbench_problems.separable import peak, power_tail, tail_drop

_NEWTON_STEPS = 6  # each one squares the error, from a third: four reach rounding


class _Washboard(Problem):
    """Both forms; w is the width of a ripple."""

    kappa: Annotated[float, Field(ge=2)] = 8.0
    """1/mu; the lower curvature is 1 in y_1 and at most 2 mu in y_2"""
    q: Annotated[float, Field(gt=1)] = 1.05
    """power of the tail"""
    sigma_f: NonNegativeFloat = 0.0
    """noise of a sampled gradient of f"""
    sigma_g: NonNegativeFloat = 0.0
    """noise of a sampled gradient of g"""
    sigma_h: NonNegativeFloat = 0.0
    """noise of a sampled product with second derivatives of g"""

    def drift_exponent(self) -> float:
        return self.q

    @abstractmethod
    def width(self) -> float: ...

    def build_lanes(self, data_seeds: Sequence[int]) -> Instance:
        draws = [torch.rand(1, generator=self.generator(seed), dtype=torch.float64) - 0.5 for seed in data_seeds]
        return self._instance(torch.stack(draws))

    def _instance(self, start: Tensor) -> Instance:
        """`start`: x_1 of each lane, (L, 1) in float64."""
        mu, w, tail, dtype = 1 / self.kappa, self.width(), power_tail(self.q), torch.get_default_dtype()
        ripple = 0.5 * mu * w
        x0 = torch.cat([start, torch.full_like(start, (1.5 * math.pi + 0.8) * mu * w)], -1)
        y0 = torch.cat([torch.zeros_like(start), torch.full_like(start, math.pi * w)], -1)

        def f(x: Tensor, y: Tensor) -> Tensor:
            return tail.value(y[..., :1]) + y[..., 1:] - x[..., 1:] / (1.5 * mu)

        def g(x: Tensor, y: Tensor) -> Tensor:
            y_2 = y[..., 1:]
            bowl = 0.5 * (y[..., :1] - x[..., :1]).square() + 0.75 * mu * y_2.square()
            return bowl - ripple * w * torch.sin(y_2 / w) - x[..., 1:] * y_2

        # both coordinates in one formula: the bowls, and the ripple of the second
        bowl_y = torch.tensor([1.0, 1.5 * mu], dtype=dtype)
        wave_y = torch.tensor([0.0, ripple], dtype=dtype)
        bent_y = torch.tensor([0.0, 0.5 * mu], dtype=dtype)

        def g_y(x: Tensor, y: Tensor) -> Tensor:
            return torch.addcmul(bowl_y * y - x, wave_y, torch.cos(y / w), value=-1)

        def hvp(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
            return spread(torch.addcmul(bowl_y, bent_y, torch.sin(y / w)) * v, x)

        def take(lanes: Tensor) -> Instance:
            return self._instance(start.index_select(0, lanes))

        f_x = torch.tensor([0.0, -1 / (1.5 * mu)], dtype=dtype)
        return Instance(
            f=f,
            g=g,
            grad_f_x=lambda x, y: spread(f_x.expand_as(x), y),
            grad_f_y=lambda x, y: spread(torch.cat([tail.slope(y[..., :1]), torch.ones_like(y[..., 1:])], -1), x),
            grad_g_x=lambda x, y: torch.cat([x[..., :1] - y[..., :1], spread(-y[..., 1:], x)], -1),
            grad_g_y=g_y,
            hvp_g_yy=hvp,
            jvp_g_xy=lambda x, y, v: spread(-v, x, y),
            x0=x0.to(dtype),
            y0=y0.to(dtype),
            constants=self._constants(x0, y0),
            noise=noise_model(self.sigma_f, self.sigma_g, self.sigma_h),
            reference=self._closed_forms(),
            points="stack",
            take=take if len(start) > 1 else None,  # a single data set serves any lanes
        )

    def _closed_forms(self) -> Reference:
        mu, w, tail = 1 / self.kappa, self.width(), power_tail(self.q)

        def ripple(x: Tensor) -> tuple[Tensor, Tensor]:
            """u = y_2*/w and 3/2 + sin(u)/2."""
            u = _ripple(x[..., 1:] / (mu * w))
            return u, 1.5 + 0.5 * torch.sin(u)

        def grad_phi(x: Tensor) -> Tensor:
            u, bend = ripple(x)
            return torch.cat([tail.slope(x[..., :1]), -torch.sin(u) / (3 * mu * bend)], -1)

        def hess_phi(x: Tensor) -> Tensor:
            u, bend = ripple(x)
            rough = -0.5 * torch.cos(u) / (mu * mu * w * bend**3)
            return torch.diag_embed(torch.cat([tail.curvature(x[..., :1]), rough], -1))

        return Reference(
            y_star=lambda x: torch.cat([x[..., :1], w * ripple(x)[0]], -1),
            phi=lambda x: tail.value(x[..., :1]) + w / 3 * torch.cos(ripple(x)[0]),
            grad_phi=grad_phi,
            hess_phi=hess_phi,
        )

    def _constants(self, x0: Tensor, y0: Tensor) -> dict[str, Constant]:
        mu, w, tail = 1 / self.kappa, self.width(), power_tail(self.q)
        u = _ripple(x0[:, 1] / (mu * w))
        solution = torch.stack([x0[:, 0], w * u], -1)
        return {
            "mu": exact(mu),
            "L_gy": exact(1),
            "L_g": exact(2),
            "rho_g": exact(0.5 * mu / w),
            "nu_g": exact(0.5 * mu / w**2),
            "C_f": exact(math.sqrt(2)),
            "L_f": exact(peak(tail.curvature)),
            "rho_f": exact(peak(tail.third)),
            "Delta": of_each_lane(tail.value(x0[:, 0]) + tail_drop(self.q) + w / 3 * (1 + torch.cos(u))),
            "R": of_each_lane((y0 - solution).square().sum(-1)),
        }


class Washboard(_Washboard):
    """g(x, y) = 1/2 (y_1 - x_1)² + 3/4 mu y_2² - 1/2 mu w² sin(y_2/w) - x_2 y_2;  f(x, y) = p(y_1) + y_2 - x_2/(1.5 mu).

    w = mu = 1/kappa, and p is the tail of `tail_anchor`, p'(u) = -(1+u²)^(-q/2). The lower curvature in y_2 is
    mu (3/2 + sin(y_2/w)/2), between mu and 2 mu, and g_yyy, C_f and L_f do not depend on mu. With u the one solution of
    3u/2 - cos(u)/2 = x_2/(mu w), which Newton's method finds to the last bit,

        y*(x) = (x_1, w u),   φ = p(x_1) + (w/3) cos u,   ∂φ/∂x_2 = -sin(u) / (3 mu (3/2 + sin(u)/2)),
        ∂²φ/∂x_2² = -cos(u) / (2 mu² w (3/2 + sin(u)/2)³).

    So φ has wells in x_2 whose curvature at the bottom, u = π, is 0.148/mu³: the theorems' kappa³ is attained, and gradient
    descent on φ has to make steps of at most 13.5 mu³. φ is bounded below. L_phi is not declared: every method's default step
    follows from the same formula of the other constants.

    The start is in a well, x_2 = (1.5π + 0.8) mu w and y_2 = π w; x_1 is uniform in [-1/2, 1/2] by the data seed, y_1 = 0.
    Long steps hop between wells and may happen to hit a small gradient, so hold the mean of ‖∇φ‖ over the steps against an
    accuracy, not the first hit, and take kappa >= 8.
    """

    name = "washboard"

    def width(self) -> float:
        return 1 / self.kappa


class WashboardA3(_Washboard):
    """`washboard` with wider ripples, w = √mu: the third derivative of the lower Hessian is bounded, nu_g = 1/2 for every mu.

    Its formulas are those of `washboard`. The curvature of φ in x_2 grows as kappa^2.5, the most that a bounded nu_g allows,
    and its third derivative as kappa⁴.
    """

    name = "washboard_a3"
    embedded = False  # `run --all` has `washboard`

    def width(self) -> float:
        return 1 / math.sqrt(self.kappa)


def _ripple(s: Tensor) -> Tensor:
    """u with 3u/2 - cos(u)/2 = s."""
    u = s / 1.5
    for _ in range(_NEWTON_STEPS):
        u = u - (1.5 * u - 0.5 * torch.cos(u) - s) / (1.5 + 0.5 * torch.sin(u))
    return u
