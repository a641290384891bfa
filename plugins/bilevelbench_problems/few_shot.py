"""Few-shot tasks on an embedding that they share: their losses as functions of the embedding's weights and of the heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from bilevelbench import Rows
from bilevelbench_problems.common import LastOne, spread
from bilevelbench_problems.cross_entropy import Softmax
from bilevelbench_problems.embeddings import Embedding


@dataclass(frozen=True)
class Tasks:
    """For each of T tasks n images (T, n, pixels) with their targets (T, ways, n), to train on and to be asked about."""

    support: Tensor
    support_targets: Tensor
    query: Tensor
    query_targets: Tensor

    @classmethod
    def draw(cls, classes: Tensor, ways: int, shots: int, queries: int, count: int, rng: Generator) -> Tasks:
        """From classes (classes, drawings, pixels): each task has some classes, and of each of them some drawings."""
        have, drawings, pixels = classes.shape
        support, query = [], []
        for _ in range(count):
            chosen = torch.randperm(have, generator=rng)[:ways]
            which = torch.stack([torch.randperm(drawings, generator=rng)[: shots + queries] for _ in range(ways)])
            images = classes[chosen.unsqueeze(-1), which]
            support.append(images[:, :shots].reshape(-1, pixels))
            query.append(images[:, shots:].reshape(-1, pixels))
        targets = [
            one_hot(torch.arange(ways).repeat_interleave(n), ways).T.expand(count, -1, -1) for n in (shots, queries)
        ]
        return cls(torch.stack(support), targets[0], torch.stack(query), targets[1])

    def first(self, count: int) -> Tasks:
        return Tasks(*(part[:count] for part in (self.support, self.support_targets, self.query, self.query_targets)))


class Squared:
    """1/2 Σ_c (Z_c - T_c)² in place of the cross-entropy."""

    curvature = 1.0

    def loss(self, Z: Tensor, T: Tensor) -> Tensor:
        return 0.5 * (Z - T).square().sum(-2)

    def probabilities(self, Z: Tensor) -> Tensor:
        return Z

    def bend(self, P: Tensor, U: Tensor) -> Tensor:
        return U


class Heads:
    """scale · mean over tasks of [mean loss of Y_t e + l2/2 ‖Y_t‖²], e the embedding of an image and a 1; y = (Y_1, .., Y_T).

    Over (*points, L, .), whole or of some tasks.
    """

    def __init__(
        self,
        embedding: Embedding,
        link: Softmax | Squared,
        images: Tensor,
        targets: Tensor,
        dtype: torch.dtype,
        scale: float = 1.0,
        l2: float = 0.0,
    ) -> None:
        self.embedding, self.link, self.scale, self.l2 = embedding, link, scale, l2
        self.images, self.targets = images.to(dtype), targets.to(dtype)
        self.T, self.n = self.images.shape[:2]
        self.ways = targets.shape[-2]
        self.embedded = LastOne(lambda x: self.features(x, self.images))  # the embedding costs more than the rest

    def matrices(self, y: Tensor) -> Tensor:
        Y: Tensor = y.unflatten(-1, (self.T, self.ways, -1))
        return Y

    def features(self, x: Tensor, images: Tensor) -> Tensor:
        """Embeddings and a 1, (.., L, tasks, n, width + 1), of images (.., tasks, n, pixels)."""
        E = self.embedding(x, images.flatten(-3, -2)).unflatten(-2, images.shape[-3:-1])
        return torch.cat([E, torch.ones_like(E[..., :1])], -1)

    def value(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        b = self._batch(x, rows)
        Y = self._mine(y, b)
        losses = self.link.loss(Y @ b.E.mT, b.targets).mean(-1) + 0.5 * self.l2 * Y.square().sum((-2, -1))
        return (b.weight * losses).sum(-1, keepdim=True)

    def in_y(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        b = self._batch(x, rows)
        return self._back(self._pull(b, self._mine(y, b)), b)

    def hvp(self, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
        b = self._batch(x, rows)
        Y, V = self._mine(y, b), self._mine(v, b)
        bent = self.link.bend(self.link.probabilities(Y @ b.E.mT), V @ b.E.mT)
        return spread(self._back(bent @ b.E / self.n + self.l2 * V, b), y)  # squared loss bends the same everywhere

    def along(self, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
        """<derivative in y, v>, (.., L, 1): its derivative in x is the product with the mixed second derivative."""
        b = self._batch(x, rows)
        pull = self._pull(b, self._mine(y, b)) * self._mine(v, b)
        return (b.weight * pull.sum((-2, -1))).sum(-1, keepdim=True)

    def _pull(self, b: _Batch, Y: Tensor) -> Tensor:
        """The derivative of each task's loss in its head, (.., tasks, ways, width + 1)."""
        return (self.link.probabilities(Y @ b.E.mT) - b.targets) @ b.E / self.n + self.l2 * Y

    def _batch(self, x: Tensor, rows: Rows | None) -> _Batch:
        if rows is None:
            weight = torch.full((self.T,), self.scale / self.T, dtype=self.images.dtype)
            return _Batch(self.embedded(x), self.targets, weight, None)
        E = self.features(x, self.images[rows.index])
        return _Batch(E, self.targets[rows.index], self.scale * rows.weight, rows.index)

    def _mine(self, y: Tensor, b: _Batch) -> Tensor:
        """The heads of these tasks, (.., L, tasks, ways, width + 1)."""
        Y = self.matrices(y)
        if b.index is None:
            return Y
        axes = torch.broadcast_shapes(Y.shape[:-3], b.index.shape[:-1])
        index = b.index.expand(*axes, -1)[..., None, None].expand(*axes, -1, *Y.shape[-2:])
        return Y.expand(*axes, *Y.shape[-3:]).gather(-3, index)

    def _back(self, values: Tensor, b: _Batch) -> Tensor:
        """To the heads that they belong to; a task that was drawn twice adds up."""
        values = values * b.weight[..., None, None]
        if b.index is None:
            return values.flatten(-3)
        index = b.index[..., None, None].expand(values.shape)
        zeros = values.new_zeros(*values.shape[:-3], self.T, *values.shape[-2:])
        return zeros.scatter_add(-3, index, values).flatten(-3)


@dataclass(frozen=True)
class _Batch:
    """Features (.., L, tasks, n, width + 1), targets (.., tasks, ways, n), weight and index of the tasks (.., tasks)."""

    E: Tensor
    targets: Tensor
    weight: Tensor
    index: Tensor | None


def ridge_heads(E: Tensor, targets: Tensor, l2: float) -> tuple[Tensor, Tensor]:
    """For squared loss, each task's own solution (.., ways, width + 1), and EᵀE/n + l2 I, its Hessian for each row of Y."""
    n, width = E.shape[-2:]
    gram = E.mT @ E / n + l2 * torch.eye(width, dtype=E.dtype)
    return solved(gram, targets @ E / n), gram


def solved(gram: Tensor, rows: Tensor) -> Tensor:
    """rows gram⁻¹; NaN where x has run away so far that its embedding is not finite, which is for the trial to say."""
    found, info = torch.linalg.solve_ex(gram, rows.mT)
    out: Tensor = found.mT.masked_fill((info != 0)[..., None, None], torch.nan)
    return out


def accuracy(embedded: Tensor, asked: Tensor, support_targets: Tensor, query_targets: Tensor, l2: float) -> Tensor:
    """Mean over tasks of how many queries a fresh head by ridge regression gets right, (.., L, 1)."""
    heads, _ = ridge_heads(embedded, support_targets, l2)
    right = (heads @ asked.mT).argmax(-2) == query_targets.argmax(-2)
    return right.to(embedded.dtype).mean((-2, -1)).unsqueeze(-1)
