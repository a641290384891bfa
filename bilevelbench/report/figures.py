"""Figures with seaborn: convergence, profiles, tuning; each a matplotlib Figure, on request as SVG text or as two files."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from bilevelbench.errors import StoreError
from bilevelbench.report import statistics
from bilevelbench.report.tables import titled
from bilevelbench.results import FAILED, Results

#: Becomes `currentColor`: axes and words take the colour of the page, light or dark.
INK = "#010203"

#: One colour a family, from seaborn's "colorblind" palette.
FAMILIES = {"penalty": "#0173b2", "implicit": "#de8f05", "unrolled": "#029e73", "zeroth-order": "#949494"}
OTHER = "#cc78bc"

#: What a curve can be drawn against.
AXES = {
    "cost": "oracle calls (samples)",
    "first_order": "first-order calls (samples)",
    "weighted": "weighted calls (samples)",
    "seconds": "seconds",
    "step": "steps",
}

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LINES, _MARKERS = ("-", "--", ":", "-."), "osD^vPX<>"

Look = dict[str, Any]


def looks(methods: Sequence[str], families: Mapping[str, str] | None = None) -> dict[str, Look]:
    """Colour, line and marker by method, so that it looks the same in every figure of a page.

    A family has one colour, and lines and markers tell its methods apart. Where no family is known, colours do too.
    """
    names = sorted(methods)
    if not any((families or {}).get(name) in FAMILIES for name in names):
        colours = [c for c in sns.color_palette("colorblind").as_hex() if c != "#fbafe4"]  # pale pink is lost on paper
        styles = list(product(_LINES, colours))
        return {
            name: _look(styles[n % len(styles)][1], styles[n % len(styles)][0], _MARKERS[n % len(_MARKERS)])
            for n, name in enumerate(names)
        }
    out, seen = {}, dict.fromkeys((*FAMILIES.values(), OTHER), 0)
    for name in names:
        colour = FAMILIES.get((families or {}).get(name, ""), OTHER)
        n = seen[colour]
        seen[colour] += 1
        out[name] = _look(colour, _LINES[n % len(_LINES)], _MARKERS[n % len(_MARKERS)])  # 4 and 9: 36 pairs
    return out


def families(results: Results) -> dict[str, str]:
    """The family of each method as labelled, from what the records of the packs say about its algorithm."""
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
    runs = titled(results.runs)
    style = looks(list(runs["method"].unique()), families(results))
    chosen = runs.loc[runs["title"] == title, ["trial_id", "method", "status"]]
    curve = results.curve.merge(chosen, on="trial_id")
    first, second = statistics.split(curve)
    along = {"first_order": first, "weighted": first + weight * second}.get(x)
    curve = curve.assign(_x=curve[x] if along is None else along)
    curve = curve[np.isfinite(curve["grad_phi"]) & (curve["grad_phi"] > 0) & (curve["_x"] > 0)]
    methods = sorted(curve["method"].unique())
    if not methods:
        return None
    with settings():
        figure, axes = _canvas(len(methods))
        lines = []
        for method in methods:
            at, low, middle, high = band(curve[curve["method"] == method])
            every = max(1, len(at) // 8)
            (line,) = axes.plot(at, middle, linewidth=1.5, markersize=4, markevery=every, **style[method])
            axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            lines.append(line)
        label = AXES[x] + (f" (1 HVP = {weight:g})" if x == "weighted" else "")
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="|grad phi|")
        _finish(axes, lines, methods)
    return figure


def profile_figure(costs: pd.DataFrame, weight: float = 1.0, known: Mapping[str, str] | None = None) -> Figure | None:
    """Share of (problem, target, trial) solved within tau times the best cost; failures keep a line below 1."""
    table = statistics.performance_profile(costs, weight)
    return _shares(table, "tau", "cost over the best method's cost", known)


def ecdf_figure(costs: pd.DataFrame, weight: float = 1.0, known: Mapping[str, str] | None = None) -> Figure | None:
    """Share of (problem, target, trial) solved within a cost; failures keep a line below 1."""
    return _shares(statistics.ecdf(costs, weight), "cost", "oracle calls (samples)", known)


def sensitivity_figure(results: Results, title: str, algorithm: str) -> Figure | None:
    """Score of every configuration of one algorithm against each parameter that varies; the line joins the best ones.

    A configuration whose median trial failed is a cross at the top. None if nothing varies or nothing has a score.
    """
    table = statistics.sensitivity(results)
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
            axes.plot(good["value"], good["score"], "o", color=FAMILIES["penalty"], alpha=0.4, markersize=4)
            axes.plot(best.index, best.to_numpy(), "-", color=FAMILIES["penalty"], linewidth=1.5)
            lost = mine[~mine.index.isin(good.index)]
            axes.plot(lost["value"], np.full(len(lost), 0.98), "x", color=INK, transform=axes.get_xaxis_transform())
            axes.set(yscale="log", xscale="log" if (mine["value"] > 0).all() else "symlog")
            axes.set_xlabel(name, parse_math=False)
            axes.grid(alpha=0.15, linewidth=0.6)
        row[0].set_ylabel("best |grad phi|, median of trials")
        sns.despine(figure)
    return figure


def svg(figure: Figure, prefix: str = "") -> str:
    """For a page: in its colours, with ids of its own, without the XML head."""

    def mend(tag: re.Match[str]) -> str:  # only inside of tags: a method's name stays as it is
        return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", tag[0].replace(INK, "currentColor"))

    text = _svg(figure, transparent=True)
    return re.sub(r"<[^<>]+>", mend, text[text.index("<svg") :])


def svg_file(figure: Figure) -> str:
    """For a file of its own: on white."""
    return _svg(figure, facecolor="white")


def _write(figure: Figure, file: Any, **options: Any) -> None:
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if axis.get_scale() == "log":
            axis.set_major_formatter(_Powers())
            axis.set_minor_formatter(_Powers(labelOnlyBase=False))
    with settings():
        figure.savefig(file, **options)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.svg and `stem`.png."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png")]
    picture = io.BytesIO()
    _write(figure, picture, format="png", dpi=160, facecolor="white")
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(svg_file(figure), encoding="utf-8")
        paths[1].write_bytes(picture.getvalue())
    except OSError as error:
        raise StoreError(f"cannot write the figure {stem}: {error.strerror}; choose another folder with -o") from None
    return paths


def legend(axes: Axes, lines: Sequence[Any], names: Sequence[str], title: str = "") -> None:
    """At the right of the axes, by name; a dollar or underscore in a name is itself."""
    numbers = [str(n) for n in range(len(lines))]  # a name with a leading underscore would be left out
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "title": title or None}
    box = axes.legend(lines, numbers, frameon=False, fontsize=8, **place)
    for text, name in zip(box.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name if len(name) <= 40 else name[:39] + "…")


def _shares(table: pd.DataFrame, x: str, label: str, known: Mapping[str, str] | None) -> Figure | None:
    methods = sorted(table["method"].unique())
    if not methods:
        return None
    style = looks(methods, known)
    end = float(table[x].max()) * 1.05 if len(table) else 1.0
    with settings():
        figure, axes = _canvas(len(methods))
        lines = []
        for method in methods:
            mine = table[(table["method"] == method) & (table[x] > 0)]
            at = np.append(mine[x].to_numpy(dtype=float), max(end, 1.0))
            share = mine["share"].to_numpy(dtype=float)
            share = np.append(share, share[-1] if len(share) else 0.0)
            every = max(1, len(at) // 8)
            (line,) = axes.plot(
                at, share, drawstyle="steps-post", linewidth=1.5, markersize=4, markevery=every, **style[method]
            )
            lines.append(line)
        axes.set(xscale="log", ylim=(-0.02, 1.02), xlabel=label, ylabel="share of (problem, accuracy, trial)")
        _finish(axes, lines, methods)
    return figure


def _look(colour: str, line: str, marker: str) -> Look:
    return {"color": colour, "linestyle": line, "marker": marker}


def _canvas(methods: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.4, max(3.6, 0.8 + 0.19 * methods)), layout="constrained")
    return figure, figure.subplots()


class _Powers(LogFormatter):
    """10⁻³ as plain text: matplotlib's own way sets it as a formula, which takes half of the time of a figure."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        if not super().__call__(x, pos):  # it decides which ticks have a label
            return ""
        digit, _, power = f"{x:.0e}".partition("e")
        return ("" if digit == "1" else f"{digit}·") + "10" + str(int(power)).translate(_RAISED)


def _finish(axes: Axes, lines: Sequence[Any], names: Sequence[str]) -> None:
    axes.grid(alpha=0.15, linewidth=0.6)
    legend(axes, lines, names)
    sns.despine(axes.figure)


@contextmanager
def settings() -> Iterator[None]:
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    fonts: Any = {"svg.hashsalt": "bilevelbench", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
    with warnings.catch_warnings(), matplotlib.rc_context(fonts | dict.fromkeys(inked, INK)):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has more fonts
        yield


def _svg(figure: Figure, **options: Any) -> str:
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    _write(figure, text, format="svg", metadata=nothing, **options)
    return text.getvalue()


def band(curve: pd.DataFrame, y: str = "grad_phi") -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Curves of several trials on common places `_x`: the last value seen at or before each; low, median, high.

    A trial that ended well, say at its target, keeps its last value; one that failed has none after its end.
    """
    places = np.unique(curve["_x"].to_numpy(dtype=float))
    rows = []
    for _, one in curve.sort_values("_x", kind="stable").groupby("trial_id"):
        at, values = one["_x"].to_numpy(dtype=float), one[y].to_numpy()
        place = np.searchsorted(at, places, side="right") - 1
        last = at[-1] if one["status"].iloc[0] in FAILED else np.inf
        seen = np.where((place >= 0) & (places <= last), values[np.clip(place, 0, None)], np.nan)
        rows.append(seen)
    stack = np.vstack(rows)
    keep = ~np.isnan(stack).all(0)
    stack = stack[:, keep]
    return places[keep], np.nanmin(stack, 0), np.nanmedian(stack, 0), np.nanmax(stack, 0)
