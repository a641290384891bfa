"""Searches as generators: they yield what to run, are sent what was seen, and return the best choice.

So those of all methods and problems go side by side, and each round of all of them is run at once, in lane packs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from bilevelbench.errors import InvalidInput
from bilevelbench.plan.trial import Budget
from bilevelbench.studies.tuning.space import Choice

#: Of the cost of a search, what may be left over where all are to spend the same.
SLACK = 0.01
#: At most so many settings for one that was planned, where most end at once: with six, g_pbgd spent two thirds of its cost.
_MOST = 20


@dataclass(frozen=True)
class Ask:
    """A setting to run, on every seed and data set."""

    choice: Choice
    budget: Budget


@dataclass(frozen=True)
class Seen:
    """What became of it: the median score, infinite if half of its trials failed, and what they have spent together."""

    score: float
    failed: int = 0
    cost: float = 0.0


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


def levelled(base: Search, further: Iterator[Choice], budget: Budget, cost: float, repeats: int) -> Search:
    """The same search, gone on with until `cost` is spent on it; `repeats` trials make a setting.

    What is left over goes to whole budgets: for settings that had less, the best of them first, then for `further` ones. The
    last of them has what is left, which only levels the cost. The best of those with the whole budget wins, if there is one.
    """
    assert budget.cost is not None  # the study says so
    book: list[tuple[Ask, Seen]] = []
    found = yield from _noted(base, book)
    queue = itertools.chain(_cut_short(book, budget), further)
    most = _MOST * len(book)
    while (left := cost - sum(seen.cost for _, seen in book)) > SLACK * cost and len(book) < most:
        whole = int(left // (budget.cost * repeats))
        given = budget if whole else budget.model_copy(update={"cost": left / repeats})
        asked = [Ask(choice, given) for choice in itertools.islice(queue, max(whole, 1))]
        if not asked:
            break
        book += zip(asked, (yield asked), strict=True)
    finals = [Best(ask.choice, seen.score) for ask, seen in book if ask.budget == budget]
    return min(finals, key=lambda best: best.score, default=found)


def _noted(base: Search, book: list[tuple[Ask, Seen]]) -> Search:
    """The same search, with what it has asked and seen in a book."""
    asked = next(base)
    while True:
        seen = yield asked
        book += zip(asked, seen, strict=True)
        try:
            asked = base.send(seen)
        except StopIteration as end:
            best: Best = end.value
            return best


def _cut_short(book: Sequence[tuple[Ask, Seen]], budget: Budget) -> list[Choice]:
    """Settings that never had the whole budget and did not fail with the last that they had: most calls first, then best."""
    last = {repr(ask.choice): (ask, seen) for ask, seen in book}
    short = [(ask, seen) for ask, seen in last.values() if ask.budget != budget and math.isfinite(seen.score)]
    return [ask.choice for ask, _ in sorted(short, key=lambda one: (-one[0].budget.most, one[1].score))]


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
