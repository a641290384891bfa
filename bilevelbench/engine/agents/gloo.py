"""A network over torch.distributed (gloo): what a leader and its agents have in common."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

_dist: Any = torch.distributed  # its annotations leave out half of its public names

#: The store's keys: trial number n as JSON, or nothing more to do; agent r is ready for it; r's failure; it is over.
TRIAL, READY, FAILED, OVER = "trial/{}", "ready/{}/{}", "failed/{}/{}", "over/{}"
NO_MORE = b"no more"

#: A process waits for its leader as long as that lives; the leader's end is seen in other ways.
FOREVER = timedelta(days=30)
LOOPBACK = "127.0.0.1"


class ConnectionLost(Exception):
    """A round could not be finished: someone has closed the connection, or is silent."""


class Gloo:
    """The group of one trial. All messages of a round travel as one buffer."""

    def __init__(self, store: Any, trial: int, rank: int, size: int, timeout: timedelta, loopback: bool) -> None:
        self.size = size
        self.rounds = 0
        names = _dist.PrefixStore(f"group/{trial}", store)
        try:
            self._group: Any = _group(names, rank, size, timeout, loopback)
        except RuntimeError as error:
            raise ConnectionLost(str(error)) from None

    def mean(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        message = torch.cat([t.reshape(-1) for t in tensors])
        try:
            self._group.allreduce([message]).wait()
        except RuntimeError as error:
            raise ConnectionLost(str(error)) from None
        self.rounds += 1
        parts = (message / self.size).split([t.numel() for t in tensors])
        return tuple(part.view(t.shape) for part, t in zip(parts, tensors, strict=True))

    def end(self) -> None:
        """Close the connections: whoever waits for a message from us notices."""
        self._group = None


def _group(store: Any, rank: int, size: int, timeout: timedelta, loopback: bool) -> Any:
    """Not the process-wide group of `init_process_group`, which may be someone else's, and of which there is only one."""
    gloo = _dist.ProcessGroupGloo
    if not loopback:
        return gloo(store, rank, size, timeout)
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    options._timeout = timeout
    return gloo(store, rank, size, options)


def leaders_store() -> Any:
    """A store on a free port of this machine, which the leader hosts."""
    return _dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)


def agents_store(port: int) -> Any:
    """The leader's store, as an agent reaches it."""
    return _dist.TCPStore(LOOPBACK, port, is_master=False, timeout=FOREVER, wait_for_workers=False)


def torchrun_store() -> tuple[Any, int, int]:
    """The store of torchrun's processes, our number among them, and how many there are."""
    store, rank, size = next(_dist.rendezvous("env://", timeout=FOREVER))
    return store, rank, size
