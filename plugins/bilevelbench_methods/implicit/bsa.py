"""BSA: bilevel stochastic approximation.

    n <- n0 ceil(sqrt(k+1))  (`grow`)  or  n0
    y <- n steps  y - b_t g_y(x, y; fresh)  from y0 (or from the previous y),  b_t = min(b_k, c/(t+2)),  t = 0..n-1
    p uniform in 0..Q-1;  v <- Q eta_v (I - eta_v H_p) ... (I - eta_v H_1) f_y(x, y; s1),  each H_q = H(x, y; fresh)
    x <- x - eta_k (f_x(x, y; s1) - J(x, y; s2) v)

with b_k = b (k+1)^-b_power and eta_k = eta_x (k+1)^-eta_power. Ghadimi, Wang, "Approximation methods for bilevel
programming", 2018, Algorithm 2, without a constraint set: there every step starts at the same y0, n grows, b_power = 0 and
eta_x ~ T^-1/2 for a known number of steps T. A lower step that shrinks with k needs `warm_start`: from y0, with a fixed n, y
would come to rest ever nearer to y0. The theorem is about a uniformly random iterate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Constants, Oracle, PerLane, keep
from bilevelbench_methods.implicit.neumann import Approximation, neumann_random


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    y0: Tensor
    k: int


class BSA(Approximation):
    name = "bsa"
    title = "BSA"
    paper = "https://arxiv.org/abs/1802.02246"
    claims = Approximation.claims_of(eps_exp=6, reference="Ghadimi, Wang 2018")

    n0: PerLane[PositiveInt] = 10
    """lower-level steps, times the schedule"""
    grow: bool = False
    """let their number grow as ceil(sqrt(k+1))"""
    warm_start: bool = False
    """start the lower level at the previous y instead of y0"""
    eta_power: NonNegativeFloat = 0.5
    """decay of the x-step"""
    b: PositiveFloat | None = None
    """largest lower-level step; default 1/L_g"""
    b_power: NonNegativeFloat = 0.0
    """its decay from one outer step to the next"""
    c: PositiveFloat | None = None
    """lower-level step t is at most c/(t+2); default 2/mu"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(
            constants,
            eta_x=lambda c: 1 / (2 * c.L_phi),
            b=lambda c: 1 / c.L_gy,
            c=lambda c: 2 / c.mu,
            eta_v=lambda c: 1 / c.L_gy,
        )

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, y0=y0, k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, log_k = s.x, math.log1p(s.k)
        eta = self.eta_x * torch.exp(torch.as_tensor(-self.eta_power * log_k))
        b = self.b * torch.exp(torch.as_tensor(-self.b_power * log_k))
        y = s.y if self.warm_start else s.y0
        for t, on in enumerate(oracle.repeat(self._steps(s.k))):
            b_t = torch.minimum(b, torch.as_tensor(self.c / (t + 2)))
            y = keep(on, y - b_t * oracle.grad_g_y(x, y, oracle.sample_g(self.batch)), y)
        f_x, f_y = oracle.grad_f(x, y, oracle.sample_f(self.batch))
        v = neumann_random(oracle, x, y, f_y, self.Q, self.eta_v, self.batch)
        d = f_x - oracle.jvp_g_xy(x, y, v, oracle.sample_g(self.batch))
        return State(x=x - eta * d, y=y, y0=s.y0, k=s.k + 1)

    def _steps(self, k: int) -> int | Tensor:
        return self.n0 * (math.isqrt(k) + 1) if self.grow else self.n0  # ceil(sqrt(k+1)) is isqrt(k) + 1

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """eta_x ~ T^-1/2 and n_k = ceil(sqrt(k+1)), single data, six terms."""
        c = constants
        eta_x = min(1 / c.L_phi, 2 * scale / steps**0.5)
        return cls(
            n0=1, grow=True, Q=6, batch=1, eta_x=eta_x, eta_power=0, b=1 / c.L_gy, c=2 / c.mu, eta_v=1 / c.L_gy
        )  # fmt: skip
