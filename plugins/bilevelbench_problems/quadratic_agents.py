"""A quadratic problem that agents share: the mean of what they hold, in closed form, and so is every wrong answer to it."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Agents, Instance, Shared, norm
from bilevelbench_problems.common import noise_model, random_orthogonal
from bilevelbench_problems.quadratic import Matrices, closed_form


class QuadraticAgents(Shared):
    """g_i(x, y) = 1/2 yᵀA_i y - xᵀB_i y;  f_i(x, y) = 1/2 ‖y - c_i‖² + reg/2 ‖x‖²;  f and g are the means over agents i.

    With A, B, c the means of A_i, B_i, c_i and M = B A⁻¹:  y*(x) = Mᵀx,  ∇φ = M(Mᵀx - c) + reg x, as in `quadratic`. The
    mean of the agents' own hypergradients at y*(x) is another field: with M_i = B_i A_i⁻¹ it is

        mean_i M_i(Mᵀx - c_i) + reg x,     zero at x = (mean_i M_i Mᵀ + reg I)⁻¹ mean_i M_i c_i,

    which is not where ∇φ = 0 unless the agents are alike.

    Each A_i has its eigenvalues evenly in [L/kappa, L], in a basis of its own; B_i, c_i, x0 and y0 are normal, B_i divided
    by √dim_y. `difference` d moves every A_i, B_i and c_i from a common one (d = 0) to one of its own (d = 1). The noise is
    that of one agent's sample, and independent between agents. Metric `distance`: ‖x - x*‖, where ∇φ(x*) = 0.
    """

    name = "quadratic_agents"
    embedded = False  # every distributed method would start processes in `run --all`

    dim_x: PositiveInt = 20
    """dimension of x"""
    dim_y: PositiveInt = 30
    """dimension of y"""
    kappa: Annotated[float, Field(ge=1)] = 5.0
    """condition number of each A_i"""
    L: PositiveFloat = 1.0
    """largest eigenvalue of each A_i"""
    reg: PositiveFloat = 1.0
    """weight of the regulariser of x"""
    difference: Annotated[float, Field(ge=0, le=1)] = 1.0
    """how much agents differ: 0 makes them alike"""
    sigma_f: NonNegativeFloat = 0.0
    """noise of a sampled gradient of f"""
    sigma_g: NonNegativeFloat = 0.0
    """noise of a sampled gradient of g"""
    sigma_h: NonNegativeFloat = 0.0
    """noise of a sampled product with second derivatives of g"""

    def build(self) -> Instance:
        held = self.held()
        A, B, c = (torch.stack([getattr(q, name) for q in held]).mean(0) for name in ("A", "B", "c"))
        offset = sum(float(q.c @ q.c) for q in held) / len(held) - float(c @ c)
        mean = Matrices(A, B, torch.linalg.solve(A, B.T).T, c, self.reg, 0.5 * offset)
        x0, y0 = self._start()
        x_min = mean.x_min.to(torch.get_default_dtype())
        return closed_form(
            mean,
            _ends(A),
            x0,
            y0,
            noise=noise_model(*(s / self.agents**0.5 for s in (self.sigma_f, self.sigma_g, self.sigma_h))),
            agents=Agents(self.agents, lambda i: self._local(held[i], x0, y0)),
            metrics={"distance": lambda x, y: norm(x - x_min)},
        )

    def held(self) -> list[Matrices]:
        """What each agent holds."""
        common, *own = [self._draw(number) for number in range(self.agents + 1)]
        return [self._mixed(common, one) for one in own]

    def _local(self, q: Matrices, x0: Tensor, y0: Tensor) -> Instance:
        return closed_form(q, _ends(q.A), x0, y0, noise=noise_model(self.sigma_f, self.sigma_g, self.sigma_h))

    def _mixed(self, common: tuple[Tensor, ...], own: tuple[Tensor, ...]) -> Matrices:
        A, B, c = (torch.lerp(a, b, self.difference) for a, b in zip(common, own, strict=True))
        return Matrices(A, B, torch.linalg.solve(A, B.T).T, c, self.reg)

    def _draw(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """A, B, c from a stream of their own: more agents do not change those that are there."""
        rng = self.generator(_STREAMS * self.data_seed + number)
        Q = random_orthogonal(self.dim_y, rng)
        spectrum = torch.linspace(self.L, self.L / self.kappa, self.dim_y, dtype=torch.float64)
        return (Q * spectrum) @ Q.T, _normal(rng, self.dim_x, self.dim_y) / self.dim_y**0.5, _normal(rng, self.dim_y)

    def _start(self) -> tuple[Tensor, Tensor]:
        rng = self.generator(_STREAMS * self.data_seed + _STREAMS - 1)
        return _normal(rng, 1, self.dim_x), _normal(rng, 1, self.dim_y)


_STREAMS = 1 << 20  # of one data seed


def _normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def _ends(A: Tensor) -> tuple[Tensor, Tensor]:
    eigenvalues = torch.linalg.eigvalsh(A)
    return eigenvalues[0], eigenvalues[-1]
