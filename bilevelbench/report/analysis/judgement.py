"""The rules of an experiment's claims: what the trials say about each of them, as a word with the numbers behind it.

    ranking       paired differences of trials with the same seed and data, and Student's interval of their mean: reproduced
                  where all of it is on the claimed side of 0, not reproduced where it is on the other, else tied; where a
                  trial diverged, the share of pairs that are won, with Wilson's interval and 1/2 instead of 0
    separation    the probabilities to end below the bound, with Wilson's intervals: tied where they overlap, reproduced where
                  ours lies above theirs; not reproduced where it lies below, or a bound does not hold in the median
    falls         in every trial

Two methods whose trials show the same numbers from start to end are confounded: nothing follows about either.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bilevelbench.plan.figure import Compared, Falls, FigureCheck, Ranking, Separation
from bilevelbench.report.analysis.confidence import mean_interval, wilson
from bilevelbench.report.analysis.experiment_trials import PlannedTrials, Untold
from bilevelbench.report.text import number

REPRODUCED, TIED, NOT_REPRODUCED = "reproduced", "tied", "not reproduced"
CONFOUNDED, UNTOLD = "confounded", "cannot be told"


@dataclass(frozen=True)
class Finding:
    """What the trials on one problem say about a claim: both sides as cells of a table, how many trials or pairs, and why."""

    word: str
    ours: str
    theirs: str
    seeds: int
    reason: str


def findings(check: FigureCheck, trials: PlannedTrials) -> Iterator[Finding]:
    """One for each pair of methods that a claim compares; of a claim about falling, one for all of its methods."""
    if isinstance(check, Falls):
        methods = check.methods or trials.methods
        yield _told(", ".join(methods), "", lambda: _falls(check, trials, methods))
        return
    sides = (check.better, check.worse) if isinstance(check, Ranking) else (check.low, check.high)
    for ours, theirs in itertools.product(*sides):
        rule = functools.partial(_compared, check, trials, ours, theirs)
        yield _told(ours, theirs, rule)


def _told(ours: str, theirs: str, rule: Callable[[], Finding]) -> Finding:
    try:
        return rule()
    except Untold as untold:
        return Finding(UNTOLD, ours, theirs, 0, str(untold))


# ---- falls


def _falls(check: Falls, trials: PlannedTrials, methods: Sequence[str]) -> Finding:
    outcomes = [_factor(check, trials, column, methods) for column in check.columns]
    outcomes += [_drop(trials, column, methods) for column in check.lower]
    lost = [text for text in map(trials.diverged, methods) if text]
    count = sum(len(trials.of(method)) for method in methods)
    held = sum(fell == count for fell, _ in outcomes)
    word = REPRODUCED if held == len(outcomes) else NOT_REPRODUCED
    ours = f"{', '.join(methods)}: {held} of {len(outcomes)} columns fall in every trial"
    return Finding(word, ours, "", count, "; ".join([*(text for _, text in outcomes), *lost]))


def _factor(check: Falls, trials: PlannedTrials, column: str, methods: Sequence[str]) -> tuple[int, str]:
    """In how many trials it falls, and the numbers that say so."""
    start, end = trials.ends(column, methods)
    factor = start / end
    fell, ended = int((factor >= check.factor).sum()), factor.dropna()
    told = f"from {number(start[ended.index].median())} to {number(end[ended.index].median())} in the median, "
    told += f"by a factor of {_rounded_down(ended.min())} at least"
    how = f"falls {check.factor:,g}-fold"
    return fell, _counted(trials, column, how, fell, len(start), len(ended), told)


def _drop(trials: PlannedTrials, column: str, methods: Sequence[str]) -> tuple[int, str]:
    start, end = trials.ends(column, methods)
    drop = start - end
    fell, ended = int((drop > 0).sum()), drop.dropna()
    way = "by" if ended.median() >= 0 else "up by"
    told = f"from {number(start[ended.index].median(), 4)} {way} {number(abs(ended.median()))} in the median"
    return fell, _counted(trials, column, "falls", fell, len(start), len(ended), told)


def _counted(trials: PlannedTrials, column: str, how: str, fell: int, count: int, ended: int, told: str) -> str:
    """`phi falls in 2 of 3 trials (..., of 2 that have an end)`: what is told is about those that have one."""
    of = "" if ended == count else f", of {ended} that have an end"
    told = f"{told}{of}" if ended else "none has an end"
    return f"{trials.labels.get(column, column)} {how} in {fell} of {count} trials ({told})"


def _rounded_down(factor: float) -> str:
    """To two digits, for a sentence that says `at least`."""
    if not math.isfinite(factor) or factor == 0:
        return "∞" if factor == math.inf else number(factor)
    unit = 10.0 ** (math.floor(math.log10(abs(factor))) - 1)
    return number(math.floor(factor / unit * (1 + 1e-12)) * unit)


# ---- two methods


def _compared(check: Ranking | Separation, trials: PlannedTrials, ours: str, theirs: str) -> Finding:
    cost = math.inf if check.at == "end" else trials.common_cost([ours, theirs])
    ends = trials.end(check.column, ours, cost), trials.end(check.column, theirs, cost)
    pairs = trials.pairs(ours, theirs)
    if isinstance(check, Ranking):
        finding = _ranking(check, trials, (ours, theirs), ends, pairs)
    else:
        finding = _separation(check, trials, (ours, theirs), ends)
    if trials.coincide(check.column, pairs):
        reason = (
            f"{ours} and {theirs} have the same {_name(check, trials)} from start to end in "
            f"{_pairs(len(pairs))}: with these parameters they are one method"
        )
        return replace(finding, word=CONFOUNDED, reason=reason)
    return finding


_Ends = tuple["pd.Series[float]", "pd.Series[float]"]


def _ranking(
    check: Ranking, trials: PlannedTrials, names: tuple[str, str], ends: _Ends, pairs: Sequence[tuple[str, str]]
) -> Finding:
    sign = 1.0 if check.best == "lowest" else -1.0
    a, b = (side.fillna(sign * math.inf) for side in ends)
    ours, theirs = (_mean_cell(trials, name, side) for name, side in zip(names, ends, strict=True))
    what = f"mean {_name(check, trials)} at {_when(check)}, {check.best} is best: {ours} against {theirs}"
    ahead = [_ahead(sign * a[one], sign * b[other]) for one, other in pairs]
    word, told = _lead(names, ahead)
    return Finding(word, ours, theirs, len(pairs), f"{what}; {told}")


def _ahead(ours: float, theirs: float) -> float:
    """How much smaller ours is; two that have no end are alike."""
    return 0.0 if ours == theirs else theirs - ours


def _lead(names: tuple[str, str], ahead: Sequence[float]) -> tuple[str, str]:
    ours, theirs = names
    many = _pairs(len(ahead))
    if len(ahead) < 2:
        return UNTOLD, "one pair of trials says nothing about chance; run more seeds or data sets"
    if not all(map(math.isfinite, ahead)):  # somebody diverged: there are signs, and no mean
        won, lost = sum(one > 0 for one in ahead), sum(one < 0 for one in ahead)
        told = f"{ours} is ahead in {won} of {many} and behind in {lost}"
        if wilson(won, len(ahead))[0] > 0.5:
            return REPRODUCED, told
        return (NOT_REPRODUCED, told) if wilson(lost, len(ahead))[0] > 0.5 else (TIED, f"{told}, which may be chance")
    low, high = mean_interval(ahead)
    mean = sum(ahead) / len(ahead)
    told = f"by {number(abs(mean))} [{number(min(abs(low), abs(high)))}, {number(max(abs(low), abs(high)))}] in {many}"
    if low > 0:
        return REPRODUCED, f"{ours} is ahead {told}"
    if high < 0:
        return NOT_REPRODUCED, f"{ours} is behind {told}"
    return TIED, f"{theirs} less {ours} is {number(mean)} [{number(low)}, {number(high)}] in {many}, which may be 0"


def _separation(check: Separation, trials: PlannedTrials, names: tuple[str, str], ends: _Ends) -> Finding:
    middles = [statistics.median(side.fillna(math.inf)) for side in ends]
    if math.isinf(middles[1]):
        reason = trials.diverged(names[1]) or f"too few trials of {names[1]} have a value"
        raise Untold(f"{reason}, which is neither above nor below {check.above:g}")
    hits = [int((side < check.below).sum()) for side in ends]
    (low, high), (their_low, their_high) = (wilson(hit, len(side)) for hit, side in zip(hits, ends, strict=True))
    cells = [_share_cell(check, *one) for one in zip(names, hits, ends, strict=True)]
    above = f"{int((ends[1] > check.above).sum())} of {len(ends[1])} above {check.above:g}"
    if middles[0] >= check.below or high < their_low:
        word = NOT_REPRODUCED
    elif low <= their_high:  # both find it as often, as far as these trials tell
        word = TIED
    else:
        word = REPRODUCED if middles[1] > check.above else NOT_REPRODUCED
    told = [
        f"{_middle(trials, name, middle)} ({cell.removeprefix(f'{name}: ')}{more})"
        for name, middle, cell, more in zip(names, middles, cells, ("", f"; {above}"), strict=True)
    ]
    what = f"median {_name(check, trials)} at {_when(check)}"
    return Finding(word, cells[0], f"{cells[1]}; {above}", len(ends[0]), f"{what}: {told[0]} against {told[1]}")


def _share_cell(check: Separation, name: str, hits: int, ends: pd.Series[float]) -> str:
    low, high = wilson(hits, len(ends))
    return f"{name}: {hits} of {len(ends)} trials below {check.below:g}, probability [{low:.2f}, {high:.2f}]"


def _mean_cell(trials: PlannedTrials, name: str, ends: pd.Series[float]) -> str:
    """`F2BA 1.441 [1.432, 1.450]`: the mean of the trials that have an end, and its interval."""
    there = ends.dropna().to_list()
    interval = ""
    if len(there) > 1:
        low, high = mean_interval(there)
        interval = f" [{number(low, 4)}, {number(high, 4)}]"
    mean = number(sum(there) / len(there), 4) if there else "none"
    lost = trials.diverged(name)
    return f"{name} {mean}{interval}" + (f" ({lost})" if lost else "")


def _middle(trials: PlannedTrials, name: str, middle: float) -> str:
    lost = trials.diverged(name)
    value = number(middle, 4) if math.isfinite(middle) else "none"
    return f"{name} {value}" + (f", {lost}" if lost else "")


def _name(check: Compared, trials: PlannedTrials) -> str:
    return trials.labels.get(check.column, check.column)


def _when(check: Compared) -> str:
    return "the end" if check.at == "end" else "equal cost"


def _pairs(count: int) -> str:
    return f"{count} pair{'s' if count > 1 else ''} of trials"
