"""Sets that x may be confined to, each with its projection over lanes: `(L, dx) -> (L, dx)`, lane by lane.

A step of a method is followed by the projection in one place (`engine/setup.py`), whatever the method. How stationary a
point is, is then told by the gradient mapping x - P(x - grad phi), which is grad phi itself inside the set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bilevelbench.errors import InvalidInput
from bilevelbench.model.lanes import norm

Projection = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Box:
    """The set of x with every coordinate between `low` and `high`: numbers, or tensors of x's shape."""

    low: float | Tensor = -torch.inf
    high: float | Tensor = torch.inf

    def __post_init__(self) -> None:
        if bool((torch.as_tensor(self.low) > torch.as_tensor(self.high)).any()):
            raise InvalidInput(
                f"Box(low={self.low}, high={self.high}) is empty; the lower bound has to be the smaller one"
            )

    def __call__(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, _beside(self.low, x)), _beside(self.high, x))


@dataclass(frozen=True)
class Simplex:
    """The set of x whose coordinates are at least zero and have the sum `total`."""

    total: float = 1.0

    def __post_init__(self) -> None:
        if not self.total > 0:
            raise InvalidInput(f"Simplex(total={self.total}): the sum of the coordinates has to be above zero")

    def __call__(self, x: Tensor) -> Tensor:
        """max(x - t, 0) with the t that makes the sum right: sort, and find how many coordinates stay above zero."""
        falling = x.sort(dim=-1, descending=True).values
        excess = (falling.cumsum(-1) - self.total) / torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        count = (falling > excess).sum(-1, keepdim=True).clamp(min=1)
        return (x - excess.gather(-1, count - 1)).clamp(min=0)


@dataclass(frozen=True, eq=False)
class Ball:
    """The set of x at most `radius` away from `center`: a number, or a tensor of x's shape."""

    radius: float
    center: float | Tensor = 0.0

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise InvalidInput(f"Ball(radius={self.radius}): the radius has to be above zero")

    def __call__(self, x: Tensor) -> Tensor:
        center = _beside(self.center, x)
        away = x - center
        return center + away * (self.radius / norm(away).clamp(min=self.radius))


def projection_of(
    project: Projection, x0: Tensor, given: Callable[[Tensor], Any], vector: Callable[[Any], Tensor]
) -> Projection:
    """Over lanes; a set of ours takes x as it is, a function takes each lane as `given` shapes it, for `vector` to undo."""
    if isinstance(project, (Box, Simplex, Ball)):
        check_projection(project, x0.reshape(1, -1))
        return project
    if not callable(project):
        raise InvalidInput(
            f"project={project!r}: give bilevelbench.Box(low, high), Simplex(total), Ball(radius), or a function that "
            "returns the point of the set that is nearest to x"
        )

    def over_lanes(x: Tensor) -> Tensor:
        nearest = [vector(project(given(lane))) for lane in x]
        return torch.stack(nearest) if all(isinstance(lane, Tensor) for lane in nearest) else nearest[0]

    check_projection(over_lanes, x0.reshape(1, -1))
    return over_lanes


def check_projection(project: Projection, x0: Tensor) -> None:
    """At the start and at some points around it: a projection keeps the shape, and does not move what it has moved."""
    x0 = x0.reshape(-1, x0.shape[-1])
    noise = (
        torch.randn(x0.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        .to(x0.dtype)
        .to(x0.device)
    )
    for scale in (0.0, 1.0, 100.0):
        x = x0 + scale * (1 + x0.abs()) * noise
        once = project(x)
        if not isinstance(once, Tensor) or once.shape != x.shape or once.dtype != x.dtype or once.device != x.device:
            seen = (
                f"{once.dtype} {tuple(once.shape)} on {once.device}"
                if isinstance(once, Tensor)
                else type(once).__name__
            )
            raise InvalidInput(
                f"the projection made {seen} of x, which is {x.dtype} {tuple(x.shape)} on {x.device}; it has to return "
                "the nearest point of the set, in the shape of x"
            )
        if not bool(torch.isfinite(once).all()):
            raise InvalidInput(
                "the projection returned numbers that are not finite; it has to return a point of the set"
            )
        off = float((project(once) - once).abs().max())
        if off > 10 * torch.finfo(x.dtype).eps ** 0.5 * (1 + float(once.abs().max())):
            raise InvalidInput(
                f"the projection leaves its set: what it returned is moved by {off:.3g} if it is projected again; a "
                "point of the set has to stay where it is"
            )


def _beside(value: float | Tensor, x: Tensor) -> Tensor:
    """A number, or a tensor of x's shape, for every lane of x."""
    bound = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    if bound.numel() not in (1, x.shape[-1]):
        raise InvalidInput(
            f"a bound of shape {tuple(bound.shape)} for an x of {x.shape[-1]} numbers; give a number, or a tensor of the "
            "shape of x"
        )
    return bound.reshape(-1)
