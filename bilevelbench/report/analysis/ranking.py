"""Costs to reference accuracies, ranks, profiles: tables in, tables out.

A trial that never certified an accuracy costs infinitely much there. A cell, a problem and an accuracy, tells methods apart
unless nobody reached it or everyone met it at no cost: those are not `counted`. The arithmetic of `board` is
medians, ranks and means only, so that a page can repeat it with another weight.
"""

from __future__ import annotations

import math
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
CELL = ["problem", "target"]


def costs(results: Results, accuracies: Sequence[float]) -> pd.DataFrame:
    """One row per trial and accuracy: what it had spent at the first evaluation with |grad phi| + error <= `absolute`.

    That is `target`, the accuracy, times |grad phi| at the start.
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
    start = trials["trial_id"].map(reached.starts(results)["start"]).to_numpy(dtype=float)
    trials["repeat"] = trials.groupby(["problem", "method", "seed", "data_seed"]).cumcount()
    parts = []
    for target, met in zip(accuracies, reached.first_met(results, accuracies), strict=True):
        met["first_order"], met["second_order"] = split(met)
        spent = met.rename(columns={"step": "steps"})[list(MEASURES)].astype(float)
        spent = spent.reindex(trials["trial_id"]).fillna(np.inf).reset_index(drop=True)
        held = trials.reset_index(drop=True).assign(target=float(target), absolute=target * start)
        parts.append(pd.concat([held, spent], axis=1))
    empty = trials.head(0).assign(target=0.0, absolute=0.0, **dict.fromkeys(MEASURES, 0.0))
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


def uncounted(costs: pd.DataFrame) -> pd.DataFrame:
    """The cells that tell nobody apart, with `everyone`: met by every method at no cost, or else by nobody."""
    cells = costs.assign(_met=np.isfinite(costs["first_order"])).groupby(CELL)
    met = cells["_met"].any()
    free = costs.groupby([*CELL, "method"])["cost"].median().groupby(CELL).max() == 0
    return pd.DataFrame({"everyone": free})[free | ~met].reset_index()


def counted(costs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the cells that tell methods apart."""
    lost = pd.MultiIndex.from_frame(uncounted(costs)[CELL])
    return costs[~pd.MultiIndex.from_frame(costs[CELL]).isin(lost)]


def uncounted_words(costs: pd.DataFrame) -> str:
    """Which cells are not counted and why, as a sentence; empty where all are."""
    lost, said = uncounted(costs), []
    targets = sorted(costs["target"].unique(), reverse=True)
    for everyone, why in ((False, "nobody reached"), (True, "everyone met at no cost")):
        part = lost[lost["everyone"] == everyone]
        alike: dict[str, list[str]] = {}
        for problem, its in part.groupby("problem")["target"]:
            alike.setdefault(_accuracies(sorted(its, reverse=True), targets), []).append(str(problem))
        if alike:
            places = "; ".join(f"{which} on {', '.join(problems)}" for which, problems in sorted(alike.items()))
            said.append(f"{places}, which {why}")
    return f"Not counted: {'; '.join(said)}." if said else ""


def power(target: float) -> str:
    """`10^-2.5`: the accuracies are powers of ten; others are numbers."""
    exponent = round(math.log10(target), 6) if target > 0 else math.nan
    return f"10^{exponent:g}" if 2 * exponent == round(2 * exponent) else f"{target:g}"


def _accuracies(some: Sequence[float], of: Sequence[float]) -> str:
    """In words, both from the coarsest to the finest: an end of all of them by where it begins."""
    if len(some) == len(of):
        return "every accuracy"
    if list(some) == list(of[-len(some) :]):
        return f"{power(some[0])} and finer" if len(some) > 1 else power(some[0])
    if list(some) == list(of[: len(some)]) and len(some) > 1:
        return f"{power(some[-1])} and coarser"
    return ", ".join(power(target) for target in some)


def board(costs: pd.DataFrame, weight: float = 1.0) -> pd.DataFrame:
    """Methods by mean rank over the cells that are counted.

    `relative` is the median over cells of the cost over the best one's, where any method got there; `reached` the share of
    trials and targets. Of those that share a rank, the one with fewer failures stands first.
    """
    if costs.empty:
        return pd.DataFrame(columns=["method", "mean_rank", "rank", "relative", "reached"])
    methods = pd.Index(sorted(costs["method"].unique()), name="method")
    kept = counted(costs)
    values = medians(kept, weight).reindex(columns=methods, fill_value=np.inf).to_numpy(dtype=float)
    mean_rank = ranks(values).mean(0) if len(values) else np.full(len(methods), (len(methods) + 1) / 2)
    ratio = relative(values[np.isfinite(values).any(1)])
    reached = np.isfinite(kept["first_order"]).groupby(kept["method"]).mean()
    out = pd.DataFrame(
        {
            "method": methods,
            "mean_rank": mean_rank,
            "rank": ranks(mean_rank),
            "relative": median(ratio.T) if len(ratio) else np.inf,
            "reached": reached.reindex(methods, fill_value=0.0).to_numpy(),
        }
    )
    failed = costs.groupby("method")["failed"].mean()
    order = out.assign(_failed=failed.reindex(methods).to_numpy()).sort_values(["rank", "_failed", "method"])
    return order.drop(columns="_failed").reset_index(drop=True)


def by_problem(costs: pd.DataFrame, weight: float = 1.0) -> pd.DataFrame:
    """Of each method (rows) on each problem the median over counted accuracies of the cost over the best one's there.

    Infinite where it did not reach more than half of them, NaN on a problem of which nothing is counted.
    """
    table = medians(counted(costs), weight)
    ratio = pd.DataFrame(relative(table.to_numpy(dtype=float)), index=table.index, columns=table.columns)
    ratio = ratio[np.isfinite(ratio.to_numpy()).any(1)]
    groups = {str(problem): median(part.to_numpy().T) for problem, part in ratio.groupby(level="problem")}
    out = pd.DataFrame(groups, index=table.columns)
    return out.reindex(columns=sorted(costs["problem"].unique()))


def wins(costs: pd.DataFrame, weight: float = 1.0) -> pd.DataFrame:
    """The share of the counted cells on which the method of the row costs less than that of the column."""
    table = medians(counted(costs), weight)
    values = table.to_numpy(dtype=float)
    shares = (values[:, :, None] < values[:, None, :]).mean(0) if len(values) else np.zeros((values.shape[1],) * 2)
    return pd.DataFrame(shares, index=table.columns, columns=table.columns)


def performance_profile(costs: pd.DataFrame, weight: float = 1.0) -> pd.DataFrame:
    """Steps (method, tau, share): of all (problem, target, trial) counted, the share within tau times the best cost."""
    table = instances(counted(costs), weight)
    return _steps(table, relative(table.to_numpy(dtype=float)), "tau", 1.0)


def ecdf(costs: pd.DataFrame, weight: float = 1.0) -> pd.DataFrame:
    """Steps (method, cost, share): of all (problem, target, trial) counted, the share solved within this cost."""
    table = instances(counted(costs), weight)
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


def instances(costs: pd.DataFrame, weight: float, absent: float = np.inf) -> pd.DataFrame:
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
