"""A quadratic problem, where everything is known in closed form."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Instance, Problem, Reference, dot, estimated, exact
from bilevelbench_problems.common import noise_model, random_orthogonal, spread


class Quadratic(Problem):
    """g(x, y) = 1/2 yᵀA y - xᵀB y, spec(A) evenly in [L/kappa, L];  f(x, y) = 1/2 ‖y - c‖² + reg/2 ‖x‖².

    With M = B A⁻¹:  y*(x) = Mᵀx,  ∇φ = M(Mᵀx - c) + reg x,  ∇²φ = M Mᵀ + reg I.

    B, c, x0 and y0 are normal, B divided by √dim_y. f is not Lipschitz in y, so C_f is only its slope at y0. In one
    dimension A is the number L.
    """

    name = "quadratic"

    dim_x: PositiveInt = 20
    dim_y: PositiveInt = 30
    kappa: Annotated[float, Field(ge=1)] = 5.0
    L: PositiveFloat = 1.0
    reg: PositiveFloat = 1.0
    sigma_f: NonNegativeFloat = 0.0
    sigma_g: NonNegativeFloat = 0.0
    sigma_h: NonNegativeFloat = 0.0

    def build(self) -> Instance:
        rng, dx, dy, reg = self.generator(), self.dim_x, self.dim_y, self.reg

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64)

        spectrum = torch.linspace(self.L, self.L / self.kappa, dy, dtype=torch.float64)
        Q = random_orthogonal(dy, rng)
        A = (Q * spectrum) @ Q.T
        B = normal(dx, dy) / dy**0.5
        M = B @ (Q / spectrum) @ Q.T
        hess = M @ M.T + reg * torch.eye(dx, dtype=torch.float64)
        c, x0, y0 = normal(dy), normal(1, dx), normal(1, dy)

        joint = torch.cat([torch.cat([torch.zeros(dx, dx), -B], 1), torch.cat([-B.T, A], 1)])
        x_min = torch.linalg.solve(hess, M @ c)
        constants = {
            "mu": exact(spectrum[-1]),
            "L_gy": exact(spectrum[0]),
            "L_g": exact(torch.linalg.matrix_norm(joint, 2)),
            "L_f": exact(max(1.0, reg)),
            "rho_f": exact(0),
            "rho_g": exact(0),
            "nu_g": exact(0),
            "C_f": estimated((y0 - c).norm()),
            "L_phi": exact(torch.linalg.matrix_norm(hess, 2)),
            "rho_phi": exact(0),
            "Delta": exact(0.5 * (x0 - x_min) @ hess @ (x0 - x_min).T),
            "R": exact((y0 - x0 @ M).square().sum()),
        }

        A, B, M, hess, c, x0, y0 = (t.to(torch.get_default_dtype()) for t in (A, B, M, hess, c, x0, y0))
        Bt, Mt = B.T.contiguous(), M.T.contiguous()

        def f(x: Tensor, y: Tensor) -> Tensor:
            return 0.5 * dot(y - c, y - c) + 0.5 * reg * dot(x, x)

        return Instance(
            f=f,
            g=lambda x, y: 0.5 * dot(y @ A, y) - dot(x @ B, y),
            grad_f_x=lambda x, y: spread(reg * x, y),
            grad_f_y=lambda x, y: spread(y - c, x),
            grad_g_x=lambda x, y: spread(-(y @ Bt), x),
            grad_g_y=lambda x, y: y @ A - x @ B,
            hvp_g_yy=lambda x, y, v: spread(v @ A, x, y),
            jvp_g_xy=lambda x, y, v: spread(-(v @ Bt), x, y),
            x0=x0,
            y0=y0,
            constants=constants,
            noise=noise_model(self.sigma_f, self.sigma_g, self.sigma_h),
            reference=Reference(
                y_star=lambda x: x @ M,
                phi=lambda x: f(x, x @ M),
                grad_phi=lambda x: (x @ M - c) @ Mt + reg * x,
                hess_phi=lambda x: hess.expand(*x.shape, dx),
            ),
            points="stack",
        )
