"""Small problems on which methods are tried; all their constants and closed forms are known."""

from __future__ import annotations

import math

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Generator, Tensor

from bilevelbench.model.agents import Agents
from bilevelbench.model.constants import Constant, bound, exact
from bilevelbench.model.instance import Instance, Reference
from bilevelbench.model.lanes import dot
from bilevelbench.model.noise import Additive, Exact, FiniteSum, Rows
from bilevelbench.model.problem import Problem, Shared

_DX, _DY, _ROWS = 3, 5, 128


class Toy(Problem):
    """g(x, y) = 1/2 yᵀA y - xᵀB y, spec(A) in [1/2, 1];  f(x, y) = Σ √(1 + (y - c)²) + 1/2 ‖x‖².

    With M = B A⁻¹ and r(u) = u/√(1 + u²):  y*(x) = Mᵀx,  ∇φ = M r(Mᵀx - c) + x.
    """

    name = "toy"

    sigma: NonNegativeFloat = 0.0
    """noise of f, g and the second derivatives"""

    def build(self) -> Instance:
        rng, dtype = self.generator(), torch.get_default_dtype()
        spectrum = torch.linspace(0.5, 1, _DY, dtype=torch.float64)
        Q, _ = torch.linalg.qr(_normal(rng, _DY, _DY))
        A, inverse = (Q * spectrum) @ Q.T, (Q / spectrum) @ Q.T
        B = _normal(rng, _DX, _DY) / _DY**0.5
        M = B @ inverse
        c, x0, y0 = _normal(rng, _DY), 2 + _normal(rng, 1, _DX), _normal(rng, 1, _DY)
        constants = _toy_constants(A, B, M, c, x0, y0)
        A, B, M, c, x0, y0 = (t.to(dtype) for t in (A, B, M, c, x0, y0))
        Bt, Mt = B.T.contiguous(), M.T.contiguous()

        def f(x: Tensor, y: Tensor) -> Tensor:
            return _robust(y - c).sum(-1, keepdim=True) + 0.5 * dot(x, x)

        def spread(value: Tensor, *others: Tensor) -> Tensor:
            shapes = {t.shape[:-1] for t in (value, *others)}
            if len(shapes) == 1:  # the usual case; torch's broadcasting of shapes is slow
                return value
            return value.expand(*torch.broadcast_shapes(*shapes), value.shape[-1])

        return Instance(
            f=f,
            g=lambda x, y: 0.5 * dot(y @ A, y) - dot(x @ B, y),
            grad_f_x=lambda x, y: spread(x, y),
            grad_f_y=lambda x, y: spread(_pull(y - c), x),
            grad_g_x=lambda x, y: spread(-(y @ Bt), x),
            grad_g_y=lambda x, y: y @ A - x @ B,
            hvp_g_yy=lambda x, y, v: spread(v @ A, x, y),
            jvp_g_xy=lambda x, y, v: spread(-(v @ Bt), x, y),
            x0=x0,
            y0=y0,
            constants=constants,
            noise=Additive(self.sigma, self.sigma, self.sigma) if self.sigma else Exact(),
            reference=Reference(
                y_star=lambda x: x @ M,
                phi=lambda x: f(x, x @ M),
                grad_phi=lambda x: _pull(x @ M - c) @ Mt + x,
            ),
            points="stack",
        )


def _toy_constants(A: Tensor, B: Tensor, M: Tensor, c: Tensor, x0: Tensor, y0: Tensor) -> dict[str, Constant]:
    joint = torch.cat([torch.cat([torch.zeros(_DX, _DX, dtype=torch.float64), -B], 1), torch.cat([-B.T, A], 1)])
    return {
        "mu": exact(0.5),
        "L_gy": exact(1),
        "L_g": exact(torch.linalg.matrix_norm(joint, 2)),
        "rho_g": exact(0),
        "nu_g": exact(0),
        "L_f": exact(1),
        "rho_f": exact(1.5 * 1.25**-2.5),  # |(√(1+u²))'''| is largest at u = 1/2
        "C_f": exact(math.sqrt(_DY)),
        "L_phi": bound(1 + torch.linalg.matrix_norm(M, 2) ** 2),
        "rho_phi": bound(1.5 * 1.25**-2.5 * torch.linalg.matrix_norm(M, 2) ** 3),
        "Delta": bound(float(_robust(x0 @ M - c).sum() + 0.5 * x0.square().sum()) - _DY),
        "R": exact(float((y0 - x0 @ M).square().sum())),
    }


class ToyByAutograd(Toy):
    """The same functions without derivatives of their own: those are made by autograd, and a graph is kept for products."""

    name = "toy_by_autograd"

    def build(self) -> Instance:
        known = super().build()
        f, g = known._raw["value_f"], known._raw["value_g"]
        return Instance(f, g, known.x0, known.y0, known.constants, known.noise, known.reference, known.points)


class ToyShared(Shared, Toy):
    """The toy of agents who are alike: each holds the whole. With the one agent that it has unless told, no process starts."""

    name = "toy_shared"
    agents: PositiveInt = 1

    def build(self) -> Instance:
        instance = super().build()
        instance.agents = Agents(self.agents, lambda i: Toy.build(self))
        return instance


class ToySum(Problem):
    """g = mean_i 1/2 (a_iᵀy - b_iᵀx)² + 1/2 ‖y‖²;  f = mean_j √(1 + (d_jᵀy - e_j)²) + 1/2 ‖x‖²; 128 rows each."""

    name = "toy_sum"

    def build(self) -> Instance:
        rng, dtype = self.generator(), torch.get_default_dtype()
        A, B = _normal(rng, _ROWS, _DY) / _DY**0.5, _normal(rng, _ROWS, _DX) / _DX**0.5
        D, e = _normal(rng, _ROWS, _DY) / _DY**0.5, _normal(rng, _ROWS)
        x0, y0 = 2 + _normal(rng, 1, _DX), _normal(rng, 1, _DY)
        rows_g = torch.cat([B, A], 1)
        top_g, top_f = (float(torch.linalg.matrix_norm(t, 2)) ** 2 / _ROWS for t in (rows_g, D))
        constants = {
            "mu": bound(1),
            "L_gy": bound(1 + top_g),
            "L_g": bound(1 + top_g),
            "rho_g": exact(0),
            "nu_g": exact(0),
            "L_f": bound(1 + top_f),
            "rho_f": bound(top_f * float(D.norm(dim=1).max())),
            "C_f": bound(top_f**0.5),
            "L_phi": bound(1 + top_f * top_g**2),
        }
        A, B, D, e, x0, y0 = (t.to(dtype) for t in (A, B, D, e, x0, y0))

        def g(x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
            if rows is None:
                return 0.5 * (y @ A.T - x @ B.T).square().mean(-1, keepdim=True) + 0.5 * dot(y, y)
            r = (A[rows.index] * y.unsqueeze(-2)).sum(-1) - (B[rows.index] * x.unsqueeze(-2)).sum(-1)
            return 0.5 * (rows.weight * (r.square() + dot(y, y))).sum(-1, keepdim=True)

        def f(x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
            if rows is None:
                return _robust(y @ D.T - e).mean(-1, keepdim=True) + 0.5 * dot(x, x)
            r = (D[rows.index] * y.unsqueeze(-2)).sum(-1) - e[rows.index]
            return (rows.weight * (_robust(r) + 0.5 * dot(x, x))).sum(-1, keepdim=True)

        return Instance(f=f, g=g, x0=x0, y0=y0, constants=constants, noise=FiniteSum(_ROWS, _ROWS), points="stack")


def _normal(rng: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def _robust(u: Tensor) -> Tensor:
    return (1 + u * u).sqrt()


def _pull(u: Tensor) -> Tensor:
    return u / (1 + u * u).sqrt()
