"""MRBO: recursive momentum (STORM) on the lower gradient and on a Neumann hypergradient.

    S <- fresh samples, the same at both points;   u(.; S), h(.; S): g_y and the Neumann hypergradient (below)
    u <- u(x, y; S) + (1 - w_k) (u - u(x', y'; S))          (x', y'): the point before; k = 0: no old terms
    h <- h(x, y; S) + (1 - w_k) (h - h(x', y'; S))
    y <- y - a_k u,   x <- x - b_k h                        both at the old (x, y)

    h(x, y; S):  f_x, f_y at (x, y; zeta);   r <- s <- f_y;   q = 1..Q:  r <- r - eta_v H(x, y; xi_q) r;   s <- s + r
                 return f_x - J(x, y; xi_J) (eta_v s)

with a_k = a (k+1)^-power, b_k = b (k+1)^-power and w_k = min(1, w (k+1)^(-2 power)). Yang, Ji, Liang, "Provably faster
algorithms for bilevel optimization", NeurIPS 2021. The old point has a Neumann recursion of its own, with the same Q samples.

Our choices: one weight for u and h; J has a sample of its own, where a public program takes that of g_y; the default steps,
w and Q. The powers are those that are usual for STORM, power = 1/3; for a known number of steps T constant steps ~ T^-1/3, a
weight ~ T^-2/3 and Q ~ kappa log T (`from_horizon`). That program starts from x' = y' = u = h = 0, so its first step goes along
a difference from the origin; here the first step has no old point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from pydantic import NonNegativeFloat
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle
from bilevelbench_methods.implicit.series import Series, products_for
from bilevelbench_methods.implicit.single_loop import Weighted, claimed


class Before(NamedTuple):
    """The point of the step before, and the directions that it took."""

    x: Tensor
    y: Tensor
    u: Tensor
    h: Tensor


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    k: int
    before: Before | None = None


class MRBO(Weighted, Series):
    name = "mrbo"
    title = "MRBO"
    paper = "https://arxiv.org/abs/2106.04692"
    weight_power = 2
    claims: ClassVar[tuple[Claim, ...]] = (
        claimed("full", 3, "Yang, Ji, Liang 2021", tilde=True, mean_squared_smooth=True),
    )

    power: NonNegativeFloat = 1 / 3
    """decay of both steps"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        S, before = self.samples(oracle), s.before
        u, h = self.directions(oracle, s.x, s.y, S)
        if before is not None:
            u_old, h_old = self.directions(oracle, before.x, before.y, S)
            left = 1 - self.weight(s.k)
            u, h = u + left * (before.u - u_old), h + left * (before.h - h_old)
        decay = self.decay(s.k)
        x, y = s.x - self.b * decay * h, s.y - self.a * decay * u
        return State(x=x, y=y, k=s.k + 1, before=Before(s.x, s.y, u, h))

    def calls(self, step: int) -> dict[str, int] | None:
        return self.calls_of(1 if step == 1 else 2)

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """a and b ~ T^-1/3 and w ~ T^-2/3 throughout, single data, Q ~ kappa log T."""
        Q = products_for(constants, steps ** (-1 / 3))
        return super().from_horizon(constants, steps, scale).model_copy(update={"Q": Q})
