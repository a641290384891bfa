"""What points are worth where phi is not known: f after some further calls on the lower level, all of them counted.

From (x, y) twice, with a few conjugate gradients for the inverse,

    y <- y - H(x, y)^-1 g_y(x, y)                                              (`newton_step`)

and the score is f(x, y) + |f(x, y) - f(x, y')| with y' after the first of the two. All points have the same number of products.
The second term is what the last step has changed: where y is far from y*(x), f says little of phi, and it is still changing.
Conjugate gradients stop where they meet negative curvature: where g(x, .) is not convex the score means the same without a phi
behind it. On data that are too many for a whole sum at every call, all points are judged on the same rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import norm
from bilevelbench.model.linear_solvers import conjugate_gradient, newton_step, richardson
from bilevelbench.oracle.meter import Spent
from bilevelbench.oracle.oracle import Oracle
from bilevelbench.oracle.sample import Sample

_USES = frozenset({"grad_g_y", "value_f", "grad_f", "hvp_g_yy", "jvp_g_xy"})
_PRODUCTS = 10  # of conjugate gradients
_LONG = 1e8  # times |f_y|/L_gy: v is this long only where the Hessian is singular, and conjugate gradients break down
_SETTLED = 1000


@dataclass(frozen=True)
class Judged:
    """y after the further steps, and the scores, infinite where they are not finite; `cost` is that of one point.

    `is_settled`: no score has more than a part in `_SETTLED` of what the last step has changed.
    """

    y: Tensor
    is_settled: bool
    scores: list[float]
    cost: float


class Judge:
    """`rows`: the most data that a call may take; `spent` is what all of its calls have cost together."""

    def __init__(self, instance: Instance, seed: int, rows: int) -> None:
        self._instance, self._seed, self._rows = instance, seed, rows
        self.spent = Spent()

    def __call__(self, x: Tensor, y: Tensor, products: int) -> Judged:
        """Points (L, dx) and (L, dy), and how many products each of the two steps may take."""
        oracle = self._oracle(len(x))
        xi, zeta = self._samples(oracle)
        a = 1 / self._instance.constants.L_gy

        def gradient(y: Tensor) -> Tensor:
            return oracle.grad_g_y(x, y, xi)

        def H(u: Tensor) -> Tensor:
            return oracle.hvp_g_yy(x, y, u, xi)

        half, g_y = newton_step(oracle, gradient, H, y, gradient(y), products, a)
        y = half
        y, _ = newton_step(oracle, gradient, H, y, g_y, products, a)
        before, after = (oracle.value_f(x, point, zeta) for point in (half, y))
        change = (after - before).abs()
        scores = (after + change).reshape(-1).tolist()
        is_settled = bool((_SETTLED * change <= after.abs()).all())
        away = self._instance.away(x).reshape(-1).tolist()
        finite = [
            score if math.isfinite(score) and not gone else math.inf for score, gone in zip(scores, away, strict=True)
        ]
        return Judged(y, is_settled, finite, self._paid(oracle) / len(x))

    def price(self, products: int) -> float:
        """What judging one point costs at most."""
        n_f, n_g = (min(n, self._rows) for n in (self._instance.noise.n_f, self._instance.noise.n_g))
        return (2 * products + 5) * n_g + 2 * n_f

    def hypergradient(self, x: Tensor, y: Tensor) -> Tensor:
        """By implicit differentiation at a y that is solved for already."""
        oracle = self._oracle(len(x))
        xi, zeta = self._samples(oracle)
        f_x, f_y = oracle.grad_f(x, y, zeta)

        def H(u: Tensor) -> Tensor:
            return oracle.hvp_g_yy(x, y, u, xi)

        a, zero = 1 / self._instance.constants.L_gy, torch.zeros_like(y)
        v = conjugate_gradient(oracle, H, f_y, zero, _PRODUCTS, cold=True)
        if not bool((norm(v) <= _LONG * a * norm(f_y)).all()):
            v = richardson(oracle, H, f_y, zero, _PRODUCTS, a)
        d = f_x - oracle.jvp_g_xy(x, y, v, xi)
        self._paid(oracle)
        return d

    def _oracle(self, lanes: int) -> Oracle:
        """Of its own for each call: draws are addressed, so that the rows are the same in every one."""
        oracle = Oracle(self._instance.apart(), _USES, [self._seed] * lanes)
        oracle.begin_step(0)
        return oracle

    def _samples(self, oracle: Oracle) -> tuple[Sample | None, Sample | None]:
        lower = oracle.sample_g(self._rows) if oracle.n_g > self._rows else None
        upper = oracle.sample_f(self._rows) if oracle.n_f > self._rows else None
        return lower, upper

    def _paid(self, oracle: Oracle) -> float:
        spent = oracle.meter.spent()
        self.spent += spent
        return spent.cost
