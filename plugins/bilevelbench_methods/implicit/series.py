"""A hypergradient by a Neumann series whose samples are kept, so that it can be asked for at another point too.

    S = (xi, zeta, xi_J, xi_1..xi_Q):  samples of g, but zeta, which is one of f; None for the whole sums
    h(x, y; S):  f_x, f_y at (x, y; zeta);   r <- s <- f_y;   q = 1..Q:  r <- r - eta_v H(x, y; xi_q) r;   s <- s + r
                 return f_x - J(x, y; xi_J) (eta_v s)
    u(x, y; S) = g_y(x, y; xi)

And what the methods that go along -h in x and along -u in y declare alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Constants, Oracle, Sample, neumann_sum
from bilevelbench_methods.implicit.single_loop import Decaying


@dataclass(frozen=True)
class Samples:
    """S, and how many products are made."""

    xi: Sample | None
    zeta: Sample | None
    xi_j: Sample | None
    products: Sequence[Sample | None]
    terms: int | Tensor


class Series(Decaying):
    """Steps along a Neumann hypergradient."""

    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy"})
    reports = "random"

    a: PositiveFloat | None = None
    """step of y; default 1/L_g"""
    Q: PositiveInt = 10
    """products of the Neumann series, which has one term more"""
    eta_v: PositiveFloat | None = None
    """step of the Neumann series; default 1/L_g"""

    def resolve(self, constants: Constants) -> Self:
        return super().resolve(constants).fill(constants, eta_v=lambda c: 1 / c.L_gy)

    def samples(self, oracle: Oracle, size: int | None = None) -> Samples:
        """S, drawn afresh: mini-batches, or `size` data each, with replacement."""

        def of(sample: Callable[..., Sample]) -> Sample:
            return sample(self.batch, order=self.sampling) if size is None else sample(size)

        xi, zeta, xi_j = of(oracle.sample_g), of(oracle.sample_f), of(oracle.sample_g)
        terms = self.terms(oracle)
        return Samples(xi, zeta, xi_j, [of(oracle.sample_g) for _ in oracle.repeat(terms)], terms)

    def terms(self, oracle: Oracle) -> int | Tensor:
        return self.Q

    def directions(self, oracle: Oracle, x: Tensor, y: Tensor, S: Samples) -> tuple[Tensor, Tensor]:
        """(u, h) of these samples."""
        f_x, f_y = oracle.grad_f(x, y, S.zeta)
        xi = iter(S.products)
        v = self.inverse(oracle, lambda r: oracle.hvp_g_yy(x, y, r, next(xi)), f_y, S.terms)
        return oracle.grad_g_y(x, y, S.xi), f_x - oracle.jvp_g_xy(x, y, v, S.xi_j)

    def inverse(self, oracle: Oracle, H: Callable[[Tensor], Tensor], f_y: Tensor, terms: int | Tensor) -> Tensor:
        """What stands for H^-1 f_y."""
        return neumann_sum(oracle, H, f_y, terms, self.eta_v)

    def calls_of(self, points: int) -> dict[str, int]:
        """Of the directions at so many points."""
        return {"grad_f": points, "grad_g_y": points, "hvp_g_yy": points * self.Q, "jvp_g_xy": points}


def products_for(constants: Constants, eps: float) -> int:
    """Q for a series with a step of 1/L_g whose rest is of order eps: kappa log(8/eps)."""
    c = constants
    return max(1, math.ceil(c.L_gy / c.mu * math.log(8 / eps)))
