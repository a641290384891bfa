"""AID-LS: implicit differentiation of a lower level that a line search has solved to a tolerance.

    at most D times, while |g_y(x, y)| > tol:  y <- y - s g_y(x, y),   s by backtracking on g(x, .)
    v <- cg on H(x, y) v = f_y(x, y), from the previous v, until the residual is rtol |f_y|
    x <- x - eta_x (f_x(x, y) - J(x, y) v)

y and v are warm-started. This is what implicit differentiation with an off-the-shelf solver comes to (Blondel, Berthet, Cuturi,
Frostig, Hoyer, Llinares-Lopez, Pedregosa, Vert, "Efficient and modular implicit differentiation", NeurIPS 2022), and what
benchmark_bilevel runs as jaxopt_GD with the inner solver `gd`. No step of the lower level has to be known; the steps of x have.
The tolerances put a floor of about kappa tol under |grad phi|.

Our choices: tol = 1e-6 where the benchmark has 1e-3 and so stops at that floor; |g_y| decides, not the length of the last
step; cg on H itself and warm, where `normal` is the benchmark's way: H^2 v = H f_y from zero, at two products a step. rtol and
the limit of 10 dy steps of cg are the defaults of the library that the benchmark calls.
"""

from __future__ import annotations

from typing import Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Constants, Oracle, PerLane
from bilevelbench_methods.implicit.aid import State
from bilevelbench_methods.implicit.hypergradient import hypergradient
from bilevelbench_methods.lower_search import lower_backtracking


class AIDLS(Algorithm):
    name = "aid_ls"
    title = "AID-LS"
    paper = "https://arxiv.org/abs/2105.15183"
    family = "implicit"
    uses = frozenset({"grad_f", "grad_g_y", "value_g", "hvp_g_yy", "jvp_g_xy"})
    tuned = {"eta_x": "upper_step"}

    D: PerLane[PositiveInt] = 100
    """lower-level steps at most"""
    tol: PositiveFloat = 1e-6
    """|g_y| at which the lower level is solved"""
    N: PerLane[PositiveInt] | None = None
    """steps of cg at most; default 10 dy"""
    rtol: PositiveFloat = 1e-5
    """residual of the linear system at which cg stops, as a share of its right-hand side"""
    normal: bool = False
    """solve H^2 v = H f_y from zero instead of H v = f_y from the previous v"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, eta_x=lambda c: 1 / (2 * c.L_phi))

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, v=torch.zeros_like(y0), k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        y = self.lower(s.x, s.y, oracle)
        N = 10 * oracle.dy if self.N is None else self.N
        d, v = hypergradient(oracle, s.x, y, s.v, N, self.rtol, cold=s.k == 0, normal=self.normal)
        return State(x=s.x - self.eta_x * d, y=y, v=v, k=s.k + 1)

    def lower(self, x: Tensor, y: Tensor, oracle: Oracle) -> Tensor:
        return lower_backtracking(oracle, x, y, self.D, self.tol)

    def x_step(self) -> float | None:
        return self.eta_x
