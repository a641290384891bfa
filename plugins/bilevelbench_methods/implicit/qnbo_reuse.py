"""qNBO with reuse: quasi-Newton steps on the lower level, whose inverse Hessian is applied to f_y: no Hessian product at all.

    P times:  y <- y - a g_y(x, y)
    T times:  y <- y - B g_y(x, y)                                      B: BFGS from the moves and changes of g_y so far
    v <- B f_y(x, y),   x <- x - eta_x (f_x(x, y) - J(x, y) v)

B is applied by two loops over the P + T pairs (s, r) of this step, moves of y and changes of g_y, from <s, r>/<r, r> of the
newest; a pair with <s, r> <= 1e-10 |s|^2 is left out. Fang, Liu, Yao, Yu, Zhang, "qNBO: quasi-Newton meets bilevel
optimization", ICLR 2025, in the variant that reuses the pairs of the y-steps, as SHINE does (Ramzi et al., ICLR 2022).
The pairs need not know H along f_y, so v keeps an error that no number of steps of x removes, and |grad phi| comes to rest at a
floor; the paper's main variant makes further pairs for that. No claim is made: its theorem is about that one.

Our choices: the pairs of the gradient steps count as well; the steps of BFGS have length one, without a search; a pair whose
move is shorter than 1e-4 of the longest one of the step is left out, for near y*(x) the changes of g_y are rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Constants, Oracle
from bilevelbench_methods.lower_search import InverseHessian

_LEAST = 1e-4


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class QNBOReuse(Algorithm):
    name = "qnbo_reuse"
    title = "qNBO (reuse)"
    paper = "https://arxiv.org/abs/2502.01076"
    family = "implicit"
    uses = frozenset({"grad_f", "grad_g_y", "jvp_g_xy"})
    tuned = {"eta_x": "upper_step", "a": "lower_step"}

    P: PositiveInt = 5
    """gradient steps of y"""
    T: PositiveInt = 10
    """quasi-Newton steps of y"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""
    a: PositiveFloat | None = None
    """length of the gradient steps; default 1/L_g"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, eta_x=lambda c: 1 / (2 * c.L_phi), a=lambda c: 1 / c.L_gy)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, y, g_y = s.x, s.y, oracle.grad_g_y(s.x, s.y)
        B = InverseHessian(least=_LEAST)
        for t in range(self.P + self.T):
            new_y = y - (self.a * g_y if t < self.P else B.times(g_y))
            new_g_y = oracle.grad_g_y(x, new_y)
            B.add(new_y - y, new_g_y - g_y)
            y, g_y = new_y, new_g_y
        f_x, f_y = oracle.grad_f(x, y)
        d = f_x - oracle.jvp_g_xy(x, y, B.times(f_y))
        return State(x=x - self.eta_x * d, y=y)

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_f": 1, "grad_g_y": self.P + self.T + 1, "jvp_g_xy": 1}

    def x_step(self) -> float | None:
        return self.eta_x
