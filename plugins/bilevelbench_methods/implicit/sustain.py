"""SUSTAIN: MRBO with one random term of the Neumann series in place of its sum.

    p <- uniform in 0..Q-1, once in a step;   S <- fresh samples;   p and S are the same at both points
    h(x, y; S):  f_x, f_y at (x, y; zeta);   r <- f_y;   q = 1..p:  r <- r - eta_v H(x, y; xi_q) r
                 return f_x - J(x, y; xi_J) (Q eta_v r)
    u <- u(x, y; S) + (1 - w_k) (u - u(x', y'; S)),   u(x, y; S) = g_y(x, y; xi)        k = 0: no old terms
    h <- h(x, y; S) + (1 - w_k) (h - h(x', y'; S))
    y <- y - a_k u,   x <- x - b_k h                                                  both at the old (x, y)

Khanduri, Zeng, Hong, Wai, Wang, Yang, "A near-optimal algorithm for stochastic bilevel optimization via double-momentum",
NeurIPS 2021. The mean of h is a series of Q terms, for (Q-1)/2 products in the mean where MRBO makes Q; but its variance is
of order Q.

Our choices are those of MRBO: one weight, which decays twice as fast as the steps; a sample of its own for J; the default
steps, w and Q. p differs between trials that run side by side, so rows cannot be drawn in shuffled passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from bilevelbench import Claim, Oracle
from bilevelbench_methods.implicit.mrbo import MRBO
from bilevelbench_methods.implicit.neumann import drawn_term, random_term
from bilevelbench_methods.implicit.single_loop import claimed


class SUSTAIN(MRBO):
    name = "sustain"
    title = "SUSTAIN"
    paper = "https://arxiv.org/abs/2102.07367"
    claims: ClassVar[tuple[Claim, ...]] = (
        claimed("full", 3, "Khanduri, Zeng, Hong, Wai, Wang, Yang 2021", tilde=True, mean_squared_smooth=True),
    )

    Q: PositiveInt = 10
    """terms of the Neumann series, of which one is drawn"""
    sampling: Literal["replacement", "block"] = "replacement"
    """how the rows of a finite sum are drawn: independently, or in blocks of a fixed partition"""

    def terms(self, oracle: Oracle) -> Tensor:
        return drawn_term(oracle, self.Q)

    def inverse(self, oracle: Oracle, H: Callable[[Tensor], Tensor], f_y: Tensor, terms: int | Tensor) -> Tensor:
        return random_term(oracle, H, f_y, torch.as_tensor(terms), self.Q, self.eta_v)

    def calls(self, step: int) -> dict[str, int] | None:
        return None  # p products at each point, by chance
