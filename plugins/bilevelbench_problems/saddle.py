"""Strict saddles of φ: the start lies exactly on the stable manifold of one, so only a perturbation leaves it.

`saddle` has one point where plain descent gets stuck, `saddle_chain` a row of them that has to be left one by one.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Generator, Tensor
from torch.nn.functional import pad

from bilevelbench import Constant, Instance, Reference, dot, exact
from bilevelbench_problems.common import Stretched, noise_model, of_each_lane, random_orthogonal, spread
from bilevelbench_problems.landscapes import Landscape, Row, Wells
from bilevelbench_problems.separable import ANCHOR, LOG_COSH, Separable, Valley, peak, times


class _Saddles(Stretched):
    """f(x, y) = Σ_i [s(ξ_i) + s(η_i)] + F(η'),  g(x, y) = 1/2 wᵀHw + bᵀx + c Σ_i log cosh(ω_i),  w = y - Mx - shift.

    s(w) = √(1+w²). x = (Uξ, ξ') and y = (Vη, η') with U and V random orthogonal; M = V diag(m) Uᵀ ⊕ gain_max I and
    shift = (Vt, 0); w = (Vω, ω'). So y*(x) = Mx + shift, that is η = mξ + t and η' = gain_max ξ', and with m' = gain_max

        φ = Σ_i [s(ξ_i) + s(m_i ξ_i + t_i)] + F(m'ξ'),   ∇²φ = U diag(s''(ξ) + m² s''(mξ + t)) Uᵀ ⊕ m'² ∇²F(m'ξ').

    The ξ are stable: φ is convex in them. t is such that the minimum lies where s'(ξ_i) = min(1, m_i)/2 =: r_i, that is
    ξ_i = q(r_i) and t_i = q(-r_i/m_i) - m_i ξ_i with q(r) = r/√(1-r²); f_x and J v* are not zero there, they cancel. F is
    even in each coordinate and has a strict saddle at 0.

    Data, per data seed: U and V (the identity without `rotate`); H = V Q diag(..) Qᵀ Vᵀ ⊕ diag(..) with Q random
    orthogonal, its eigenvalues evenly from mu to L and the smallest ones those of the η'; b = drift · normal; ξ uniform in
    [-1, 1]; y0 = 0.

    The start has ξ' = 0 exactly, and no matrix mixes ξ' or η' with anything, b and shift are zero there: a zero stays a
    zero in floating point, and only a perturbation leaves the saddle. A rotation of these coordinates would bring in
    rounding errors, which grow from 1e-16 to 1 within some hundred steps. The metric `escaped` counts |η'_i| > 1/2.
    """

    stable: PositiveInt = 3
    """coordinates in which φ is convex"""
    strength: PositiveFloat = 1.0
    """factor of F"""
    gain_min: Annotated[float, Field(gt=0, le=100)] = 1.0
    """smallest singular value of M"""
    gain_max: Annotated[float, Field(gt=0, le=100)] = 2.0
    """largest singular value of M"""
    c: NonNegativeFloat = 0.0
    """weight of the log cosh, the only source of rho_g > 0"""
    drift: NonNegativeFloat = 1.0
    """size of b in the term b·x"""
    rotate: bool = True
    """whether U and V are random rotations"""
    sigma_f: NonNegativeFloat = 0.0
    """noise of a sampled gradient of f"""
    sigma_g: NonNegativeFloat = 0.0
    """noise of a sampled gradient of g"""
    sigma_h: NonNegativeFloat = 0.0
    """noise of a sampled product with second derivatives of g"""

    @model_validator(mode="after")
    def _ordered_gains(self) -> Self:
        if self.gain_min > self.gain_max:
            raise ValueError(f"gain_min = {self.gain_min} is larger than gain_max = {self.gain_max}")
        return self

    @abstractmethod
    def landscape(self) -> Landscape: ...

    def build_lanes(self, data_seeds: Sequence[int]) -> Instance:
        F, s = self.landscape(), self.stable
        xi0, U, V, H, b = (
            torch.stack(parts)
            for parts in zip(*(self._draw(self.generator(seed), F.n) for seed in data_seeds), strict=True)
        )
        m, (xi, t) = self._gains(F.n), self._stable_minimum()
        M, H = (V * m) @ U.mT, V @ H @ V.mT
        x0, shift = times(xi0, U.mT), times(pad(t, (0, F.n)).expand_as(xi0), V.mT)

        def along(xi: Tensor) -> Tensor:
            return (ANCHOR.value(xi) + ANCHOR.value(m[:s] * xi + t)).sum(-1)

        K, one = torch.cat([-M.mT, torch.eye(len(m)).double().expand_as(M)], -2), torch.eye(len(m)).double()
        dtype = torch.get_default_dtype()
        data = _Data(
            U=U.to(dtype),
            V=V.to(dtype),
            M=M.to(dtype),
            shift=shift.to(dtype),
            H=H.to(dtype),
            b=times(b, U.mT).to(dtype),
            x0=x0.to(dtype),
            L_g=torch.linalg.matrix_norm(K @ (H + self.c * one) @ K.mT, 2),
            Delta=along(xi0[:, :s]) - along(xi) + F.drop,
            R=(times(x0, M.mT) + shift).square().sum(-1),
        )
        return self._instance(F, data)

    def _draw(self, rng: Generator, n: int) -> tuple[Tensor, ...]:
        """ξ0, U, V, H in the coordinates η, b in the coordinates ξ; all with the n unstable ones, unmixed, at the end."""
        s, one = self.stable, torch.eye(n, dtype=torch.float64)
        spectrum = torch.linspace(self.mu, self.L, n + s, dtype=torch.float64)
        Q, U, V = (random_orthogonal(s, rng) for _ in range(3))
        if not self.rotate:
            U = V = torch.eye(s, dtype=torch.float64)
        xi0 = 2 * torch.rand(s, generator=rng, dtype=torch.float64) - 1
        b = self.drift * torch.randn(s, generator=rng, dtype=torch.float64)
        H = torch.block_diag((Q * spectrum[n:]) @ Q.T, spectrum[:n].diag())
        return pad(xi0, (0, n)), torch.block_diag(U, one), torch.block_diag(V, one), H, pad(b, (0, n))

    def _gains(self, n: int) -> Tensor:
        m = torch.linspace(self.gain_min, self.gain_max, self.stable, dtype=torch.float64)
        return torch.cat([m, torch.full((n,), self.gain_max, dtype=torch.float64)])

    def _stable_minimum(self) -> tuple[Tensor, Tensor]:
        """ξ and t."""
        m = self._gains(0)
        r = m.clamp(max=1) / 2
        xi = r / (1 - r**2).sqrt()
        return xi, -(r / m) / (1 - (r / m) ** 2).sqrt() - m * xi

    def _constants(self, F: Landscape, data: _Data) -> dict[str, Constant]:
        c, wide, kind = self.c, 1 + self.gain_max**2, F.kind
        bends, twists = zip(*map(_smoothness, self._gains(0).tolist(), self._stable_minimum()[1].tolist()), strict=True)
        return {
            "mu": exact(self.mu),
            "L_gy": exact(self.L + c),
            "L_g": of_each_lane(data.L_g),
            "rho_g": exact(c * peak(LOG_COSH.third) * wide**1.5),
            "nu_g": exact(2 * c * wide**2),
            "C_f": Constant(math.sqrt(self.stable + F.steepest**2), kind),
            "L_f": Constant(max(1.0, F.bend), kind),
            "rho_f": Constant(max(peak(ANCHOR.third), F.twist), kind),
            "L_phi": Constant(max(*bends, self.gain_max**2 * F.bend), kind),
            "rho_phi": Constant(max(*twists, self.gain_max**3 * F.twist), kind),
            "Delta": of_each_lane(data.Delta),
            "R": of_each_lane(data.R),
        }

    def _instance(self, F: Landscape, data: _Data) -> Instance:
        M, Mt, b, s, gain = data.M, data.M.mT.contiguous(), data.b, self.stable, self.gain_max
        f = _Upper(F, Separable(ANCHOR, data.U[..., :s]), Separable(ANCHOR, data.V[..., :s]), s)
        valley = Valley(data.H, Separable(LOG_COSH, data.V), self.c)

        def y_star(x: Tensor) -> Tensor:
            return times(x, Mt) + data.shift

        def g_y(x: Tensor, y: Tensor) -> Tensor:
            return valley.gradient(y - y_star(x))

        def grad_g(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            force = g_y(x, y)
            return b - times(force, M), force

        def hvp(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
            return valley.hvp(y - y_star(x) if self.c else spread(y, x), v)  # without a bend it is the same everywhere

        def take(lanes: Tensor) -> Instance:
            return self._instance(F, data.take(lanes))

        return Instance(
            f=f.value,
            g=lambda x, y: valley.value(y - y_star(x), dot(b, x)),
            grad_f_x=lambda x, y: spread(f.in_x.gradient(x), y),
            grad_f_y=lambda x, y: spread(f.by_y(y), x),
            grad_g=grad_g,
            grad_g_y=g_y,
            hvp_g_yy=hvp,
            jvp_g_xy=lambda x, y, v: -times(hvp(x, y, v), M),
            x0=data.x0,
            y0=torch.zeros_like(data.x0),
            constants=self._constants(F, data),
            noise=noise_model(self.sigma_f, self.sigma_g, self.sigma_h),
            reference=Reference(
                y_star=y_star,
                phi=lambda x: f.value(x, y_star(x)),
                grad_phi=lambda x: f.in_x.gradient(x) + times(f.by_y(y_star(x)), M),
                hess_phi=lambda x: f.hess_phi(x, y_star(x), M, gain),
            ),
            points="stack",
            metrics={"escaped": lambda x, y: (gain * x[..., s:].abs() > 0.5).to(x.dtype).sum(-1, keepdim=True)},
            take=take if len(data.x0) > 1 else None,  # a single data set serves any lanes
        )


@dataclass(frozen=True)
class _Upper:
    """f, with its s stable coordinates first."""

    F: Landscape
    in_x: Separable
    in_y: Separable
    s: int

    def value(self, x: Tensor, y: Tensor) -> Tensor:
        return self.in_x(x) + self.in_y(y) + self.F.value(y[..., self.s :])

    def by_y(self, y: Tensor) -> Tensor:
        return self.in_y.gradient(y) + pad(self.F.gradient(y[..., self.s :]), (self.s, 0))

    def hess_phi(self, x: Tensor, y: Tensor, M: Tensor, gain: float) -> Tensor:
        unstable = gain**2 * self.F.hessian(y[..., self.s :])
        stable = self.in_x.hessian(x) + M.mT.contiguous() @ self.in_y.hessian(y) @ M
        return stable + pad(unstable, (self.s, 0, self.s, 0))


class Saddle(_Saddles):
    """A strict saddle: φ = Σ_i [s(ξ_i) + s(m_i ξ_i + t_i)] + F(gain_max ξ'), y* = Mx + shift, F(u) = strength Σ_i h(u_i).

    s(w) = √(1+w²) and h' = (u²-1)u / (2(1+u²)^1.5), so h has curvature -1/2 at 0 and its minima √2 - 3/2 at ±1. The start
    has ξ' = 0 exactly. Plain descent ends at the saddle there, where the smallest eigenvalue is -strength gain_max²/2; the
    minima are at ξ' = ±1/gain_max, and every other stationary point is a strict saddle as well.
    """

    name = "saddle"

    unstable: PositiveInt = 1
    """coordinates in which the saddle is left"""

    def landscape(self) -> Landscape:
        return Wells(self.unstable, self.strength)


class SaddleChain(_Saddles):
    """Strict saddles in a row: `saddle` with F(u) = strength [h(u_1) + Σ_{i>1} β (s(u_i) - 1) - γ r(u_{i-1}) r(u_i)].

    r(u) = u²/(1+u²), β = 1/4, γ = 3/4; h and s are those of `saddle`. At 0 only u_1 is unstable. Once it has left,
    |u_1| >= 1, the curvature in u_2 has turned from β to at most β - γ = -1/2, and so on. While a coordinate waits its
    perturbations die out, so the saddles have to be left one by one. The k-th saddle is (a, 0), a the minimum of the first
    k - 1 coordinates alone; it has one negative eigenvalue, at most -strength gain_max²/2.

    Each local minimum is global and unique up to signs; every other stationary point has an eigenvalue of at most
    -strength gain_max²/2. For where no u_j is zero up to i, stationarity is

        (C_1 - 2) √C_1 = 4γ q_2,    C_j^1.5 = (2γ/β)(q_{j-1} + q_{j+1}),    C = 1 + u², q = r(u) = 1 - 1/C

    so C_1 >= 2, then C_j^1.5 >= γ/β = 3 > 2^1.5, that is q_j >= 1/2 up to i. If u_{i+1} = 0 it is alone on its row of the
    Hessian, with β - 2γ (q_i + q_{i+2}) <= β - γ, or with -1/2 - 2γ q_2 if it is u_1. If none is zero, these equations
    read q = T(q) with T increasing and concave and T(q) > q at q = (1/2, ..., 1/2): there is one fixed point above.
    """

    name = "saddle_chain"
    embedded = False  # `run --all` has `saddle`

    saddles: PositiveInt = 4
    """how many, each with a coordinate of its own"""

    def landscape(self) -> Landscape:
        return Row(self.saddles, self.strength)


@functools.lru_cache
def _smoothness(m: float, t: float) -> tuple[float, float]:
    """The largest second and third derivative of s(ξ) + s(mξ + t)."""
    return (
        peak(lambda u: ANCHOR.curvature(u) + m**2 * ANCHOR.curvature(m * u + t)),
        peak(lambda u: ANCHOR.third(u) + m**3 * ANCHOR.third(m * u + t)),
    )


@dataclass(frozen=True)
class _Data:
    """U, V, M and H (L, d, d), shift, b and x0 (L, d), L_g, Delta and R (L,)."""

    U: Tensor
    V: Tensor
    M: Tensor
    shift: Tensor
    H: Tensor
    b: Tensor
    x0: Tensor
    L_g: Tensor
    Delta: Tensor
    R: Tensor

    def take(self, lanes: Tensor) -> _Data:
        return _Data(**{name: part.index_select(0, lanes) for name, part in vars(self).items()})
