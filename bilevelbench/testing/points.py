"""What the checks of a problem share: its instance in float64, points around the start, and how answers are compared."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bilevelbench.model.instance import Instance
from bilevelbench.model.noise import FiniteSum, Rows
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


def declared(problem: Problem, *names: str) -> dict[str, float]:
    """The values of those constants that are declared to hold."""
    given = instance_of(problem).constants.given
    return {name: given[name].most for name in names if name in given and given[name].kind != "estimated"}


def lanes_of(problem: Problem) -> int:
    return max(1, min(4, problem.max_lanes))


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def points_of(problem: Problem, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A point for each lane, around the start and inside of `x_limit`."""
    return around(instance_of(problem), lanes_of(problem), scale=scale, seed=seed)


def around(instance: Instance, *shape: int, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points of that shape, the last of which are the lanes."""
    x = instance.x0 + scale * normal(*shape, instance.dx, seed=2 * seed)
    edge = 0.9 * instance.x_limit
    return x.clamp(-edge, edge), instance.y0 + scale * normal(*shape, instance.dy, seed=2 * seed + 1)


def some_rows(instance: Instance, level: str, *shape: int) -> Rows | None:
    """Seven rows of a finite sum for each lane, (*shape, 7), one of them twice; None of another problem."""
    if not isinstance(instance.noise, FiniteSum):
        return None
    n = instance.noise.n_f if level == "f" else instance.noise.n_g
    index = torch.randint(n, (*shape, 7), generator=torch.Generator().manual_seed(5))
    index[..., 3] = index[..., 0]
    return Rows(index, torch.full((*shape, 7), 1 / 7, dtype=torch.float64))


def ask(function: Callable[..., Any], query: str, x: Tensor, y: Tensor, v: Tensor, *rows: Rows) -> tuple[Tensor, ...]:
    arguments = (x, y, v) if QUERIES[query].takes_vector else (x, y)
    with torch.no_grad():
        answer = function(*arguments, *rows)
    return answer if isinstance(answer, tuple) else (answer,)


def first_difference(one: Instance, other: Instance, lanes: int = 4) -> str:
    """What two instances do not have in common bit for bit: a start, an answer, the constants; empty if nothing."""
    if len(one.x0) > 1:
        lanes = len(one.x0)
    for name in ("x0", "y0"):
        if not torch.equal(getattr(one, name), getattr(other, name)):
            return name
    x, y = around(one, lanes)
    x, y, v = (t.to(one.x0.dtype) for t in (x, y, normal(lanes, one.dy, seed=9)))
    for query in QUERIES:
        answers = (ask(built._raw[query], query, x, y, v) for built in (one, other))
        if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(*answers, strict=True)):
            return query
    return "" if one.constants.given == other.constants.given else "constants"


def off_by(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference over the largest value."""
    if ours.shape != theirs.shape:
        return math.inf
    return float((ours - theirs).abs().max() / (theirs.abs().max() + 1e-9))
