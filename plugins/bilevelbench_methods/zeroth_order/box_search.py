"""Search for x in a box by values of phi alone: what random search and TPE share.

    x_try <- the method's choice, x0 in the first step
    y_try <- L-BFGS on g(x_try, .) from y0 until |g_y| <= tol
    if f(x_try, y_try) is the smallest value so far:  x, y <- x_try, y_try

The lower level begins at y0 for each try, since the last one may have been far away.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import torch
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from bilevelbench import Algorithm, Oracle, PerLane, keep
from bilevelbench_methods.lower_search import lower_lbfgs


@dataclass(frozen=True)
class State:
    """The best try so far with its value, and what the method remembers of the others."""

    x: Tensor
    y: Tensor
    value: Tensor
    y0: Tensor
    k: int
    memory: Any = None


class BoxSearch(Algorithm):
    """One try per step; the lower level is solved from y0 for each."""

    family = "zeroth-order"
    uses = frozenset({"value_f", "grad_g_y", "value_g"})

    lower: float = -5.0
    """smallest value of a coordinate of x"""
    upper: float = 5.0
    """largest value of a coordinate of x"""
    D: PerLane[PositiveInt] = 500
    """lower-level steps at most"""
    tol: PositiveFloat = 1e-3
    """|g_y| at which the lower level is solved"""

    @model_validator(mode="after")
    def _bounded_box(self) -> Self:
        if not (math.isfinite(self.lower) and math.isfinite(self.upper)):
            raise ValueError(
                f"the box [{self.lower:g}, {self.upper:g}] has no bounds, and {self.name} draws from all of it; give finite "
                "values of lower and upper"
            )
        if self.lower >= self.upper:
            raise ValueError(f"the box [{self.lower:g}, {self.upper:g}] is empty; lower has to be below upper")
        return self

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, value=torch.full_like(x0[:, :1], torch.inf), y0=y0, k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        x = s.x if s.k == 0 else self.ask(s, oracle)
        y = lower_lbfgs(oracle, x, s.y0, self.D, self.tol)
        value = oracle.value_f(x, y)
        better = value < s.value
        return State(
            x=keep(better, x, s.x),
            y=keep(better, y, s.y),
            value=keep(better, value, s.value),
            y0=s.y0,
            k=s.k + 1,
            memory=self.remember(s, x, value),
        )

    @abstractmethod
    def ask(self, s: State, oracle: Oracle) -> Tensor:
        """The next try."""

    def remember(self, s: State, x: Tensor, value: Tensor) -> Any:
        """What is to be known of the tries in the next step, this one included."""
        return None
