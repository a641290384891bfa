"""StocBiO: mini-batch descent on the lower level and a mini-batch Neumann series.

    D times:  y <- y - a g_y(x, y; fresh batch)
    r <- s <- f_y(x, y; s1);   q = 1..Q:  r <- r - eta_v H(x, y; n_q fresh data) r;  s <- s + r
    v <- eta_v s
    x <- x - eta_x (f_x(x, y; s1) - J(x, y; s2) v)

y is warm-started. n_q = ceil(batch_h shrink^(q-1)): the product applied first to f_y has the largest batch. Ji, Yang, Liang,
"Bilevel optimization: convergence analysis and enhanced design", ICML 2021, Algorithms 2 and 3: there batch_h = B Q and
shrink = 1 - eta_v mu; the default is equal batches. The authors' program multiplies only the last term of the series by eta_v
and leaves the first one out; this is the formula of the paper. Its theorem bounds the mean over the iterates, so the answer
is a uniformly random one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, Oracle, PerLane, keep, neumann_sum
from bilevelbench_methods.implicit.neumann import SECOND_DERIVATIVES


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class StocBiO(Algorithm):
    name = "stocbio"
    title = "stocBiO"
    paper = "https://arxiv.org/abs/2010.07962"
    family = "implicit"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy"})
    tuned = {
        "eta_x": "upper_step", "a": "lower_step", "batch_g": "batch", "batch_f": "batch", "batch_j": "batch", "batch_h": "batch"
    }  # fmt: skip
    reports = "random"
    claims = (
        Claim(
            table=2, setting="partial", oracle="HVP", eps_exp=4, tilde=True, log_power=1, footnote=SECOND_DERIVATIVES,
            log_source="other paper", reference="Ji, Yang, Liang 2021",
        ),
        Claim(
            table=2, setting="full", oracle="HVP", eps_exp=4, tilde=True, log_power=1,
            footnote=f"{SECOND_DERIVATIVES}; printed without the tilde",
            log_source="other paper", reference="Ji, Yang, Liang 2021",
        ),
    )  # fmt: skip

    D: PerLane[PositiveInt] = 10
    """lower-level steps"""
    Q: PerLane[PositiveInt] = 10
    """products of the Neumann series, which has one term more"""
    batch_g: PerLane[PositiveInt] = 64
    """data of a lower-level step"""
    batch_f: PerLane[PositiveInt] = 64
    """data of f"""
    batch_j: PerLane[PositiveInt] = 64
    """data of the product with J"""
    batch_h: PerLane[PositiveInt] = 64
    """data of the first product with H"""
    shrink: Annotated[float, Field(ge=0, le=1)] = 1.0
    """batch of each further product over that of the one before; never below one datum"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(4 L_phi)"""
    a: PositiveFloat | None = None
    """lower-level step; default 1/L_g"""
    eta_v: PositiveFloat | None = None
    """step of the Neumann series; default 1/L_g"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(
            constants,
            eta_x=lambda c: 1 / (4 * c.L_phi),
            a=lambda c: 1 / c.L_gy,
            eta_v=lambda c: 1 / c.L_gy,
        )

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, y = s.x, s.y
        for on in oracle.repeat(self.D):
            y = keep(on, y - self.a * oracle.grad_g_y(x, y, oracle.sample_g(self.batch_g)), y)
        f_x, f_y = oracle.grad_f(x, y, oracle.sample_f(self.batch_f))
        sizes = self._sizes()

        def H(r: Tensor) -> Tensor:
            return oracle.hvp_g_yy(x, y, r, oracle.sample_g(next(sizes)))

        v = neumann_sum(oracle, H, f_y, self.Q, self.eta_v)
        d = f_x - oracle.jvp_g_xy(x, y, v, oracle.sample_g(self.batch_j))
        return State(x=x - self.eta_x * d, y=y)

    def _sizes(self) -> Iterator[Tensor]:
        """n_1, n_2, ..."""
        if bool((torch.as_tensor(self.shrink) == 1).all()):
            yield from itertools.repeat(self.batch_h)
        exact, shrink = (torch.as_tensor(n, dtype=torch.float64) for n in (self.batch_h, self.shrink))
        while True:
            yield (exact - 1e-9).ceil().clamp(min=1).long()  # rounding up is no reason for one datum more
            exact = exact * shrink

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_f": 1, "grad_g_y": self.D, "hvp_g_yy": self.Q, "jvp_g_xy": 1}

    def x_step(self) -> float | None:
        return self.eta_x

    @classmethod
    def from_theory(cls, constants: Constants, eps: float) -> Self:
        """D ~ kappa log kappa, Q ~ kappa log(kappa/eps), batches ~ (kappa sigma/eps)^2, shrinking along the series."""
        c = constants
        ratio, eta_v = c.L_gy / c.mu, 1 / c.L_gy
        D, Q = (max(1, math.ceil(ratio * math.log(max(inside, math.e)))) for inside in (8 * ratio, 8 * ratio / eps))
        return cls(
            D=D,
            Q=Q,
            batch_g=_batch(c.kappa * c.sigma_g / eps),
            batch_f=_batch(c.kappa * c.sigma_f / eps),
            batch_j=_batch(c.kappa * c.sigma_h / eps),
            batch_h=Q * _batch(c.kappa * c.sigma_h / eps),
            shrink=1 - eta_v * c.mu,
            eta_x=1 / (4 * c.L_phi),
            a=2 / (c.L_gy + c.mu),
            eta_v=eta_v,
        )

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """Batches ~ (sigma/eps)^2, all products alike; D = 8, Q = kappa log(8/eps)."""
        c = constants
        return cls(
            D=8,
            Q=max(1, math.ceil(c.L_gy / c.mu * math.log(8 / eps))),
            batch_g=_batch(c.sigma_g / eps, scale),
            batch_f=_batch(c.sigma_f / eps, scale),
            batch_j=_batch(c.sigma_h / eps, scale),
            batch_h=_batch(c.sigma_h / eps, scale),
            eta_x=0.4 / c.L_phi,
            a=1 / (2 * c.L_gy),
            eta_v=1 / c.L_gy,
        )


def _batch(root: float, scale: float = 1.0) -> int:
    return max(1, math.ceil(scale * root**2))
