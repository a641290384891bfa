"""A regulariser for every feature of a logistic regression, on two data sets that come with scikit-learn.

    f(x, y) = mean CE over the validation rows;   g(x, y) = mean CE over the training rows + R(x, y)
    R(x, y) = reg_scale/2 Σ_j exp(x_j) Σ_c Y_cj²,   Y = y as a (classes, features) matrix, row after row; no bias

CE of a row (a, b) is log Σ_c exp(Y_c·a) - Y_b·a; with two classes Y is one row, the score of class 1 against zero for
class 0. x_j is the logarithm of feature j's regulariser over reg_scale. x0 = 0 and y0 = 0.

    logreg_digits           1,797 images of digits, 10 classes, 64 pixels: dx = 64, dy = 640
    logreg_breast_cancer    569 tumours, 2 classes, 30 features, standardised by the training rows: dx = dy = 30

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from bilevelbench import Agents, Constant, FiniteSum, Instance, Problem, Rows, Shared, bound, estimated, exact
from bilevelbench_problems.common import joint_norm, spread

_CACHED_SCORES = 72_000  # eight lanes of the digits


class _LogReg(Problem):
    """What both problems share."""

    classes: ClassVar[int]

    reg_scale: PositiveFloat = 0.01
    """regulariser of every feature at the start"""

    def build(self) -> Instance:
        return self._instance(self._split())

    def _instance(self, split: Sequence[tuple[Tensor, Tensor]], agents: Agents | None = None) -> Instance:
        link = self._link()
        train, val, test = (_Loss(link, A, b, torch.get_default_dtype()) for A, b in split)
        p, scores, reg = train.p, link.scores, self.reg_scale

        def shape(y: Tensor) -> Tensor:
            Y: Tensor = y.unflatten(-1, (scores, p))
            return Y

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
            constants=_constants(self),
            noise=FiniteSum(n_f=val.n, n_g=train.n),
            points="stack",
            metrics={
                "val_loss": lambda x, y: val.value(shape(y)),
                "test_loss": lambda x, y: test.value(shape(y)),
                "test_accuracy": lambda x, y: test.accuracy(shape(y)),
            },
            agents=agents,
            mu_at=lambda x: reg * x.amin(-1, keepdim=True).exp(),
        )

    def _link(self) -> _Softmax | _Binary:
        return _Binary() if self.classes == 2 else _Softmax(self.classes)

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
    name = "logreg_digits"
    embedded = False  # an evaluation solves for 640 weights: half a second
    max_lanes = 64  # scores and probabilities are 72 kB a lane each
    classes = 10

    def _features(self) -> tuple[Tensor, Tensor]:
        from sklearn.datasets import load_digits

        A, b = load_digits(return_X_y=True)
        return torch.as_tensor(A, dtype=torch.float64), torch.as_tensor(b)


class LogRegBreastCancer(_LogReg):
    name = "logreg_breast_cancer"
    classes = 2

    def _features(self) -> tuple[Tensor, Tensor]:
        from sklearn.datasets import load_breast_cancer

        A, b = load_breast_cancer(return_X_y=True)
        return torch.as_tensor(A, dtype=torch.float64), torch.as_tensor(b)

    def _standardised(self, A: Tensor, train: Tensor) -> Tensor:
        return (A - train.mean(0)) / train.std(0, correction=0)


class LogRegBreastCancerAgents(Shared, LogRegBreastCancer):
    """logreg_breast_cancer whose training and validation rows are dealt out to agents: f_i and g_i are means over agent i's.

    Rows that do not divide evenly are left out (of 285 and 142 with four agents: one and two). Every agent holds the whole
    regulariser. Constants and metrics are those of the mean problem.
    """

    name = "logreg_breast_cancer_agents"
    embedded = False  # every distributed method would start processes in `run --all`

    def build(self) -> Instance:
        train, val, test = self._split()

        def local(i: int) -> Instance:
            return self._instance([(A[i :: self.agents], b[i :: self.agents]) for A, b in (train, val)] + [test])

        return self._instance([train, val, test], Agents(self.agents, local))

    def _split(self) -> list[tuple[Tensor, Tensor]]:
        train, val, test = super()._split()
        return [*(self._even(*rows) for rows in (train, val)), test]

    def _even(self, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        n = len(b) - len(b) % self.agents
        return A[:n], b[:n]


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
        return (1 + torch.exp(-Z)).reciprocal()  # torch.sigmoid rounds an element by its place in the tensor

    def bend(self, P: Tensor, U: Tensor) -> Tensor:
        return P * (1 - P) * U

    def labels(self, Z: Tensor) -> Tensor:
        return (Z > 0).long().squeeze(-2)

    def weights(self, P: Tensor) -> Tensor:
        return (P * (1 - P)).unsqueeze(0)

    def turned(self, P: Tensor, U: Tensor) -> Tensor:
        return (P * (1 - P) * (1 - 2 * P) * U).unsqueeze(0)


class _Loss:
    """Mean cross-entropy of one set of rows as a function of Y (.., C, p), whole or of some rows."""

    def __init__(self, link: _Softmax | _Binary, A: Tensor, b: Tensor, dtype: torch.dtype) -> None:
        self.link, (self.n, self.p) = link, A.shape
        self.A, self.T, self.b = A.to(dtype), link.targets(b).to(dtype), b
        self.At = self.A.T.contiguous()

    def value(self, Y: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            return self.link.loss(Y @ self.At, self.T).mean(-1, keepdim=True)
        A, T = self._some(rows)
        return (rows.weight * self.link.loss(Y @ A.mT, T)).sum(-1, keepdim=True)

    def gradient(self, Y: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            return self._by_blocks(lambda Y: (self.link.probabilities(Y @ self.At) - self.T) @ self.A / self.n, Y)
        A, T = self._some(rows)
        return (self.link.probabilities(Y @ A.mT) - T) * rows.weight.unsqueeze(-2) @ A

    def hvp(self, Y: Tensor, V: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            return self._by_blocks(self._whole_hvp, Y, V)
        A, _ = self._some(rows)
        P = self.link.probabilities(Y @ A.mT)
        return self.link.bend(P, V @ A.mT) * rows.weight.unsqueeze(-2) @ A

    def _whole_hvp(self, Y: Tensor, V: Tensor) -> Tensor:
        P = self.link.probabilities(Y @ self.At)
        return self.link.bend(P, V @ self.At) @ self.A / self.n

    def _by_blocks(self, function: Callable[..., Tensor], *matrices: Tensor) -> Tensor:
        """A few lanes at a time, so that their scores stay in the processor's cache: up to twice as fast."""
        size = max(1, _CACHED_SCORES // (self.link.scores * self.n))
        if max(Y.shape[:-2].numel() for Y in matrices) <= size:
            return function(*matrices)
        matrices = torch.broadcast_tensors(*matrices)
        blocks = zip(*(Y.flatten(0, -3).split(size) for Y in matrices), strict=True)
        return torch.cat([function(*block) for block in blocks]).reshape(matrices[0].shape)

    def accuracy(self, Y: Tensor) -> Tensor:
        right = self.link.labels(Y @ self.At) == self.b
        return right.to(Y.dtype).mean(-1, keepdim=True)

    def _some(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Features (.., L, B, p) and targets (.., L, C, B) of these rows."""
        return self.A[rows.index], self.T.T[rows.index].mT


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
def _constants(problem: _LogReg) -> dict[str, Constant]:
    """Some dense linear algebra: about a second for the digits, so it is kept."""
    link, reg = problem._link(), problem.reg_scale
    train, val, _ = (_Dense(link, A, b) for A, b in problem._split())
    p, scores = train.A.shape[1], link.scores
    L_gy = link.curvature * train.top() + reg
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
            columns = pick @ y.square()  # Σ_c Y_cj²: R couples x_j with column j, and H is at most L_gy I
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
