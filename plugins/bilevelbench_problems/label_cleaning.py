"""A weight for every training sample of a softmax regression, some of whose labels are wrong, on digits or flowers.

    f(x, y) = mean CE over the validation rows, all labels right
    g(x, y) = 1/n Σ_i σ(x_i) CE_i(y) + ridge/2 ‖y‖²  over the n training rows, σ(t) = 1/(1 + exp(-t))

CE_i(y) = log Σ_c exp(Y_c·a_i) - Y_b·a_i for the features a_i and the label b of a row, Y = y as a (classes, features)
matrix, row after row; no bias. dx = n, x0 = 0 (every weight 1/2), y0 = 0.

    label_cleaning_digits   899 of 1,797 images, 10 classes, 64 pixels: dx = 899, dy = 640; split and scale of `logreg_digits`
    label_cleaning_iris     76 of 150 flowers, 3 classes, 4 features: dx = 76, dy = 12; standardised by the training rows

The data seed splits the rows and picks `corruption` of those for training, whose labels then move to one of the other
classes: never to the right one.

f and g are finite sums over their rows, g_i = σ(x_i) CE_i + ridge/2 ‖y‖², so a mini-batch of g moves no other x_i.

The Hessian of g in y is at least ridge for every x, and just that along equal changes of all Y_c: mu is exact. L_gy, C_f,
L_f and rho_f hold everywhere. L_g and rho_g do not: g_xx grows with y. Theirs hold for all x and all y in the ball
‖y‖² <= 2 log(classes)/ridge, where y*(x) stays, and are marked as estimates like L_phi: the largest ‖∇²φ‖ at x = 0, -3, 3
in all coordinates and at x_i = -3 for wrong and 3 for right labels. Delta is φ(x0), since φ >= 0.

φ is flat where weights are nearly 0 or 1. Descent gets there as slowly as log(steps); a step that is much too long jumps
there, where nothing moves any more: beyond |x_i| = 20 a trial counts as diverged.

Metrics: `precision`, `recall` and `f1` of the wrong labels, a label being called wrong if its weight is below 1/2 (precision
is NaN while none is); `test_loss` (mean CE) and `test_accuracy` at the given y.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveFloat
from torch import Generator, Tensor

from bilevelbench import Agents, Constant, FiniteSum, Instance, Problem, bound, estimated, exact
from bilevelbench_problems.common import joint_norm
from bilevelbench_problems.cross_entropy import Dense, Loss, Softmax, cleaned_by, solve
from bilevelbench_problems.logreg import LogReg, LogRegDigits, LogRegIris
from bilevelbench_problems.weighted_cross_entropy import Weighted

FLAT = 20.0  # σ' = 2e-9
_SLOPES = (1 / 4, 1 / (6 * math.sqrt(3)), 1 / 8)  # the largest |σ'|, |σ''|, |σ'''|

_SHOWN = 20  # images

Pictures = Callable[[Tensor, Tensor], dict[str, Tensor]]
Parts = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]


class Cleaning(Problem):
    """What the problems of this kind share, whatever their data."""

    finite_sum = True
    max_lanes = 64  # scores and probabilities of the digits are 72 kB per lane each
    classes: ClassVar[int] = 10
    side: ClassVar[int] = 0  # of an image, in pixels; 0: the rows are not images

    corruption: float
    ridge: PositiveFloat = 0.001
    """regulariser of the lower level"""

    def build(self) -> Instance:
        constants = self._constants()  # first: they may have a copy of the rows for as long as they take
        (A, b), *clean, wrong = self._data()
        dtype = torch.get_default_dtype()
        train = Weighted(A, b, self.classes, self.ridge, dtype)
        val, test = (Loss(train.link, *part, dtype) for part in clean)
        functions, noise = cleaned_by(train, val), FiniteSum(n_f=val.n, n_g=train.n)
        x0, y0 = self._x0(train.n), torch.zeros(1, self.classes * train.p)
        return Instance(
            **functions,
            x0=x0,
            y0=y0,
            constants=constants,
            noise=noise,
            points="stack",
            x_limit=FLAT,
            agents=self._agents(functions, noise, x0=x0, y0=y0, points="stack"),
            pictures=self._pictures(A, wrong),
            metrics={
                **found(wrong),
                "test_loss": lambda x, y: test.value(train.matrix(y)),
                "test_accuracy": lambda x, y: test.accuracy(train.matrix(y)),
            },
        )

    def _x0(self, n: int) -> Tensor:
        return torch.zeros(1, n)

    def _agents(self, functions: Mapping[str, Callable[..., Any]], noise: FiniteSum, **rest: Any) -> Agents | None:
        return None

    def _pictures(self, A: Tensor, wrong: Tensor) -> Pictures | None:
        return weighed(A.unflatten(-1, (self.side, self.side)), wrong) if self.side else None

    @abstractmethod
    def _data(self) -> Parts:
        """Training, validation and test set in float64, and which labels of the first are wrong, (n,)."""

    @abstractmethod
    def _constants(self) -> dict[str, Constant]: ...


class Small(Cleaning):
    """Few enough rows and weights for dense matrices."""

    rows: ClassVar[type[LogReg]]  # the data and their split

    def _data(self) -> Parts:
        (A, b), val, test = self.rows(data_seed=self.data_seed)._split()
        rng = self.generator(self.data_seed + (1 << 31))  # independent of the split
        given, wrong = mislabelled(b, self.classes, self.corruption, rng)
        return (A, given), val, test, wrong

    def _constants(self) -> dict[str, Constant]:
        return _constants(self)


class LabelCleaningDigits(Small):
    name = "label_cleaning_digits"
    embedded = False  # an evaluation solves for 640 weights: half a second
    rows = LogRegDigits
    side = 8

    corruption: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """share of the training labels that are wrong"""


class LabelCleaningIris(Small):
    name = "label_cleaning_iris"
    classes = 3
    rows = LogRegIris

    corruption: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """share of the training labels that are wrong"""
    ridge: PositiveFloat = 0.01
    """regulariser of the lower level"""


def found(wrong: Tensor) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Metrics of the labels that x calls wrong."""

    def hits(x: Tensor) -> Tensor:
        return ((x < 0) & wrong).sum(-1, keepdim=True).to(x.dtype)

    def called(x: Tensor) -> Tensor:
        return (x < 0).sum(-1, keepdim=True)

    return {
        "precision": lambda x, y: hits(x) / called(x),
        "recall": lambda x, y: hits(x) / wrong.sum(),
        "f1": lambda x, y: 2 * hits(x) / (called(x) + wrong.sum()),
    }


def weighed(images: Tensor, wrong: Tensor) -> Pictures:
    """The images with the lowest and the highest weights, (n, height, width), and how many of their labels are wrong."""
    most = images.max()
    some = min(_SHOWN, len(images) // 2)

    def pictures(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        order = x.argsort(stable=True)
        shown = {"lowest": order[:some], "highest": order.flip(0)[:some]}
        return {
            f"{which} weights: {int(wrong[rows].sum())} of {some} labels are wrong": images[rows] / most
            for which, rows in shown.items()
        }

    return pictures


def mislabelled(b: Tensor, classes: int, share: float, rng: Generator) -> tuple[Tensor, Tensor]:
    """Labels of which this share, drawn at random, has moved to one of the other classes, and which of them."""
    chosen = torch.randperm(len(b), generator=rng)[: round(share * len(b))]
    given, wrong = b.clone(), torch.zeros(len(b), dtype=torch.bool)
    given[chosen] = (b[chosen] + torch.randint(1, classes, chosen.shape, generator=rng)) % classes
    wrong[chosen] = True
    return given, wrong


@dataclass(frozen=True)
class Cleaned(Dense):
    """The weighted sum of CE_i at one y without lanes, for the constants; w is σ(x), (n,)."""

    w: Tensor

    def _gram(self, W: Tensor) -> Tensor:
        return super()._gram(self.w * W)

    def residuals(self, y: Tensor) -> Tensor:
        return self.link.probabilities(self._scores(y)) - self.link.targets(self.b)

    def gradient(self, y: Tensor) -> Tensor:
        return (self.w * self.residuals(y) @ self.A / len(self.b)).flatten()

    def mixed(self, y: Tensor) -> Tensor:
        """The mixed derivative, (n, C p)."""
        return self._by_row(self.residuals(y))

    def mixed_turned(self, y: Tensor, v: Tensor) -> Tensor:
        """Its derivative along v."""
        return self._by_row(self.link.bend(self.link.probabilities(self._scores(y)), self._scores(v)))

    def bent_weights(self, y: Tensor, v: Tensor) -> Tensor:
        """<v, ∂²g_y/∂x_i²>, (n,)."""
        along = (self.residuals(y) * self._scores(v)).sum(0)
        return self.w * (1 - self.w) * (1 - 2 * self.w) * along / len(self.b)

    def _by_row(self, R: Tensor) -> Tensor:
        scaled = self.w * (1 - self.w) * R / len(self.b)
        return (scaled.T.unsqueeze(-1) * self.A.unsqueeze(-2)).flatten(-2)


def _hess_phi(train: Cleaned, val: Dense, y: Tensor, H: Tensor) -> Tensor:
    """∇²φ = M f_yy Mᵀ - v·(g_yxx + g_yyx M + its transpose + g_yyy[M, M]), M = -J H⁻¹, v = H⁻¹ f_y, at y = y*(x)."""
    factor = torch.linalg.cholesky(H)
    v = torch.cholesky_solve(val.gradient(y).unsqueeze(-1), factor).squeeze(-1)
    M = -torch.cholesky_solve(train.mixed(y).mT, factor).mT
    cross = train.mixed_turned(y, v) @ M.mT
    return M @ (val.hessian(y) - train.third(y, v)) @ M.mT - cross - cross.mT - train.bent_weights(y, v).diag()


def _looked_at(wrong: Tensor) -> list[Tensor]:
    """The x at which the curvature of φ is measured; x0 first."""
    ones = torch.ones(wrong.shape, dtype=torch.float64)
    return [0 * ones, -3 * ones, 3 * ones, torch.where(wrong, -3 * ones, 3 * ones)]


@functools.lru_cache(maxsize=32)
def _constants(problem: Small) -> dict[str, Constant]:
    """Some dense linear algebra, a few seconds, so it is kept."""
    link, ridge = Softmax(problem.classes), problem.ridge
    (A, b), clean, _, wrong = problem._data()
    val = Dense(link, *clean)
    curvatures, solutions = [], []
    y = torch.zeros(problem.classes * A.shape[1], dtype=torch.float64)
    for x in _looked_at(wrong):
        train = Cleaned(link, A, b, 1 / (1 + torch.exp(-x)))
        y, H = solve(train, torch.full_like(y, ridge), y)
        solutions.append(y)
        curvatures.append(float(torch.linalg.eigvalsh(_hess_phi(train, val, y, H)).abs().max()))
    return {
        **bounds(link, ridge, len(b), train.top(), longest(A), val.top(), longest(val.A)),
        "L_phi": estimated(max(curvatures)),
        "Delta": bound(val.value(solutions[0])),
        "R": exact(solutions[0].square().sum()),
    }


def longest(A: Tensor) -> float:
    """‖a‖ of the longest row."""
    return float(A.norm(dim=1).max())


def bounds(
    link: Softmax, ridge: float, n: int, top: float, long: float, top_val: float, long_val: float
) -> dict[str, Constant]:
    """What follows from λ(G) and the longest of n training rows, and of the validation rows."""
    L_gy, root = link.curvature * top + ridge, math.sqrt(top / n)
    first, second, third = _SLOPES
    most = math.log(link.scores)
    loss = most + link.slope * long * math.sqrt(2 * most / ridge)  # in the ball
    g_xx, g_xy = second * loss / n, first * link.slope * root
    bends = (
        third * loss / n,
        3 * second * link.slope * long / n,
        3 * first * link.curvature * long * root,
        link.third * long * top,
    )
    return {
        "mu": exact(ridge),
        "L_gy": bound(L_gy),
        "C_f": bound(link.slope * math.sqrt(top_val)),
        "L_f": bound(link.curvature * top_val),
        "rho_f": bound(link.third * long_val * top_val),
        "L_g": estimated(joint_norm(g_xx, g_xy, L_gy)),
        "rho_g": estimated(sum(bends)),
    }
