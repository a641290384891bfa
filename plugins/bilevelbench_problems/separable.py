"""Separable functions in rotated coordinates, F(z) = Σ_i h(c_iᵀz): the pieces of the tail problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import scipy  # its parts load when they are used
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bilevelbench import dot
from bilevelbench_problems.common import spread

Function = Callable[[Tensor], Tensor]


def times(z: Tensor, M: Tensor) -> Tensor:
    """zᵀM in each lane: z is (*points, L, d), M is (L, d, k)."""
    return (z.unsqueeze(-2) @ M).squeeze(-2)


def one_plus_square(u: Tensor, power: float) -> Tensor:
    """(1+u²)^power. Not by `**`: the last bit of torch's pow depends on an element's place, so lanes would too."""
    return torch.exp(power * torch.log1p(u * u))


@dataclass(frozen=True)
class Scalar:
    """h : R -> R with its first three derivatives."""

    value: Function
    slope: Function
    curvature: Function
    third: Function

    def __add__(self, other: Scalar) -> Scalar:
        return Scalar(
            value=lambda u: self.value(u) + other.value(u),
            slope=lambda u: self.slope(u) + other.slope(u),
            curvature=lambda u: self.curvature(u) + other.curvature(u),
            third=lambda u: self.third(u) + other.third(u),
        )


class Separable:
    """F(z) = Σ_i h(c_iᵀz), the c_i being the orthonormal columns of C (L, d, k), one matrix per lane."""

    def __init__(self, h: Scalar, C: Tensor) -> None:
        self.h, self.C, self.Ct = h, C.contiguous(), C.mT.contiguous()

    def __call__(self, z: Tensor) -> Tensor:
        return self.h.value(times(z, self.C)).sum(-1, keepdim=True)

    def gradient(self, z: Tensor) -> Tensor:
        return times(self.h.slope(times(z, self.C)), self.Ct)

    def hessian(self, z: Tensor) -> Tensor:
        return (self.C * self.h.curvature(times(z, self.C)).unsqueeze(-2)) @ self.Ct

    def hvp(self, z: Tensor, v: Tensor) -> Tensor:
        return times(self.h.curvature(times(z, self.C)) * times(v, self.C), self.Ct)


@dataclass(frozen=True)
class Valley:
    """1/2 wᵀHw + c F(w): a strongly convex bowl around w = 0, bent where c > 0."""

    H: Tensor
    bend: Separable
    c: float

    def value(self, w: Tensor, linear: Tensor) -> Tensor:
        """With a linear part, which a lower level has in x."""
        value = 0.5 * dot(times(w, self.H), w) + linear
        return value + self.c * self.bend(w) if self.c else value

    def gradient(self, w: Tensor) -> Tensor:
        return times(w, self.H) + self.c * self.bend.gradient(w) if self.c else times(w, self.H)

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        return times(v, self.H) + self.c * self.bend.hvp(w, v) if self.c else spread(times(v, self.H), w)


class _PowerTailValue(torch.autograd.Function):
    """p(u) = -u ₂F₁(1/2, q/2; 3/2; -u²): not elementary, but its derivative is."""

    @staticmethod
    def forward(ctx, u: Tensor, q: float) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(u)
        ctx.q = q
        factor = scipy.special.hyp2f1(0.5, q / 2, 1.5, -(u * u).double().cpu().numpy())
        return -u * torch.as_tensor(factor, dtype=u.dtype, device=u.device)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        (u,) = ctx.saved_tensors
        return grad * _power_tail_slope(u, ctx.q), None


def _power_tail_slope(u: Tensor, q: float) -> Tensor:
    return -one_plus_square(u, -q / 2)


def power_tail(q: float) -> Scalar:
    """p' = -(1+u²)^(-q/2), p(0) = 0: decreasing from `tail_drop(q)` to minus that."""
    return Scalar(
        value=lambda u: _PowerTailValue.apply(u, q),  # type: ignore[no-untyped-call]
        slope=lambda u: _power_tail_slope(u, q),
        curvature=lambda u: q * u * one_plus_square(u, -q / 2 - 1),
        third=lambda u: q * (1 - (q + 1) * u * u) * one_plus_square(u, -q / 2 - 2),
    )


def tail_drop(q: float) -> float:
    """p(0) - inf p = (√π/2) Γ((q-1)/2) / Γ(q/2), finite for q > 1."""
    return math.sqrt(math.pi) / 2 * math.gamma((q - 1) / 2) / math.gamma(q / 2)


#: s = √(1+u²)
ANCHOR = Scalar(
    value=lambda u: (1 + u * u).sqrt(),
    slope=lambda u: u * (1 + u * u).rsqrt(),
    curvature=lambda u: one_plus_square(u, -1.5),
    third=lambda u: -3 * u * one_plus_square(u, -2.5),
)

#: (r + 2/r - 3)/2 with r = √(1+u²), so slope (u²-1)u/(2r³): curvature -1/2 at 0, minima √2 - 3/2 at ±1.
SADDLE = Scalar(
    value=lambda u: 0.5 * (1 + u * u).sqrt() + (1 + u * u).rsqrt() - 1.5,
    slope=lambda u: 0.5 * u * (u * u - 1) * one_plus_square(u, -1.5),
    curvature=lambda u: 0.5 * (5 * u * u - 1) * one_plus_square(u, -2.5),
    third=lambda u: 7.5 * u * (1 - u * u) * one_plus_square(u, -3.5),
)

#: By logsigmoid: smooth for autograd at 0, no overflow, and unlike logaddexp the same bits at every place in a tensor.
LOG_COSH = Scalar(
    value=lambda u: u - logsigmoid(2 * u) - math.log(2),
    slope=torch.tanh,
    curvature=lambda u: 1 - torch.tanh(u) ** 2,
    third=lambda u: -2 * torch.tanh(u) * (1 - torch.tanh(u) ** 2),
)


def peak(h: Function) -> float:
    """sup |h| of a smooth function that decays: the best point of a grid, then a search around it."""
    from scipy.optimize import minimize_scalar  # here: it takes a worker process a third of a second

    grid = torch.linspace(-8, 8, 16001, dtype=torch.float64)
    sizes = h(grid).abs()
    best = float(grid[sizes.argmax()])
    found = minimize_scalar(
        lambda u: -abs(float(h(torch.tensor(u, dtype=torch.float64)))),
        bounds=(best - 1e-3, best + 1e-3),
        method="bounded",
        options={"xatol": 1e-12},
    )
    return max(float(sizes.max()), -float(found.fun))
