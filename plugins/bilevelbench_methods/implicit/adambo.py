"""AdamBO: Adam on x along a Neumann hypergradient, one stochastic step of y at a time.

    before the first step, T0 times:  y <- y - a g_y(x0, y; fresh)
    u, h <- g_y(x, y; xi) and the hypergradient:  f_x, f_y at (x, y; zeta);   t <- s <- f_y;
            q = 1..Q:  t <- t - eta_v H(x, y; xi_q) t;   s <- s + t;      h = f_x - J(x, y; xi_J) (eta_v s)
    m <- beta1 m + (1 - beta1) h,   n <- beta2 n + (1 - beta2) h^2                   coordinate by coordinate
    y <- y - a_k u,   x <- x - b_k (m/c1) / (sqrt(n/c2)/r + floor)                   both at the old (x, y)

with c1 = 1 - beta1^(k+1) and c2 = 1 - beta2^(k+1), the weights that m and n hold; r the root mean square of the first h;
a_k = a (k+1)^-power and b_k = b (k+1)^-power. Gong, Hao, Liu, "On the convergence of Adam-type algorithm for bilevel
optimization under unbounded smoothness", 2025.

Our choices: the unit r, so that b is a step as in other methods and not a length, which would depend on the scale of the
problem: the first step is as long as b |h|; Adam's own step is b r and its small constant floor r. r is one where it
would be zero. The sum of the series and not one random term of it; the samples, all different; the decay; T0; beta1, beta2
and floor, which are those of Adam; the default steps. The powers of `from_horizon` are ours too: a, b and 1 - beta1 ~ T^-1/2
with a floor of one, as for Adam on one level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, norm
from bilevelbench_methods.implicit.series import Series, products_for
from bilevelbench_methods.implicit.single_loop import claimed, or_one

Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Average:
    """An exponential average that starts at zero, and the weight that it holds."""

    value: Tensor
    weight: Tensor

    def joined(self, new: Tensor, beta: float | Tensor) -> Average:
        return Average(beta * self.value + (1 - beta) * new, beta * self.weight + (1 - beta))

    def mean(self) -> Tensor:
        return self.value / self.weight


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    m: Average
    n: Average
    k: int
    r: Tensor | None = None


class AdamBO(Series):
    name = "adambo"
    title = "AdamBO"
    paper = "https://arxiv.org/abs/2503.03908"
    claims: ClassVar[tuple[Claim, ...]] = (
        claimed(
            "full", 4, "Gong, Hao, Liu 2025", note="also where the smoothness of f grows with |grad phi|", tilde=True
        ),
    )  # fmt: skip

    b: PositiveFloat | None = None
    """x-step, which a coordinate makes over r; default 1/(2 L_phi)"""
    beta1: Fraction = 0.9
    """what stays of the average of hypergradients"""
    beta2: Fraction = 0.999
    """what stays of the average of their squares"""
    floor: PositiveFloat = 1e-8
    """added to the root of the squares over r"""
    T0: NonNegativeInt = 10
    """steps of y before x moves"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        y, nothing = y0, Average(torch.zeros_like(x0), torch.zeros_like(x0[..., :1]))
        for _ in oracle.repeat(self.T0):
            y = y - self.a * oracle.grad_g_y(x0, y, self.sample_g(oracle))
        return State(x=x0, y=y, m=nothing, n=nothing, k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        u, h = self.directions(oracle, s.x, s.y, self.samples(oracle))
        m, n = s.m.joined(h, self.beta1), s.n.joined(h * h, self.beta2)
        r = or_one(norm(h) / h.shape[-1] ** 0.5) if s.r is None else s.r
        decay = self.decay(s.k)
        x = s.x - self.b * decay * m.mean() / (n.mean().sqrt() / r + self.floor)
        return State(x=x, y=s.y - self.a * decay * u, m=m, n=n, k=s.k + 1, r=r)

    def calls(self, step: int) -> dict[str, int] | None:
        return self.calls_of(1)

    def x_step(self) -> float | None:
        return None  # a length, whatever the gradient

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """a, b and 1 - beta1 ~ T^-1/2 throughout, a floor of one, single data, Q ~ kappa log T."""
        c, size = constants, scale * steps**-0.5
        return cls(
            a=min(1 / c.L_gy, size), b=min(1 / c.L_phi, size), beta1=1 - min(1.0, 4 * size), floor=1.0, power=0,
            Q=products_for(c, steps**-0.25), eta_v=1 / c.L_gy, batch=1,
        )  # fmt: skip
