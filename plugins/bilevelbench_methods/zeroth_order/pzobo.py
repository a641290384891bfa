"""PZOBO: the response Jacobian of the lower level by finite differences along random directions.

    y+ <- D steps of gradient descent on g(x, .) from s
    j = 1..Q:  u_j normal,  w_j <- the same D steps on g(x + h u_j, .) from the same s
    d <- f_x(x, y+) + (1/Q) sum_j <(w_j - y+)/h, f_y(x, y+)> u_j
    x <- x - eta_x d;  y <- y+

s is the previous y (`warm_start`) or y0. Sow, Ji, Liang, "On the convergence theory for Hessian-free bilevel algorithms",
NeurIPS 2022. Our choice: Gaussian directions, which need no factor dx.
"""

from __future__ import annotations

from typing import Self

import torch

from bilevelbench import Claim, Constants, Oracle, dot, keep, over_points
from bilevelbench_methods.descent import lower_gd
from bilevelbench_methods.zeroth_order.directions import Directional, State, perturbed


class PZOBO(Directional):
    name = "pzobo"
    title = "PZOBO"
    paper = "https://arxiv.org/abs/2110.07004"
    claims = (
        Claim(
            table=1, setting="deterministic", oracle="gradient", eps_exp=4, tilde=True, log_power=1, extra="dx^2",
            log_source="other paper", reference="Sow, Ji, Liang 2022",
        ),
    )  # fmt: skip

    def step(self, s: State, oracle: Oracle) -> State:
        x, u = s.x, oracle.normal(self.Q, oracle.dx)
        X, lost = perturbed(x, u, self.h)
        start = (s.y if self.warm_start else s.y0).expand(self.Q + 1, -1, -1)
        W = lower_gd(oracle, X, start, self.D, self.a)
        y, w = W[0], W[1:]
        f_x, f_y = oracle.grad_f(x, y)
        d = keep(~lost, f_x + over_points(dot((w - y) / self.h, f_y) * u) / self.Q, torch.full_like(x, torch.nan))
        return State(x=x - self.eta_x * d, y=y, y0=s.y0)

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """That of a horizon of dx^2 eps^-4 steps: eta_x ~ eps^2/dx^2."""
        return cls.from_horizon(constants, max(1, round(constants.dim_x**2 / eps**4)), scale)

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """eta_x ~ 1/(dx sqrt(T)) with one direction."""
        eta_x = 2 * scale / (constants.dim_x * steps**0.5)
        return cls(Q=1, D=10, h=1e-4, a=1 / constants.L_gy, eta_x=eta_x)
