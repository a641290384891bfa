"""How sure ranks are: intervals by resampling, bands of methods that cannot be told apart, and the board with both."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

import numpy as np
import numpy.typing as npt
import pandas as pd

from bilevelbench.report.analysis.coinciding import merged
from bilevelbench.report.analysis.ranking import F64, PAIR, board, costs, counted, median, ranks, weighted
from bilevelbench.results.schema import Results

DRAWS = 1000
LOW, HIGH = 0.025, 0.975
#: Resamples of the trials of a problem, as a share of the draws, which take them from there: medians are what takes time.
_POOL = 0.2


def rank_intervals(costs: pd.DataFrame, weight: float = 1.0, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """95% intervals of the rank on the board, and `bands` of methods that cannot be told apart.

    A draw takes problems with replacement and then, in each, trials with replacement: the same ones for every method. Two
    methods share a band, a letter, if and only if the interval of the difference of their mean ranks holds 0. One
    trial on one problem says nothing: then every rank is possible.
    """
    return Resampling(costs).intervals(weight, draws, seed)


class Resampling:
    """`rank_intervals` of the same costs at several prices: what does not depend on the price is worked out once."""

    def __init__(self, costs: pd.DataFrame) -> None:
        self.costs = costs
        self.methods = pd.Index(sorted(costs["method"].unique()))
        kept = counted(costs) if len(costs) else costs
        self.blocks = [_Block(part, self.methods) for _, part in kept.groupby("problem")]

    def intervals(self, weight: float = 1.0, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
        ranked = board(self.costs, weight)[["method", "rank"]]
        if is_single(self.costs):
            return ranked.assign(low=1.0, high=float(len(ranked)), bands="a")
        if not self.blocks:
            return ranked.assign(low=ranked["rank"], high=ranked["rank"], bands="a")
        order = self.methods.get_indexer(ranked["method"])
        blocks = [block.costs(weight)[order] for block in self.blocks]
        drawn = _draw(blocks, draws, np.random.default_rng(seed))
        low, high = (np.quantile(ranks(drawn), q, axis=0, method="inverted_cdf") for q in (LOW, HIGH))
        return ranked.assign(low=low, high=high, bands=letters(bands(apart(drawn))))


def is_single(costs: pd.DataFrame) -> bool:
    """One trial on one problem: there is nothing to draw from."""
    return len(costs[["problem", *PAIR]].drop_duplicates()) == 1


def apart(drawn: F64) -> npt.NDArray[np.bool_]:
    """For each pair of columns whether the 95% interval of their difference, draw by draw, leaves out 0."""
    count = drawn.shape[1]
    out = np.zeros((count, count), dtype=bool)
    for one in range(count):
        difference = drawn[:, [one]] - drawn
        out[one] = ((difference <= 0).mean(0) < LOW) | ((difference >= 0).mean(0) < LOW)
    return out


def bands(apart: npt.NDArray[np.bool_]) -> list[list[int]]:
    """The bands of each method: two share one if and only if they are not apart, which need not be transitive.

    Every pair that is not apart grows into a band, from the first method on, unless it is in one already.
    """
    count = len(apart)
    covered = apart.copy()
    found: list[list[int]] = [[] for _ in range(count)]
    number = 0
    for first, second in ((i, j) for i in range(count) for j in range(i, count)):
        if covered[first, second] or (first == second and found[first]):
            continue
        members = [first, second] if first != second else [first]
        for other in range(count):
            if other not in members and not apart[other, members].any():
                members.append(other)
        covered[np.ix_(members, members)] = True
        for member in members:
            found[member].append(number)
        number += 1
    return found


def letters(numbers: Sequence[Sequence[int]]) -> list[str]:
    """`a b`: the bands of each method as readers see them; aa follows z."""
    return [" ".join(_letter(n) for n in sorted(its)) for its in numbers]


def _letter(number: int) -> str:
    more, last = divmod(number, 26)
    return (_letter(more - 1) if more else "") + ascii_lowercase[last]


class _Block:
    """The costs of one problem, (methods, targets, trials), at any price; NaN where a method was not run on a trial."""

    def __init__(self, part: pd.DataFrame, methods: pd.Index) -> None:
        targets, trials = (part.groupby(by, observed=True, dropna=False).ngroup().to_numpy() for by in ("target", PAIR))
        self.place = methods.get_indexer(pd.Index(part["method"])), targets, trials
        self.shape = len(methods), 1 + targets.max(), 1 + trials.max()
        self.part = part

    def costs(self, weight: float) -> F64:
        out = np.full(self.shape, np.nan)
        out[self.place] = weighted(self.part, weight)
        return out


def _draw(blocks: Sequence[F64], draws: int, rng: np.random.Generator) -> F64:
    """Mean ranks over cells, (draws, methods)."""
    pool = max(round(_POOL * draws), draws // len(blocks))
    sums = np.stack([_resampled(block, pool, rng) for block in blocks])
    sizes = np.array([block.shape[1] for block in blocks])
    total, count = np.zeros((draws, len(blocks[0]))), np.zeros((draws, 1))
    for _ in blocks:
        chosen = rng.integers(0, len(blocks), size=draws)
        total += sums[chosen, rng.integers(0, pool, size=draws)]
        count += sizes[chosen, None]
    out: F64 = total / count
    return out


def _resampled(block: F64, pool: int, rng: np.random.Generator) -> F64:
    """Sums of the ranks in the cells of one problem, (pool, methods), each with trials drawn anew."""
    trials = block.shape[-1]
    picks = rng.integers(0, trials, size=(pool, trials))
    out = np.zeros((pool, len(block)))
    for target in range(block.shape[1]):
        out += ranks(median(block[:, target][:, picks]).T)
    return out


def ranking(results: Results, accuracies: Sequence[float], weight: float = 1.0) -> pd.DataFrame:
    """The board with rank intervals and bands: what a report prints. Methods that coincide are in one row."""
    one = merged(results)
    table = one.one_each(costs(results, accuracies))
    intervals = rank_intervals(table, weight)[["method", "low", "high", "bands"]]
    return one.labelled(board(table, weight).merge(intervals, on="method"))
