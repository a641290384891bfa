"""The chain of the eps^-2 lower bound: every coordinate has to be found before the next one shows."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import pad

from bilevelbench import Constant, Instance, Reference, bound, dot, exact
from bilevelbench_problems.common import Stretched, noise_model, random_orthogonal, spread
from bilevelbench_problems.separable import peak


class Chain(Stretched):
    """f(x, y) = (L_f sig²/152) F(Qᵀy/sig);  g(x, y) = 1/2 (y-x)ᵀH(y-x);  so y*(x) = x and φ(x) = f(x, x).

        F(u) = -Ψ(1)Φ(u_1) + Σ_{i=2..T} [Ψ(-u_{i-1}) Φ(-u_i) - Ψ(u_{i-1}) Φ(u_i)],   T = dim,
        Ψ(t) = exp(1 - 1/(2t-1)²) for t > 1/2, else 0;   Φ(t) = √e ∫_{-∞}^t exp(-s²/2) ds.

    Carmon, Duchi, Hinder, Sidford, "Lower bounds for finding stationary points I", 2020. Where |u_{i-1}| <= 1/2 no
    derivative sees u_i, so gradients from 0 reveal one coordinate at a time; and where |u_i| < 1 <= |u_{i-1}| (with
    u_0 = 1), ∂F/∂u_i = -Ψ(|u_{i-1}|) Φ'(u_i) - Ψ'(|u_i|) Φ(±u_{i+1}) < -1. So with

        eps = √(Delta L_f / (1824 T)),   sig = 152 eps / L_f

    ‖∇φ‖ > eps until all T coordinates have passed sig, which takes a method that moves along gradients at least T
    steps. The constant `eps_chain` is this eps, the metric `progress` counts the leading coordinates of Qᵀx beyond sig.
    ‖∇φ‖ begins at 1.65 eps and rises on the way.

    Bounds, from Ψ <= e, Ψ' <= √(54/e), |Ψ''| <= 32.4, Φ <= √(2πe), Φ' <= √e, |Φ''| <= 1: |∂F/∂u_i| < 23, and ‖∇²F‖ <
    152, since it is tridiagonal. inf F = -√(2πe) (1 + e(T-1)), as all u_i go to infinity; the field Delta is
    12 (L_f sig²/152) T, a little more than the gap. So L_f and C_f do not depend on T, and rho_f grows like 1/eps.

    H = R diag(mu..L) Rᵀ; R and, with `rotate`, Q are random orthogonal matrices, else Q = I. x0 = y0 = 0.
    """

    name = "chain"
    embedded = False  # an instance for `rates`: its gradient cannot fall before all coordinates are passed

    dim: PositiveInt = 128
    """length T of the chain, the dimension of x and y"""
    L_f: PositiveFloat = 1.0
    """smoothness of f and of phi"""
    Delta: PositiveFloat = 1.0
    """bound on phi(x0) - inf phi; eps follows from it and dim"""
    rotate: bool = True
    """whether Q is a random rotation"""
    sigma_f: NonNegativeFloat = 0.0
    """noise of a sampled gradient of f"""
    sigma_g: NonNegativeFloat = 0.0
    """noise of a sampled gradient of g"""
    sigma_h: NonNegativeFloat = 0.0
    """noise of a sampled product with second derivatives of g"""

    def sweep(self, over: str, value: float) -> dict[str, Any]:
        """The longest chain whose gradient stays above an accuracy until its end."""
        if over == "eps":
            return {"dim": max(1, math.floor(self.Delta * self.L_f / (1824 * value**2)))}
        return super().sweep(over, value)

    @property
    def eps(self) -> float:
        return math.sqrt(self.Delta * self.L_f / (1824 * self.dim))

    @property
    def sig(self) -> float:
        return 152 * self.eps / self.L_f

    def build(self) -> Instance:
        rng, d, eps, sig = self.generator(), self.dim, self.eps, self.sig
        height, dtype = self.L_f * sig**2 / 152, torch.get_default_dtype()
        spectrum = torch.linspace(self.mu, self.L, d, dtype=torch.float64)
        R = random_orthogonal(d, rng)
        H = ((R * spectrum) @ R.T).to(dtype)
        Q = random_orthogonal(d, rng).to(dtype) if self.rotate else None
        Qt = None if Q is None else Q.T.contiguous()

        def to_chain(z: Tensor) -> Tensor:
            return (z if Q is None else z @ Q) / sig

        def from_chain(z: Tensor) -> Tensor:
            return z if Qt is None else z @ Qt

        def f(y: Tensor) -> Tensor:
            return height * value(to_chain(y))

        def f_y(y: Tensor) -> Tensor:
            return from_chain(eps * gradient(to_chain(y)))

        def hess_phi(x: Tensor) -> Tensor:
            half = from_chain(self.L_f / 152 * hessian(to_chain(x)))
            return from_chain(half.mT)

        def grad_g(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            force = (y - x) @ H
            return -force, force

        zero = torch.zeros(1, d, dtype=dtype)
        return Instance(
            f=lambda x, y: spread(f(y), x),
            g=lambda x, y: 0.5 * dot((y - x) @ H, y - x),
            grad_f_x=lambda x, y: spread(torch.zeros_like(x), y),
            grad_f_y=lambda x, y: spread(f_y(y), x),
            grad_g=grad_g,
            grad_g_y=lambda x, y: (y - x) @ H,
            hvp_g_yy=lambda x, y, v: spread(v @ H, x, y),
            jvp_g_xy=lambda x, y, v: spread(-(v @ H), x, y),
            x0=zero,
            y0=zero,
            constants=self._constants(float(spectrum[-1])),
            noise=noise_model(self.sigma_f, self.sigma_g, self.sigma_h),
            reference=Reference(y_star=lambda x: x, phi=f, grad_phi=f_y, hess_phi=hess_phi),
            points="stack",
            metrics={"progress": lambda x, y: progress(to_chain(x))},
        )

    def _constants(self, L: float) -> dict[str, Constant]:
        rho = bound(self.L_f / (152 * self.sig) * _third_derivative())
        gap = _PHI_TOP * (0.5 + math.e * (self.dim - 1))  # F(0) = -Φ(0), half of its largest value
        return {
            "mu": exact(self.mu),
            "L_gy": exact(L),
            "L_g": exact(2 * L),
            "rho_g": exact(0),
            "nu_g": exact(0),
            "C_f": bound(23 * self.eps * math.sqrt(self.dim)),
            "L_f": bound(self.L_f),
            "rho_f": rho,
            "L_phi": bound(self.L_f),
            "rho_phi": rho,
            "Delta": exact(self.L_f * self.sig**2 / 152 * gap),
            "R": exact(0),
            "eps_chain": bound(self.eps),
        }


_PHI_TOP = math.sqrt(2 * math.pi * math.e)


def _inverse(t: Tensor) -> Tensor:
    """1/(2t-1), cut where Ψ and all its derivatives are zero in floating point: exp(1 - 1/0.03²) underflows."""
    return (2 * t - 1).clamp(min=0.03).reciprocal()


def psi(t: Tensor) -> Tensor:
    r = _inverse(t)
    return torch.exp(1 - r * r)


def psi_slope(t: Tensor) -> Tensor:
    r = _inverse(t)
    return 4 * r * r * r * torch.exp(1 - r * r)


def psi_curvature(t: Tensor) -> Tensor:
    r = _inverse(t)
    q = r * r
    return (16 * q - 24) * q * q * torch.exp(1 - q)


def psi_third(t: Tensor) -> Tensor:
    r = _inverse(t)
    q = r * r
    return ((64 * q - 288) * q + 192) * q * q * r * torch.exp(1 - q)


def phi(t: Tensor) -> Tensor:
    out: Tensor = _PHI_TOP * torch.special.ndtr(t)
    return out


def phi_slope(t: Tensor) -> Tensor:
    return torch.exp(0.5 - 0.5 * t * t)


def _before(u: Tensor) -> Tensor:
    """u_{i-1} for each i, with u_0 = 1: F is then a sum of equal links h(u_{i-1}, u_i)."""
    return torch.cat([torch.ones_like(u[..., :1]), u[..., :-1]], -1)


def value(u: Tensor) -> Tensor:
    """F = Σ_i h(u_{i-1}, u_i),  h(s, t) = Ψ(-s)Φ(-t) - Ψ(s)Φ(t) = -± Ψ(|s|) Φ(±t) with the sign of s."""
    s = _before(u)
    sign = s.sign()
    return -(sign * psi(s.abs()) * phi(sign * u)).sum(-1, keepdim=True)


def gradient(u: Tensor) -> Tensor:
    """h_t(u_{i-1}, u_i) + h_s(u_i, u_{i+1});  h_t = -Ψ(|s|) Φ'(t),  h_s = -Ψ'(|s|) Φ(±t)."""
    s, t = u[..., :-1], u[..., 1:]
    r = _inverse(s.abs())
    q = r * r
    level = torch.exp(1 - q)  # Ψ(|s|), and Ψ' = 4r³Ψ
    forward = 4 * q * r * level * phi(s.sign() * t)
    return -(pad(level, (1, 0), value=1.0) * phi_slope(u) + pad(forward, (0, 1)))


def hessian(u: Tensor) -> Tensor:
    """Tridiagonal;  h_tt = t Ψ(|s|) Φ'(t),  h_st = -± Ψ'(|s|) Φ'(t),  h_ss = -± Ψ''(|s|) Φ(±t)."""
    s, t = u[..., :-1], u[..., 1:]
    sign = s.sign()
    forward = sign * psi_curvature(s.abs()) * phi(sign * t)
    beside = torch.diag_embed(-sign * psi_slope(s.abs()) * phi_slope(t), 1)
    middle = u * psi(_before(u).abs()) * phi_slope(u) - pad(forward, (0, 1))
    return torch.diag_embed(middle) + beside + beside.mT


def progress(u: Tensor) -> Tensor:
    """How many leading coordinates are 1 or more in size."""
    return (u.abs() >= 1).long().cumprod(-1).sum(-1, keepdim=True).to(u.dtype)


@functools.lru_cache
def _third_derivative() -> float:
    """A bound on |D³F(u)[v, v, v]|, ‖v‖ = 1: Σ_i |v_{i-1}|^a |v_i|^b <= 1 for a + b = 3."""
    root = math.sqrt(math.e)
    in_sss, in_sst = peak(psi_third) * _PHI_TOP, peak(psi_curvature) * root
    in_stt, in_ttt = math.sqrt(54 / math.e), math.e * root
    return in_sss + 3 * in_sst + 3 * in_stt + in_ttt
