"""A quadratic problem, where everything is known in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Additive, Affine, Constant, Exact, Instance, Problem, Reference, dot, estimated, exact
from bilevelbench_problems.common import NoiseKind, noise_model, random_orthogonal, spread


class Quadratic(Problem):
    """g(x, y) = 1/2 yᵀA y - xᵀB y, spec(A) evenly in [L/kappa, L];  f(x, y) = 1/2 ‖y - c‖² + reg/2 ‖x‖².

    With M = B A⁻¹:  y*(x) = Mᵀx,  ∇φ = M(Mᵀx - c) + reg x,  ∇²φ = M Mᵀ + reg I.

    B, c, x0 and y0 are normal, B divided by √dim_y. f is not Lipschitz in y, so C_f is only its slope at y0. In one
    dimension A is the number L.
    """

    name = "quadratic"

    dim_x: PositiveInt = 20
    """dimension of x"""
    dim_y: PositiveInt = 30
    """dimension of y"""
    kappa: Annotated[float, Field(ge=1)] = 5.0
    """condition number of A"""
    L: PositiveFloat = 1.0
    """largest eigenvalue of A"""
    reg: PositiveFloat = 1.0
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
        rng, dx, dy, reg = self.generator(), self.dim_x, self.dim_y, self.reg

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64)

        spectrum = torch.linspace(self.L, self.L / self.kappa, dy, dtype=torch.float64)
        Q = random_orthogonal(dy, rng)
        A = (Q * spectrum) @ Q.T
        B = normal(dx, dy) / dy**0.5
        M = B @ (Q / spectrum) @ Q.T
        c, x0, y0 = normal(dy), normal(1, dx), normal(1, dy)

        return closed_form(
            Matrices(A, B, M, c, reg),
            (spectrum[-1], spectrum[0]),
            x0,
            y0,
            noise=noise_model(self.sigma_f, self.sigma_g, self.sigma_h, self.noise),
        )


@dataclass(frozen=True)
class Matrices:
    """A, B, M = B A⁻¹ and c of g = 1/2 yᵀA y - xᵀB y and f = 1/2 ‖y - c‖² + reg/2 ‖x‖² + offset, in float64."""

    A: Tensor
    B: Tensor
    M: Tensor
    c: Tensor
    reg: float
    offset: float = 0.0

    @property
    def hess(self) -> Tensor:
        """∇²φ."""
        return self.M @ self.M.T + self.reg * torch.eye(len(self.M), dtype=torch.float64)

    @property
    def x_min(self) -> Tensor:
        x: Tensor = torch.linalg.solve(self.hess, self.M @ self.c)
        return x

    def functions(self) -> dict[str, Any]:
        """f, g and all derivatives, in torch's default dtype."""
        A, B, c = (t.to(torch.get_default_dtype()) for t in (self.A, self.B, self.c))
        Bt, reg, offset = B.T.contiguous(), self.reg, self.offset
        return {
            "f": lambda x, y: 0.5 * dot(y - c, y - c) + 0.5 * reg * dot(x, x) + offset,
            "g": lambda x, y: 0.5 * dot(y @ A, y) - dot(x @ B, y),
            "grad_f_x": lambda x, y: spread(reg * x, y),
            "grad_f_y": lambda x, y: spread(y - c, x),
            "grad_g_x": lambda x, y: spread(-(y @ Bt), x),
            "grad_g_y": lambda x, y: y @ A - x @ B,
            "hvp_g_yy": lambda x, y, v: spread(v @ A, x, y),
            "jvp_g_xy": lambda x, y, v: spread(-(v @ Bt), x, y),
        }

    def constants(self, spectrum: tuple[Tensor, Tensor], x0: Tensor, y0: Tensor) -> dict[str, Constant]:
        """`spectrum`: the least and the largest eigenvalue of A."""
        B, M, hess, dx = self.B, self.M, self.hess, len(self.B)
        joint = torch.cat([torch.cat([torch.zeros(dx, dx), -B], 1), torch.cat([-B.T, self.A], 1)])
        away = x0 - self.x_min
        return {
            "mu": exact(spectrum[0]),
            "L_gy": exact(spectrum[1]),
            "L_g": exact(torch.linalg.matrix_norm(joint, 2)),
            "L_f": exact(max(1.0, self.reg)),
            "rho_f": exact(0),
            "rho_g": exact(0),
            "nu_g": exact(0),
            "C_f": estimated((y0 - self.c).norm()),
            "L_phi": exact(torch.linalg.matrix_norm(hess, 2)),
            "rho_phi": exact(0),
            "Delta": exact(0.5 * away @ hess @ away.T),
            "R": exact((y0 - x0 @ M).square().sum()),
        }


def closed_form(
    q: Matrices, spectrum: tuple[Tensor, Tensor], x0: Tensor, y0: Tensor, noise: Exact | Additive | Affine, **more: Any
) -> Instance:
    """The instance of these matrices, with everything that is known of it."""
    constants, functions = q.constants(spectrum, x0, y0), q.functions()
    M, hess, c, x0, y0 = (t.to(torch.get_default_dtype()) for t in (q.M, q.hess, q.c, x0, y0))
    Mt, reg, f = M.T.contiguous(), q.reg, functions["f"]
    return Instance(
        **functions,
        x0=x0,
        y0=y0,
        constants=constants,
        noise=noise,
        reference=Reference(
            y_star=lambda x: x @ M,
            phi=lambda x: f(x, x @ M),
            grad_phi=lambda x: (x @ M - c) @ Mt + reg * x,
            hess_phi=lambda x: hess.expand(*x.shape, len(M)),
        ),
        points="stack",
        **more,
    )
