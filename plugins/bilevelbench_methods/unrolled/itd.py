"""ITD: differentiate f(x, Y[D](x)) through D steps of gradient descent.

    Y[0] <- y;  t = 0..D-1:  Y[t+1] <- Y[t] - a g_y(x, Y[t])
    q <- f_y(x, Y[D]);  d <- f_x(x, Y[D])
    t = D-1..0:  d <- d - a J(x, Y[t]) q;   if t > 0:  q <- q - a H(x, Y[t]) q
    x <- x - eta_x d;  y <- Y[D]

Y[0] is a constant for the derivative. Ji, Yang, Liang, "Bilevel optimization: convergence analysis and enhanced design",
ICML 2021 (ITD-BiO). The bias (1 - a mu)^D does not vanish with the number of outer steps. `truncate = h` runs the backward
loop over the last h indices only (T-RHG).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class ITD(Algorithm):
    name = "itd"
    family = "unrolled"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy"})
    tuned = {"eta_x": "upper_step", "a": "lower_step"}
    claims = (
        Claim(
            table=1, setting="deterministic", oracle="HVP", eps_exp=2, tilde=True, log_power=1, kappa_exp=4,
            log_source="other paper", reference="Ji, Yang, Liang 2021",  # kappa: the text after Theorem 1
        ),
    )  # fmt: skip

    D: PositiveInt = 10
    """lower-level steps that are differentiated"""
    truncate: PositiveInt | None = None
    """how many of the last steps are differentiated; default all"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""
    a: PositiveFloat | None = None
    """lower-level step; default 1/L_g"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, eta_x=lambda c: 1 / (2 * c.L_phi), a=lambda c: 1 / c.L_gy)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, a = s.x, self.a
        Y = [s.y]
        for _ in oracle.repeat(self.D):
            Y.append(Y[-1] - a * oracle.grad_g_y(x, Y[-1]))
        d, q = oracle.grad_f(x, Y[self.D])
        first = self._first()
        for t in reversed(range(first, self.D)):
            d = d - a * oracle.jvp_g_xy(x, Y[t], q)
            if t > first:
                q = q - a * oracle.hvp_g_yy(x, Y[t], q)
        return State(x=x - self.eta_x * d, y=Y[self.D])

    def calls(self, step: int) -> dict[str, int]:
        back = self.D - self._first()
        return {"grad_f": 1, "grad_g_y": self.D, "hvp_g_yy": back - 1, "jvp_g_xy": back}

    def _first(self) -> int:
        return 0 if self.truncate is None else max(0, self.D - self.truncate)

    def x_step(self) -> float | None:
        return self.eta_x

    @classmethod
    def from_theory(cls, constants: Constants, eps: float) -> Self:
        """D ~ kappa log(1/eps), eta_x = 1/(4 L_phi)."""
        ratio = constants.L_gy / constants.mu
        D = max(1, math.ceil(ratio * math.log(max(8 * ratio / eps, math.e))))
        return cls(D=D, a=1 / constants.L_gy, eta_x=1 / (4 * constants.L_phi))

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """D = kappa log(8/eps)."""
        D = max(1, math.ceil(constants.L_gy / constants.mu * math.log(8 / eps)))
        return cls(D=D, a=1 / constants.L_gy, eta_x=0.4 / constants.L_phi)
