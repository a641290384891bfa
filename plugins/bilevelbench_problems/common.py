"""What several problems share: a spectrum, the noise model, rotations, point axes, constants of stacked data and joint ones."""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import PositiveFloat, model_validator
from torch import Generator, Tensor

from bilevelbench import Additive, Affine, Constant, Exact, Problem, exact

NoiseKind = Literal["additive", "affine"]


class Stretched(Problem):
    """A problem whose lower level has the curvature H, its eigenvalues evenly from mu to L."""

    mu: PositiveFloat = 1.0
    """smallest eigenvalue of H"""
    L: PositiveFloat = 2.0
    """largest eigenvalue of H"""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.mu > self.L:
            raise ValueError(f"mu = {self.mu} is larger than L = {self.L}")
        return self


def noise_model(
    sigma_f: float, sigma_g: float, sigma_h: float, kind: NoiseKind = "additive"
) -> Exact | Additive | Affine:
    """Without any noise the problem is exact: a call is one sample."""
    if not (sigma_f or sigma_g or sigma_h):
        return Exact()
    return (Additive if kind == "additive" else Affine)(sigma_f, sigma_g, sigma_h)


def random_orthogonal(d: int, rng: Generator) -> Tensor:
    """Uniform on the orthogonal group, (d, d) in float64."""
    Q, R = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=torch.float64))
    out: Tensor = Q * R.diagonal().sign()
    return out


def spread(value: Tensor, *arguments: Tensor) -> Tensor:
    """A derivative that does not depend on some argument, over all points and lanes of the arguments."""
    axes = value.shape[:-1]
    if all(argument.shape[:-1] == axes for argument in arguments):
        return value
    axes = torch.broadcast_shapes(axes, *(argument.shape[:-1] for argument in arguments))
    return value.expand(*axes, value.shape[-1])


def of_each_lane(values: Tensor) -> Constant:
    """A constant that each data set has for itself, from (L,)."""
    return exact(values.item()) if len(values) == 1 else Constant(tuple(values.tolist()), "exact")


def joint_norm(g_xx: Tensor | float, g_xy: Tensor | float, g_yy: float) -> float:
    """The norm of [[g_xx, g_xy], [g_xy, g_yy]]: bounds on the blocks of a Hessian bound the whole. Of several, the largest."""
    xx, xy = (torch.as_tensor(block, dtype=torch.float64) for block in (g_xx, g_xy))
    return float(((xx + g_yy) / 2 + torch.hypot((g_yy - xx) / 2, xy)).max())
