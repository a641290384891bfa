"""ITD: differentiate f(x, Y[D](x)) through D steps of gradient descent.

    Y[0] <- y;  t = 0..D-1:  Y[t+1] <- Y[t] - a g_y(x, Y[t])
    q <- f_y(x, Y[D]);  d <- f_x(x, Y[D])
    t = D-1..0:  d <- d - a J(x, Y[t]) q;   if t > 0:  q <- q - a H(x, Y[t]) q
    x <- x - eta_x d;  y <- Y[D]

Y[0] is a constant for the derivative. Ji, Yang, Liang, "Bilevel optimization: convergence analysis and enhanced design",
ICML 2021 (ITD-BiO). The bias (1 - a mu)^D does not vanish with the number of outer steps. `truncate = h` runs the backward
loop over the last h indices only (T-RHG).

`line_search` finds a step s_t for each t by backtracking on g(x, .) and ends the loop of a lane at |g_y| <= tol, as
benchmark_bilevel's jaxopt_ITD does. The s_t are held constant in the backward loop, with s_t for a; as functions of x they are
piecewise constant, so that is the derivative almost everywhere. `warm_start = false` makes Y[0] <- y0 in every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, Oracle, keep
from bilevelbench_methods.lower_search import backtracking_moves


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    y0: Tensor


class ITD(Algorithm):
    name = "itd"
    title = "ITD"
    paper = "https://arxiv.org/abs/2010.07962"
    family = "unrolled"
    uses = frozenset({"grad_f", "grad_g_y", "value_g", "hvp_g_yy", "jvp_g_xy"})
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
    """lower-level step; default 1/L_g, none with line_search"""
    line_search: bool = False
    """find the lower-level steps by backtracking"""
    tol: PositiveFloat = 1e-6
    """|g_y| at which line_search ends the lower-level steps"""
    warm_start: bool = True
    """start the lower level at the previous y instead of y0"""

    @model_validator(mode="after")
    def _one_way_to_a_step(self) -> Self:
        if self.line_search and self.a is not None:
            raise ValueError(
                f"line_search finds the lower-level steps itself, and a = {self.a:g} is given; leave one out"
            )
        return self

    def resolve(self, constants: Constants) -> Self:
        rules: dict[str, Callable[[Constants], float]] = {"eta_x": lambda c: 1 / (2 * c.L_phi)}
        if not self.line_search:
            rules["a"] = lambda c: 1 / c.L_gy
        return self.fill(constants, **rules)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, y0=y0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, Y, lengths = s.x, [s.y if self.warm_start else s.y0], []
        for a, y in self.moves(x, Y[0], oracle):
            lengths.append(a)
            Y.append(y)
        d, q = oracle.grad_f(x, Y[-1])
        made: int | Tensor = self.D
        if self.line_search:  # a lane that has stopped makes steps of length zero
            made = torch.stack([torch.as_tensor(a) > 0 for a in lengths]).sum(0)
        first = made - (self.truncate or self.D)
        for t in reversed(range(len(lengths))):
            for on in oracle.repeat((first <= t) & (t < made)):
                d = keep(on, d - lengths[t] * oracle.jvp_g_xy(x, Y[t], q), d)
            for on in oracle.repeat((first < t) & (t < made) & (t > 0)):
                q = keep(on, q - lengths[t] * oracle.hvp_g_yy(x, Y[t], q), q)
        return State(x=x - self.eta_x * d, y=Y[-1], y0=s.y0)

    def moves(self, x: Tensor, y: Tensor, oracle: Oracle) -> Iterator[tuple[float | Tensor, Tensor]]:
        """The length of each lower-level step, and where it leads."""
        if self.line_search:
            yield from backtracking_moves(oracle, x, y, self.D, self.tol)
            return
        for _ in oracle.repeat(self.D):
            y = y - self.a * oracle.grad_g_y(x, y)
            yield self.a, y

    def calls(self, step: int) -> dict[str, int] | None:
        if self.line_search:
            return None
        back = min(self.D, self.truncate or self.D)
        return {"grad_f": 1, "grad_g_y": self.D, "hvp_g_yy": back - 1, "jvp_g_xy": back}

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
