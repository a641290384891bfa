"""Searches as generators: they yield what to run, are sent what was seen, and return the best choice.

So those of all methods and problems go side by side, and each round of all of them is run at once, in lane packs.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from bilevelbench.errors import InvalidInput
from bilevelbench.plan.trial import Budget
from bilevelbench.studies.tuning.space import Choice


@dataclass(frozen=True)
class Ask:
    """A setting to run, on every seed and data set."""

    choice: Choice
    budget: Budget


@dataclass(frozen=True)
class Seen:
    """What became of it: the median score, infinite if half of its trials failed."""

    score: float
    failed: int = 0


@dataclass(frozen=True)
class Best:
    choice: Choice
    score: float


Search = Generator[list[Ask], list[Seen], Best]


def grid(settings: Sequence[Choice], budget: Budget) -> Search:
    """Every setting with the same budget."""
    seen = yield [Ask(choice, budget) for choice in settings]
    return _ranked(settings, seen)[0]


def halving(settings: Sequence[Choice], budget: Budget, cost: float, factor: int) -> Search:
    """Successive halving: few calls for all, and `factor` times as many, from scratch, for the best one in `factor`.

    `cost` is for one seed and data set. No trial has more than `budget`.
    """
    rungs = plan_rungs(len(settings), cost, factor)
    going = list(settings)
    for count, limit in rungs:
        short = budget.model_copy(update={"cost": min(limit, budget.cost or math.inf)})
        seen = yield [Ask(choice, short) for choice in going[:count]]
        best = _ranked(going[:count], seen)
        going = [one.choice for one in best]
    return best[0]


def plan_rungs(settings: int, cost: float, factor: int) -> list[tuple[int, float]]:
    """How many settings get how many calls: each rung costs about the same, and all of them at most `cost`."""
    counts = [settings]
    while counts[-1] >= factor:
        counts.append(counts[-1] // factor)
    first = cost / sum(count * factor**rung for rung, count in enumerate(counts))
    rungs = [(count, float(math.floor(first * factor**rung))) for rung, count in enumerate(counts)]
    if rungs[0][1] < 1:
        raise InvalidInput(f"{settings} settings cannot share {cost:g} calls; give more `cost`, or fewer `trials`")
    return rungs


def shortened(budget: Budget, factor: int) -> Budget:
    """An intermediate budget: one part in `factor`."""
    cost = None if budget.cost is None else budget.cost / factor
    steps = None if budget.steps is None else max(1, budget.steps // factor)
    return budget.model_copy(update={"cost": cost, "steps": steps})


def _ranked(settings: Sequence[Choice], seen: Sequence[Seen]) -> list[Best]:
    """From the smallest score; ties, also among failures, keep the order of the grid."""
    pairs = [Best(choice, one.score) for choice, one in zip(settings, seen, strict=True)]
    return sorted(pairs, key=lambda best: best.score)
