"""The numbers behind each page: boards with their intervals, curves, sparklines. Arithmetic and no HTML."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.leaderboard.clock import TIMED, by_clock
from bilevelbench.leaderboard.collect import MODES
from bilevelbench.report.analysis.coinciding import Merged, coinciding, curve_numbers
from bilevelbench.report.analysis.intervals import DRAWS, Resampling
from bilevelbench.report.analysis.ranking import (
    board,
    costs,
    counted,
    expected_running_time,
    performance_profile,
    split,
)
from bilevelbench.report.analysis.summary import TARGETS, start_notes, titled
from bilevelbench.results import reached
from bilevelbench.results.schema import CURVE, Results
from bilevelbench.results.status import Status

#: Prices of a Hessian-vector product, in gradients, at which intervals are computed; the page shows the nearest.
WEIGHTS = (0.5, 1.0, 2.0, 5.0, 10.0)
#: Kinds of oracles that a reader may choose between.
ORACLES = ("gradient", "HVP")
#: Points of one trial that a curve on the page has at most.
POINTS = 120
#: Columns of `curve` for the horizontal axis, and what the scripts call them; `_second` is in samples, as on the board.
AXES = {"cost": "cost", "first_order": "first", "_second": "second", "step": "step", "seconds": "seconds"}
#: Draws for the intervals at the prices between; those at one gradient and at the measured price have the full number.
_DRAWS = 300
_SPARK = 28


@dataclass(frozen=True, eq=False)
class Board:
    """One board: the trials of one mode and setting, ranked.

    `results` has what they are ranked by as their cost, seconds on the board by the clock. `runs` has all of them, `costs`
    and `rows` one method of those that coincide. `within` has the intervals among the methods of each kind of oracle, where
    there are both kinds. `times` are expected running times. `curves` counts those that differ.
    """

    mode: str
    setting: str
    results: Results
    runs: pd.DataFrame
    costs: pd.DataFrame
    rows: pd.DataFrame
    intervals: dict[float, pd.DataFrame]
    within: dict[str, dict[float, pd.DataFrame]]
    times: pd.DataFrame
    merged: Merged
    curves: int
    notes: list[str]

    @property
    def key(self) -> str:
        return f"{self.mode}-{self.setting}"

    @functools.cached_property
    def counted(self) -> pd.DataFrame:
        """The costs to what tells methods apart."""
        return counted(self.costs)

    @property
    def problems(self) -> list[str]:
        return sorted(self.costs["problem"].unique())

    def standing(self) -> list[dict[str, Any]]:
        """The row of each method, also of those that another one stands for."""
        rows = self.rows.to_dict("records")
        return [{**row, "method": name} for row in rows for name in self.merged.of(row["method"])]  # type: ignore[dict-item]


def make_board(
    results: Results,
    mode: str,
    setting: str,
    titles: Sequence[str],
    ratio: float | None = None,
    oracles: Mapping[str, str] | None = None,
) -> Board:
    """`rows` has one row per method, best first, with the price of an HVP at one gradient; `ratio` is the measured price."""
    part = _on(results, titles)
    numbers = curve_numbers(part)
    merged = coinciding(part, numbers)
    part = by_clock(part) if mode == TIMED else part  # who coincides is told by what they asked for
    runs, table = titled(part.runs), merged.one_each(costs(part, TARGETS))
    full = {1.0} | ({ratio} if ratio else set())
    prices = {w: DRAWS if w in full else _DRAWS for w in sorted({*WEIGHTS, *full})}
    intervals = _intervals(table, prices)
    rows = board(table, 1.0).merge(intervals[1.0][["low", "high", "bands"]], left_on="method", right_index=True)
    by_method = runs.groupby("method")
    rows = rows.merge(
        pd.DataFrame(
            {
                "algorithm": by_method["algorithm"].first(),
                "trials": by_method.size(),
                "failed": reached.failed(runs).groupby(runs["method"]).sum(),
                "any_hvp": by_method["second_order"].max() > 0,
            }
        ),
        left_on="method",
        right_index=True,
    )
    kept = counted(table)
    met = np.isfinite(kept["first_order"]).groupby(kept["method"])
    rows["solved"] = met.sum().reindex(rows["method"], fill_value=0).to_numpy()
    rows["attempts"] = met.size().reindex(rows["method"], fill_value=0).to_numpy()
    rows["label"] = [merged.label(method) for method in rows["method"]]
    within = _within(table, prices, oracles or {})
    notes = start_notes(part)
    curves = int(numbers.nunique())
    times = expected_running_time(table, runs)
    return Board(
        mode, setting, part, runs, table, rows.reset_index(drop=True), intervals, within, times, merged, curves, notes
    )


def _intervals(table: pd.DataFrame, prices: Mapping[float, int]) -> dict[float, pd.DataFrame]:
    """By price; without products it does not matter."""
    drawn = Resampling(table)
    first = drawn.intervals(1.0, prices[1.0]).set_index("method")
    if not (table["second_order"] > 0).any():
        return dict.fromkeys(prices, first)
    return {w: first if w == 1.0 else drawn.intervals(w, draws).set_index("method") for w, draws in prices.items()}


def _within(
    table: pd.DataFrame, prices: Mapping[float, int], oracles: Mapping[str, str]
) -> dict[str, dict[float, pd.DataFrame]]:
    kinds = table["method"].map(oracles)
    if set(kinds) != set(ORACLES):
        return {}
    return {kind: _intervals(table[kinds == kind], prices) for kind in ORACLES}


def _on(results: Results, titles: Sequence[str]) -> Results:
    """The trials on these problems."""
    return results.only(results.runs.loc[titled(results.runs)["title"].isin(titles), "trial_id"])


def profile_table(one: Board, taus: Sequence[float] = (1, 2, 5, 10, 100)) -> list[tuple[str, list[float], float]]:
    """(method, shares within each tau, share ever) with an HVP at one gradient, in the order of the board."""
    steps = performance_profile(one.costs, 1.0)
    places, at, share = steps.groupby("method").indices, steps["tau"].to_numpy(), steps["share"].to_numpy()
    out = []
    for method, label in zip(one.rows["method"], one.rows["label"], strict=True):
        mine = places.get(method, np.array([], dtype=int))
        shares = [float(share[mine[at[mine] <= tau]].max(initial=0.0)) for tau in taus]
        out.append((label, shares, float(share[mine].max(initial=0.0))))
    return out


def sparklines(results: Results, titles: Sequence[str]) -> dict[str, list[float]]:
    """For each method the median over trials of log10(best accuracy so far / first), on a log scale of cost.

    0 is the start, -3 a thousandth of it; the scale ends at the largest cost on the problem. A trial that failed stays at
    its start, and so does one whose phi does not fall.
    """
    part = _on(results, titles)
    runs = titled(part.runs)
    method_of, title_of = (dict(zip(runs["trial_id"], runs[c], strict=True)) for c in ("method", "title"))
    curve = part.curve.assign(_counts=reached.counts(part), _value=reached.measured(part)["value"])
    curve = curve[np.isfinite(curve["_value"]) & (curve["_value"] > 0)]
    ends = curve.groupby(curve["trial_id"].map(title_of))["cost"].max().to_dict()
    gathered: dict[str, list[np.ndarray]] = {}
    grids = {title: _log_scale(float(end)) for title, end in ends.items()}
    cost, norm = curve["cost"].to_numpy(dtype=float), curve["_value"].to_numpy(dtype=float)
    counts = curve["_counts"].to_numpy(dtype=bool)
    for trial_id, places in curve.groupby("trial_id", sort=False).indices.items():
        method, grid = method_of[trial_id], grids[title_of[trial_id]]
        seen = np.where(counts[places], norm[places], norm[places[0]])
        at, values = cost[places], np.minimum.accumulate(seen)
        place = np.clip(np.searchsorted(at, grid, side="right") - 1, 0, None)
        gathered.setdefault(str(method), []).append(np.log10(values[place] / values[0]))
    return {method: [float(v) for v in np.median(np.vstack(rows), 0)] for method, rows in gathered.items()}


def _log_scale(end: float) -> np.ndarray:
    """From one call, or a thousandth of an end that is small, as one in seconds is."""
    start = min(1.0, max(end, 1e-6) / 1000)
    return np.geomspace(start, max(end, 2 * start), _SPARK)


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
                name = curve_name(str(method), mode)
                methods.append({"name": name, "board": MODES[mode], "look": looks[str(method)], "trials": trials})
    return {"methods": methods, "measures": list(measures)}


def curve_name(method: str, mode: str) -> str:
    """What the scripts call a curve: methods stand on several boards."""
    return method if mode == "default" else f"{method} ({mode})"


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
