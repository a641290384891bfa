"""Preset `tuned`: at every value of the grid the x-step that takes the fewest calls, and what one of twice its length does.

The row's own first step is halved until it gets there; then all steps up to four times that one run in one pack, each with
as many outer steps as the best so far took: what takes more is not better. Where the best is twice the first or longer, the
same again from there. With `tuned_over` this is done for each choice of some other parameters, and the cheapest is taken.

From the third value of a grid on the two before it tell where to look, and how many steps that will take: the pack runs at
once, from a little below the x-step expected, and no run is spent on finding one that works. Only if nothing gets there within
those outer steps is the value searched as the first one is. A round has one value of every row, so that all workers are busy.
The results decide what is tried next, so a search that was stopped goes on where it was.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from bilevelbench.discovery.registry import Registry
from bilevelbench.plan.trial import Trial
from bilevelbench.results.schema import Results
from bilevelbench.studies.rates.plan import Point, plan_row, whole
from bilevelbench.studies.rates.suite import RateRow, RateSuite

#: Runs trials that are not stored yet and returns everything that is.
Run = Callable[[Sequence[Trial]], Results]

_FURTHEST = 20  # doublings in each direction
_FINE, _COARSE = 32, 8  # tries in the first doubling above a step that works, and in the second
_ABOVE = (*(i / _FINE for i in range(1, _FINE + 1)), *(1 + i / _COARSE for i in range(1, _COARSE + 1)))
_BELOW, _LONGER = 0.25, 1.25  # of what two values predict: powers of two below the x-step, times the outer steps


@dataclass
class _Search:
    """What was tried at one value: by the power of two on the first x-step, the mean logarithm of the calls, or infinity.

    `base` is the power from which it looks upwards, `guess` the outer steps that the first pack may take; 0: it was wrong.
    """

    value: float
    params: dict[str, Any] = field(default_factory=dict)
    tried: dict[float, float] = field(default_factory=dict)
    steps: dict[float, int] = field(default_factory=dict)
    base: float = 0.0
    guess: int | None = None

    @property
    def best(self) -> float | None:
        good = {power: calls for power, calls in self.tried.items() if math.isfinite(calls)}
        return min(good, key=lambda power: good[power]) if good else None

    @property
    def calls(self) -> float:
        """The logarithm of the fewest."""
        return min(self.tried.values(), default=math.inf)

    def wanted(self) -> list[float]:
        """The powers to try next; none: done."""
        best = self.best
        if self.guess and not self.tried:
            return [self.base + part for part in (0.0, *_ABOVE)]
        if best is None:
            lower = min(self.tried, default=self.base + 1) - 1
            return [lower] if -lower <= _FURTHEST or not self.tried else []
        known = self.base + math.floor(best - self.base)
        return [p for part in _ABOVE if (p := known + part) not in self.tried and p <= _FURTHEST]

    def cap(self) -> int | None:
        best = self.best
        if best is None:
            return None if self.tried else self.guess or None
        return self.steps[best]

    def follow(self, last: _Search, before: _Search) -> None:
        """Start where the two values before this one say: x-steps and outer steps are on their line, with some room."""
        if last.best is None or before.best is None:
            return
        on = math.log(self.value / last.value) / math.log(last.value / before.value)
        steps, earlier = last.steps[last.best], before.steps[before.best]
        expected = min(last.best, last.best + on * (last.best - before.best))
        self.base = math.floor(_FINE * (expected - _BELOW)) / _FINE  # exact in binary, as all powers are
        self.guess = math.ceil(_LONGER * steps * (steps / earlier) ** on)

    def doubt(self) -> None:
        """If nothing got there within the steps that were guessed, search as at the first value: too little was learnt."""
        if self.guess and self.best is None:
            self.base, self.guess = self.base - 1, 0
            self.tried.clear()

    def twice(self) -> tuple[float, bool] | None:
        """The shortest step tried of at least twice the best one's length, over that, and whether it got there."""
        best = self.best
        above = [power for power in self.tried if best is not None and power >= best + 1]
        if best is None or not above:
            return None
        return 2.0 ** (min(above) - best), math.isfinite(self.tried[min(above)])


@dataclass(frozen=True)
class TunedRow:
    """The trials of the best x-steps, and a sentence on those and on longer ones."""

    points: list[Point]
    told: str


def search(rows: Sequence[RateRow], suite: RateSuite, registry: Registry, run: Run) -> list[TunedRow]:
    """All rows at once, one round of tries after the other; along each grid one value after the other."""
    chains = [[[_Search(value, params) for value in row.grid()] for params in _choices(row)] for row in rows]
    kept: dict[tuple[int, float], list[Point]] = {}
    while todo := [(row, s) for row, mine in zip(rows, chains, strict=True) for c in mine if (s := _current(c))]:
        planned = {(id(s), power): _plan(row, suite, registry, s, power) for row, s in todo for power in s.wanted()}
        runs = run([p.trial for points in planned.values() for p in points]).runs.set_index("trial_id")
        kept |= planned
        for row, s in todo:
            for power in s.wanted():
                _note(row, s, power, runs.loc[[p.trial.id for p in planned[id(s), power]]])
            s.doubt()
    return [_tuned_row(row, [s for c in mine for s in c], kept) for row, mine in zip(rows, chains, strict=True)]


def _current(chain: Sequence[_Search]) -> _Search | None:
    """The first value of a grid at which something is left to try, with what those before it tell."""
    for i, s in enumerate(chain):
        if i > 1 and s.guess is None and not s.tried:
            s.follow(chain[i - 1], chain[i - 2])
        if s.wanted():
            return s
    return None


def _choices(row: RateRow) -> list[dict[str, Any]]:
    return [dict(zip(row.tuned_over, choice, strict=True)) for choice in itertools.product(*row.tuned_over.values())]


def _tuned_row(row: RateRow, searches: Sequence[_Search], kept: Mapping[tuple[int, float], list[Point]]) -> TunedRow:
    chosen = [min((s for s in searches if s.value == value), key=lambda s: s.calls) for value in row.grid()]
    best = [kept[id(s), s.best if s.best is not None else min(s.tried)] for s in chosen]
    return TunedRow([point for points in best for point in points], _told(row, chosen))


def _plan(row: RateRow, suite: RateSuite, registry: Registry, s: _Search, power: float) -> list[Point]:
    cap = s.cap()
    caps = None if cap is None else {s.value: cap}
    with_choice = row.model_copy(update={"params": row.params | s.params})
    return plan_row(
        with_choice, suite, registry, "tuned", grid=[s.value], caps=caps, factor=row.tuned_from * 2.0**power
    )


def _note(row: RateRow, s: _Search, power: float, frame: pd.DataFrame) -> None:
    reached = s.value in whole(row, {s.value: frame})
    s.tried[power] = float(frame["cost"].map(math.log).mean()) if reached else math.inf
    s.steps[power] = int(frame["steps"].max())


def _told(row: RateRow, searches: Sequence[_Search]) -> str:
    known = [s for s in searches if s.best is not None]
    if not known:
        return "no x-step got there"
    factors = " ".join(f"{row.tuned_from * 2.0**s.best:.3g}" for s in known if s.best is not None)
    told = f"x-step {factors} times the preset's"
    for name in row.tuned_over:
        told += f", {name} {' '.join(str(s.params[name]) for s in known)}"
    longer = [found for s in known if (found := s.twice()) is not None]
    if not longer:
        return told
    times = sorted(times for times, _ in longer)
    between = f"{times[0]:.3g}" if times[0] == times[-1] else f"{times[0]:.3g} to {times[-1]:.3g}"
    lost = sum(not reached for _, reached in longer)
    return f"{told}; steps {between} times as long did not get there in as many steps at {lost} of {len(longer)} values"
