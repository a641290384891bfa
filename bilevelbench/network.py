"""Agents: several owners of one problem, who exchange means of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from bilevelbench.lanes import over_points

if TYPE_CHECKING:
    from bilevelbench.problem import Instance


class Network(Protocol):
    """How agents average: one call of `mean` is one all-reduce of all tensors in one message."""

    def mean(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]: ...


class Simulated:
    """m agents in one process: the local instance answers (m, L, d) to (L, d), and the mean is over that first axis."""

    def mean(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(over_points(t) / len(t) for t in tensors)


@dataclass(frozen=True)
class Agents:
    """Behind an instance that is the mean over agents: what an agent's own queries are answered by, and the network."""

    local: Instance
    network: Network
