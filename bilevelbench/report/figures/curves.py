"""Figures with seaborn: convergence, profiles, tuning; each a matplotlib Figure, on request as SVG text or as two files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilevelbench.report.analysis import ranking
from bilevelbench.report.analysis.summary import titled
from bilevelbench.report.figures.style import (
    COLOURS,
    INK,
    MOST,
    Shown,
    chosen,
    despine,
    draw_grey,
    legend,
    looks,
    settings,
    svg,
)
from bilevelbench.results import reached
from bilevelbench.results.schema import Results
from bilevelbench.results.status import Status

#: What a curve can be drawn against.
AXES = {
    "cost": "oracle calls (samples)",
    "first_order": "first-order calls (samples)",
    "weighted": "weighted calls (samples)",
    "seconds": "seconds",
    "step": "steps",
}


def families(results: Results) -> dict[str, str]:
    """The family of each method as labelled, from what the records of the packs say about it."""
    known: dict[str, str] = {}
    for record in results.records:
        said = record.get("families")
        known |= {str(k): str(v) for k, v in said.items()} if isinstance(said, dict) else {}
    runs = titled(results.runs)
    pairs = runs[["method", "algorithm"]].drop_duplicates().itertuples(index=False)
    return {method: known[algorithm] for method, algorithm in pairs if algorithm in known}


def convergence(results: Results, title: str, prefix: str = "", x: str = "cost", weight: float = 1.0) -> str:
    """The figure of `convergence_figure` as an SVG text for a page; empty if no trial has a finite gradient to show."""
    figure = convergence_figure(results, title, x, weight)
    return svg(figure, prefix) if figure is not None else ""


def convergence_figure(results: Results, title: str, x: str = "cost", weight: float = 1.0) -> Figure | None:
    """|grad phi| on one problem against one of `AXES`: median over trials, band from the lowest to the highest.

    `title` is the problem with its parameters. None if no trial has a finite positive gradient to show.
    """
    curve = _shown(results, title, x, weight)
    if curve.empty:
        return None
    with settings():
        figure, axes = _canvas(curve["method"].nunique())
        _draw(axes, results, curve, x, weight)
    return figure


def draw_convergence(results: Results, title: str, axes: Axes, x: str = "cost") -> bool:
    """The same on axes of someone else; False if there is nothing to show."""
    curve = _shown(results, title, x, 1.0)
    if not curve.empty:
        _draw(axes, results, curve, x, 1.0)
    return not curve.empty


def _shown(results: Results, title: str, x: str, weight: float) -> pd.DataFrame:
    runs = titled(results.runs)
    chosen = runs.loc[runs["title"] == title, ["trial_id", "method", "status"]]
    curve = results.curve.merge(chosen, on="trial_id")
    first, second = ranking.split(curve)
    along = {"first_order": first, "weighted": first + weight * second}.get(x)
    curve = curve.assign(_x=curve[x] if along is None else along)
    shown: pd.DataFrame = curve[np.isfinite(curve["grad_phi"]) & (curve["grad_phi"] > 0) & (curve["_x"] > 0)]
    return shown


def _draw(axes: Axes, results: Results, curve: pd.DataFrame, x: str, weight: float) -> None:
    style = looks(list(titled(results.runs)["method"].unique()), families(results))
    parts, lines = curve.groupby("method").indices, []
    shown = chosen(_best_first(curve))
    medians = (band(curve.iloc[parts[method]]) for method in shown.grey)
    draw_grey(axes, [(at, middle) for at, _, middle, _ in medians])
    for method in shown.coloured:
        at, low, middle, high = band(curve.iloc[parts[method]])
        every = max(1, len(at) // 8)
        (line,) = axes.plot(at, middle, linewidth=1.5, markersize=4, markevery=every, **style[method])
        axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        lines.append(line)
    label = AXES[x] + (f" (1 HVP = {weight:g})" if x == "weighted" else "")
    axes.set(xscale="log", yscale="log", xlabel=label, ylabel="|grad phi|")
    _finish(axes, lines, shown)


def _best_first(curve: pd.DataFrame) -> list[str]:
    """Methods by the median over trials of the smallest |grad phi|, then by name; a trial that failed has reached nothing."""
    seen = curve.assign(_seen=curve["grad_phi"].where(~reached.failed(curve), np.inf))
    smallest = seen.groupby(["method", "trial_id"])["_seen"].min().groupby("method").median()
    return [str(method) for method in smallest.sort_index().sort_values(kind="stable").index]


def profile_figure(costs: pd.DataFrame, weight: float = 1.0, known: Mapping[str, str] | None = None) -> Figure | None:
    """Share of (problem, target, trial) solved within tau times the best cost; failures keep a line below 1."""
    table = ranking.performance_profile(costs, weight)
    return _shares(table, _ranked(costs, weight), "tau", "cost over the best method's cost", known)


def ecdf_figure(costs: pd.DataFrame, weight: float = 1.0, known: Mapping[str, str] | None = None) -> Figure | None:
    """Share of (problem, target, trial) solved within a cost; failures keep a line below 1."""
    return _shares(ranking.ecdf(costs, weight), _ranked(costs, weight), "cost", "oracle calls (samples)", known)


def _ranked(costs: pd.DataFrame, weight: float) -> list[str]:
    return [str(method) for method in ranking.board(costs, weight)["method"]]


def sensitivity_figure(results: Results, title: str, algorithm: str) -> Figure | None:
    """Score of every configuration of one method against each parameter that varies; the line joins the best ones.

    A configuration whose median trial failed is a cross at the top. None if nothing varies or nothing has a score.
    """
    table = ranking.sensitivity(results)
    table = table[(table["problem"] == title) & (table["algorithm"] == algorithm)]
    finite = table[np.isfinite(table["score"].astype(float)) & (table["score"] > 0)]
    names = sorted(table["parameter"].unique())
    if finite.empty:
        return None
    with settings():
        figure = Figure(figsize=(3.2 * len(names) + 0.6, 3.2), layout="constrained")
        row = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
        for axes, name in zip(row, names, strict=True):
            mine, good = table[table["parameter"] == name], finite[finite["parameter"] == name]
            best = good.groupby("value")["score"].min()
            axes.plot(good["value"], good["score"], "o", color=COLOURS["penalty"], alpha=0.4, markersize=4)
            axes.plot(best.index, best.to_numpy(), "-", color=COLOURS["penalty"], linewidth=1.5)
            lost = mine[~mine.index.isin(good.index)]
            axes.plot(lost["value"], np.full(len(lost), 0.98), "x", color=INK, transform=axes.get_xaxis_transform())
            axes.set(yscale="log", xscale="log" if (mine["value"] > 0).all() else "symlog")
            axes.set_xlabel(name, parse_math=False)
            axes.grid(alpha=0.15, linewidth=0.6)
        row[0].set_ylabel("best |grad phi|, median of trials")
        despine(figure)
    return figure


def _shares(
    table: pd.DataFrame, ranked: Sequence[str], x: str, label: str, known: Mapping[str, str] | None
) -> Figure | None:
    """Steps of each method, of which `ranked` has the best first."""
    if not ranked:
        return None
    style, shown = looks(ranked, known), chosen(ranked)
    end = float(table[x].max()) * 1.05 if len(table) else 1.0
    parts = table[table[x] > 0].groupby("method")[[x, "share"]]
    steps = {str(method): part.to_numpy(dtype=float).T for method, part in parts}

    def whole(method: str) -> tuple[np.ndarray, np.ndarray]:
        at, share = steps.get(method, np.zeros((2, 0)))
        return np.append(at, max(end, 1.0)), np.append(share, share[-1] if len(share) else 0.0)

    with settings():
        figure, axes = _canvas(len(ranked))
        draw_grey(axes, [whole(method) for method in shown.grey], steps=True)
        lines = []
        for method in shown.coloured:
            at, share = whole(method)
            every = max(1, len(at) // 8)
            (line,) = axes.plot(
                at, share, drawstyle="steps-post", linewidth=1.5, markersize=4, markevery=every, **style[method]
            )
            lines.append(line)
        axes.set(xscale="log", ylim=(-0.02, 1.02), xlabel=label, ylabel="share of (problem, accuracy, trial)")
        _finish(axes, lines, shown)
    return figure


def _canvas(methods: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.4, max(3.6, 0.8 + 0.19 * min(methods, MOST))), layout="constrained")
    return figure, figure.subplots()


def _finish(axes: Axes, lines: Sequence[Any], shown: Shown) -> None:
    axes.grid(alpha=0.15, linewidth=0.6)
    legend(axes, lines, shown.coloured, shown.note)
    despine(axes.figure)


def band(curve: pd.DataFrame, y: str = "grad_phi") -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Curves of several trials on common places `_x`: the last value seen at or before each; low, median, high.

    A trial that ended well, say at its target, keeps its last value; one that failed has none after its end.
    """
    places = np.unique(curve["_x"].to_numpy(dtype=float))
    rows = []
    for _, one in curve.sort_values("_x", kind="stable").groupby("trial_id"):
        at, values = one["_x"].to_numpy(dtype=float), one[y].to_numpy()
        place = np.searchsorted(at, places, side="right") - 1
        last = at[-1] if Status(one["status"].iloc[0]).failed else np.inf
        seen = np.where((place >= 0) & (places <= last), values[np.clip(place, 0, None)], np.nan)
        rows.append(seen)
    stack = np.vstack(rows)
    keep = ~np.isnan(stack).all(0)
    stack = stack[:, keep]
    return places[keep], np.nanmin(stack, 0), np.nanmedian(stack, 0), np.nanmax(stack, 0)
