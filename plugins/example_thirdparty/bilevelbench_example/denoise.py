"""Where should a noisy signal be smoothed? One weight for each pair of neighbours is learnt from a clean signal."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.autograd.functional import hessian
from torch.nn.functional import pad

from bilevelbench import Additive, Exact, Instance, Problem, Reference, bound, dot, estimated, exact


class Denoise(Problem):
    """g(x, y) = 1/2 ‖y - b‖² + 1/2 Σ_i w(x_i) (Dy)_i²;  f(x, y) = 1/2 ‖y - c‖² + reg/2 ‖x‖².

    (Dy)_i = y_{i+1} - y_i and w(t) = smooth (1 + tanh t)/2, so a weight lies between 0 and `smooth`. c is a step with a
    ramp, b is c with normal noise of deviation `blur`. With W = diag(w(x)) and H = I + DᵀWD:

        y*(x) = H⁻¹b,   v = H⁻¹(y* - c),   ∇φ_i = reg x_i - w'(x_i) (Dy*)_i (Dv)_i.

    mu = 1 is exact, since D annihilates constants; L_gy is the bound 1 + 4 smooth. J grows with y, so L_g is an estimate:
    ‖∇²g‖ at the start, or L_gy if that is larger. L_phi is the largest ‖∇²φ‖ at the start and at eight normal points.
    Delta is φ(x0), since φ >= 0.
    """

    name = "denoise"

    n: Annotated[int, Field(ge=2)] = 20
    """length of the signal"""
    smooth: PositiveFloat = 5.0
    """largest weight"""
    blur: PositiveFloat = 0.3
    """deviation of b from c"""
    reg: PositiveFloat = 0.01
    sigma: NonNegativeFloat = 0.0
    """noise of f, g and the second derivatives"""

    def build(self) -> Instance:
        rng, n, reg, dtype = self.generator(), self.n, self.reg, torch.get_default_dtype()

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64)

        place = torch.linspace(0, 1, n, dtype=torch.float64)
        clean = (place > 0.5) + place
        data = _Signal(clean + self.blur * normal(n), clean, self.smooth, reg)
        x0, y0, cloud = torch.zeros(n - 1, dtype=torch.float64), data.noisy, normal(8, n - 1)
        curvatures = [hessian(lambda x: data.phi(x).squeeze(-1), x) for x in (x0, *cloud)]
        both = hessian(lambda z: data.g(z[: n - 1], z[n - 1 :]).squeeze(-1), torch.cat([x0, y0]))
        constants = {
            "mu": exact(1),
            "L_gy": bound(1 + 4 * self.smooth),
            "L_g": estimated(max(1 + 4 * self.smooth, float(torch.linalg.matrix_norm(both, 2)))),
            "L_f": exact(max(1.0, reg)),
            "rho_f": exact(0),
            "L_phi": estimated(max(torch.linalg.matrix_norm(H, 2) for H in curvatures)),
            "Delta": bound(data.phi(x0)),
            "R": exact((y0 - data.y_star(x0)).square().sum()),
        }
        s = _Signal(data.noisy.to(dtype), data.clean.to(dtype), self.smooth, reg)
        return Instance(
            f=s.f,
            g=s.g,
            grad_f=lambda x, y: (reg * x, y - s.clean),
            grad_f_x=lambda x, y: reg * x,
            grad_f_y=lambda x, y: y - s.clean,
            grad_g_x=lambda x, y: 0.5 * s.slope(x) * _jumps(y).square(),
            grad_g_y=lambda x, y: y - s.noisy + _back(s.weight(x) * _jumps(y)),
            hvp_g_yy=lambda x, y, v: v + _back(s.weight(x) * _jumps(v)),
            jvp_g_xy=lambda x, y, v: s.slope(x) * _jumps(y) * _jumps(v),
            x0=x0.to(dtype),
            y0=y0.to(dtype),
            constants=constants,
            noise=Additive(self.sigma, self.sigma, self.sigma) if self.sigma else Exact(),
            reference=Reference(s.y_star, s.phi, s.grad_phi),
        )


class _Signal:
    """The formulas, over any axes in front of the last."""

    def __init__(self, noisy: Tensor, clean: Tensor, smooth: float, reg: float) -> None:
        self.noisy, self.clean, self.smooth, self.reg = noisy, clean, smooth, reg
        self.D = torch.eye(len(noisy), dtype=noisy.dtype).diff(dim=0)

    def weight(self, x: Tensor) -> Tensor:
        return 0.5 * self.smooth * (1 + torch.tanh(x))

    def slope(self, x: Tensor) -> Tensor:
        return 0.5 * self.smooth * (1 - torch.tanh(x).square())

    def f(self, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * dot(y - self.clean, y - self.clean) + 0.5 * self.reg * dot(x, x)

    def g(self, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * dot(y - self.noisy, y - self.noisy) + 0.5 * dot(self.weight(x), _jumps(y).square())

    def y_star(self, x: Tensor) -> Tensor:
        return self._solve(x, self.noisy.expand(*x.shape[:-1], -1))

    def phi(self, x: Tensor) -> Tensor:
        return self.f(x, self.y_star(x))

    def grad_phi(self, x: Tensor) -> Tensor:
        y = self.y_star(x)
        v = self._solve(x, y - self.clean)
        return self.reg * x - self.slope(x) * _jumps(y) * _jumps(v)

    def _solve(self, x: Tensor, right: Tensor) -> Tensor:
        H = torch.eye(len(self.noisy), dtype=x.dtype) + (self.D.T * self.weight(x).unsqueeze(-2)) @ self.D
        return torch.linalg.solve(H, right.unsqueeze(-1)).squeeze(-1)


def _jumps(y: Tensor) -> Tensor:
    """D y"""
    return y.diff(dim=-1)


def _back(u: Tensor) -> Tensor:
    """Dᵀu"""
    return pad(u, (1, 0)) - pad(u, (0, 1))
