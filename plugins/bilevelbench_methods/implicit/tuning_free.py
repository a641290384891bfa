"""What S-TFBO and D-TFBO share: step lengths that are one over the root of the sum of all squared directions so far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import PositiveFloat
from torch import Tensor

from bilevelbench import Algorithm, Oracle, dot


@dataclass(frozen=True)
class State:
    """The point, and the accumulators of x, y and v."""

    x: Tensor
    y: Tensor
    v: Tensor
    alpha: Tensor
    beta: Tensor
    gamma: Tensor
    k: int


class TuningFree(Algorithm):
    """Accumulators alpha, beta, gamma of the directions of x, y and v. Nothing is to be tuned, and no constant is needed."""

    family = "implicit"

    alpha0: PositiveFloat = 1.0
    """accumulator of x at the start"""
    beta0: PositiveFloat = 1.0
    """accumulator of y at the start"""
    gamma0: PositiveFloat = 1.0
    """accumulator of v at the start"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        one = torch.ones_like(x0[:, :1])
        alpha, beta, gamma = self.alpha0 * one, self.beta0 * one, self.gamma0 * one
        return State(x=x0, y=y0, v=torch.zeros_like(y0), alpha=alpha, beta=beta, gamma=gamma, k=0)


def grown(accumulator: Tensor, direction: Tensor) -> Tensor:
    """The root of accumulator^2 + |direction|^2."""
    return (accumulator * accumulator + dot(direction, direction)).sqrt()
