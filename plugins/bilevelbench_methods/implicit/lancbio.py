"""LancBiO: H v = f_y in a Krylov space that grows by one vector in each step of x, and begins anew now and then.

    T times:  y <- y - a g_y(x, y);   b <- f_y(x, y)
    every `period` steps:  m <- min(ceil(growth m), m_max, dy)
    if c = m:  vbar <- v;  w <- H(x, y) vbar;  q <- (b - w)/|b - w|;  basis <- [];  beta, c <- 0          a new space
    u <- H(x, y) q - beta q_last;   alpha <- <q, u>;   basis, diagonal, off-diagonal <- with q, alpha, beta;   c <- c + 1
    v <- vbar + basis s,   tridiagonal s = basis^T (b - w)
    beta <- |u - alpha q|;   q_last <- q;   q <- (u - alpha q)/beta
    x <- x - eta_x (f_x(x, y) - J(x, y) v)

b is that of today, w that of the last restart. Yang, Gao, Yuan, "LancBiO: dynamic Lanczos-aided bilevel optimization via Krylov
subspace", ICLR 2025; their abstract counts eps^-1 steps for |grad phi|^2 <= eps. H changes with x and y, so the basis loses its
orthogonality: m_max bounds for how long.

Our choices: v starts at zero; m is at most dy, since more vectors would be drift and rounding; restarts are counted by c, where
the released code restarts at multiples of an m that changes meanwhile; a residual below 1e-14 leaves v as it is for this step,
without a further product; a beta below 1e-12, an exhausted space, means a restart at the next step; so does a tridiagonal
matrix that is not positive definite, which no single H can have made, and v stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, Oracle, PerLane, keep, norm
from bilevelbench_methods.descent import lower_gd
from bilevelbench_methods.implicit.krylov import Krylov

_SOLVED = 1e-14


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    v: Tensor
    space: Krylov
    m: Tensor
    k: int


class LancBiO(Algorithm):
    name = "lancbio"
    title = "LancBiO"
    paper = "https://arxiv.org/abs/2404.03331"
    family = "implicit"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy"})
    tuned = {"eta_x": "upper_step", "a": "lower_step"}
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            setting="deterministic", oracle="HVP", eps_exp=2, source="other paper", reference="Yang, Gao, Yuan 2025",
        ),
    )  # fmt: skip

    T: PerLane[PositiveInt] = 5
    """lower-level steps"""
    m_max: PositiveInt = 15
    """largest dimension of the space"""
    growth: Annotated[float, Field(ge=1)] = 1.1
    """factor of the dimension, which starts at one"""
    period: PerLane[PositiveInt] = 20
    """steps after which the dimension grows"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""
    a: PositiveFloat | None = None
    """lower-level step; default 1/L_g"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, eta_x=lambda c: 1 / (2 * c.L_phi), a=lambda c: 1 / c.L_gy)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        space = Krylov.full(y0, min(self.m_max, oracle.dy))  # so that the first step restarts
        return State(x=x0, y=y0, v=torch.zeros_like(y0), space=space, m=torch.ones_like(y0[:, :1]), k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, y = s.x, lower_gd(oracle, s.x, s.y, self.T, self.a)
        f_x, b = oracle.grad_f(x, y)
        grows = torch.as_tensor(s.k % self.period == self.period - 1)
        m = torch.where(grows, (self.growth * s.m).ceil().clamp(max=len(s.space.basis)), s.m)
        space, v = s.space, s.v
        full = space.c >= m
        solved = torch.zeros_like(full)
        for _ in oracle.when(full):
            w = oracle.hvp_g_yy(x, y, v)
            solved = full & (norm(b - w) < _SOLVED)
            space = space.restarted(v, w, b - w, full & ~solved)
        for on in oracle.when(~solved):
            space = space.extended(oracle.hvp_g_yy(x, y, space.q), on)
            change, definite = space.projected(b - space.w)
            v = keep(definite & on, space.vbar + change, v)
            space = space.closed(~definite & on)
        d = f_x - oracle.jvp_g_xy(x, y, v)
        return State(x=x - self.eta_x * d, y=y, v=v, space=space, m=m, k=s.k + 1)

    def extras(self, s: State) -> dict[str, Tensor]:
        return {"dimension": s.m}

    def x_step(self) -> float | None:
        return self.eta_x

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """Five lower-level steps for every eps, and at most as many dimensions as by default."""
        return cls(a=1 / constants.L_gy, eta_x=0.4 * scale / constants.L_phi)
