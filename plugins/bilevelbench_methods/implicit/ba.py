"""BA: bilevel approximation.

    n <- n0 ceil((k+1)^(1/4) / 2)
    y <- n steps of gradient descent on g(x, .) from y0 (or from the previous y)
    v <- the exact solution of H(x, y) v = f_y(x, y)
    x <- x - eta_x (f_x(x, y) - J(x, y) v)

Ghadimi, Wang, "Approximation methods for bilevel programming", 2018, Algorithm 1, without a constraint set. The exact solve is
a Cholesky factorisation of H, whose dy columns are Hessian products, up to `dense` columns, and conjugate gradients to a
relative residual of 1e-10 beyond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, InvalidInput, Oracle, conjugate_gradient, dot, norm
from bilevelbench_methods.descent import lower_gd

_INDEFINITE = "the lower Hessian is not positive definite here: BA needs a strongly convex lower level"


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    y0: Tensor
    k: int


class BA(Algorithm):
    name = "ba"
    title = "BA"
    paper = "https://arxiv.org/abs/1802.02246"
    family = "implicit"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy"})
    tuned = {"eta_x": "upper_step", "a": "lower_step"}
    claims = (
        Claim(table=1, setting="deterministic", oracle="HVP", eps_exp=2.5, reference="Ghadimi, Wang 2018"),
    )  # fmt: skip

    n0: PositiveInt = 1
    """lower-level steps, times the schedule"""
    grow: bool = True
    """let their number grow as the schedule says"""
    warm_start: bool = False
    """start the lower level at the previous y instead of y0"""
    dense: NonNegativeInt = 100
    """largest dy for which H is factorised"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""
    a: PositiveFloat | None = None
    """lower-level step; default 2/(mu + L_g)"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, eta_x=lambda c: 1 / (2 * c.L_phi), a=lambda c: 2 / (c.mu + c.L_gy))

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, y0=y0, k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        x = s.x
        y = lower_gd(oracle, x, s.y if self.warm_start else s.y0, self._steps(s.k), self.a)
        f_x, f_y = oracle.grad_f(x, y)
        v = self._solve(oracle, x, y, f_y)
        d = f_x - oracle.jvp_g_xy(x, y, v)
        return State(x=x - self.eta_x * d, y=y, y0=s.y0, k=s.k + 1)

    def _steps(self, k: int) -> int:
        return self.n0 * (math.ceil((k + 1) ** 0.25 / 2) if self.grow else 1)

    def _solve(self, oracle: Oracle, x: Tensor, y: Tensor, b: Tensor) -> Tensor:
        if oracle.dy > self.dense:

            def product(u: Tensor) -> Tensor:
                Hu = oracle.hvp_g_yy(x, y, u)
                if bool((dot(u, Hu) <= 0).any()):
                    raise InvalidInput(_INDEFINITE)
                return Hu

            tol = 1e-10 * norm(b)
            return conjugate_gradient(oracle, product, b, torch.zeros_like(b), 10 * oracle.dy, tol, cold=True)
        units = torch.eye(oracle.dy, dtype=b.dtype, device=b.device)[:, None, :].expand(-1, oracle.L, -1)
        H = oracle.hvp_g_yy(x, y, units).movedim(0, -1)
        factor, failed = torch.linalg.cholesky_ex(H)
        if bool((failed.bool() & torch.isfinite(H).all(-1).all(-1)).any()):
            raise InvalidInput(_INDEFINITE)
        return torch.cholesky_solve(b[..., None], factor)[..., 0]

    def x_step(self) -> float | None:
        return self.eta_x

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """The growing n_k is what costs the half power; nothing depends on eps."""
        return cls(a=2 / (constants.mu + constants.L_gy), eta_x=0.4 * scale / constants.L_phi)
