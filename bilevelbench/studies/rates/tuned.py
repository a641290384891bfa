"""Preset `tuned`: at every value of the grid the x-step that takes the fewest calls, and what a longer one does.

A search by doubling from the row's own start, upwards while it pays and downwards while nothing gets there, then a second one
by eighth roots of two between the best step and its double. Each try may take as many steps as the best so far: what takes
more is not better. The value's own results decide what is tried next, so a search that was stopped goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bilevelbench.discovery.registry import Registry
from bilevelbench.plan.trial import Trial
from bilevelbench.results.schema import Results
from bilevelbench.studies.rates.plan import Point, plan_row, runs_by_value, whole
from bilevelbench.studies.rates.suite import RateRow, RateSuite

#: Runs trials that are not stored yet and returns everything that is.
Run = Callable[[Sequence[Trial]], Results]

_FURTHEST = 20  # doublings in each direction
_BETWEEN = tuple(i / 8 for i in range(1, 8))


@dataclass
class _Search:
    """What was tried at one value: by the power of two on the first x-step, the mean logarithm of the calls, or infinity."""

    value: float
    tried: dict[float, float] = field(default_factory=dict)
    steps: dict[float, int] = field(default_factory=dict)

    @property
    def best(self) -> float | None:
        good = {power: calls for power, calls in self.tried.items() if math.isfinite(calls)}
        return min(good, key=lambda power: good[power]) if good else None

    def wanted(self) -> list[float]:
        """The powers to try next; none: done."""
        best = self.best
        if best is None:
            lower = min(self.tried, default=1.0) - 1
            return [lower] if -lower <= _FURTHEST else []
        if best == round(best) and best + 1 not in self.tried and best < _FURTHEST:
            return [best + 1]
        return [power for part in _BETWEEN if (power := math.floor(best) + part) not in self.tried]

    def cap(self) -> int | None:
        best = self.best
        return None if best is None else self.steps[best]

    def longer(self) -> tuple[float, bool] | None:
        """The next longer step that was tried, over the best one, and whether it got there."""
        best = self.best
        above = [power for power in self.tried if best is not None and power > best]
        if best is None or not above:
            return None
        return 2.0 ** (min(above) - best), math.isfinite(self.tried[min(above)])


@dataclass(frozen=True)
class TunedRow:
    """The trials of the best x-steps, and a sentence on those and on longer ones."""

    points: list[Point]
    told: str


def search(row: RateRow, suite: RateSuite, registry: Registry, run: Run) -> TunedRow:
    """All values of the grid at once, one round of tries after the other."""
    searches = [_Search(value) for value in row.grid()]
    kept: dict[tuple[float, float], list[Point]] = {}
    while any(s.wanted() for s in searches):
        planned = {(s.value, power): _plan(row, suite, registry, s, power) for s in searches for power in s.wanted()}
        results = run([p.trial for points in planned.values() for p in points])
        kept |= planned
        for s in searches:
            for power in [power for value, power in planned if value == s.value]:
                _note(row, s, power, planned[s.value, power], results)
    points: list[Point] = []
    for s in searches:
        points += kept[s.value, s.best if s.best is not None else min(s.tried)]
    return TunedRow(points, _told(row, searches))


def _plan(row: RateRow, suite: RateSuite, registry: Registry, s: _Search, power: float) -> list[Point]:
    cap = s.cap()
    caps = None if cap is None else {s.value: cap}
    return plan_row(row, suite, registry, "tuned", grid=[s.value], caps=caps, factor=row.tuned_from * 2.0**power)


def _note(row: RateRow, s: _Search, power: float, points: Sequence[Point], results: Results) -> None:
    frame = runs_by_value(points, results)[s.value]
    reached = s.value in whole(row, {s.value: frame})
    s.tried[power] = float(frame["cost"].map(math.log).mean()) if reached else math.inf
    s.steps[power] = int(frame["steps"].max())


def _told(row: RateRow, searches: Sequence[_Search]) -> str:
    known = [s for s in searches if s.best is not None]
    if not known:
        return "no x-step got there"
    factors = " ".join(f"{row.tuned_from * 2.0**s.best:.3g}" for s in known if s.best is not None)
    longer = [found for s in known if (found := s.longer()) is not None]
    told = f"x-step {factors} times the preset's"
    if not longer:
        return told
    times = sorted(times for times, _ in longer)
    between = f"{times[0]:.2f}" if times[0] == times[-1] else f"{times[0]:.2f} to {times[-1]:.2f}"
    lost = sum(not reached for _, reached in longer)
    return (
        f"{told}; the next longer steps, {between} times that, did not get there in as many steps at {lost} of "
        f"{len(longer)} values"
    )
