"""Agents: several owners of one problem, which is the mean of what they hold; they exchange means of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from bilevelbench.model.instance import Instance


class Network(Protocol):
    """What connects agents: one call of `mean` is one all-reduce of all tensors in one message."""

    def mean(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]: ...
    def end(self) -> None: ...


class Alone:
    """The network of a single agent, whose messages are counted like any other's."""

    def mean(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tensors)

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class Agents:
    """The agents of a shared problem: `local(i)` makes what agent i of `count` holds.

    That is an instance of f_i and g_i, whose means over i are f and g. The rows of a finite sum are dealt out
    evenly, or every agent holds all of them. Under additive noise the instance's own is that of the mean over agents.
    """

    count: int
    local: Callable[[int], Instance]


@dataclass(frozen=True)
class Part:
    """One agent's part in a trial: its number, what it holds, and the way to the others."""

    rank: int
    local: Instance
    network: Network
