"""What the checks of a problem share: its instance in float64, points around the start, and how answers are compared."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bilevelbench.model.instance import Instance
from bilevelbench.model.noise import Rows
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import QUERIES
from bilevelbench.model.torch_state import default_dtype

DENSE = 60  # the lower Hessian is written out up to this dimension


def build(problem: Problem, dtype: torch.dtype = torch.float64) -> Instance:
    with default_dtype(dtype):
        return problem.build()


@functools.lru_cache(maxsize=2)
def instance_of(problem: Problem) -> Instance:
    """One build for all checks of a problem."""
    return build(problem)


def is_cheap(instance: Instance) -> bool:
    """Whether phi can be looked at often."""
    return instance.reference is not None or instance.dy <= DENSE


def lanes_of(problem: Problem) -> int:
    return max(1, min(4, problem.max_lanes))


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def points_of(problem: Problem, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A point for each lane, around the start and inside of `x_limit`."""
    instance, L = instance_of(problem), lanes_of(problem)
    x = instance.x0 + scale * normal(L, instance.dx, seed=2 * seed)
    edge = 0.9 * instance.x_limit
    return x.clamp(-edge, edge), instance.y0 + scale * normal(L, instance.dy, seed=2 * seed + 1)


def ask(function: Callable[..., Any], query: str, x: Tensor, y: Tensor, v: Tensor, *rows: Rows) -> tuple[Tensor, ...]:
    arguments = (x, y, v) if QUERIES[query].takes_vector else (x, y)
    with torch.no_grad():
        answer = function(*arguments, *rows)
    return answer if isinstance(answer, tuple) else (answer,)


def off_by(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference over the largest value."""
    if ours.shape != theirs.shape:
        return math.inf
    return float((ours - theirs).abs().max() / (theirs.abs().max() + 1e-9))
