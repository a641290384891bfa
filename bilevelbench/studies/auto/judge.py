"""What points are worth where phi is not known: f after some further steps of the lower level, all of them counted.

From (x, y), with a = 1/L_gy and momentum that starts anew where it leads uphill,

    y <- y - a g_y(x, y)   m times;        score = f(x, y_m) + |f(x, y_m) - f(x, y_{m/2})|

All points have the same m. The second term is what the last half of the steps has changed: where y is far from y*(x), f says
little of phi, and it is still changing. Where g(x, .) is not convex the score means the same without a phi behind it. On
data that are too many for a whole sum at every step, all points are judged on the same rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import dot, keep, norm
from bilevelbench.model.linear_solvers import conjugate_gradient, richardson
from bilevelbench.oracle.meter import Spent
from bilevelbench.oracle.oracle import Oracle
from bilevelbench.oracle.sample import Sample

_USES = frozenset({"grad_g_y", "value_f", "grad_f", "hvp_g_yy", "jvp_g_xy"})
_WORSE = 3.0  # times the smallest |g_y| so far: the step is too long here, and is halved
_PRODUCTS = 10  # of conjugate gradients
_LONG = 1e4  # times |f_y|/L_gy: v is this long only where the Hessian is singular, and conjugate gradients break down
_SETTLED = 1000


@dataclass(frozen=True)
class Judged:
    """y after the further steps, and the scores, infinite where they are not finite; `cost` is that of one point.

    `is_settled`: no score has more than a part in `_SETTLED` of what the last half of the steps has changed.
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

    def __call__(self, x: Tensor, y: Tensor, steps: int) -> Judged:
        """Points (L, dx) and (L, dy)."""
        oracle = self._oracle(len(x))
        xi, zeta = self._samples(oracle)
        half = self._descend(oracle, x, y, steps // 2, xi)
        y = self._descend(oracle, x, half, steps - steps // 2, xi)
        before, after = (oracle.value_f(x, point, zeta) for point in (half, y))
        change = (after - before).abs()
        scores = (after + change).reshape(-1).tolist()
        is_settled = bool((_SETTLED * change <= after.abs()).all())
        away = self._instance.away(x).reshape(-1).tolist()
        finite = [
            score if math.isfinite(score) and not gone else math.inf for score, gone in zip(scores, away, strict=True)
        ]
        return Judged(y, is_settled, finite, self._paid(oracle) / len(x))

    def price(self, steps: int) -> float:
        """What judging one point costs."""
        n_f, n_g = (min(n, self._rows) for n in (self._instance.noise.n_f, self._instance.noise.n_g))
        return steps * n_g + 2 * n_f

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

    def _descend(self, oracle: Oracle, x: Tensor, y: Tensor, steps: int, xi: Sample | None) -> Tensor:
        """Nesterov's method with restarts. The curvature is that at the start, and may be larger here."""
        a = torch.full_like(y[..., :1], 1 / self._instance.constants.L_gy)
        age, least = torch.zeros_like(a), torch.full_like(a, torch.inf)
        ahead, before, best = y, y, y
        for _ in range(steps):
            grad = oracle.grad_g_y(x, ahead, xi)
            size = norm(grad)
            is_worse = ~(size <= _WORSE * least)
            best, least = keep(size < least, ahead, best), torch.fmin(size, least)
            a = keep(is_worse, a / 2, a)
            new = keep(is_worse, best, ahead - a * grad)
            is_uphill = is_worse | (dot(grad, new - before) > 0)
            age = keep(is_uphill, torch.zeros_like(age), age + 1)
            ahead, before = new + age / (age + 3) * (new - before), new
        return before
