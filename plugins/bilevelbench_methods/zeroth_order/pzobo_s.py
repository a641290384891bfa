"""PZOBO-S: PZOBO with mini-batches.

    t = 1..D:  W_t, one batch for all runs
    y+ <- the D steps  y - a g_y(x, y; W_t)  from s
    j = 1..Q:  u_j normal,  w_j <- the D steps  w - a g_y(x + h u_j, w; W_t)  from the same s
    d <- f_x(x, y+; s1) + (1/Q) sum_j <(w_j - y+)/h, f_y(x, y+; s1)> u_j
    x <- x - eta_x d;  y <- y+

s is the previous y (`warm_start`) or y0. The runs share their batches: with batches of their own (`common_batches = false`,
for comparison) the noise of w_j - y+ is divided by h. Sow, Ji, Liang, "On the convergence theory for Hessian-free bilevel
algorithms", NeurIPS 2022. Its theorem bounds the mean over the iterates, so the answer is a uniformly random one. Our
choice: Gaussian directions, which need no factor dx.
"""

from __future__ import annotations

from typing import Self

import torch
from pydantic import PositiveInt

from bilevelbench import Claim, Constants, Oracle, PerLane, dot, keep, over_points
from bilevelbench_methods.zeroth_order.directions import Directional, State, perturbed


class PZOBOS(Directional):
    name = "pzobo_s"
    title = "PZOBO-S"
    paper = "https://arxiv.org/abs/2110.07004"
    tuned = {**Directional.tuned, "batch_g": "batch", "batch_f": "batch"}
    reports = "random"
    claims = tuple(
        Claim(
            table=2, setting=setting, oracle="gradient", eps_exp=8, tilde=True, log_power=1, extra="dx^2",
            log_source="other paper", reference="Sow, Ji, Liang 2022",
        )
        for setting in ("partial", "full")
    )  # fmt: skip

    batch_g: PerLane[PositiveInt] = 64
    """data of a lower-level step"""
    batch_f: PerLane[PositiveInt] = 64
    """data of f"""
    common_batches: bool = True
    """the same lower-level batches for all runs of a step"""

    def step(self, s: State, oracle: Oracle) -> State:
        x, u = s.x, oracle.normal(self.Q, oracle.dx)
        X, lost = perturbed(x, u, self.h)
        runs = self.Q + 1
        Y = (s.y if self.warm_start else s.y0).expand(runs, -1, -1)
        for on in oracle.repeat(self.D):
            W = oracle.sample_g(self.batch_g, points=None if self.common_batches else runs)
            Y = keep(on, Y - self.a * oracle.grad_g_y(X, Y, W), Y)
        y, w = Y[0], Y[1:]
        f_x, f_y = oracle.grad_f(x, y, oracle.sample_f(self.batch_f))
        d = f_x + over_points(dot((w - y) / self.h, f_y) * u) / self.Q
        return State(x=x - self.eta_x * keep(~lost, d, torch.full_like(x, torch.nan)), y=y, y0=s.y0)

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """eta_x ~ 1/(dx sqrt(T)) with one direction and batches of T."""
        eta_x = 2 * scale / (constants.dim_x * steps**0.5)
        return cls(Q=1, D=10, h=1e-4, batch_g=steps, batch_f=steps, a=1 / constants.L_gy, eta_x=eta_x)
