"""A nonconvex problem whose lower level is not quadratic, with global constants and without a closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Constant, Instance, Problem, bound, dot, estimated, exact
from bilevelbench_problems.common import NoiseKind, newton, noise_model, random_orthogonal, spread
from bilevelbench_problems.separable import LOG_COSH, Scalar, peak

#: r = u²/(1+u²): a quadratic for small residuals that forgives large ones.
ROBUST = Scalar(
    value=lambda u: u * u / (1 + u * u),
    slope=lambda u: 2 * u / (1 + u * u) ** 2,
    curvature=lambda u: (2 - 6 * u * u) / (1 + u * u) ** 3,
    third=lambda u: 24 * u * (u * u - 1) / (1 + u * u) ** 4,
)


class LogCosh(Problem):
    """g(x, y) = 1/2 yᵀA y - xᵀB y + c Σ_i log cosh(w_i),  w = y + Nᵀx;  f(x, y) = Σ_i r(y_i - t_i) + reg/2 ‖x‖².

    r(u) = u²/(1+u²), so that targets far away pull little and φ is not convex. spec(A) lies evenly in [L/kappa, L]; B
    is normal over √dim_y, N has orthonormal rows or columns, t, x0 and y0 are normal, t three times as wide.

    y*(x) has no closed form; the evaluator solves for it. With s = sech² w, K = [N; I], S = diag(s):

        H = A + cS,   J = -B + cNS,   ∇²g = [[0, -B], [-Bᵀ, A]] + c K S Kᵀ,   H v = f_y,   M = dy*/dx = -J H⁻¹,
        ∇φ = reg x - J v,   ∇²φ = reg I + M diag(r''(y*-t)) Mᵀ + 2c (N+M) diag(s tanh(w) v) (N+M)ᵀ.

    These constants hold everywhere. mu, L_gy and L_g are exact, since S can be any diagonal matrix between 0 and I, its
    bounds included as limits, and eigenvalues grow with S; C_f, L_f, rho_f are exact, since f is separable. With k the
    largest row of Kᵀ, rho_g <= c sup|tanh''| k ‖K‖² and nu_g <= 2c k² ‖K‖². Delta is φ(x0), since φ >= 0.

    L_phi from these would be ten thousand, so it is an estimate: the largest ‖∇²φ‖ over x0 and 200 normal points x,
    half of them twice as wide as x0.
    """

    name = "logcosh"

    dim_x: PositiveInt = 10
    """dimension of x"""
    dim_y: PositiveInt = 15
    """dimension of y"""
    kappa: Annotated[float, Field(ge=1)] = 5.0
    """condition number of A"""
    L: PositiveFloat = 1.0
    """largest eigenvalue of A"""
    c: PositiveFloat = 1.0
    """weight of the log cosh"""
    reg: PositiveFloat = 0.1
    """weight of the regulariser of x"""
    sigma_f: NonNegativeFloat = 0.0
    """noise of a sampled gradient of f"""
    sigma_g: NonNegativeFloat = 0.0
    """noise of a sampled gradient of g"""
    sigma_h: NonNegativeFloat = 0.0
    """noise of a sampled product with second derivatives of g"""
    noise: NoiseKind = "additive"
    """whether a sample adds noise to each answer, or is a function of its own (affine)"""

    def build(self) -> Instance:
        data = self._draw()
        c, reg, dtype = self.c, self.reg, torch.get_default_dtype()
        A, B, N, t, x0, y0 = (part.to(dtype) for part in (data.A, data.B, data.N, data.t, data.x0, data.y0))
        Bt, Nt = B.T.contiguous(), N.T.contiguous()

        def f(x: Tensor, y: Tensor) -> Tensor:
            return ROBUST.value(y - t).sum(-1, keepdim=True) + 0.5 * reg * dot(x, x)

        def g(x: Tensor, y: Tensor) -> Tensor:
            bend = LOG_COSH.value(y + x @ N).sum(-1, keepdim=True)
            return 0.5 * dot(y @ A, y) - dot(x @ B, y) + c * bend

        def grad_g(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            bend = c * torch.tanh(y + x @ N)
            return bend @ Nt - y @ Bt, y @ A - x @ B + bend

        def curved(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
            return c * LOG_COSH.curvature(y + x @ N) * v

        return Instance(
            f=f,
            g=g,
            grad_f_x=lambda x, y: spread(reg * x, y),
            grad_f_y=lambda x, y: spread(ROBUST.slope(y - t), x),
            grad_g=grad_g,
            grad_g_x=lambda x, y: c * torch.tanh(y + x @ N) @ Nt - y @ Bt,
            grad_g_y=lambda x, y: y @ A - x @ B + c * torch.tanh(y + x @ N),
            hvp_g_yy=lambda x, y, v: v @ A + curved(x, y, v),
            jvp_g_xy=lambda x, y, v: curved(x, y, v) @ Nt - v @ Bt,
            x0=x0,
            y0=y0,
            constants=self._constants(data),
            noise=noise_model(self.sigma_f, self.sigma_g, self.sigma_h, self.noise),
            points="stack",
        )

    def _draw(self) -> _Data:
        rng, dx, dy = self.generator(), self.dim_x, self.dim_y

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64)

        spectrum = torch.linspace(self.L, self.L / self.kappa, dy, dtype=torch.float64)
        Q = random_orthogonal(dy, rng)
        B = normal(dx, dy) / dy**0.5
        N = random_orthogonal(max(dx, dy), rng)[:dx, :dy]
        t, x0, y0, cloud = 3 * normal(dy), normal(1, dx), normal(1, dy), normal(200, dx)
        cloud = torch.cat([x0, cloud[:100], 2 * cloud[100:]])
        return _Data(self.c, self.reg, (Q * spectrum) @ Q.T, B, N, t, x0, y0, cloud)

    def _constants(self, data: _Data) -> dict[str, Constant]:
        c, dy = self.c, self.dim_y
        spectrum = torch.linalg.eigvalsh(data.A)
        flat = torch.cat(
            [torch.cat([torch.zeros(self.dim_x, self.dim_x), -data.B], 1), torch.cat([-data.B.T, data.A], 1)]
        )
        K = torch.cat([data.N, torch.eye(dy, dtype=torch.float64)])
        k, size = float(K.norm(dim=0).max()), float(torch.linalg.matrix_norm(K, 2))
        steepest = torch.linalg.eigvalsh(flat + c * K @ K.T)[-1]
        y = data.y_star(data.x0)
        return {
            "mu": exact(spectrum[0]),
            "L_gy": exact(spectrum[-1] + c),
            "L_g": exact(max(float(steepest), -float(torch.linalg.eigvalsh(flat)[0]))),
            "rho_g": bound(c * 4 / (3 * math.sqrt(3)) * k * size**2),
            "nu_g": bound(2 * c * k**2 * size**2),
            "C_f": exact(math.sqrt(dy) * peak(ROBUST.slope)),
            "L_f": exact(max(2.0, self.reg)),
            "rho_f": exact(peak(ROBUST.third)),
            "L_phi": estimated(torch.linalg.matrix_norm(data.hess_phi(data.cloud), 2).max()),
            "Delta": bound(ROBUST.value(y - data.t).sum() + 0.5 * self.reg * data.x0.square().sum()),
            "R": exact((data.y0 - y).square().sum()),
        }


@dataclass(frozen=True)
class _Data:
    """In float64: A (dy, dy), B and N (dx, dy), t (dy,), x0 (1, dx), y0 (1, dy), and points x where φ is looked at."""

    c: float
    reg: float
    A: Tensor
    B: Tensor
    N: Tensor
    t: Tensor
    x0: Tensor
    y0: Tensor
    cloud: Tensor

    def y_star(self, x: Tensor) -> Tensor:
        """For many x at once."""
        start = torch.zeros(len(x), len(self.t), dtype=torch.float64)
        return newton(lambda y: self._force(x, y), lambda y: self._hessian(x, y), start)

    def _force(self, x: Tensor, y: Tensor) -> Tensor:
        return y @ self.A - x @ self.B + self.c * torch.tanh(y + x @ self.N)

    def _hessian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.A + self.c * torch.diag_embed(LOG_COSH.curvature(y + x @ self.N))

    def hess_phi(self, x: Tensor) -> Tensor:
        """(points, dx, dx), by the formula above."""
        y = self.y_star(x)
        w, H = y + x @ self.N, self._hessian(x, y)
        v = torch.linalg.solve(H, ROBUST.slope(y - self.t))
        J = self.c * self.N * LOG_COSH.curvature(w).unsqueeze(-2) - self.B
        M = -torch.linalg.solve(H, J.mT).mT
        turn = self.N + M
        inner = (M * ROBUST.curvature(y - self.t).unsqueeze(-2)) @ M.mT
        outer = (turn * (self.c * LOG_COSH.third(w) * v).unsqueeze(-2)) @ turn.mT
        hess: Tensor = self.reg * torch.eye(len(self.B), dtype=torch.float64) + inner - outer
        return hess
