"""AID-LBFGS: implicit differentiation of a lower level that L-BFGS has solved to a tolerance.

    at most D times, while |g_y(x, y)| > tol:  y <- y - t B g_y(x, y),   B from the last `memory` moves, t by a search
    v <- cg on H(x, y) v = f_y(x, y), from the previous v, until the residual is rtol |f_y|
    x <- x - eta_x (f_x(x, y) - J(x, y) v)

AID-LS with another lower solver: Blondel, Berthet, Cuturi, Frostig, Hoyer, Llinares-Lopez, Pedregosa, Vert, "Efficient and
modular implicit differentiation", NeurIPS 2022; benchmark_bilevel runs it as jaxopt_GD with the inner solver `lbfgs`. The moves
are forgotten from one step to the next, since they belong to another x; y and v are warm-started.

Our choices, besides those of AID-LS: t satisfies the weak conditions of Wolfe, by doubling and bisection, where the benchmark's
solver asks for the strong ones.
"""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor

from bilevelbench import Oracle
from bilevelbench_methods.implicit.aid_ls import AIDLS
from bilevelbench_methods.lower_search import lower_lbfgs


class AIDLBFGS(AIDLS):
    name = "aid_lbfgs"
    title = "AID-LBFGS"
    paper = "https://arxiv.org/abs/2105.15183"

    memory: PositiveInt = 10
    """moves that L-BFGS remembers"""

    def lower(self, x: Tensor, y: Tensor, oracle: Oracle) -> Tensor:
        return lower_lbfgs(oracle, x, y, self.D, self.tol, self.memory)
