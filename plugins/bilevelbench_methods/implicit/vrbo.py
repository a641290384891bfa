"""VRBO: recursive differences (SPIDER) on the lower gradient and on a Neumann hypergradient, made anew every q-th step.

    k mod q = 0:  u, h <- u(x, y; .), h(x, y; .) with the whole sums, or with `big` data in every sample
    (x', y') <- (x, y);   x <- x - b h
    D+1 times:    S <- fresh samples, the same at both points
                  u <- u + u(x, y; S) - u(x', y'; S),   h <- h + h(x, y; S) - h(x', y'; S)
                  (x', y') <- (x, y);   y <- y - a u                                     but for the last time
    h(x, y; S):  f_x, f_y at (x, y; zeta);   r <- s <- f_y;   q = 1..Q:  r <- r - eta_v H(x, y; xi_q) r;   s <- s + r
                 return f_x - J(x, y; xi_J) (eta_v s);       u(x, y; S) = g_y(x, y; xi)

So y makes D moves and u and h are corrected D+1 times: for the move of x first, for the last move of y at the end, so that
the differences add up to u and h at the pair with which the next step begins. Yang, Ji, Liang, "Provably faster algorithms
for bilevel optimization", NeurIPS 2021.

Our choices: D, Q, the batch and the steps; the default period and large batch: (n+m)/(2 batch) and the whole sums of a
finite sum, as in SRBA, and batch and batch^2 elsewhere. The powers of `from_rate` are those that are usual for SPIDER: for
accuracy eps large batches ~ eps^-2, small ones and a period ~ eps^-1, and constant steps. A public program evaluates both
points at the new x: its differences miss the move of x, and what it follows drifts away until the next refresh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, PerLane, keep
from bilevelbench_methods.implicit.series import Samples, Series, products_for
from bilevelbench_methods.implicit.single_loop import claimed, data, noise_batch


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    u: Tensor
    h: Tensor
    k: int


class VRBO(Series):
    name = "vrbo"
    title = "VRBO"
    paper = "https://arxiv.org/abs/2106.04692"
    claims: ClassVar[tuple[Claim, ...]] = (
        claimed("full", 3, "Yang, Ji, Liang 2021", tilde=True, mean_squared_smooth=True),
    )

    power: NonNegativeFloat = 0.0
    """decay of both steps"""
    D: PositiveInt = 3
    """moves of y in a step"""
    batch: PositiveInt = 16
    """data of a sample between refreshes"""
    period: PerLane[PositiveInt] | None = None
    """steps from one refresh to the next; default (n_f + n_g)/(2 batch), rounded up, or the batch if there is no finite sum"""
    big: PositiveInt | None = None
    """data of a sample at a refresh; default: the whole sums, or the square of the batch where there is no finite sum"""

    def resolve(self, constants: Constants) -> Self:
        known = super().resolve(constants)
        if "n_g" in constants:
            return known.fill(constants, period=lambda c: math.ceil(data(c) / (2 * self.batch)))
        return known.fill(constants, period=lambda c: self.batch, big=lambda c: self.batch**2)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, u=torch.zeros_like(y0), h=torch.zeros_like(x0), k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        u, h, decay = s.u, s.h, self.decay(s.k)
        for on in oracle.when(torch.as_tensor(s.k % self.period == 0)):
            new_u, new_h = self.directions(oracle, s.x, s.y, self._large(oracle))
            u, h = keep(on, new_u, u), keep(on, new_h, h)
        x_old, y_old = s.x, s.y
        x, y = s.x - self.b * decay * h, s.y
        for t, _ in enumerate(oracle.repeat(self.D + 1)):
            S = self.samples(oracle)
            (new_u, new_h), (old_u, old_h) = (self.directions(oracle, *at, S) for at in ((x, y), (x_old, y_old)))
            u, h = u + (new_u - old_u), h + (new_h - old_h)
            x_old, y_old = x, y
            if t < self.D:
                y = y - self.a * decay * u
        return State(x=x, y=y, u=u, h=h, k=s.k + 1)

    def _large(self, oracle: Oracle) -> Samples:
        """Samples of a refresh."""
        if self.big is None:
            return Samples(None, None, None, [None] * self.Q, self.Q)
        return self.samples(oracle, self.big)

    def calls(self, step: int) -> dict[str, int] | None:
        if self.period is None:
            return None
        return self.calls_of(2 * (self.D + 1) + ((step - 1) % self.period == 0))

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """Batches and a period that are the root of a refresh's data, kappa moves of y, steps of order one."""
        c, big = constants, None
        if "n_g" not in c:
            big = noise_batch(c, eps, scale)
        root = math.ceil((big or data(c)) ** 0.5)
        return cls(
            a=1 / (2 * c.L_gy), b=0.4 / c.L_phi, eta_v=1 / c.L_gy, D=math.ceil(c.L_gy / c.mu), Q=products_for(c, eps),
            batch=root, period=root, big=big,
        )  # fmt: skip
