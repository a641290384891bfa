"""Cross-entropy of linear scores with a learned weight σ(x_i) for every row, and a ridge."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from bilevelbench import Rows, dot
from bilevelbench_problems.cross_entropy import CACHED_SCORES, Softmax

_PART = 512  # rows


@dataclass(frozen=True)
class _Batch:
    """Some rows, or all: features (.., B, p), targets (.., C, B), x, weight and index (.., B), weights' sum (.., 1)."""

    A: Tensor
    T: Tensor
    x: Tensor
    weight: Tensor | float
    total: Tensor | float
    index: Tensor | None

    def shares(self) -> Tensor:
        return self.weight / (1 + torch.exp(-self.x))  # torch.sigmoid rounds an element by its place in the tensor

    def slopes(self) -> Tensor:
        w = 1 / (1 + torch.exp(-self.x))
        return self.weight * w * (1 - w)

    def back(self, values: Tensor, n: int) -> Tensor:
        """(.., B) to the x_i that they belong to, (.., n); rows that were drawn twice add up."""
        if self.index is None:
            return values
        zeros = values.new_zeros(*values.shape[:-1], n)
        return zeros.scatter_add(-1, self.index.expand(values.shape), values)


class Weighted:
    """g and its derivatives over (*points, L, .), whole or of some rows."""

    def __init__(self, A: Tensor, b: Tensor, classes: int, ridge: float, dtype: torch.dtype) -> None:
        self.link, self.ridge, (self.n, self.p) = Softmax(classes), ridge, A.shape
        self.A, self.T = A.to(dtype), self.link.targets(b).to(dtype)
        self.T_rows = self.T.T.contiguous()

    def matrix(self, y: Tensor) -> Tensor:
        Y: Tensor = y.unflatten(-1, (self.link.scores, self.p))
        return Y

    def value(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        batch = self._batch(x, rows)
        losses = self.link.loss(self.matrix(y) @ batch.A.mT, batch.T)
        return dot(batch.shares(), losses) + 0.5 * self.ridge * batch.total * dot(y, y)

    def gradient(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        return self._by_blocks(self._gradient, _added, rows, x, y)

    def by_weight(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        return self._by_blocks(self._by_weight, _joined, rows, x, y)

    def hvp(self, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
        return self._by_blocks(self._hvp, _added, rows, x, y, v)

    def jvp(self, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
        return self._by_blocks(self._jvp, _joined, rows, x, y, v)

    def _gradient(self, batch: _Batch, y: Tensor) -> Tensor:
        R = self.link.probabilities(self.matrix(y) @ batch.A.mT) - batch.T
        return (R * batch.shares().unsqueeze(-2) @ batch.A).flatten(-2) + self.ridge * batch.total * y

    def _by_weight(self, batch: _Batch, y: Tensor) -> Tensor:
        losses = self.link.loss(self.matrix(y) @ batch.A.mT, batch.T)
        return batch.back(batch.slopes() * losses, self.n)

    def _hvp(self, batch: _Batch, y: Tensor, v: Tensor) -> Tensor:
        P = self.link.probabilities(self.matrix(y) @ batch.A.mT)
        bent = self.link.bend(P, self.matrix(v) @ batch.A.mT) * batch.shares().unsqueeze(-2)
        return (bent @ batch.A).flatten(-2) + self.ridge * batch.total * v

    def _jvp(self, batch: _Batch, y: Tensor, v: Tensor) -> Tensor:
        R = self.link.probabilities(self.matrix(y) @ batch.A.mT) - batch.T
        return batch.back(batch.slopes() * (R * (self.matrix(v) @ batch.A.mT)).sum(-2), self.n)

    def _batch(self, x: Tensor, rows: Rows | None) -> _Batch:
        if rows is None:
            return _Batch(self.A, self.T, x, 1 / self.n, 1.0, None)
        index = rows.index
        if x.shape[:-1] != index.shape[:-1]:
            axes = torch.broadcast_shapes(x.shape[:-1], index.shape[:-1])
            x, index = x.expand(*axes, -1), index.expand(*axes, -1)
        total = rows.weight.sum(-1, keepdim=True)  # one, except for blocks of unequal size
        # `embedding` copies rows twice as fast as A[index]
        A, T = embedding(rows.index, self.A), embedding(rows.index, self.T_rows).mT
        return _Batch(A, T, x.gather(-1, index), rows.weight, total, rows.index)

    def _by_blocks(
        self,
        function: Callable[..., Tensor],
        join: Callable[[list[Tensor]], Tensor],
        rows: Rows | None,
        x: Tensor,
        *vectors: Tensor,
    ) -> Tensor:
        """All rows in parts whose scores stay in the processor's cache: a few lanes at a time, or, of many rows, some."""
        if rows is not None:
            return function(self._batch(x, rows), *vectors)
        if self.T.numel() > CACHED_SCORES:
            return join([function(batch, *vectors) for batch in self._parts(x)])
        size = CACHED_SCORES // self.T.numel()
        axes = torch.broadcast_shapes(x.shape[:-1], *(v.shape[:-1] for v in vectors))
        if axes.numel() <= size:
            return function(self._batch(x, None), *vectors)
        flat = (v.expand(*axes, -1).reshape(-1, v.shape[-1]).split(size) for v in (x, *vectors))
        answers = [function(self._batch(at, None), *rest) for at, *rest in zip(*flat, strict=True)]
        out: Tensor = torch.cat(answers).unflatten(0, axes)
        return out

    def _parts(self, x: Tensor) -> Iterator[_Batch]:
        """Rows that both products of a gradient find in the cache; as many whatever the number of lanes."""
        parts = zip(self.A.split(_PART), self.T.split(_PART, -1), x.split(_PART, -1), strict=True)
        for A, T, at in parts:
            yield _Batch(A, T, at, 1 / self.n, len(A) / self.n, None)


def _added(parts: list[Tensor]) -> Tensor:
    return functools.reduce(torch.Tensor.add_, parts)


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, -1)
