"""The figure of an experiment: a panel for each quantity, methods as lines, median and band over trials."""

from __future__ import annotations

import itertools
import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bilevelbench.plan.figure import Panel
from bilevelbench.report.analysis.summary import titled
from bilevelbench.report.analysis.verdicts import ExperimentOutcome
from bilevelbench.report.figures import curves
from bilevelbench.report.figures import style as style_figures
from bilevelbench.report.text import printable

#: How to read it.
CAPTION = (
    "Lines are medians over trials, bands go from the lowest to the highest; a trial that failed ends where it failed."
)

#: Letters that fit into an inch of a title, at least.
_LETTERS = 13
_IN_A_ROW = 3


def experiment_figure(outcome: ExperimentOutcome, heading: bool = True) -> Figure:
    """All panels of an experiment, three in a row; one without anything to draw says so.

    A method has the colour of its family, as in every other figure; lines and markers tell those of a family apart.
    Without a `heading` it stands on a page that says title and tuning itself.
    """
    runs = titled(outcome.results.runs)
    style = style_figures.looks(list(runs["method"].unique()), curves.families(outcome.results))
    curve = outcome.results.curve.merge(runs[["trial_id", "title", "method", "status"]], on="trial_id")
    panels = outcome.figure.panel
    with style_figures.settings():
        columns = min(len(panels), _IN_A_ROW)
        rows = math.ceil(len(panels) / columns)
        figure = Figure(figsize=(3.5 * columns + 1.6, 3.4 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        drawn: dict[str, Line2D] = {}
        for axes, panel in itertools.zip_longest(grid.flat, panels):
            if panel is None:
                axes.set_axis_off()
            else:
                drawn = _draw(axes, panel, curve, style) | drawn
        if drawn:
            style_figures.legend(grid[0, -1], list(drawn.values()), list(drawn))
        if heading:
            _head(figure, outcome)
        style_figures.despine(figure)
    return figure


def _head(figure: Figure, outcome: ExperimentOutcome) -> None:
    said = [printable(outcome.figure.title), *([f"Tuning: {outcome.tuning}"] if outcome.tuning else [])]
    width = int(_LETTERS * figure.get_figwidth())
    figure.suptitle("\n".join(textwrap.fill(line, width) for line in said), fontsize=9).set_parse_math(False)


def _draw(axes: Axes, panel: Panel, curve: pd.DataFrame, style: dict[str, style_figures.Look]) -> dict[str, Line2D]:
    """The lines of one panel by their names."""
    mine = curve if panel.problem is None else curve[curve["title"] == printable(panel.problem)]
    axes.set_title(printable(panel.title or panel.problem or ""), fontsize=9, parse_math=False)
    axes.set_xlabel(curves.AXES[panel.x])
    axes.set_ylabel(printable(panel.label or panel.y), parse_math=False)
    shown = _visible(mine, panel)
    if shown.empty:
        there = "no finite value" if panel.y in curve else "no column"
        axes.text(0.5, 0.5, f"{there} of {printable(panel.y)}", ha="center", transform=axes.transAxes, parse_math=False)
        return {}
    axes.set(xscale=panel.x_scale, yscale=panel.scale)
    if panel.x_scale == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(4))  # six digits at each of nine places lie on one another
    axes.grid(alpha=0.15, linewidth=0.6)
    drawn = {}
    for method in sorted(shown["method"].unique()):
        at, low, middle, high = curves.band(shown[shown["method"] == method], panel.y)
        every = max(1, len(at) // 8)
        (line,) = axes.plot(at, middle, linewidth=1.5, markersize=4, markevery=every, **style[method])
        axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        drawn[str(method)] = line
    height = _height(mine, panel)
    if height is not None and panel.line is not None:
        drawn[printable(panel.line.label)] = axes.axhline(height, color=style_figures.INK, linestyle="--", linewidth=1)
    return drawn


def _visible(curve: pd.DataFrame, panel: Panel) -> pd.DataFrame:
    """What its axes have a place for."""
    if panel.y not in curve:
        return curve.head(0)
    y, x = (curve[name].to_numpy(dtype=float) for name in (panel.y, panel.x))
    shown = np.isfinite(y) & ((y > 0) | (panel.scale == "linear")) & ((x > 0) | (panel.x_scale == "linear"))
    visible: pd.DataFrame = curve.assign(_x=x).loc[shown]
    return visible


def _height(curve: pd.DataFrame, panel: Panel) -> float | None:
    """Where the horizontal line lies; None if there is none, or its column has no start."""
    if panel.line is None or panel.line.column is None:
        return None if panel.line is None else panel.line.value
    column = panel.line.column
    start = curve.loc[curve["step"] == 0, column].dropna() if column in curve else pd.Series(dtype=float)
    return float(start.median()) if len(start) else None
