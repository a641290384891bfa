"""Averaged descent: constant stochastic steps on three coupled equations, and the mean of the iterates as the answer.

    y <- y - a  g_y(x, y; xi)                             y follows y*(x)
    v <- v - a (H(x, y; xi) v - f_y(x, y; zeta))          v follows H^-1 f_y,  H = g_yy
    x <- x - b (f_x(x, y; zeta) - J(x, y; xi) v)          with the new y and v,  J = g_xy
    answer <- (1 - 1/k) answer + 1/k (x, y)               the mean of the k points so far

Each line uses what the lines before it have made. With constant steps the iterates come to hover around a solution, and their
mean is closer to it than they are: B. Polyak, A. Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J.
Control Optim. 1992. That the mean is taken over bilevel iterates, and the default steps, are choices of this example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Constants, Oracle, PerLane


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    v: Tensor
    mean_x: Tensor
    mean_y: Tensor
    k: int


class Averaged(Algorithm):
    name = "averaged"
    family = "implicit"
    uses = frozenset({"grad_g_y", "hvp_g_yy", "jvp_g_xy", "grad_f"})
    tuned = {"b": "upper_step", "a": "lower_step"}
    reports = "own"

    a: PositiveFloat | None = None
    """step of y and v; default 1/L_g"""
    b: PositiveFloat | None = None
    """x-step; default 1/(8 L_phi)"""
    batch: PerLane[PositiveInt] = 16
    """data of every sample"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, a=lambda c: 1 / c.L_gy, b=lambda c: 1 / (8 * c.L_phi))

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, v=torch.zeros_like(y0), mean_x=x0, mean_y=y0, k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, k = s.x, s.k + 1
        xi, zeta = oracle.sample_g(self.batch), oracle.sample_f(self.batch)
        y = s.y - self.a * oracle.grad_g_y(x, s.y, xi)
        f_x, f_y = oracle.grad_f(x, y, zeta)
        v = s.v - self.a * (oracle.hvp_g_yy(x, y, s.v, xi) - f_y)
        x = x - self.b * (f_x - oracle.jvp_g_xy(x, y, v, xi))
        return State(x, y, v, mean_x=s.mean_x + (x - s.mean_x) / k, mean_y=s.mean_y + (y - s.mean_y) / k, k=k)

    def answer(self, s: State) -> tuple[Tensor, Tensor]:
        return s.mean_x, s.mean_y

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_g_y": 1, "hvp_g_yy": 1, "jvp_g_xy": 1, "grad_f": 1}
