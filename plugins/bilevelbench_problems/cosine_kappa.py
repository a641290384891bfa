"""A synthetic problem with a condition number on demand, in which no second derivative is constant."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from bilevelbench import Constant, Instance, Problem, bound, dot, estimated, exact, norm
from bilevelbench_problems.common import newton, noise_model, random_orthogonal, spread
from bilevelbench_problems.cross_entropy import Softmax

_ITERATIONS, _STEP = 12, 1e-4  # of the power iteration that measures the curvature of φ, and of its differences


class CosineKappa(Problem):
    """f = 0.1 cos(x·D₁y) + 1/2 ‖D₂x - y‖²;   g = c Σ_i sin(x_i + y_i) + log Σ_i exp(x_i y_i) + 1/2 yᵀ(D₃ + G)y.

    D₁ is diagonal and uniform in [-5, 5], D₂ in [0.1, 1.1], D₃ in [0, c]; G has its eigenvalues evenly in [1, kappa], in a
    random basis; x0 and y0 are normal. With s = softmax(x_i y_i), Q = D₃ + G and b(u) = s u - s (s·u):

        g_y = c cos(x + y) + s x + Qy,    H v = -c sin(x + y) v + x b(x v) + Qv,    J v = -c sin(x + y) v + s v + y b(x v),

    where products of vectors are by component. The synthetic problem of Gao, Yang, Yuan, "LancBiO: dynamic Lanczos-aided
    bilevel optimization via Krylov subspace", ICLR 2025, there with 10,000 variables and kappa = 1e5.

    log Σ exp is convex and the sine bends by at most c, so the Hessian of g in y is at least the smallest eigenvalue of Q
    less c: mu is a bound, about 1 - c. No other Lipschitz constant holds everywhere, since the derivatives grow with x and y:
    the estimates hold as long as x and y are no larger than at the start. L_phi is the largest curvature of φ that a power
    iteration finds at x0, x0/2 and 0. y* has no closed form; the evaluator solves for it. Delta is φ(x0) + 0.1, since
    φ >= -0.1.
    """

    name = "cosine_kappa"

    dim: PositiveInt = 20
    """of x and of y; each evaluation solves a system of this size"""
    kappa: Annotated[float, Field(ge=1)] = 1000.0
    """largest eigenvalue of G, the smallest being 1"""
    c: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """weight of the sine"""
    sigma_f: NonNegativeFloat = 0.0
    """noise of a sampled gradient of f"""
    sigma_g: NonNegativeFloat = 0.0
    """noise of a sampled gradient of g"""
    sigma_h: NonNegativeFloat = 0.0
    """noise of a sampled product with second derivatives of g"""

    def build(self) -> Instance:
        data = self._draw()
        x0, y0 = data.x0, data.y0
        now = data.to(torch.get_default_dtype())
        return Instance(
            f=now.f,
            g=now.g,
            grad_f=now.grad_f,
            grad_g=now.grad_g,
            grad_g_y=now.g_y,
            hvp_g_yy=now.hvp,
            jvp_g_xy=now.jvp,
            x0=x0.to(torch.get_default_dtype()),
            y0=y0.to(torch.get_default_dtype()),
            constants=_constants(self),
            noise=noise_model(self.sigma_f, self.sigma_g, self.sigma_h),
            points="stack",
        )

    def _draw(self) -> _Data:
        rng, d, c = self.generator(), self.dim, self.c

        def uniform(low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(d, generator=rng, dtype=torch.float64)

        D1, D2, D3 = uniform(-5, 5), uniform(0.1, 1.1), uniform(0, c)
        U = random_orthogonal(d, rng)
        G = (U * torch.linspace(1, self.kappa, d, dtype=torch.float64)) @ U.T
        x0, y0 = (torch.randn(1, d, generator=rng, dtype=torch.float64) for _ in range(2))
        return _Data(c, D1, D2, D3.diag() + (G + G.T) / 2, x0, y0)


@dataclass(frozen=True)
class _Data:
    """D₁ and D₂ (d,), Q (d, d), x0 and y0 (1, d), and the functions of them over (*points, L, d)."""

    c: float
    D1: Tensor
    D2: Tensor
    Q: Tensor
    x0: Tensor
    y0: Tensor

    def to(self, dtype: torch.dtype) -> _Data:
        return _Data(self.c, *(t.to(dtype) for t in (self.D1, self.D2, self.Q, self.x0, self.y0)))

    def f(self, x: Tensor, y: Tensor) -> Tensor:
        return 0.1 * torch.cos(dot(x, self.D1 * y)) + 0.5 * (self.D2 * x - y).square().sum(-1, keepdim=True)

    def grad_f(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wave, apart = -0.1 * torch.sin(dot(x, self.D1 * y)) * self.D1, self.D2 * x - y
        return wave * y + self.D2 * apart, wave * x - apart

    def g(self, x: Tensor, y: Tensor) -> Tensor:
        waves = self.c * torch.sin(x + y).sum(-1, keepdim=True)
        return waves + torch.logsumexp(x * y, -1, keepdim=True) + 0.5 * dot(y @ self.Q, y)

    def g_y(self, x: Tensor, y: Tensor) -> Tensor:
        return self.c * torch.cos(x + y) + torch.softmax(x * y, -1) * x + y @ self.Q

    def grad_g(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        waves, s = self.c * torch.cos(x + y), torch.softmax(x * y, -1)
        return waves + s * y, waves + s * x + y @ self.Q

    def hvp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return -self.c * torch.sin(x + y) * v + x * _bent(torch.softmax(x * y, -1), x * v) + spread(v @ self.Q, x, y)

    def jvp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        s = torch.softmax(x * y, -1)
        return (s - self.c * torch.sin(x + y)) * v + y * _bent(s, x * v)

    def hessian(self, x: Tensor, y: Tensor) -> Tensor:
        """H of one lane, (1, d, d)."""
        I = torch.eye(x.shape[-1], dtype=x.dtype)  # noqa: E741
        return self.hvp(x, y, I).unsqueeze(0)

    def y_star(self, x: Tensor, y: Tensor) -> Tensor:
        return newton(lambda y: self.g_y(x, y), lambda y: self.hessian(x, y), y)

    def grad_phi(self, x: Tensor, y: Tensor) -> Tensor:
        """Of one lane, (1, d); y is where Newton's method begins."""
        y = self.y_star(x, y)
        f_x, f_y = self.grad_f(x, y)
        return f_x - self.jvp(x, y, torch.linalg.solve(self.hessian(x, y), f_y))


def _bent(s: Tensor, u: Tensor) -> Tensor:
    """The derivative of softmax along u."""
    return s * (u - dot(s, u))


@functools.lru_cache(maxsize=32)
def _constants(problem: CosineKappa) -> dict[str, Constant]:
    """With r the size of (x_i, y_i) and t that of (D₁x, D₁y), both of the start; a direction of length 1 changes x_i y_i
    by at most r, and x·D₁y by at most t. A tenth of a second, so it is kept."""
    data = problem._draw()
    x0, y0, c = data.x0, data.y0, data.c
    y = data.y_star(x0, y0)
    spectrum, steepest = torch.linalg.eigvalsh(data.Q), float(data.D1.abs().max())
    r = float(torch.hypot(x0.abs().max(), y0.abs().max()))
    t = float(torch.hypot(norm(data.D1 * x0), norm(data.D1 * y0)))
    return {
        "mu": bound(spectrum[0] - c),
        "L_gy": estimated(spectrum[-1] + c + 0.5 * x0.abs().max() ** 2),
        "L_g": estimated(float(spectrum[-1]) + 2 * c + 0.5 * r**2 + 1),
        "rho_g": estimated(2**1.5 * c + Softmax.third * r**3 + 1.5 * r),
        "L_f": estimated(1 + float(data.D2.max()) ** 2 + 0.1 * (t**2 + steepest)),
        "rho_f": estimated(0.1 * (t**3 + 3 * t * steepest)),
        "C_f": estimated(norm(data.grad_f(x0, y0)[1])),
        "L_phi": estimated(max(_curvature(data, share * x0, y) for share in (1.0, 0.5, 0.0))),
        "Delta": bound(data.f(x0, y) + 0.1),
        "R": exact((y0 - y).square().sum()),
    }


def _curvature(data: _Data, x: Tensor, y: Tensor) -> float:
    """‖∇²φ‖ at one x, from below: a power iteration on differences of ∇φ."""
    u, size = torch.ones_like(x), 0.0
    for _ in range(_ITERATIONS):
        u = _STEP * u / norm(u)
        u = (data.grad_phi(x + u, y) - data.grad_phi(x - u, y)) / (2 * _STEP)
        size = float(norm(u))
    return size
