"""PRAHGD: perturbed restarted accelerated hypergradient descent; RAHGD is the same without kicks.

    w <- x + (1 - theta)(x - x_prev)
    y <- D_t steps of Nesterov's method on g(w, .), from the previous y and with fresh momentum
    v <- N steps of conjugate gradients on H(w, y) v = f_y(w, y), from the previous v
    d <- f_x(w, y) - J(w, y) v
    x <- w - eta_x d, then the test for a restart: `bilevelbench_methods/restarted.py`

Yang, Luo, Li, Jordan, "Accelerating inexact hypergradient descent for bilevel optimization", 2023. Our choices: y is kept at a
restart, where the original solves for it again from scratch. With `zeta`, k = L_g/mu,

    D_t = max(D, 2 sqrt(k) log(2 C sqrt((1 + k) delta)/zeta)),   C = (1 + L_g/mu)(L_f + rho_g C_f/mu),   c = 2 (L_g/mu)^2,

from |d - grad phi| <= C |y - y*| + L_g |v - v_exact(y)| and Nesterov's |y_n - y*|^2 <= (1 + k)(1 - 1/sqrt(k))^n |y_0 - y*|^2.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, PerLane, conjugate_gradient, dot
from bilevelbench_methods.descent import lower_agd, momentum
from bilevelbench_methods.restarted import Restarted, State


class PRAHGD(Restarted):
    name = "prahgd"
    title = "PRAHGD"
    paper = "https://arxiv.org/abs/2307.00126"
    loop = "D_t"
    family = "implicit"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy", "mu", "L_g", "L_gy", "L_f", "rho_g", "C_f"})
    tuned = {"eta_x": "upper_step", "a": "lower_step"}
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            table=3, setting="deterministic", oracle="HVP", eps_exp=1.75, tilde=True, log_power=7, kappa_exp=3.25,
            kappa_source="other paper", log_source="derived",  # chi^6 steps of log lower-level steps
            reference="Yang, Luo, Li, Jordan 2023",
        ),
    )  # fmt: skip

    D: PerLane[PositiveInt] = 10
    """lower-level steps; with zeta the fewest"""
    N: PerLane[PositiveInt] = 10
    """steps of the linear solver"""
    n0: PerLane[NonNegativeInt] = 0
    """lower-level steps at x0 before the first step"""
    a: PositiveFloat | None = None
    """lower-level step; default 1/L_g"""
    beta: Annotated[float, Field(ge=0, lt=1)] | None = None
    """lower-level momentum; default (sqrt(k) - 1)/(sqrt(k) + 1), k = L_g/mu"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, eta_x=lambda c: 1 / (4 * c.L_phi), a=lambda c: 1 / c.L_gy, beta=momentum)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        y = lower_agd(oracle, x0, y0, self.n0, self.a, self.beta)
        delta: float | Tensor | None = self.delta0
        if self.zeta is not None and delta is None:
            g_y, mu = oracle.grad_g_y(x0, y), oracle.constant("mu")
            delta = dot(g_y, g_y) / (mu * mu)
        return self.start(x0, (y, torch.zeros_like(y)), delta)

    def hypergradient(
        self, w: Tensor, s: State, delta: Tensor, oracle: Oracle
    ) -> tuple[Tensor, tuple[Tensor, Tensor], int | Tensor]:
        D = self.D if self.zeta is None else self._steps(delta, oracle)
        y = lower_agd(oracle, w, s.y, D, self.a, self.beta)
        f_x, f_y = oracle.grad_f(w, y)

        def H(u: Tensor) -> Tensor:
            return oracle.hvp_g_yy(w, y, u)

        v = conjugate_gradient(oracle, H, f_y, s.lower[1], self.N, cold=s.k == 0)
        return f_x - oracle.jvp_g_xy(w, y, v), (y, v), D

    def _steps(self, delta: Tensor, oracle: Oracle) -> Tensor:
        mu, L_g, L_gy, L_f, rho_g, C_f = (oracle.constant(c) for c in ("mu", "L_g", "L_gy", "L_f", "rho_g", "C_f"))
        k, C = torch.as_tensor(L_gy / mu, dtype=delta.dtype), (1 + L_g / mu) * (L_f + rho_g * C_f / mu)
        wanted = 2 * k.sqrt() * torch.log(2 * C * ((1 + k) * delta).sqrt() / self.zeta)
        return torch.ceil(wanted).clamp(min=self.D)

    def response(self, oracle: Oracle) -> float | Tensor:
        ratio = oracle.constant("L_g") / oracle.constant("mu")
        return 2 * ratio * ratio

    @classmethod
    def from_theory(cls, constants: Constants, eps: float, dx: int = 100, delta_fail: float = 0.1) -> Self:
        """The theorem; D is enough to halve delta, D_t and N make d exact to zeta. dx bounds the dimension of x."""
        c = constants
        outer = cls.theory(c.L_phi, c.rho_phi, eps, dx, delta_fail)
        root, zeta = math.sqrt(c.L_gy / c.mu), outer["zeta"]
        D = max(1, math.ceil(root * math.log(4 * (1 + root**2))))
        start = 2 * c.C_f / c.mu + zeta / (2 * c.L_g)  # how far the previous v may be from H^-1 f_y
        N = max(1, math.ceil(root / 2 * math.log(4 * root * c.L_g * start / zeta)))
        return cls(D=D, N=N, a=1 / c.L_gy, beta=momentum(c), delta0=c.R if "R" in c else None, **outer)

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """Six lower steps and three of cg for every eps, theta ~ eps^(1/4), B ~ eps^(1/2); `scale` is that of B."""
        c = constants
        return cls(D=6, N=3, a=1 / c.L_gy, beta=momentum(c), **cls.rate(c, eps, scale))


class RAHGD(PRAHGD):
    """For first-order stationarity; the presets are those of PRAHGD with r = 0."""

    name = "rahgd"
    title = "RAHGD"
    paper = "https://arxiv.org/abs/2307.00126"
    claims = ()
    perturbed = False
