"""How a method's score depends on each of its tuned parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilevelbench.report.analysis.tuning import Tuning
from bilevelbench.report.figures import style as style_figures
from bilevelbench.report.text import printable


def tuning_figure(tuning: Tuning, problem: str) -> Figure | None:
    """The best score over all other parameters against each one, one line per method; crosses are settings that failed.

    A setting that was run with several budgets counts with the score of the last one. None if everything failed.
    """
    points = _points(tuning, problem)
    if not np.isfinite(points["score"]).any():
        return None
    names = list(dict.fromkeys(points["parameter"]))
    known = {printable(row["method"]): row["family"] for row in tuning.rows}
    style = style_figures.looks(list(known), known)
    with style_figures.settings():
        figure = Figure(figsize=(3.2 * len(names) + 2.2, 3.4), layout="constrained")
        row = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
        lines: dict[str, Any] = {}
        for axes, name in zip(row, names, strict=True):
            lines |= _panel(axes, points[points["parameter"] == name], style)
            axes.set_xlabel(name.replace("_", " "), parse_math=False)
        _range(row[0], points.loc[np.isfinite(points["score"]), "score"])
        row[0].set_ylabel(f"{tuning.rule['by']}, best over the others", parse_math=False)
        style_figures.legend(row[-1], list(lines.values()), list(lines))
        style_figures.despine(figure)
    return figure


def _range(axes: Axes, scores: pd.Series[float]) -> None:
    """Room for what is near the best: a setting that has almost diverged may be as large as numbers get."""
    least, middle = float(scores.min()), float(scores.median())
    if least > 0 and scores.max() > 10 * least:
        axes.set(yscale="log", ylim=(least / 1.5, 1.5 * min(float(scores.max()), 100 * least)))
    elif middle > least:
        axes.set_ylim(least - 0.2 * (middle - least), min(float(scores.max()), least + 4 * (middle - least)) + 1e-12)


def _panel(axes: Axes, points: pd.DataFrame, style: Mapping[str, style_figures.Look]) -> dict[str, Any]:
    lines = {}
    words = points["value"].map(lambda v: isinstance(v, str)).any()
    points = points.assign(value=points["value"].astype(str if words else float))
    for method, mine in points.groupby("method"):
        best = mine.groupby("value")["score"].min()
        best = best[np.isfinite(best)]
        (lines[str(method)],) = axes.plot(
            best.index, best.to_numpy(), linewidth=1.5, markersize=4, **style[str(method)]
        )
        lost = mine[~np.isfinite(mine["score"])]
        top = np.full(len(lost), 0.98)
        axes.plot(
            lost["value"], top, "x", color=style[str(method)]["color"], transform=axes.get_xaxis_transform(), alpha=0.5
        )
    if not words and (points["value"] > 0).all():
        axes.set_xscale("log")
    axes.grid(alpha=0.15, linewidth=0.6)
    return lines


def _points(tuning: Tuning, problem: str) -> pd.DataFrame:
    """One row per setting and parameter."""
    rows = []
    for row in tuning.rows:
        if row["problem"] != problem:
            continue
        last = {json.dumps(one["choice"], sort_keys=True): one for one in row["tried"]}
        for one in last.values():
            score = math.inf if one["score"] is None else one["score"]
            for name, value in one["choice"].items():
                rows.append({"method": printable(row["method"]), "parameter": name, "value": value, "score": score})
    return pd.DataFrame(rows, columns=["method", "parameter", "value", "score"])
