"""Cross-entropy of linear scores: its value, its derivatives and its minimiser with a regulariser.

CE of a row (a, b) is log Σ_c exp(Y_c·a) - Y_b·a; with two classes Y is one row, the score of class 1 against zero for
class 0.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import embedding, logsigmoid, one_hot

from bilevelbench import Rows
from bilevelbench_problems.common import spread

Made = TypeVar("Made")

CACHED_SCORES = 72_000  # eight lanes of the digits: as many as stay in the processor's cache


class Softmax:
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


class Binary:
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


class Loss:
    """Mean cross-entropy of one set of rows as a function of Y (.., C, p), whole or of some rows."""

    def __init__(self, link: Softmax | Binary, A: Tensor, b: Tensor, dtype: torch.dtype) -> None:
        self.link, (self.n, self.p) = link, A.shape
        self.A, self.T, self.b = A.to(dtype), link.targets(b).to(dtype), b
        self.At, self.T_rows = self.A.T.contiguous(), self.T.T.contiguous()
        self._at_point = _AtPoint()

    def value(self, Y: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            return self.link.loss(Y @ self.At, self.T).mean(-1, keepdim=True)
        A, T = self._some(rows)
        return (rows.weight * self.link.loss(Y @ A.mT, T)).sum(-1, keepdim=True)

    def gradient(self, Y: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            return self._joined([(P - self.T) @ self.A / self.n for P in self._whole(Y)], Y)
        A, T = self._some(rows)
        return (self.link.probabilities(Y @ A.mT) - T) * rows.weight.unsqueeze(-2) @ A

    def hvp(self, Y: Tensor, V: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            Y, V = (Y, V) if Y.shape == V.shape else torch.broadcast_tensors(Y, V)
            pairs = zip(self._whole(Y), self._blocks(V), strict=True)
            return self._joined([self.link.bend(P, U @ self.At) @ self.A / self.n for P, U in pairs], Y)
        A, _ = self._some(rows)
        P = self.link.probabilities(Y @ A.mT)
        return self.link.bend(P, V @ A.mT) * rows.weight.unsqueeze(-2) @ A

    def _whole(self, Y: Tensor) -> list[Tensor]:
        """The probabilities of all rows at Y, in blocks, worked out once for all derivatives there."""
        return self._at_point(Y, lambda: [self.link.probabilities(block @ self.At) for block in self._blocks(Y)])

    def _blocks(self, Y: Tensor) -> Sequence[Tensor]:
        """A few lanes at a time, so that their scores stay in the processor's cache: up to twice as fast."""
        size = max(1, CACHED_SCORES // (self.link.scores * self.n))
        return [Y] if Y.shape[:-2].numel() <= size else Y.flatten(0, -3).split(size)

    def _joined(self, blocks: Sequence[Tensor], Y: Tensor) -> Tensor:
        return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks)).reshape(Y.shape)

    def accuracy(self, Y: Tensor) -> Tensor:
        right = self.link.labels(Y @ self.At) == self.b
        return right.to(Y.dtype).mean(-1, keepdim=True)

    def _some(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Features (.., L, B, p) and targets (.., L, C, B) of these rows."""
        return embedding(rows.index, self.A), embedding(rows.index, self.T_rows).mT


class _AtPoint:
    """What was made last, for as long as the point is the same object and was not changed in place.

    So an answer is the one that would be made again, in the same shape: its bits do not depend on what was asked before.
    """

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._owner: Callable[[], Tensor | None] = lambda: None
        self._made: Any = None

    def __call__(self, Y: Tensor, make: Callable[[], Made]) -> Made:
        if Y.requires_grad:
            return make()
        owner = Y if Y._base is None else Y._base
        key = Y.shape, Y.stride(), Y.storage_offset(), owner._version
        if self._owner() is not owner or key != self._key:
            self._made = None  # before another is made: both need not be in memory
            self._made, self._key, self._owner = make(), key, weakref.ref(owner)
        made: Made = self._made
        return made


@dataclass(frozen=True)
class Dense:
    """Matrices of a mean cross-entropy at one y (C p,), for the constants: float64, no lanes."""

    link: Softmax | Binary
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


def upper_loss(loss: Loss, matrix: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """f and its gradients where f is this loss of Y = matrix(y), without x."""
    return {
        "f": lambda x, y, rows=None: spread(loss.value(matrix(y), rows), x),
        "grad_f_x": lambda x, y, rows=None: spread(torch.zeros_like(x), y),
        "grad_f_y": lambda x, y, rows=None: spread(loss.gradient(matrix(y), rows).flatten(-2), x),
    }


def cleaned_by(train: Any, val: Loss) -> dict[str, Any]:
    """The functions of a cleaning problem: g weighs the losses of `train` by x, and f is the loss on `val`, without x."""
    return {
        **upper_loss(val, train.matrix),
        "g": train.value,
        "grad_g_x": train.by_weight,
        "grad_g_y": train.gradient,
        "hvp_g_yy": train.hvp,
        "jvp_g_xy": train.jvp,
    }


def solve(train: Dense, d: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
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
