"""A regulariser for every feature of a logistic regression, on two data sets that come with scikit-learn."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot, pad

from bilevelbench import Constant, FiniteSum, Instance, Problem, Rows, bound, estimated, exact
from bilevelbench_problems.chain import product
from bilevelbench_problems.common import spread


class _LogReg(Problem):
    """f(x, y) = mean CE over the validation rows;  g(x, y) = mean CE over the training rows + R(x, y).

        R(x, y) = reg_scale/2 Σ_j exp(x_j) Σ_c Y_cj²,   Y = y as a (classes, features) matrix, row after row; no bias.

    CE of a row (a, b) is log Σ_c exp(Y_c·a) - Y_b·a; with two classes Y is one row, the score of class 1 against a zero
    for class 0. x_j is the logarithm of the regulariser of feature j over reg_scale. x0 = 0 and y0 = 0.

    f and g are finite sums over their rows, and each g_i holds the whole regulariser: g_i = CE_i + R. The data seed
    splits the rows into training, validation and test, 2 : 1 : 1 in every class.

    Features are scaled such that the training rows have ‖a‖² = 1 in the mean, so the cross-entropy has curvature at most
    q λ(G) <= q, G = mean a aᵀ; q = 1/2, and 1/4 with two classes. g is strongly convex for every x, but mu falls to
    reg_scale exp(min x), and L_gy grows with exp(max x). So these are estimates at x0: mu = reg_scale, L_gy = q λ(G) +
    reg_scale, and L_g, rho_g at y*(x0). L_phi is the largest ‖∇²φ‖ on the line x = (t, .., t), t = 0, -3, -6, on which all
    regularisers are equal. C_f, L_f, rho_f hold everywhere; Delta is φ(x0), since φ >= 0.

    Metrics at the given y: `val_loss`, `test_loss` (means of CE), `test_accuracy`.
    """

    classes: ClassVar[int]

    reg_scale: PositiveFloat = 0.01
    """regulariser of every feature at the start"""

    def build(self) -> Instance:
        sets = self._split()
        link = _Binary() if self.classes == 2 else _Softmax(self.classes)
        train, val, test = (_Loss(link, A, b, torch.get_default_dtype()) for A, b in sets)
        p, scores, reg = train.p, link.scores, self.reg_scale

        def shape(y: Tensor) -> Tensor:
            return y.unflatten(-1, (scores, p))

        def weights(x: Tensor, rows: Rows | None) -> Tensor:
            """reg_scale exp(x), times the sum of the rows' weights, which is one except for blocks of unequal size."""
            w = reg * x.exp()
            return w if rows is None else w * rows.weight.sum(-1, keepdim=True)

        def decay(x: Tensor, v: Tensor, rows: Rows | None) -> Tensor:
            return weights(x, rows).unsqueeze(-2) * shape(v)

        def coupled(x: Tensor, y: Tensor, v: Tensor, rows: Rows | None) -> Tensor:
            return weights(x, rows) * (shape(y) * shape(v)).sum(-2)

        def g(x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
            return train.value(shape(y), rows) + 0.5 * coupled(x, y, y, rows).sum(-1, keepdim=True)

        def g_y(x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
            return (train.gradient(shape(y), rows) + decay(x, y, rows)).flatten(-2)

        def hvp(x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
            return (train.hvp(shape(y), shape(v), rows) + decay(x, v, rows)).flatten(-2)

        def f_y(x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
            return spread(val.gradient(shape(y), rows).flatten(-2), x)

        return Instance(
            f=lambda x, y, rows=None: spread(val.value(shape(y), rows), x),
            g=g,
            grad_f_x=lambda x, y, rows=None: spread(torch.zeros_like(x), y),
            grad_f_y=f_y,
            grad_g_x=lambda x, y, rows=None: 0.5 * coupled(x, y, y, rows),
            grad_g_y=g_y,
            hvp_g_yy=hvp,
            jvp_g_xy=lambda x, y, v, rows=None: coupled(x, y, v, rows),
            x0=torch.zeros(1, p),
            y0=torch.zeros(1, scores * p),
            constants=_constants(type(self), self.data_seed, reg),
            noise=FiniteSum(n_f=val.n, n_g=train.n),
            points="stack",
            metrics={
                "val_loss": lambda x, y: val.value(shape(y)),
                "test_loss": lambda x, y: test.value(shape(y)),
                "test_accuracy": lambda x, y: test.accuracy(shape(y)),
            },
        )

    def _features(self) -> tuple[Tensor, Tensor]:
        """All rows (n, p) in float64, and their labels (n,)."""
        raise NotImplementedError

    def _standardised(self, A: Tensor, train: Tensor) -> Tensor:
        return A

    def _split(self) -> list[tuple[Tensor, Tensor]]:
        """Training, validation and test set, each in random order."""
        A, b = self._features()
        order = torch.randperm(len(b), generator=self.generator())
        part = torch.empty_like(order)
        part[b[order].argsort(stable=True)] = torch.arange(len(b)) % 4  # dealt out class by class
        train, val, test = order[part < 2], order[part == 2], order[part == 3]
        A = self._standardised(A, A[train])
        A = A / A[train].square().sum(-1).mean().sqrt()
        return [(A[rows], b[rows]) for rows in (train, val, test)]


class LogRegDigits(_LogReg):
    __doc__ = (_LogReg.__doc__ or "").replace(
        "\n    f and g are",
        "\n    1,797 images of digits, 10 classes, 64 pixels: dx = 64, dy = 640.\n\n    f and g are",
    )
    name = "logreg_digits"
    max_lanes = 64  # scores and probabilities are 72 kB a lane each
    classes = 10

    def _features(self) -> tuple[Tensor, Tensor]:
        from sklearn.datasets import load_digits  # noqa: PLC0415

        A, b = load_digits(return_X_y=True)
        return torch.as_tensor(A, dtype=torch.float64), torch.as_tensor(b)


class LogRegBreastCancer(_LogReg):
    __doc__ = (_LogReg.__doc__ or "").replace(
        "\n    f and g are",
        "\n    569 tumours, 2 classes, 30 features, which are first standardised by the mean and the standard deviation of\n"
        "    the training rows: dx = dy = 30.\n\n    f and g are",
    )
    name = "logreg_breast_cancer"
    classes = 2

    def _features(self) -> tuple[Tensor, Tensor]:
        from sklearn.datasets import load_breast_cancer  # noqa: PLC0415

        A, b = load_breast_cancer(return_X_y=True)
        return torch.as_tensor(A, dtype=torch.float64), torch.as_tensor(b)

    def _standardised(self, A: Tensor, train: Tensor) -> Tensor:
        return (A - train.mean(0)) / train.std(0, correction=0)


class _Softmax:
    """Cross-entropy as a function of scores Z (.., C, n); T (.., C, n) is one-hot."""

    curvature, third = 1 / 2, math.sqrt(2) ** 3 / (6 * math.sqrt(3))  # of log Σ exp along unit vectors
    slope = math.sqrt(2)

    def __init__(self, classes: int) -> None:
        self.scores = classes

    def targets(self, b: Tensor) -> Tensor:
        return one_hot(b, self.scores).T

    def loss(self, Z: Tensor, T: Tensor) -> Tensor:
        return torch.logsumexp(Z, -2) - (T * Z).sum(-2)

    def probabilities(self, Z: Tensor) -> Tensor:
        return torch.softmax(Z, -2)

    def bend(self, P: Tensor, U: Tensor) -> Tensor:
        return P * (U - (P * U).sum(-2, keepdim=True))

    def labels(self, Z: Tensor) -> Tensor:
        return Z.argmax(-2)

    def weights(self, P: Tensor) -> Tensor:
        """The Hessian of CE in each row's scores, (C, C, n)."""
        return torch.eye(self.scores, dtype=P.dtype).unsqueeze(-1) * P - P.unsqueeze(0) * P.unsqueeze(1)

    def turned(self, P: Tensor, U: Tensor) -> Tensor:
        """The derivative of that Hessian along U (C, n)."""
        dP = self.bend(P, U)
        product = dP.unsqueeze(0) * P.unsqueeze(1)
        return torch.eye(self.scores, dtype=P.dtype).unsqueeze(-1) * dP - product - product.transpose(0, 1)


class _Binary:
    """The same with one row of scores; T is 1 for class 1."""

    curvature, third, slope, scores = 1 / 4, 1 / (6 * math.sqrt(3)), 1.0, 1

    def targets(self, b: Tensor) -> Tensor:
        return b.unsqueeze(0)

    def loss(self, Z: Tensor, T: Tensor) -> Tensor:
        return -logsigmoid((2 * T - 1) * Z).squeeze(-2)

    def probabilities(self, Z: Tensor) -> Tensor:
        return torch.sigmoid(Z)

    def bend(self, P: Tensor, U: Tensor) -> Tensor:
        return P * (1 - P) * U

    def labels(self, Z: Tensor) -> Tensor:
        return (Z > 0).long().squeeze(-2)

    def weights(self, P: Tensor) -> Tensor:
        return (P * (1 - P)).unsqueeze(0)

    def turned(self, P: Tensor, U: Tensor) -> Tensor:
        return (P * (1 - P) * (1 - 2 * P) * U).unsqueeze(0)


class _Loss:
    """Mean cross-entropy of one set of rows as a function of Y (.., C, p), whole or of some rows.

    Rows of zeros fill the data up to a multiple of four (see `product`); they have no gradient, and values leave them out.
    """

    def __init__(self, link: _Softmax | _Binary, A: Tensor, b: Tensor, dtype: torch.dtype) -> None:
        self.link, (self.n, self.p) = link, A.shape
        fill = -self.n % 4
        self.A = pad(A, (0, 0, 0, fill)).to(dtype)
        self.T = pad(link.targets(b), (0, fill)).to(dtype)
        self.b = b
        self.to_scores, self.to_features = product(self.A.T, dtype), product(self.A, dtype)

    def value(self, Y: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            return self.link.loss(self.to_scores(Y), self.T)[..., : self.n].mean(-1, keepdim=True)
        A, T = self._some(rows)
        return (rows.weight * self.link.loss(_scores(Y, A), T)).sum(-1, keepdim=True)

    def gradient(self, Y: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            return self.to_features(self.link.probabilities(self.to_scores(Y)) - self.T) / self.n
        A, T = self._some(rows)
        return _features((self.link.probabilities(_scores(Y, A)) - T) * rows.weight.unsqueeze(-2), A)

    def hvp(self, Y: Tensor, V: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            P = self.link.probabilities(self.to_scores(Y))
            return self.to_features(self.link.bend(P, self.to_scores(V))) / self.n
        A, _ = self._some(rows)
        P = self.link.probabilities(_scores(Y, A))
        return _features(self.link.bend(P, _scores(V, A)) * rows.weight.unsqueeze(-2), A)

    def accuracy(self, Y: Tensor) -> Tensor:
        right = self.link.labels(self.to_scores(Y))[..., : self.n] == self.b
        return right.to(Y.dtype).mean(-1, keepdim=True)

    def _some(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Features (.., L, B, p) and targets (.., L, C, B) of these rows."""
        return self.A[rows.index], self.T.T[rows.index].mT


def _scores(Y: Tensor, A: Tensor) -> Tensor:
    """Y Aᵀ, (.., C, B). A product with one row would round it by its place in memory; a sum does not."""
    return Y @ A.mT if Y.shape[-2] > 1 else (Y * A).sum(-1).unsqueeze(-2)


def _features(R: Tensor, A: Tensor) -> Tensor:
    """R A, (.., C, p)."""
    return R @ A if R.shape[-2] > 1 else (R.mT * A).sum(-2, keepdim=True)


@dataclass(frozen=True)
class _Dense:
    """Matrices of a mean cross-entropy at one y (C p,), for the constants: float64, no lanes."""

    link: _Softmax | _Binary
    A: Tensor
    b: Tensor

    def _gram(self, W: Tensor) -> Tensor:
        """The (C p, C p) matrix of blocks Aᵀ diag(W_cd) A / n."""
        At, C = self.A.T.contiguous(), range(len(W))
        blocks = {(c, d): (At * W[c, d]) @ self.A / len(self.b) for c in C for d in C if c <= d}
        return torch.cat([torch.cat([blocks[min(c, d), max(c, d)] for d in C], 1) for c in C])

    def _scores(self, y: Tensor) -> Tensor:
        return y.reshape(self.link.scores, -1) @ self.A.T

    def value(self, y: Tensor) -> Tensor:
        return self.link.loss(self._scores(y), self.link.targets(self.b)).mean()

    def gradient(self, y: Tensor) -> Tensor:
        residual = self.link.probabilities(self._scores(y)) - self.link.targets(self.b)
        return (residual @ self.A / len(self.b)).flatten()

    def hessian(self, y: Tensor) -> Tensor:
        return self._gram(self.link.weights(self.link.probabilities(self._scores(y))))

    def third(self, y: Tensor, v: Tensor) -> Tensor:
        """The derivative of the Hessian along v."""
        return self._gram(self.link.turned(self.link.probabilities(self._scores(y)), self._scores(v)))

    def top(self) -> float:
        """λ(G)."""
        return float(torch.linalg.matrix_norm(self.A, 2)) ** 2 / len(self.b)

    def bend(self) -> float:
        """A bound on the third derivative."""
        return self.link.third * float(self.A.norm(dim=1).max()) * self.top()


def _solve(train: _Dense, d: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """argmin of CE + 1/2 Σ d y² by Newton's method from y, and the Hessian there. d is (C p,)."""
    force, H = train.gradient(y) + d * y, train.hessian(y) + d.diag()
    for _ in range(50):
        direction, step = torch.cholesky_solve(force.unsqueeze(-1), torch.linalg.cholesky(H)).squeeze(-1), 1.0
        while step > 1e-6:
            z = y - step * direction
            new = train.gradient(z) + d * z
            if new.norm() <= (1 - 1e-4 * step) * force.norm():
                break
            step /= 2
        else:
            break  # rounding
        y, force, H = z, new, train.hessian(z) + d.diag()
        if force.norm() < 1e-11:
            break
    return y, H


@functools.lru_cache(maxsize=32)
def _constants(problem: type[_LogReg], data_seed: int, reg: float) -> dict[str, Constant]:
    """Some dense linear algebra: about a second for the digits, so it is kept."""
    link = _Binary() if problem.classes == 2 else _Softmax(problem.classes)
    train, val, _ = (_Dense(link, A, b) for A, b in problem(data_seed=data_seed)._split())
    p, scores = train.A.shape[1], link.scores
    pick = torch.eye(p, dtype=torch.float64).repeat(1, scores)  # x_j meets the entries (c, j)
    y, curvatures, start = torch.zeros(scores * p, dtype=torch.float64), [], {}
    for t in (0.0, -3.0, -6.0):
        s = reg * math.exp(t)
        y, H = _solve(train, torch.full_like(y, s), y)
        factor, f_y = torch.linalg.cholesky(H), val.gradient(y)
        v = torch.cholesky_solve(f_y.unsqueeze(-1), factor).squeeze(-1)
        J = s * pick * y
        M = -torch.cholesky_solve(J.mT, factor).mT
        cross = s * pick * v @ M.mT
        bent = val.hessian(y) - train.third(y, v)
        hess = M @ bent @ M.mT - cross - cross.mT - (s * pick @ (v * y)).diag()
        curvatures.append(float(torch.linalg.eigvalsh(hess).abs().max()))
        if t == 0:
            joint = torch.cat([torch.cat([(0.5 * s * pick @ y.square()).diag(), J], 1), torch.cat([J.mT, H], 1)])
            size = float((pick @ y.square()).max().sqrt())  # of the largest column of Y
            start = {
                "L_g": estimated(torch.linalg.eigvalsh(joint).abs().max()),
                "rho_g": estimated(train.bend() + s * (0.5 * size**2 + 3 * size + 3)),
                "Delta": bound(val.value(y)),
                "R": exact(y.square().sum()),
            }
    return {
        "mu": estimated(reg),
        "L_gy": estimated(link.curvature * train.top() + reg),
        "C_f": bound(link.slope * math.sqrt(val.top())),
        "L_f": bound(link.curvature * val.top()),
        "rho_f": bound(val.bend()),
        "L_phi": estimated(max(curvatures)),
        **start,
    }
