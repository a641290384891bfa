"""Embeddings of images: plain functions of a flat vector of weights, the same images for all lanes or each lane its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Generator, Tensor
from torch.nn.functional import avg_pool2d, conv2d

Kind = Literal["linear", "mlp", "cnn"]


class Embedding(Protocol):
    """x (.., L, dim) and images (.., [L,] R, pixels) give (.., L, R, width)."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]: ...
    def __call__(self, x: Tensor, images: Tensor) -> Tensor: ...


def embedding(kind: Kind, side: int, width: int) -> Embedding:
    """For images of side x side pixels."""
    kinds: dict[str, type[Linear] | type[MLP] | type[CNN]] = {"linear": Linear, "mlp": MLP, "cnn": CNN}
    return kinds[kind](side, width)


def start(made: Embedding, rng: Generator) -> Tensor:
    """(1, dim) in float64: normal weights over the root of how many meet in one number; biases are zero."""
    parts = []
    for shape in made.shapes:
        meet = shape[0] if len(shape) == 2 else math.prod(shape[1:])
        drawn = torch.randn(shape, generator=rng, dtype=torch.float64) / math.sqrt(meet)
        parts.append(drawn.flatten() if len(shape) > 1 else torch.zeros(shape, dtype=torch.float64))
    return torch.cat(parts).unsqueeze(0)


def _parts(x: Tensor, shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    """The weights as tensors (.., L, *shape)."""
    flat = x.split([math.prod(shape) for shape in shapes], -1)
    return [part.unflatten(-1, shape) for part, shape in zip(flat, shapes, strict=True)]


@dataclass(frozen=True)
class Linear:
    """images W."""

    side: int
    width: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.side**2, self.width),)

    def __call__(self, x: Tensor, images: Tensor) -> Tensor:
        (W,) = _parts(x, self.shapes)
        return images @ W


@dataclass(frozen=True)
class MLP:
    """tanh(images W + b) V, with as many hidden units as the width."""

    side: int
    width: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.side**2, self.width), (self.width,), (self.width, self.width)

    def __call__(self, x: Tensor, images: Tensor) -> Tensor:
        W, b, V = _parts(x, self.shapes)
        return torch.tanh(images @ W + b.unsqueeze(-2)) @ V


@dataclass(frozen=True)
class CNN:
    """Twice: 3 x 3 filters into so many channels, tanh, means over 2 x 2; then a linear map of what is left."""

    side: int
    width: int
    channels: tuple[int, int] = (8, 8)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        (c, d), left = self.channels, self.side // 4
        return (c, 1, 3, 3), (c,), (d, c, 3, 3), (d,), (d * left**2, self.width)

    def __call__(self, x: Tensor, images: Tensor) -> Tensor:
        axes = torch.broadcast_shapes(x.shape[:-1], images.shape[:-2])
        F, a, G, b, W = _parts(x.expand(*axes, -1).reshape(-1, x.shape[-1]), self.shapes)
        lanes, R = len(F), images.shape[-2]
        # a group of channels for each lane, so that one convolution serves all of them
        Z = images.expand(*axes, *images.shape[-2:]).reshape(lanes, R, self.side, self.side).transpose(0, 1)
        for filters, bias in ((F, a), (G, b)):
            Z = avg_pool2d(torch.tanh(conv2d(Z, filters.flatten(0, 1), bias.flatten(), padding=1, groups=lanes)), 2)
        out: Tensor = (Z.reshape(R, lanes, -1).transpose(0, 1) @ W).unflatten(0, axes)
        return out
