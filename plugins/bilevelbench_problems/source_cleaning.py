"""A weight for every source of the training rows of a softmax regression; all sources but one are garbage.

    f(x, y) = mean CE over the validation rows
    g(x, y) = Σ_i w_i s_i(y) + l2/2 ‖y‖²,   w = softmax(x),   s_i(y) = mean CE over the training rows of source i

CE of a row (a, b) is log Σ_c exp(Y_c·a) - Y_b·a, Y = y as a (classes, features) matrix, row after row. This is the
strongly convex model of data hyper-cleaning in Chen, Ma, Zhang, "Near-Optimal Nonconvex-Strongly-Convex Bilevel
Optimization with Fully First-Order Oracles", JMLR 2025: there y is GPT-2 and garbage has the empty answer; here garbage
has the label 0, whatever its features. x0 = 0 (equal weights), y0 = 0, dx = sources, dy = classes · features.

Made-up data: the first feature is constant, so that a model can always answer 0, the others are normal; labels are drawn
from the softmax of a random teacher. Features are divided by one number such that training rows have ‖a‖² = 1 in the
mean. Source 0 is useful; a share `corruption` of the training rows is garbage and dealt out to the other sources.

g is a finite sum over training rows: a row of source i has n/n_i w_i CE + l2/2 ‖y‖², so a mini-batch divides by the
expected number of a source's rows and is unbiased. `estimator="ratio"` divides by their actual number, as published
code does: biased, so the check `noise` does not hold there.

The Hessian of g in y is at least l2 for every x, and just that along equal changes of all Y_c: mu is exact. L_gy, C_f,
L_f and rho_f hold everywhere. L_g and rho_g do not: g_xx grows with y. Theirs hold for all x and all y in the ball
‖y‖² <= 2 log(classes)/l2, where y*(x) stays, and are marked as estimates like L_phi: the largest ‖∇²φ‖ at
x_0 = 0, -2, 2, 4 with the other x_i = 0, by central differences. Delta is φ(x0), since φ >= 0.

With a hundred useful rows or more, φ falls all the way as the weight of the garbage goes to zero; with fewer, a little
garbage is a welcome regulariser, so take `n_train=20000` for `corruption=0.99`. φ is flat on both sides, where the
garbage has nearly no weight or nearly all: beyond |x_i| = 6 a trial counts as diverged.

Metrics: `garbage_weight`, the sum of w over all sources but the first; `weight_error`, ‖w - (1, 0, .., 0)‖; `val_loss`
and `test_loss`, mean CE at the given y.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Constant, FiniteSum, Instance, Problem, Rows, bound, dot, estimated, exact, norm
from bilevelbench_problems.common import joint_norm
from bilevelbench_problems.cross_entropy import Dense, Loss, Softmax, cleaned_by, solve
from bilevelbench_problems.label_cleaning import Cleaned
from bilevelbench_problems.sources import Estimator, Sources, dealt, garbage_weight, means, of_rows, turn

_FLAT = 6.0  # a weight of 6e-6 is left, and with it |∇φ| of about 2e-6: nobody meets a target of 1e-6 by running away
_TEACHER = 6.0  # nine of ten labels are then the most likely one
_STEP = 1e-3  # of the differences that measure the curvature of φ
_LOOKED_AT = (0.0, -2.0, 2.0, 4.0)  # x_0; the start first


class SourceCleaningLinear(Problem):
    name = "source_cleaning_linear"
    finite_sum = True
    max_lanes = 64  # with 20,000 training rows their scores are 640 kB a lane

    corruption: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """share of the training rows that are garbage"""
    sources: int = Field(default=2, ge=2)
    """one useful, the others garbage"""
    classes: int = Field(default=4, ge=2)
    """labels"""
    features: int = Field(default=10, ge=2)
    """with the constant one"""
    n_train: PositiveInt = 200
    """training rows"""
    n_val: PositiveInt = 200
    """validation rows, and as many for tests"""
    l2: PositiveFloat = 0.01
    """regulariser of the lower level"""
    estimator: Estimator = "unbiased"
    """how a mini-batch estimates the mean loss of a source"""

    def build(self) -> Instance:
        (A, b), *clean, source = self._data()
        dtype = torch.get_default_dtype()
        train = _Mixture(A, b, Sources(source, self.sources, self.estimator, dtype), self.l2, self.classes, dtype)
        val, test = (Loss(train.link, *part, dtype) for part in clean)
        target = torch.eye(self.sources)[0]
        return Instance(
            **cleaned_by(train, val),
            x0=torch.zeros(1, self.sources),
            y0=torch.zeros(1, self.classes * self.features),
            constants=_constants(self),
            noise=FiniteSum(n_f=val.n, n_g=train.n),
            points="stack",
            x_limit=_FLAT,
            metrics={
                "garbage_weight": lambda x, y: garbage_weight(x),
                "weight_error": lambda x, y: norm(torch.softmax(x, -1) - target),
                "val_loss": lambda x, y: val.value(train.matrix(y)),
                "test_loss": lambda x, y: test.value(train.matrix(y)),
            },
        )

    def _data(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
        """Training, validation and test set in float64, and the source of each row of the first, (n,)."""
        rng, n = self.generator(), self.n_train
        source = dealt(n, self.corruption, self.sources)
        A = torch.randn(n + 2 * self.n_val, self.features, generator=rng, dtype=torch.float64)
        A[:, 0] = 1.0
        teacher = _TEACHER * torch.randn(self.classes, self.features, generator=rng, dtype=torch.float64)
        P = torch.softmax(A @ teacher.T / math.sqrt(self.features), -1)
        b = torch.multinomial(P, 1, generator=rng).squeeze(-1)
        A = A / A[:n].square().sum(-1).mean().sqrt()
        parts = [(A[part], b[part]) for part in torch.arange(len(A)).split([n, self.n_val, self.n_val])]
        parts[0] = (parts[0][0], torch.where(source > 0, 0, parts[0][1]))
        return parts[0], parts[1], parts[2], source


class _Mixture:
    """g and its derivatives over (*points, L, .), whole or of some rows."""

    def __init__(self, A: Tensor, b: Tensor, sources: Sources, l2: float, classes: int, dtype: torch.dtype) -> None:
        self.link, self.sources, self.l2, self.n = Softmax(classes), sources, l2, len(b)
        self.A, self.T = A.to(dtype), self.link.targets(b).to(dtype)

    def matrix(self, y: Tensor) -> Tensor:
        Y: Tensor = y.unflatten(-1, (self.link.scores, -1))
        return Y

    def value(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        return dot(torch.softmax(x, -1), self._means(y, rows)) + 0.5 * self._decay(rows) * dot(y, y)

    def by_weight(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        return turn(torch.softmax(x, -1), self._means(y, rows))

    def gradient(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        A, T = self._some(rows)
        R = self.link.probabilities(self.matrix(y) @ A.mT) - T
        return (R * self._coefficients(x, rows) @ A).flatten(-2) + self._decay(rows) * y

    def hvp(self, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
        A, _ = self._some(rows)
        bent = self.link.bend(self.link.probabilities(self.matrix(y) @ A.mT), self.matrix(v) @ A.mT)
        return (bent * self._coefficients(x, rows) @ A).flatten(-2) + self._decay(rows) * v

    def jvp(self, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
        A, T = self._some(rows)
        along = ((self.link.probabilities(self.matrix(y) @ A.mT) - T) * (self.matrix(v) @ A.mT)).sum(-2)
        return turn(torch.softmax(x, -1), means(self.sources.shares(rows), along))

    def _means(self, y: Tensor, rows: Rows | None) -> Tensor:
        A, T = self._some(rows)
        return means(self.sources.shares(rows), self.link.loss(self.matrix(y) @ A.mT, T))

    def _coefficients(self, x: Tensor, rows: Rows | None) -> Tensor:
        return of_rows(self.sources.shares(rows), torch.softmax(x, -1)).unsqueeze(-2)

    def _decay(self, rows: Rows | None) -> Tensor | float:
        """l2 times the sum of the rows' weights, which is one except for blocks of unequal size."""
        return self.l2 if rows is None else self.l2 * rows.weight.sum(-1, keepdim=True)

    def _some(self, rows: Rows | None) -> tuple[Tensor, Tensor]:
        """Features (.., B, p) and targets (.., C, B)."""
        return (self.A, self.T) if rows is None else (self.A[rows.index], self.T.T[rows.index].mT)


@dataclass(frozen=True)
class _Level:
    """φ without lanes, in float64, for the constants."""

    A: Tensor
    b: Tensor
    sources: Sources
    val: Dense
    l2: float

    def train(self, w: Tensor) -> Cleaned:
        return Cleaned(self.val.link, self.A, self.b, len(self.b) * of_rows(self.sources.shares(None), w))

    def solve(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y*(x) and the Hessian of g there."""
        start = torch.zeros(self.val.link.scores * self.A.shape[1], dtype=torch.float64)
        return solve(self.train(torch.softmax(x, -1)), torch.full_like(start, self.l2), start)

    def grad_phi(self, x: Tensor) -> Tensor:
        y, H = self.solve(x)
        v = torch.linalg.solve(H, self.val.gradient(y))
        each = torch.stack([self.train(w).gradient(y) for w in torch.eye(len(x), dtype=torch.float64)])
        return -turn(torch.softmax(x, -1), each @ v)

    def curvature(self, x: Tensor) -> float:
        """‖∇²φ‖."""
        steps = _STEP * torch.eye(len(x), dtype=torch.float64)
        hessian = torch.stack([(self.grad_phi(x + e) - self.grad_phi(x - e)) / (2 * _STEP) for e in steps])
        return float(torch.linalg.matrix_norm(hessian, 2))


@functools.lru_cache(maxsize=32)
def _constants(problem: SourceCleaningLinear) -> dict[str, Constant]:
    """Some dense linear algebra, so it is kept."""
    (A, b), clean, _, source = problem._data()
    link, l2, m = Softmax(problem.classes), problem.l2, problem.sources
    val = Dense(link, *clean)
    level = _Level(A, b, Sources(source, m, "unbiased", torch.float64), val, l2)
    first = torch.eye(m, dtype=torch.float64)[0]
    y, _ = level.solve(0 * first)
    each = [Dense(link, A[source == i], b[source == i]) for i in range(m)]
    top = max(part.top() for part in each)
    L_gy, slope = link.curvature * top + l2, link.slope * math.sqrt(top)
    loss = math.log(problem.classes) * (
        1 + slope * math.sqrt(2 / (l2 * math.log(problem.classes)))
    )  # most, in the ball
    # along a unit vector u of x the weights have w' = w c, c = u - ū, with |c| <= √2 and variance at most 1/2
    g_xx, g_xy = loss / 2, slope / math.sqrt(2)
    bends = (2.5 * loss, 3 * slope, 3 * link.curvature * top / math.sqrt(2), max(part.bend() for part in each))
    return {
        "mu": exact(l2),
        "L_gy": bound(L_gy),
        "C_f": bound(link.slope * math.sqrt(val.top())),
        "L_f": bound(link.curvature * val.top()),
        "rho_f": bound(val.bend()),
        "L_g": estimated(joint_norm(g_xx, g_xy, L_gy)),
        "rho_g": estimated(sum(bends)),
        "L_phi": estimated(max(level.curvature(t * first) for t in _LOOKED_AT)),
        "Delta": bound(float(val.value(y))),
        "R": exact(float(y.square().sum())),
    }
