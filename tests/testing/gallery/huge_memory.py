"""Keeps more and more."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class HugeMemory(Algorithm):
    name = "huge_memory"
    uses = frozenset({"grad_f"})

    a: float = 0.5
    """step"""

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        hoard = []
        while True:
            hoard.append(torch.ones(1 << 24))
