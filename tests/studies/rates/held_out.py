"""An instance that no suite and no preset was made on: three slow tails and two anchors, of another shape than `tail_anchor`.

    f(x, y) = Σ_i p(y_i) + Σ_anchors 1/2 √(1 + x_i²);   g(x, y) = 1/2 (y-x)ᵀH(y-x) + bᵀx,   spec(H) in [1/5, 1], rotated
    p(u) = h^-0.3/0.3,   h = (u + √(u² + 4))/2,   p'(u) = -h^-0.3/√(u² + 4), which falls as u^-1.3

So y*(x) = x, and a fixed x-step takes eps^-(1 + 1/1.3) = eps^-1.77 steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bilevelbench import Instance, Problem, Reference, dot, exact

_TAILS, _ANCHORS, _MU, _L = 3, 2, 0.2, 1.0
_D = _TAILS + _ANCHORS


class HeldOut(Problem):
    name = "held_out"

    def drift_exponent(self) -> float:
        return 1.3

    def build_lanes(self, data_seeds: Sequence[int]) -> Instance:
        drawn = [self._draw(seed) for seed in data_seeds]
        x0, H, b = (torch.stack(parts).to(torch.get_default_dtype()) for parts in zip(*drawn, strict=True))
        return _instance(x0, H, b)

    def _draw(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        rng = self.generator(seed)
        x0 = torch.rand(_D, generator=rng, dtype=torch.float64) - 0.5
        rotation, _ = torch.linalg.qr(torch.randn(_D, _D, generator=rng, dtype=torch.float64))
        spectrum = torch.linspace(_MU, _L, _D, dtype=torch.float64)
        return x0, (rotation * spectrum) @ rotation.T, torch.randn(_D, generator=rng, dtype=torch.float64)


def _instance(x0: Tensor, H: Tensor, b: Tensor) -> Instance:
    anchored = torch.cat([torch.zeros(_TAILS), torch.ones(_ANCHORS)]).to(x0.dtype)

    def times_H(v: Tensor) -> Tensor:
        return (v[..., None, :] @ H).squeeze(-2)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (p(y) + 0.5 * anchored * (1 + x * x).sqrt()).sum(-1, keepdim=True)

    def f_x(x: Tensor, y: Tensor) -> Tensor:
        return (0.5 * anchored * x / (1 + x * x).sqrt()).expand(torch.broadcast_shapes(x.shape, y.shape))

    def f_y(x: Tensor, y: Tensor) -> Tensor:
        return slope(y).expand(torch.broadcast_shapes(x.shape, y.shape))

    return Instance(
        f=f,
        g=lambda x, y: 0.5 * dot(y - x, times_H(y - x)) + dot(b, x),
        grad_f_x=f_x,
        grad_f_y=f_y,
        grad_g_x=lambda x, y: b - times_H(y - x),
        grad_g_y=lambda x, y: times_H(y - x),
        hvp_g_yy=lambda x, y, v: times_H(v).expand(torch.broadcast_shapes(x.shape, y.shape, v.shape)),
        jvp_g_xy=lambda x, y, v: -times_H(v).expand(torch.broadcast_shapes(x.shape, y.shape, v.shape)),
        x0=x0,
        y0=torch.zeros_like(x0),
        constants={
            "mu": exact(_MU),
            "L_gy": exact(_L),
            "L_g": exact(2 * _L),
            "rho_g": exact(0),
            "nu_g": exact(0),
            "C_f": exact(0.53 * math.sqrt(_D)),
            "L_f": exact(0.5),
            "L_phi": exact(0.7),
        },
        reference=Reference(y_star=lambda x: x, phi=lambda x: f(x, x), grad_phi=lambda x: f_x(x, x) + slope(x)),
        points="stack",
        take=(lambda lanes: _instance(x0[lanes], H[lanes], b[lanes])) if len(x0) > 1 else None,
    )


def p(u: Tensor) -> Tensor:
    return _h(u) ** -0.3 / 0.3


def slope(u: Tensor) -> Tensor:
    return -(_h(u) ** -0.3) / (u * u + 4).sqrt()


def _h(u: Tensor) -> Tensor:
    return (u + (u * u + 4).sqrt()) / 2
