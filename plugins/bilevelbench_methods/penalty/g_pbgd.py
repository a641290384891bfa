"""G-PBGD: joint gradient descent on f + (gam/2) |g_y|^2, the gradient-norm penalty.

    q <- g_y(x, y)
    x <- x - alpha (f_x + gam J(x, y) q);   y <- y - alpha (f_y + gam H(x, y) q)        simultaneous

Shen, Chen, "On penalty-based bilevel gradient descent method", ICML 2023. Not a first-order method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pydantic import PositiveFloat
from torch import Tensor

from bilevelbench import Algorithm, Constants, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class GPBGD(Algorithm):
    name = "g_pbgd"
    title = "G-PBGD"
    paper = "https://arxiv.org/abs/2302.05185"
    family = "penalty"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy"})
    tuned = {"alpha": "upper_step", "gam": "penalty"}

    gam: PositiveFloat = 10.0
    """penalty"""
    alpha: PositiveFloat | None = None
    """step of x and y; default 1/(L_f + gam L_g^2)"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, alpha=lambda c: 1 / (c.L_f + self.gam * c.L_g**2))

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, y = s.x, s.y
        f_x, f_y = oracle.grad_f(x, y)
        q = oracle.grad_g_y(x, y)
        Jq, Hq = oracle.jvp_g_xy(x, y, q), oracle.hvp_g_yy(x, y, q)
        return State(x=x - self.alpha * (f_x + self.gam * Jq), y=y - self.alpha * (f_y + self.gam * Hq))

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_f": 1, "grad_g_y": 1, "hvp_g_yy": 1, "jvp_g_xy": 1}
