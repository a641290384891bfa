"""Timing in turns: what disturbs one side disturbs the others alike, and the fastest of many rounds is compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bilevelbench.engine.setup import PreparedPack

Work = Callable[[], object]


def fastest(*works: Work, rounds: int, clock: Callable[[], float] = time.process_time) -> list[float]:
    """Seconds of each, the least of so many rounds."""
    least = [float("inf")] * len(works)
    for _ in range(rounds):
        for i, work in enumerate(works):
            start = clock()
            work()
            least[i] = min(least[i], clock() - start)
    return least


def ratio(one: Work, other: Work, rounds: int, clock: Callable[[], float] = time.process_time) -> float:
    """The fastest run of the one over the fastest of the other."""
    above, below = fastest(one, other, rounds=rounds, clock=clock)
    return above / below


class Steps:
    """So many steps of a pack, each time from its start."""

    def __init__(self, pack: PreparedPack, steps: int) -> None:
        self.pack, self.steps = pack, steps
        self.state: Any = pack.init()

    def __call__(self) -> None:
        state = self.state
        for k in range(1, self.steps + 1):
            state = self.pack.step(k, state)
