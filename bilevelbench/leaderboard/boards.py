"""The numbers behind each page: boards with their intervals, curves, sparklines. Arithmetic and no HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.report.analysis.ranking import DRAWS, PAIR, board, costs, performance_profile, rank_intervals, split
from bilevelbench.report.analysis.summary import ACCURACIES, titled
from bilevelbench.results import reached
from bilevelbench.results.schema import CURVE, Results
from bilevelbench.results.status import Status

#: Prices of a Hessian-vector product, in gradients, at which intervals are computed; the page shows the nearest.
WEIGHTS = (0.5, 1.0, 2.0, 5.0, 10.0)
#: Points of one trial that a curve on the page has at most.
POINTS = 120
#: Columns of `curve` for the horizontal axis, and what the scripts call them; `_second` is in samples, as on the board.
AXES = {"cost": "cost", "first_order": "first", "_second": "second", "step": "step", "seconds": "seconds"}
#: Draws for the intervals at the prices between; those at one gradient and at the measured price have the full number.
_DRAWS = 300
_SPARK = 28


@dataclass(frozen=True, eq=False)
class Board:
    """One board: the trials of one mode and setting, ranked."""

    mode: str
    setting: str
    runs: pd.DataFrame
    costs: pd.DataFrame
    rows: pd.DataFrame
    intervals: dict[float, pd.DataFrame]

    @property
    def key(self) -> str:
        return f"{self.mode}-{self.setting}"


def make_board(results: Results, mode: str, setting: str, titles: Sequence[str], ratio: float | None = None) -> Board:
    """`rows` has one row per method, best first, with the price of an HVP at one gradient; `ratio` is the measured price."""
    part = _on(results, titles)
    runs, table = titled(part.runs), costs(part, ACCURACIES)
    full = {1.0} | ({ratio} if ratio else set())
    intervals = {
        w: rank_intervals(table, w, draws=DRAWS if w in full else _DRAWS).set_index("method")
        for w in sorted({*WEIGHTS, *full})
    }
    rows = board(table, 1.0).merge(intervals[1.0][["low", "high", "group"]], left_on="method", right_index=True)
    by_method = runs.groupby("method")
    rows = rows.merge(
        pd.DataFrame(
            {
                "algorithm": by_method["algorithm"].first(),
                "trials": by_method.size(),
                "failed": reached.failed(runs).groupby(runs["method"]).sum(),
                "hvps": by_method["second_order"].median(),
                "any_hvp": by_method["second_order"].max() > 0,
            }
        ),
        left_on="method",
        right_index=True,
    )
    solved = np.isfinite(table["first_order"]).groupby(table["method"]).sum()
    attempts = table.groupby("method").size()
    rows["solved"] = solved.reindex(rows["method"]).to_numpy()
    rows["attempts"] = attempts.reindex(rows["method"]).to_numpy()
    return Board(mode, setting, runs, table, rows.reset_index(drop=True), intervals)


def _on(results: Results, titles: Sequence[str]) -> Results:
    """The trials on these problems."""
    return results.only(results.runs.loc[titled(results.runs)["title"].isin(titles), "trial_id"])


def for_scripts(one: Board) -> dict[str, Any]:
    """What the page needs to rank again: by (problem, target), each method's costs, trial by trial.

    -1 stands for a trial that the method was not run on, None for an accuracy that it did not reach; a method without
    second-order calls has 0 for all of them. Methods come in the order of the board at one gradient per HVP.
    """
    methods = list(one.rows["method"])
    index = ["problem", "target", *PAIR]
    # pivot twice rather than once with both columns: the levels stay simple
    first = one.costs.pivot(index=index, columns="method", values="first_order")[methods]
    second = one.costs.pivot(index=index, columns="method", values="second_order")[methods]
    problems = sorted(one.costs["problem"].unique())
    cells = []
    for (problem, target), part in first.groupby(level=["problem", "target"]):
        ones, twos = part.to_numpy(dtype=float), second.loc[part.index].to_numpy(dtype=float)
        absent, never = np.isnan(ones), np.isinf(ones)
        twos = np.where(absent | never, 0.0, twos)
        cells.append(
            {
                "p": problems.index(problem),
                "t": target,
                "f": [
                    [-1 if a else None if n else json_value(v) for v, a, n in zip(col, miss, inf, strict=True)]
                    for col, miss, inf in zip(ones.T, absent.T, never.T, strict=True)
                ],
                "s": [[json_value(v) for v in col] if col.any() else 0 for col in twos.T],
            }
        )
    intervals = []
    for weight, table in one.intervals.items():
        ordered = table.loc[methods]
        intervals.append({"w": weight, **{c: [json_value(v) for v in ordered[c]] for c in ("low", "high", "group")}})
    return {"methods": methods, "problems": problems, "cells": cells, "intervals": intervals}


def profile_table(one: Board, taus: Sequence[float] = (1, 2, 5, 10, 100)) -> list[tuple[str, list[float], float]]:
    """(method, shares within each tau, share ever) with an HVP at one gradient, in the order of the board."""
    steps = performance_profile(one.costs, 1.0)
    places, at, share = steps.groupby("method").indices, steps["tau"].to_numpy(), steps["share"].to_numpy()
    out = []
    for method in one.rows["method"]:
        mine = places[method]
        shares = [float(share[mine[at[mine] <= tau]].max()) for tau in taus]
        out.append((method, shares, float(share[mine].max())))
    return out


def sparklines(results: Results, titles: Sequence[str]) -> dict[str, list[float]]:
    """For each method the median over trials of log10(best |grad phi| so far / first), on a log scale of cost.

    0 is the start, -3 a thousandth of it; the scale ends at the largest cost on the problem. A trial that failed stays at
    its start, and so does one whose phi does not fall.
    """
    part = _on(results, titles)
    runs = titled(part.runs)
    method_of, title_of = (dict(zip(runs["trial_id"], runs[c], strict=True)) for c in ("method", "title"))
    curve = part.curve.assign(_counts=reached.counts(part))
    curve = curve[np.isfinite(curve["grad_phi"]) & (curve["grad_phi"] > 0)]
    ends = curve.groupby(curve["trial_id"].map(title_of))["cost"].max().to_dict()
    gathered: dict[str, list[np.ndarray]] = {}
    grids = {title: np.geomspace(1.0, max(float(end), 2.0), _SPARK) for title, end in ends.items()}
    cost, norm = curve["cost"].to_numpy(dtype=float), curve["grad_phi"].to_numpy(dtype=float)
    counts = curve["_counts"].to_numpy(dtype=bool)
    for trial_id, places in curve.groupby("trial_id", sort=False).indices.items():
        method, grid = method_of[trial_id], grids[title_of[trial_id]]
        seen = np.where(counts[places], norm[places], norm[places[0]])
        at, values = cost[places], np.minimum.accumulate(seen)
        place = np.clip(np.searchsorted(at, grid, side="right") - 1, 0, None)
        gathered.setdefault(str(method), []).append(np.log10(values[place] / values[0]))
    return {method: [float(v) for v in np.median(np.vstack(rows), 0)] for method, rows in gathered.items()}


def curves(
    runs: pd.DataFrame, results: Mapping[str, Results], looks: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Every trial's curve on one problem, thinned, as columns; `runs` are its trials with title, method and mode."""
    methods: list[dict[str, Any]] = []
    measures: dict[str, bool] = {}
    for mode, one in results.items():
        mine = runs[runs["mode"] == mode]
        curve = one.only(mine["trial_id"]).curve
        second = split(curve)[1]
        names = ["grad_phi", "phi", "g_y", *(c for c in curve.columns if c not in CURVE)]
        shown = [n for n in names if np.isfinite(curve[n].to_numpy(dtype=float)).any()]
        measures |= dict.fromkeys(shown, True)
        places = curve.groupby("trial_id", sort=False).indices
        values = {name: _column(curve[name].to_numpy(dtype=float)) for name in [*AXES, *shown] if name in curve}
        values["_second"] = _column(second)
        for method, group in mine.groupby("method"):
            trials = []
            for trial_id, seed, status, lanes in zip(
                group["trial_id"], group["seed"], group["status"], group["pack_lanes"], strict=True
            ):
                if trial_id not in places:
                    continue
                at = places[trial_id][_thin(len(places[trial_id]))]
                trials.append(
                    {
                        "seed": json_value(seed),
                        "failed": Status(status).failed,
                        "timed": bool(lanes <= 1),
                        "x": {short: values[name][at].tolist() for name, short in AXES.items()},
                        "y": {name: values[name][at].tolist() for name in shown},
                    }
                )
            if trials:
                suffix = " (tuned)" if mode == "tuned" else ""
                methods.append({"name": f"{method}{suffix}", "look": looks[str(method)], "trials": trials})
    return {"methods": methods, "measures": list(measures)}


def json_value(value: Any) -> Any:
    """As JSON holds it: whole numbers without a point, None for what is not finite."""
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number == int(number) and abs(number) < 2**53 else number


def _column(values: np.ndarray) -> np.ndarray:
    """As JSON holds them; six digits are more than a screen shows."""
    rounded = [float("%.6g" % v) for v in values.tolist()]  # noqa: UP031 (half the time of an f-string, of millions)
    return np.array([json_value(v) for v in rounded], dtype=object)


def _thin(length: int) -> np.ndarray:
    return np.arange(length) if length <= POINTS else np.unique(np.linspace(0, length - 1, POINTS).round().astype(int))
