"""What the authors' public script does under the name of F2BA; it is not Algorithm 1.

    z <- y                                                reset at every outer step
    K times:  (y, z) <- (y - a (f_y(x, y)/lam + g_y(x, z)),  z - a g_y(x, z))        g_y at z in both
    d <- f_x(x, y) + lam (g_x(x, y) - g_x(x, z));   x <- x - eta_x d

Then y - z = -(a/lam) sum of the K values of f_y, so d is f_x - a K J f_y up to O(1/lam): the inverse Hessian is replaced by
a K times the identity, whatever lam is, and the limit is not stationary. Kept to show that.

The script belongs to Chen, Ma, Zhang, "Near-Optimal Nonconvex-Strongly-Convex Bilevel Optimization with Fully First-Order
Oracles", JMLR 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Constants, Oracle, PerLane, keep
from bilevelbench_methods.penalty.pair import USES, penalty_gradient


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class F2BAReleased(Algorithm):
    name = "f2ba_released"
    title = "F²BA as released"
    paper = "https://arxiv.org/abs/2306.14853"
    family = "penalty"
    uses = USES
    tuned = {"eta_x": "upper_step", "a": "lower_step", "lam": "penalty"}

    lam: PositiveFloat = 1000.0
    """penalty"""
    K: PerLane[PositiveInt] = 10
    """lower-level steps"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""
    a: PositiveFloat | None = None
    """lower-level step; default 1/(2 L_g)"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, eta_x=lambda c: 1 / (2 * c.L_phi), a=lambda c: 1 / (2 * c.L_gy))

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, y, z = s.x, s.y, s.y
        for on in oracle.repeat(self.K):
            g_z = oracle.grad_g_y(x, z)
            f_y = oracle.grad_f_y(x, y)
            y, z = keep(on, y - self.a * (f_y / self.lam + g_z), y), keep(on, z - self.a * g_z, z)
        d = penalty_gradient(oracle, x, y, z, self.lam)
        return State(x=x - self.eta_x * d, y=y)

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_f_x": 1, "grad_f_y": self.K, "grad_g_x": 2, "grad_g_y": self.K}
