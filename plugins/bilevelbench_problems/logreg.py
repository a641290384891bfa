"""A regulariser for every feature, or for every class, of a logistic regression, on data that come with scikit-learn.

    f(x, y) = mean CE over the validation rows;   g(x, y) = mean CE over the training rows + R(x, y)
    R(x, y) = reg_scale/2 Σ_j exp(x_j) Σ_c Y_cj²,   Y = y as a (classes, features) matrix, row after row; no bias
    or, with one for every class, reg_scale/2 Σ_c exp(x_c) Σ_j Y_cj²

CE of a row (a, b) is log Σ_c exp(Y_c·a) - Y_b·a; with two classes Y is one row, the score of class 1 against zero for
class 0. x_j is the logarithm of feature j's regulariser over reg_scale. x0 = 0 and y0 = 0.

    logreg_digits           1,797 images of digits, 10 classes, 64 pixels: dx = 64, dy = 640
    logreg_breast_cancer    569 tumours, 2 classes, 30 features, standardised by the training rows: dx = dy = 30
    logreg_wine             178 wines, 3 classes, 13 features, standardised; one regulariser per class: dx = 3, dy = 39

f and g are finite sums over their rows, and each g_i holds the whole regulariser: g_i = CE_i + R. The data seed splits
the rows into training, validation and test, 2 : 1 : 1 in every class. Features are then divided by one number, such
that the training rows have ‖a‖² = 1 in the mean: the curvature of CE is at most q λ(G) <= q with G = mean a aᵀ and
q = 1/2, or 1/4 with two classes.

g is strongly convex for every x, but mu is reg_scale exp(min x) (`mu_at`) and L_gy grows with exp(max x). So their values
at x0 are declared as estimates, reg_scale and q λ(G) + reg_scale, like L_g and rho_g, for which y = y*(x0). L_phi is an
estimate as well: the largest ‖∇²φ‖ at x = (t, .., t), t = 0, -3, -6, so with equal regularisers. C_f, L_f and rho_f
hold everywhere; Delta is φ(x0), since φ >= 0.

Metrics at the given y: `val_loss` and `test_loss` (means of CE), `test_accuracy`.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from bilevelbench import Agents, Constant, FiniteSum, Instance, Problem, Rows, bound, estimated, exact
from bilevelbench_problems.common import joint_norm
from bilevelbench_problems.cross_entropy import Binary, Dense, Loss, Softmax, solve, upper_loss


class LogReg(Problem):
    """What the problems share, here and on other data."""

    finite_sum = True

    classes: ClassVar[int]
    per: ClassVar[Literal["feature", "class"]] = "feature"  # what has a regulariser of its own
    standardised: ClassVar[bool] = False  # features, by the training rows
    start: ClassVar[float] = 0.0  # x0, in every coordinate

    reg_scale: PositiveFloat = 0.01
    """regulariser of every feature at the start"""

    def build(self) -> Instance:
        split = self._split()
        return self._instance(split, self._agents(split))

    def _agents(self, split: Sequence[tuple[Tensor, Tensor]]) -> Agents | None:
        return None

    def _instance(self, split: Sequence[tuple[Tensor, Tensor]], agents: Agents | None = None) -> Instance:
        link, R = self._link(), Regulariser(self.reg_scale, self.per)
        train, val, test = (Loss(link, A, b, torch.get_default_dtype()) for A, b in split)

        def shape(y: Tensor) -> Tensor:
            Y: Tensor = y.unflatten(-1, (link.scores, train.p))
            return Y

        def g(x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
            return train.value(shape(y), rows) + 0.5 * R.coupled(x, shape(y), shape(y), rows).sum(-1, keepdim=True)

        def g_y(x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
            return (train.gradient(shape(y), rows) + R.decay(x, shape(y), rows)).flatten(-2)

        def hvp(x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
            return (train.hvp(shape(y), shape(v), rows) + R.decay(x, shape(v), rows)).flatten(-2)

        return Instance(
            **upper_loss(val, shape),
            g=g,
            grad_g_x=lambda x, y, rows=None: 0.5 * R.coupled(x, shape(y), shape(y), rows),
            grad_g_y=g_y,
            hvp_g_yy=hvp,
            jvp_g_xy=lambda x, y, v, rows=None: R.coupled(x, shape(y), shape(v), rows),
            x0=torch.full((1, self._dim_x(train.p)), self.start),
            y0=torch.zeros(1, link.scores * train.p),
            constants=self._constants(),
            noise=FiniteSum(n_f=val.n, n_g=train.n),
            points="stack",
            metrics={
                "val_loss": lambda x, y: val.value(shape(y)),
                "test_loss": lambda x, y: test.value(shape(y)),
                "test_accuracy": lambda x, y: test.accuracy(shape(y)),
            },
            agents=agents,
            mu_at=lambda x: self.reg_scale * x.amin(-1, keepdim=True).exp(),
        )

    def _dim_x(self, features: int) -> int:
        return features if self.per == "feature" else self.classes

    def _constants(self) -> dict[str, Constant]:
        return _constants(self)

    def _link(self) -> Softmax | Binary:
        return Binary() if self.classes == 2 else Softmax(self.classes)

    @abstractmethod
    def _features(self) -> tuple[Tensor, Tensor]:
        """All rows (n, p) in float64, and their labels (n,)."""

    def _split(self) -> list[tuple[Tensor, Tensor]]:
        """Training, validation and test set, each in random order."""
        A, b = self._features()
        order = torch.randperm(len(b), generator=self.generator())
        part = torch.empty_like(order)
        part[b[order].argsort(stable=True)] = torch.arange(len(b)) % 4  # dealt out class by class
        train, val, test = order[part < 2], order[part == 2], order[part == 3]
        if self.standardised:
            A = (A - A[train].mean(0)) / A[train].std(0, correction=0)
        A = A / A[train].square().sum(-1).mean().sqrt()
        return [(A[rows], b[rows]) for rows in (train, val, test)]


@functools.lru_cache
def from_scikit_learn(name: Literal["digits", "breast_cancer", "wine", "iris"]) -> tuple[Tensor, Tensor]:
    """All rows (n, p) in float64, and their labels (n,); kept, since reading the digits takes a tenth of a second."""
    from sklearn import datasets  # here: it takes a worker process a second

    A, b = getattr(datasets, f"load_{name}")(return_X_y=True)
    return torch.as_tensor(A, dtype=torch.float64), torch.as_tensor(b)


@dataclass(frozen=True)
class Regulariser:
    """R(x, y) by its derivatives, Y (.., C, p): scale/2 Σ exp(x) Y², x for each column or each row of Y.

    Of some rows of data, as often as they weigh.
    """

    scale: float
    per: Literal["feature", "class"] = "feature"

    def decay(self, x: Tensor, V: Tensor, rows: Rows | None) -> Tensor:
        return self._weights(x, rows).unsqueeze(-2 if self.per == "feature" else -1) * V

    def coupled(self, x: Tensor, Y: Tensor, V: Tensor, rows: Rows | None) -> Tensor:
        return self._weights(x, rows) * (Y * V).sum(-2 if self.per == "feature" else -1)

    def _weights(self, x: Tensor, rows: Rows | None) -> Tensor:
        """scale exp(x), times the sum of the rows' weights, which is one except for blocks of unequal size."""
        w = self.scale * x.exp()
        return w if rows is None else w * rows.weight.sum(-1, keepdim=True)


class LogRegDigits(LogReg):
    name = "logreg_digits"
    embedded = False  # an evaluation solves for 640 weights: half a second
    max_lanes = 64  # scores and probabilities are 72 kB per lane each
    classes = 10

    def _features(self) -> tuple[Tensor, Tensor]:
        return from_scikit_learn("digits")


class LogRegBreastCancer(LogReg):
    name = "logreg_breast_cancer"
    classes = 2
    standardised = True

    def _features(self) -> tuple[Tensor, Tensor]:
        return from_scikit_learn("breast_cancer")


class LogRegWine(LogReg):
    name = "logreg_wine"
    classes = 3
    standardised = True
    per = "class"

    def _features(self) -> tuple[Tensor, Tensor]:
        return from_scikit_learn("wine")


class LogRegIris(LogReg):
    """For its rows and their split, which `label_cleaning_iris` takes; not a problem by itself."""

    classes = 3
    standardised = True

    def _features(self) -> tuple[Tensor, Tensor]:
        return from_scikit_learn("iris")


@functools.lru_cache(maxsize=32)
def _constants(problem: LogReg) -> dict[str, Constant]:
    """Some dense linear algebra: about a second for the digits, so it is kept."""
    link, reg = problem._link(), problem.reg_scale
    train, val, _ = (Dense(link, A, b) for A, b in problem._split())
    p, scores = train.A.shape[1], link.scores
    L_gy = link.curvature * train.top() + reg
    one = torch.eye(problem._dim_x(p), dtype=torch.float64)  # x_j meets the entries (c, j), x_c those (c, .)
    pick = one.repeat(1, scores) if problem.per == "feature" else one.repeat_interleave(p, 1)
    y, curvatures, start = torch.zeros(scores * p, dtype=torch.float64), [], {}
    for t in (0.0, -3.0, -6.0):
        s = reg * math.exp(t)
        y, H = solve(train, torch.full_like(y, s), y)
        factor, f_y = torch.linalg.cholesky(H), val.gradient(y)
        v = torch.cholesky_solve(f_y.unsqueeze(-1), factor).squeeze(-1)
        J = s * pick * y
        M = -torch.cholesky_solve(J.mT, factor).mT
        cross = s * pick * v @ M.mT
        bent = val.hessian(y) - train.third(y, v)
        hess = M @ bent @ M.mT - cross - cross.mT - (s * pick @ (v * y)).diag()
        curvatures.append(float(torch.linalg.eigvalsh(hess).abs().max()))
        if t == 0:
            columns = pick @ y.square()  # Σ Y²: R couples x_j with a column, or x_c with a row; H is at most L_gy I
            size = float(columns.max().sqrt())
            start = {
                "L_g": estimated(joint_norm(0.5 * s * columns, s * columns.sqrt(), L_gy)),
                "rho_g": estimated(train.bend() + s * (0.5 * size**2 + 3 * size + 3)),
                "Delta": bound(val.value(y)),
                "R": exact(y.square().sum()),
            }
    return {
        "mu": estimated(reg),
        "L_gy": estimated(L_gy),
        "C_f": bound(link.slope * math.sqrt(val.top())),
        "L_f": bound(link.curvature * val.top()),
        "rho_f": bound(val.bend()),
        "L_phi": estimated(max(curvatures)),
        **start,
    }
