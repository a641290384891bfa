"""FSLA: one step of y, one of v at the new y, and a recursive-momentum x-direction.

    y+ <- y - a_k g_y(x, y; s1)
    v+ <- v - a_k (H(x, y+; s2) v - f_y(x, y+; s3))
    d(x, y, v) = f_x(x, y; s4) - J(x, y; s5) v
    h  <- d(x, y+, v+) + (1 - w_k) (h - d(x', y, v))           x': the x before; k = 0: h <- d(x, y+, v+)
    x  <- x - b_k h;   y <- y+;   v <- v+

with a_k = a (k+1)^-power, b_k = b (k+1)^-power and w_k = min(1, w (k+1)^-power). Li, Gu, Huang, "A fully single loop algorithm
for bilevel optimization without Hessian inverse", AAAI 2022. All decays are 1/2; for a known number of steps T the same
powers of T (`from_horizon`). The samples are five different ones, so f_x and f_y are no joint query; s4 and s5 serve both
points.

Our choices: v starts at zero; one size for all batches; the default steps and w, where a public program sets the weight equal
to the step of y. It also starts from x' = 0 and h = 0, a wrong direction that decays; here the first step has no old point.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from bilevelbench import Claim, Oracle
from bilevelbench_methods.implicit.single_loop import FromZero, State, Weighted, claimed


class FSLA(Weighted, FromZero):
    name = "fsla"
    title = "FSLA"
    paper = "https://arxiv.org/abs/2112.04660"
    uses = frozenset({"grad_f_x", "grad_f_y", "grad_g_y", "hvp_g_yy", "jvp_g_xy"})
    reports = "random"
    claims: ClassVar[tuple[Claim, ...]] = (claimed("full", 4, "Li, Gu, Huang 2022", mean_squared_smooth=True),)

    def step(self, s: State, oracle: Oracle) -> State:
        x, decay = s.x, self.decay(s.k)
        a, b = self.a * decay, self.b * decay
        s1, s2, s3 = self.sample_g(oracle), self.sample_g(oracle), self.sample_f(oracle)
        s4, s5 = self.sample_f(oracle), self.sample_g(oracle)

        def d(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
            return oracle.grad_f_x(x, y, s4) - oracle.jvp_g_xy(x, y, v, s5)

        y = s.y - a * oracle.grad_g_y(x, s.y, s1)
        v = s.v - a * (oracle.hvp_g_yy(x, y, s.v, s2) - oracle.grad_f_y(x, y, s3))
        h = d(x, y, v)
        if s.memory is not None:
            last, x_old = s.memory
            h = h + (1 - self.weight(s.k)) * (last - d(x_old, s.y, s.v))
        return State(x=x - b * h, y=y, v=v, k=s.k + 1, memory=(h, x))

    def calls(self, step: int) -> dict[str, int] | None:
        points = 1 if step == 1 else 2
        return {"grad_f_x": points, "grad_f_y": 1, "grad_g_y": 1, "hvp_g_yy": 1, "jvp_g_xy": points}
