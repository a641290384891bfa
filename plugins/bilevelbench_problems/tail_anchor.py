"""A slow tail and an anchor: the tail sets the number of steps, the anchor punishes bias and noise."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Generator, Tensor

from bilevelbench import Constant, Instance, Reference, dot, exact
from bilevelbench_problems.common import NoiseKind, Stretched, noise_model, of_each_lane, random_orthogonal, spread
from bilevelbench_problems.separable import (
    ANCHOR,
    LOG_COSH,
    SADDLE,
    Separable,
    Valley,
    peak,
    power_tail,
    tail_drop,
    times,
)


class TailAnchor(Stretched):
    """f(x, y) = Σ_i p(y_i) + Σ_anchors s(x_i);  g(x, y) = 1/2 (y-x)ᵀH(y-x) + bᵀx + c Σ_i log cosh(y_i - x_i).

    p'(u) = -(1+u²)^(-q/2), p(0) = 0, and s(w) = √(1+w²); x holds the tail coordinates, then the anchors. So

        y*(x) = x,   ∇φ = p'(x) + [anchors] s'(x),   ∇²φ diagonal,   v* = (H + cI)⁻¹ p'(x),   J = -H_yy.

    For q = 1.05 a tail falls for ever towards p(∞) = -(√π/2) Γ((q-1)/2)/Γ(q/2) = -20.685, and an anchor has its minimum
    at w* = 0.98323, where f_x and J v* cancel. bᵀx makes g_x(x, y*) nonzero; c > 0 is the only source of rho_g > 0.

    Data, per data seed: H = R diag(mu..L) Rᵀ with R a random orthogonal matrix; b = drift · normal; x0 uniform in
    [-1/2, 1/2]^d; y0 = 0, so the constant R is ‖x0‖². With `rotate`, x and y are turned by one random orthogonal
    matrix Q: the formulas above hold for Qᵀx and Qᵀy.

    `saddle` adds one more coordinate, where f₃(y_i) replaces p(y_i): f₃' = (u²-1)u / (2(1+u²)^1.5) has a strict saddle
    at 0, with curvature -1/2, and minima at ±1. The start is exactly 0 there. Q and H do not mix this coordinate with
    the others (its eigenvalue is mu, its b is 0): all is symmetric in its sign, only a perturbation leaves the saddle.
    """

    name = "tail_anchor"

    tails: PositiveInt = 1
    """coordinates that are tails"""
    anchors: NonNegativeInt = 1
    """coordinates that are anchors"""
    saddle: bool = False
    """whether one more coordinate has a strict saddle"""
    c: NonNegativeFloat = 0.0
    """weight of the log cosh in g"""
    q: Annotated[float, Field(gt=1)] = 1.05
    """power of the tail"""
    drift: NonNegativeFloat = 1.0
    """size of b in the term b·x"""
    rotate: bool = True
    """whether the coordinates are rotated at random"""
    sigma_f: NonNegativeFloat = 0.0
    """noise of a sampled gradient of f"""
    sigma_g: NonNegativeFloat = 0.0
    """noise of a sampled gradient of g"""
    sigma_h: NonNegativeFloat = 0.0
    """noise of a sampled product with second derivatives of g"""
    noise: NoiseKind = "additive"
    """whether a sample adds noise to each answer, or is a function of its own (affine)"""

    def sweep(self, over: str, value: float) -> dict[str, Any]:
        """Further dimensions are anchors: a tail more would change the number of steps."""
        if over == "dim_x":
            return {"anchors": round(value) - self.tails - self.saddle}
        return super().sweep(over, value)

    def drift_exponent(self) -> float:
        return self.q

    def build_lanes(self, data_seeds: Sequence[int]) -> Instance:
        lanes = [self._draw(self.generator(seed)) for seed in data_seeds]
        u0, Q, H, b = (torch.stack(parts) for parts in zip(*lanes, strict=True))
        Qt, dtype = Q.mT, torch.get_default_dtype()
        return self._instance(
            _Data(
                Q=Q.to(dtype),
                H=(Q @ H @ Qt).to(dtype),
                b=times(b, Qt).to(dtype),
                x0=times(u0, Qt).to(dtype),
                Delta=self._gap(u0),
                R=u0.square().sum(-1),
            )
        )

    def _draw(self, rng: Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        n = self.tails + self.anchors
        R = random_orthogonal(n, rng)
        H = (R * self._spectrum()) @ R.T
        Q = random_orthogonal(n, rng) if self.rotate else torch.eye(n, dtype=torch.float64)
        u0 = torch.rand(n, generator=rng, dtype=torch.float64) - 0.5
        b = self.drift * torch.randn(n, generator=rng, dtype=torch.float64)
        if self.saddle:
            zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
            u0, b = torch.cat([u0, zero]), torch.cat([b, zero])
            Q, H = torch.block_diag(Q, one), torch.block_diag(H, self.mu * one)
        return u0, Q, H, b

    def _spectrum(self) -> Tensor:
        return torch.linspace(self.mu, self.L, self.tails + self.anchors, dtype=torch.float64)

    def _gap(self, u0: Tensor) -> Tensor:
        """φ(x0) - inf φ in each lane."""
        tail, anchored = u0[:, : self.tails], u0[:, self.tails : self.tails + self.anchors]
        p, basin = power_tail(self.q), power_tail(self.q) + ANCHOR
        lowest = basin.value(torch.tensor(anchor_minimum(self.q), dtype=torch.float64))
        gap = (p.value(tail) + tail_drop(self.q)).sum(-1) + (basin.value(anchored) - lowest).sum(-1)
        return gap + (1.5 - math.sqrt(2)) * self.saddle

    def _constants(self, Delta: Tensor, R: Tensor) -> dict[str, Constant]:
        L, c, n = float(self._spectrum()[-1]), self.c, self.tails + self.anchors
        L_f, rho_f, L_phi, rho_phi = _smoothness(self.q, self.anchors > 0, self.saddle)
        return {
            "mu": exact(self.mu),
            "L_gy": exact(L + c),
            "L_g": exact(2 * (L + c)),
            "rho_g": exact(c * 2**1.5 * 4 / (3 * math.sqrt(3))),
            "nu_g": exact(8 * c),
            "C_f": exact(math.sqrt(n + 0.25 * self.saddle)),
            "L_f": exact(L_f),
            "rho_f": exact(rho_f),
            "L_phi": exact(L_phi),
            "rho_phi": exact(rho_phi),
            "Delta": of_each_lane(Delta),
            "R": of_each_lane(R),
        }

    def _instance(self, data: _Data) -> Instance:
        Q, b = data.Q, data.b
        tails, n = self.tails, self.tails + self.anchors
        in_x = Separable(ANCHOR, Q[..., tails:n])
        in_y = [Separable(power_tail(self.q), Q[..., :n])]
        if self.saddle:
            in_y.append(Separable(SADDLE, Q[..., n:]))
        valley = Valley(data.H, Separable(LOG_COSH, Q), self.c)

        def f(x: Tensor, y: Tensor) -> Tensor:
            return sum((F(y) for F in in_y), start=in_x(x))

        def f_y(y: Tensor) -> Tensor:
            return functools.reduce(torch.add, [F.gradient(y) for F in in_y])

        def grad_g(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            force = valley.gradient(y - x)
            return b - force, force

        def take(lanes: Tensor) -> Instance:
            return self._instance(data.take(lanes))

        return Instance(
            f=f,
            g=lambda x, y: valley.value(y - x, dot(b, x)),
            grad_f_x=lambda x, y: spread(in_x.gradient(x), y),
            grad_f_y=lambda x, y: spread(f_y(y), x),
            grad_g=grad_g,
            grad_g_y=lambda x, y: valley.gradient(y - x),
            hvp_g_yy=lambda x, y, v: valley.hvp(y - x, v),
            jvp_g_xy=lambda x, y, v: -valley.hvp(y - x, v),
            x0=data.x0,
            y0=torch.zeros_like(data.x0),
            constants=self._constants(data.Delta, data.R),
            noise=noise_model(self.sigma_f, self.sigma_g, self.sigma_h, self.noise),
            reference=Reference(
                y_star=lambda x: x,
                phi=lambda x: f(x, x),
                grad_phi=lambda x: in_x.gradient(x) + f_y(x),
                hess_phi=lambda x: sum((F.hessian(x) for F in in_y), start=in_x.hessian(x)),
            ),
            points="stack",
            take=take if len(data.x0) > 1 else None,  # a single data set serves any lanes
        )


@dataclass(frozen=True)
class _Data:
    """Q and H (L, d, d), b and x0 (L, d), Delta and R (L,)."""

    Q: Tensor
    H: Tensor
    b: Tensor
    x0: Tensor
    Delta: Tensor
    R: Tensor

    def take(self, lanes: Tensor) -> _Data:
        return _Data(**{name: part.index_select(0, lanes) for name, part in vars(self).items()})


def anchor_minimum(q: float) -> float:
    """w* > 0 with p'(w*) + s'(w*) = 0, that is w (1+w²)^((q-1)/2) = 1."""
    from scipy.optimize import brentq  # here: it takes a worker process a third of a second

    return float(brentq(lambda w: w * (1 + w * w) ** ((q - 1) / 2) - 1, 0, 1, xtol=1e-15))


@functools.lru_cache
def _smoothness(q: float, anchors: bool, saddle: bool) -> tuple[float, float, float, float]:
    """L_f, rho_f, L_phi, rho_phi: f and φ are separable, so each is the largest over the kinds of coordinates."""
    tail = power_tail(q)
    in_f, in_phi = [tail], [tail]
    if anchors:
        in_f.append(ANCHOR)
        in_phi.append(tail + ANCHOR)
    if saddle:
        in_f.append(SADDLE)
        in_phi.append(SADDLE)
    return (
        max(peak(h.curvature) for h in in_f),
        max(peak(h.third) for h in in_f),
        max(peak(h.curvature) for h in in_phi),
        max(peak(h.third) for h in in_phi),
    )
