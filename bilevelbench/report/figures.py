"""Figures with seaborn: convergence against cost, a band over seeds."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from itertools import product
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilevelbench.report.tables import FAILED, titled
from bilevelbench.results import Results

#: Becomes `currentColor`: axes and words take the colour of the page, light or dark.
_INK = "#010203"

Look = dict[str, Any]


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Colour, line and marker by method, so that it looks the same in every figure of a page."""
    colours = [c for c in sns.color_palette("colorblind").as_hex() if c != "#fbafe4"]  # pale pink is lost on paper
    styles = list(product(("-", "--", ":", "-."), colours))
    markers = "osD^vPX<>"
    return {
        method: {
            "color": styles[n % len(styles)][1],
            "linestyle": styles[n % len(styles)][0],
            "marker": markers[n % len(markers)],
        }
        for n, method in enumerate(sorted(methods))
    }


def convergence(results: Results, title: str, prefix: str = "") -> str:
    """|grad phi| against cost on one problem as an SVG text: median over seeds, band from the lowest to the highest.

    `title` is the problem with its parameters, `prefix` keeps the ids of several figures on one page apart. Empty if no
    trial has a finite gradient to show.
    """
    runs = titled(results.runs)
    style = looks(list(runs["method"].unique()))
    chosen = runs.loc[runs["title"] == title, ["trial_id", "method", "status"]]
    curve = results.curve.merge(chosen, on="trial_id")
    curve = curve[np.isfinite(curve["grad_phi"]) & (curve["grad_phi"] > 0) & (curve["cost"] > 0)]
    methods = sorted(curve["method"].unique())
    if not methods:
        return ""
    with warnings.catch_warnings(), matplotlib.rc_context(_settings()):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has more fonts
        figure = Figure(figsize=(8.4, max(3.6, 0.8 + 0.19 * len(methods))), layout="constrained")
        _draw(figure.subplots(), curve, methods, style)
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return _embedded(text.getvalue(), prefix)


def _draw(axes: Axes, curve: pd.DataFrame, methods: Sequence[str], style: dict[str, Look]) -> None:
    lines = []
    for method in methods:
        costs, low, middle, high = _band(curve[curve["method"] == method])
        every = max(1, len(costs) // 8)
        (line,) = axes.plot(costs, middle, linewidth=1.5, markersize=4, markevery=every, **style[method])
        axes.fill_between(costs, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        lines.append(line)
    axes.set(xscale="log", yscale="log", xlabel="oracle calls (samples)", ylabel="|grad phi|")
    axes.grid(alpha=0.15, linewidth=0.6)
    numbers = [str(n) for n in range(len(lines))]
    legend = axes.legend(lines, numbers, frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    for text, method in zip(legend.get_texts(), methods, strict=True):
        text.set_parse_math(False)  # a dollar in a name is a dollar
        text.set_text(method if len(method) <= 40 else method[:39] + "…")
    sns.despine(axes.figure)


def _settings() -> Any:
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    fonts = {"svg.hashsalt": "bilevelbench", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
    return fonts | dict.fromkeys(inked, _INK)


def _embedded(svg: str, prefix: str) -> str:
    """For a page: in its colours, with ids of its own, without the XML head."""

    def mend(tag: re.Match[str]) -> str:  # only inside of tags: a method's name stays as it is
        return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", tag[0].replace(_INK, "currentColor"))

    return re.sub(r"<[^<>]+>", mend, svg[svg.index("<svg") :])


def _band(curve: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Curves of several trials on common costs: the last value seen at or before each.

    A trial that ended well, say at its target, keeps its last value; one that failed has none after its end.
    """
    costs = np.unique(curve["cost"].to_numpy())
    rows = []
    for _, one in curve.sort_values("cost").groupby("trial_id"):
        at, values = one["cost"].to_numpy(), one["grad_phi"].to_numpy()
        place = np.searchsorted(at, costs, side="right") - 1
        last = at[-1] if one["status"].iloc[0] in FAILED else np.inf
        seen = np.where((place >= 0) & (costs <= last), values[np.clip(place, 0, None)], np.nan)
        rows.append(seen)
    stack = np.vstack(rows)
    keep = ~np.isnan(stack).all(0)
    stack = stack[:, keep]
    return costs[keep], np.nanmin(stack, 0), np.nanmedian(stack, 0), np.nanmax(stack, 0)
