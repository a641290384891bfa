"""SOBA: one stochastic step on each of three coupled equations.

    y <- y - a_k  g_y(x, y; xi)                             y follows y*(x)
    v <- v - a_k (H(x, y; xi) v - f_y(x, y; zeta))          v follows H^-1 f_y
    x <- x - b_k (f_x(x, y; zeta) - J(x, y; xi) v)          H = g_yy, J = g_xy

All right-hand sides use the old (x, y, v); a_k = a/sqrt(k+1) and b_k = b/sqrt(k+1). Dagreou, Ablin, Vaiter, Moreau, "A
framework for bilevel optimization that enables stochastic and global variance reduction algorithms", NeurIPS 2022.
Our choices: v starts at zero, the batches of f and g have one size, and the default steps.
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
    k: int


class SOBA(Algorithm):
    name = "soba"
    family = "implicit"
    uses = frozenset({"grad_g_y", "hvp_g_yy", "jvp_g_xy", "grad_f"})
    tuned = {"b": "upper_step", "a": "lower_step"}

    a: PositiveFloat | None = None
    """first step of y and v; default 1/L_g"""
    b: PositiveFloat | None = None
    """first x-step; default 1/(2 L_phi)"""
    batch: PerLane[PositiveInt] = 16
    """data of every sample"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, a=lambda c: 1 / c.L_gy, b=lambda c: 1 / (2 * c.L_phi))

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, v=torch.zeros_like(y0), k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, y, v = s.x, s.y, s.v
        decay = (s.k + 1) ** -0.5
        xi, zeta = oracle.sample_g(self.batch), oracle.sample_f(self.batch)
        g_y = oracle.grad_g_y(x, y, xi)
        Hv = oracle.hvp_g_yy(x, y, v, xi)
        Jv = oracle.jvp_g_xy(x, y, v, xi)
        f_x, f_y = oracle.grad_f(x, y, zeta)
        return State(
            x=x - self.b * decay * (f_x - Jv),
            y=y - self.a * decay * g_y,
            v=v - self.a * decay * (Hv - f_y),
            k=s.k + 1,
        )

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_g_y": 1, "hvp_g_yy": 1, "jvp_g_xy": 1, "grad_f": 1}
