"""Communication between agents, metered: rounds and bytes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class Network:
    """One machine: no agents, no messages. A distributed run brings a network whose `mean` averages over its agents."""

    agents = 1

    def __init__(self) -> None:
        self.rounds = 0
        self.bytes = 0

    def mean(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """All tensors in one message."""
        self.rounds += 1
        self.bytes += sum(t.numel() * t.element_size() for t in tensors)
        return self.reduce(tensors)

    def reduce(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tensors)
