"""TTSA: stochastic approximation on two time scales.

    y <- y - b_k g_y(x, y; s1)
    p uniform in 0..Q-1;  v <- Q eta_v (I - eta_v H_p) ... (I - eta_v H_1) f_y(x, y; s2),  each H_q = H(x, y; fresh)
    x <- x - eta_k (f_x(x, y; s2) - J(x, y; s3) v)

with the new y in the last two lines, b_k = b (k+1)^-b_power and eta_k = eta_x (k+1)^-eta_power. Hong, Wai, Wang, Yang, "A
two-timescale stochastic algorithm framework for bilevel optimization", SIAM J. Optim. 2023, Algorithm 1, without a
constraint set. For a known number of steps T the theorem takes constants, eta_x ~ T^-3/5 and b ~ T^-2/5 (`from_horizon`), and
speaks of a uniformly random iterate; the defaults are the same powers of k, for any number of steps. What makes y keep up is
that eta_k/b_k goes to zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from bilevelbench import Constants, Oracle
from bilevelbench_methods.implicit.neumann import Approximation, neumann_random


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    k: int


class TTSA(Approximation):
    name = "ttsa"
    title = "TTSA"
    paper = "https://arxiv.org/abs/2007.05170"
    claims = Approximation.claims_of(eps_exp=5, reference="Hong, Wai, Wang, Yang 2023")

    eta_power: NonNegativeFloat = 0.6
    """decay of the x-step"""
    b: PositiveFloat | None = None
    """first y-step; default 1/L_g"""
    b_power: NonNegativeFloat = 0.4
    """decay of the y-step"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(
            constants,
            eta_x=lambda c: 1 / (2 * c.L_phi),
            b=lambda c: 1 / c.L_gy,
            eta_v=lambda c: 1 / c.L_gy,
        )

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, log_k = s.x, math.log1p(s.k)
        eta = self.eta_x * torch.exp(torch.as_tensor(-self.eta_power * log_k))
        b = self.b * torch.exp(torch.as_tensor(-self.b_power * log_k))
        y = s.y - b * oracle.grad_g_y(x, s.y, oracle.sample_g(self.batch))
        f_x, f_y = oracle.grad_f(x, y, oracle.sample_f(self.batch))
        v = neumann_random(oracle, x, y, f_y, self.Q, self.eta_v, self.batch)
        d = f_x - oracle.jvp_g_xy(x, y, v, oracle.sample_g(self.batch))
        return State(x=x - eta * d, y=y, k=s.k + 1)

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """eta_x = T^-3/5 and b = T^-2/5 throughout, single data, five terms."""
        c = constants
        eta_x, b = min(1 / c.L_phi, scale * steps**-0.6), min(1 / c.L_gy, steps**-0.4)
        return cls(Q=5, batch=1, eta_x=eta_x, eta_power=0, b=b, b_power=0, eta_v=1 / c.L_gy)
