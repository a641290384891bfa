"""Costs to reference accuracies, ranks with intervals, profiles: tables in, tables out.

A trial that never certified an accuracy costs infinitely much there; nothing is dropped. The arithmetic of `board` is
medians, ranks and means only, so that a page can repeat it with another weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bilevelbench.report.analysis.summary import data_seeds, require, titled
from bilevelbench.results import reached
from bilevelbench.results.schema import Results
from bilevelbench.untrusted import parameters

F64 = npt.NDArray[np.float64]

MEASURES = ("first_order", "second_order", "cost", "seconds", "steps")
#: One trial of a problem, the same for every method: those that share it are compared pairwise.
PAIR = ["seed", "data_seed", "repeat"]
DRAWS = 1000
LOW, HIGH = 0.025, 0.975


def costs(results: Results, accuracies: Sequence[float]) -> pd.DataFrame:
    """One row per trial and accuracy: what it had spent at the first evaluation with |grad phi| + error <= target.

    `first_order` and `second_order` add up to `cost`, which counts samples: where only the calls of both kinds are known
    the samples are split in their ratio, which is exact on a noiseless problem and for equal batches.
    `repeat` numbers trials that agree in problem, method and both seeds.
    """
    require(results)
    runs = titled(results.runs)
    trials = pd.DataFrame(
        {
            "trial_id": runs["trial_id"],
            "problem": runs["title"],
            "method": runs["method"],
            "algorithm": runs["algorithm"],
            "seed": runs["seed"],
            "data_seed": data_seeds(runs),
            "failed": reached.failed(runs),
        }
    )
    trials["repeat"] = trials.groupby(["problem", "method", "seed", "data_seed"]).cumcount()
    parts = []
    for target in accuracies:
        met = reached.first_met(results, target)
        met["first_order"], met["second_order"] = split(met)
        spent = met.rename(columns={"step": "steps"})[list(MEASURES)].astype(float)
        spent = spent.reindex(trials["trial_id"]).fillna(np.inf).reset_index(drop=True)
        parts.append(pd.concat([trials.reset_index(drop=True).assign(target=float(target)), spent], axis=1))
    empty = trials.head(0).assign(target=0.0, **dict.fromkeys(MEASURES, 0.0))
    return pd.concat(parts, ignore_index=True) if parts else empty


def split(table: pd.DataFrame) -> tuple[F64, F64]:
    """The `cost` of each row of `curve` or `runs` in first-order and second-order samples."""
    cost = table["cost"].fillna(0.0).to_numpy(dtype=float)
    ones, twos = (table[name].to_numpy(dtype=float) for name in ("first_order", "second_order"))
    second = np.divide(cost * twos, ones + twos, out=np.zeros_like(cost), where=ones + twos > 0)
    if "second_order_samples" in table:  # NaN on an exact problem that stands beside a noisy one
        known = table["second_order_samples"].to_numpy(dtype=float)
        second = np.where(np.isnan(known), second, known)
    return cost - second, second


def weighted(costs: pd.DataFrame, weight: float = 1.0) -> F64:
    """first_order + weight * second_order, and infinity where the accuracy was not reached."""
    first, second = costs["first_order"].to_numpy(dtype=float), costs["second_order"].to_numpy(dtype=float)
    reached = np.isfinite(first)
    out: F64 = np.where(reached, first + weight * np.where(reached, second, 0.0), np.inf)
    return out


def medians(costs: pd.DataFrame, weight: float = 1.0) -> pd.DataFrame:
    """Median cost over trials by (problem, target) and method; infinite if half fail or the method did not run there."""
    table = costs.assign(_cost=weighted(costs, weight))
    middle = table.groupby(["problem", "target", "method"])["_cost"].median()
    return middle.unstack("method").fillna(np.inf)


def board(costs: pd.DataFrame, weight: float = 1.0) -> pd.DataFrame:
    """Methods by mean rank over (problem, target).

    `relative` is the median over (problem, target) of the cost over the best one's, where any method got there; `reached`
    the share of trials and targets. Of those that share a rank, the one with fewer failures stands first.
    """
    if costs.empty:
        return pd.DataFrame(columns=["method", "mean_rank", "rank", "relative", "reached"])
    table = medians(costs, weight)
    values = table.to_numpy(dtype=float)
    mean_rank = ranks(values).mean(0)
    ratio = relative(values)
    ratio = ratio[np.isfinite(values).any(1)]
    reached = np.isfinite(costs["first_order"]).groupby(costs["method"]).mean()
    out = pd.DataFrame(
        {
            "method": table.columns,
            "mean_rank": mean_rank,
            "rank": ranks(mean_rank),
            "relative": median(ratio.T) if len(ratio) else np.inf,
            "reached": reached.reindex(table.columns).to_numpy(),
        }
    )
    failed = costs.groupby("method")["failed"].mean()
    order = out.assign(_failed=failed.reindex(table.columns).to_numpy()).sort_values(["rank", "_failed", "method"])
    return order.drop(columns="_failed").reset_index(drop=True)


def rank_intervals(costs: pd.DataFrame, weight: float = 1.0, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """95% intervals of the rank on the board, and groups of methods that cannot be told apart.

    A draw takes problems with replacement and then, in each, trials with replacement: the same ones for every method. A
    method shares the group of a better one, its leader, if the interval of their difference in rank holds 0. One
    trial on one problem says nothing: then every rank is possible.
    """
    ranked = board(costs, weight)[["method", "rank"]]
    methods = sorted(ranked["method"])
    if ranked.empty:
        return ranked.assign(low=[], high=[], group=[])
    blocks = [_block(part, methods, weight) for _, part in costs.groupby("problem")]
    place = [methods.index(m) for m in ranked["method"]]
    if is_single(costs):
        return ranked.assign(low=1.0, high=float(len(methods)), group=1)
    drawn = _draw(blocks, draws, np.random.default_rng(seed))[:, place]
    low, high = (np.quantile(drawn, q, axis=0, method="inverted_cdf") for q in (LOW, HIGH))
    groups, leader = [1], 0
    for i in range(1, len(place)):
        if np.quantile(drawn[:, i] - drawn[:, leader], LOW, method="inverted_cdf") > 0:
            leader = i
        groups.append(groups[-1] + (leader == i))
    return ranked.assign(low=low, high=high, group=groups)


def is_single(costs: pd.DataFrame) -> bool:
    """One trial on one problem: there is nothing to draw from."""
    return len(costs[["problem", *PAIR]].drop_duplicates()) == 1


def performance_profile(costs: pd.DataFrame, weight: float = 1.0) -> pd.DataFrame:
    """Steps (method, tau, share): of all (problem, target, trial), the share solved within tau times the best cost."""
    table = _instances(costs, weight)
    return _steps(table, relative(table.to_numpy(dtype=float)), "tau", 1.0)


def ecdf(costs: pd.DataFrame, weight: float = 1.0) -> pd.DataFrame:
    """Steps (method, cost, share): of all (problem, target, trial), the share solved within this cost."""
    table = _instances(costs, weight)
    return _steps(table, table.to_numpy(dtype=float), "cost", 0.0)


def expected_running_time(costs: pd.DataFrame, runs: pd.DataFrame, weight: float = 1.0) -> pd.DataFrame:
    """Expected cost of restarting until success: the cost of all trials over the number of successes.

    A failed trial counts with all that `runs` says it spent, a successful one up to its success. Infinite without success.
    """
    first, second = split(runs)
    full = pd.Series(first + weight * second, index=runs["trial_id"])
    reached = weighted(costs, weight)
    solved = np.isfinite(reached)
    spent = np.where(solved, reached, full.reindex(costs["trial_id"]).to_numpy())
    table = costs.assign(_spent=spent, _solved=solved).groupby(["problem", "target", "method"])
    out = table.agg(trials=("_solved", "size"), successes=("_solved", "sum"), total=("_spent", "sum")).reset_index()
    divisor = out["successes"].where(out["successes"] > 0)
    return out.assign(expected=(out["total"] / divisor).fillna(np.inf)).drop(columns="total")


def median(values: npt.ArrayLike) -> F64:
    """Along the last axis, of what is not NaN; infinite where nothing is, or where the middle is."""
    ordered = np.sort(np.asarray(values, dtype=float), axis=-1)  # NaN come last
    count = (~np.isnan(ordered)).sum(-1, keepdims=True)
    low, high = (np.take_along_axis(ordered, np.maximum(i, 0), -1) for i in ((count - 1) // 2, count // 2))
    out: F64 = np.where(count > 0, (low + high) / 2, np.inf)[..., 0]
    return out


def ranks(values: npt.ArrayLike) -> F64:
    """1, 2, ... along the last axis from the smallest, ties averaged; infinities tie."""
    v = np.asarray(values, dtype=float)
    out: F64 = pd.DataFrame(np.atleast_2d(v)).rank(axis=1).to_numpy().reshape(v.shape)
    return out


def relative(values: F64) -> F64:
    """Each row over its smallest entry: 1 for the best, infinite for what is infinite."""
    best = values.min(-1, keepdims=True, initial=np.inf)
    finite = np.where(np.isfinite(values), values, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = finite / best
    out: F64 = np.where(np.isfinite(values), np.where(values == best, 1.0, ratio), np.inf)
    return out


def _block(part: pd.DataFrame, methods: Sequence[str], weight: float) -> F64:
    """(methods, targets, trials) of one problem; NaN where a method was not run on a trial."""
    table = _instances(part, weight, np.nan).reindex(columns=list(methods))
    targets = table.index.get_level_values("target").unique()
    out: F64 = np.stack([table.xs(t, level="target").to_numpy(dtype=float).T for t in targets], axis=1)
    return out


def _draw(blocks: Sequence[F64], draws: int, rng: np.random.Generator) -> F64:
    """Ranks on the board, (draws, methods)."""
    chosen = rng.integers(0, len(blocks), size=(draws, len(blocks)))
    total, count = np.zeros((draws, len(blocks[0]))), np.zeros((draws, 1))
    for n, block in enumerate(blocks):
        where = np.nonzero(chosen == n)[0]
        picks = rng.integers(0, block.shape[-1], size=(len(where), block.shape[-1]))
        for target in range(block.shape[1]):
            middle = median(block[:, target][:, picks])
            np.add.at(total, where, ranks(middle.T))
            np.add.at(count, where, 1.0)
    return ranks(total / count)


def _instances(costs: pd.DataFrame, weight: float, absent: float = np.inf) -> pd.DataFrame:
    """Cost by (problem, target, trial) and method; `absent` where a method was not run on a trial that others were."""
    table: Any = costs.assign(_cost=weighted(costs, weight))
    table = table.set_index(["problem", "target", *PAIR, "method"])["_cost"].unstack("method")
    index = table.index
    return pd.DataFrame(np.where(np.isnan(table), absent, table), index=index, columns=table.columns)


def _steps(table: pd.DataFrame, values: F64, name: str, start: float) -> pd.DataFrame:
    """The empirical distribution of each column, from `start` on."""
    if not len(table.columns):
        return pd.DataFrame(columns=["method", name, "share"])
    places = [np.unique(np.append(column[np.isfinite(column)], start)) for column in values.T]
    shares = [
        np.searchsorted(np.sort(column), at, side="right") / max(len(column), 1)
        for column, at in zip(values.T, places, strict=True)
    ]
    methods = table.columns.repeat([len(at) for at in places])
    return pd.DataFrame({"method": methods, name: np.concatenate(places), "share": np.concatenate(shares)})


def ranking(results: Results, accuracies: Sequence[float], weight: float = 1.0) -> pd.DataFrame:
    """The board with rank intervals and groups: what a report prints."""
    table = costs(results, accuracies)
    intervals = rank_intervals(table, weight)[["method", "low", "high", "group"]]
    return board(table, weight).merge(intervals, on="method")


def sensitivity(results: Results) -> pd.DataFrame:
    """Median best |grad phi| of each configuration, by each numeric parameter that varies for its method and problem.

    A failed trial's score is infinite.
    """
    require(results)
    runs = titled(results.runs)
    params = runs["algorithm_params"].map(_numbers)
    score = runs["trial_id"].map(reached.best(results))
    rows = []
    for (problem, algorithm), group in runs.assign(_score=score).groupby(["title", "algorithm"]):
        names = {name for i in group.index for name in params[i]}
        varied = [name for name in sorted(names) if len({params[i].get(name) for i in group.index}) > 1]
        for given, part in group.groupby("algorithm_params"):
            middle = float(median(part["_score"].to_numpy()))
            mine = _numbers(str(given))
            head = {"problem": problem, "algorithm": algorithm, "configuration": given}
            rows += [
                head | {"parameter": name, "value": mine[name], "score": middle, "trials": len(part)}
                for name in varied
                if name in mine
            ]
    columns = ["problem", "algorithm", "configuration", "parameter", "value", "score", "trials"]
    return pd.DataFrame(rows, columns=columns)


def _numbers(algorithm_params: str) -> dict[str, float]:
    given = parameters(algorithm_params) or {}
    return {k: float(v) for k, v in given.items() if isinstance(v, int | float) and not isinstance(v, bool)}
