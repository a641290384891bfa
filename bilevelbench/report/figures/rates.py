"""Figures of measured rates: cost against accuracy, and exponents against their claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from bilevelbench.report.analysis.moods import SIGNS, mood
from bilevelbench.report.analysis.rates import RateRecord, name_of
from bilevelbench.report.figures import style as style_figures
from bilevelbench.report.text import printable


def figure(title: str, rows: Sequence[RateRecord]) -> str:
    """The log-log plot as an SVG text."""
    return style_figures.svg(rate_figure(title, rows))


def rate_figure(title: str, rows: Sequence[RateRecord], families: Mapping[str, str] | None = None) -> Figure:
    """Log-log curves of cost against 1/eps (or kappa), each with its claimed slope dashed through its first point.

    Below are the slopes from each point to the next, of the count that decides, where a row has them.
    """
    drawn = [row for row in rows if row["points"]]
    style = _looks(drawn, families)
    with style_figures.settings():
        canvas = Figure(figsize=(8.4, max(5.6, 2.2 + 0.19 * len(drawn))), layout="constrained")
        axes, local = canvas.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        lines, names = [], []
        for row in drawn:
            eps = np.array([p["eps"] for p in row["points"]])
            cost = np.array([p["cost"] for p in row["points"]])
            x = 1 / eps if row["over"] == "eps" else eps
            look = style[name_of(row)]
            (line,) = axes.plot(x, cost, markersize=3, linewidth=1.2, **look)
            if row["claimed"] is not None:
                axes.plot(x, cost[0] * (x / x[0]) ** row["claimed"], "--", color=look["color"], linewidth=0.7)
            if len(row["local_slopes"]) == len(x) - 1:
                local.plot(np.sqrt(x[1:] * x[:-1]), row["local_slopes"], markersize=3, linewidth=0.8, **look)
            lines.append(line)
            names.append(name_of(row) + (f" {row['measured']:.2f}" if row["measured"] is not None else ""))
        over = {row["over"] for row in drawn} or {"eps"}
        axes.set(xscale="log", yscale="log", ylabel="oracle calls")
        local.set(xlabel=" or ".join(_X.get(o, o) for o in sorted(over)), ylabel="local slope")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(printable(title), parse_math=False)
        if drawn:
            style_figures.legend(axes, lines, names, "measured slope of calls")
        style_figures.despine(canvas)
    return canvas


def claim_figure(title: str, rows: Sequence[RateRecord], families: Mapping[str, str] | None = None) -> Figure:
    """A dot for the exponent that each verdict is about, against a tick for the claim and a thin one for what it predicts.

    The thick whisker is the interval over seeds, the thin one reaches to the slope of the second half of the range; the hollow
    dot is the exponent of the calls.
    """
    with style_figures.settings():
        canvas = Figure(figsize=(8.4, 1.2 + 0.28 * max(len(rows), 1)), layout="constrained")
        axes = canvas.subplots()
        _draw_claims(axes, title, rows, _looks(rows, families))
        axes.set_xlabel(_READ)
        style_figures.despine(canvas)
    return canvas


def claims_figure(tables: Sequence[tuple[str, Sequence[RateRecord]]]) -> Figure:
    """A panel as of `claim_figure` for each table, in two columns that are about as long as each other."""
    columns: list[list[tuple[str, Sequence[RateRecord]]]] = [[], []] if len(tables) > 1 else [[]]
    for table in tables:
        min(columns, key=_length).append(table)
    with style_figures.settings():
        height = max(6.3, 0.24 * max(map(_length, columns)) + 0.4)
        canvas = Figure(figsize=(6 * len(columns), height), layout="constrained")
        parts = canvas.subfigures(1, len(columns), squeeze=False)[0]
        for part, column in zip(parts, columns, strict=True):
            panels = part.subplots(len(column), 1, squeeze=False, height_ratios=[len(rows) + 2 for _, rows in column])
            for axes, (title, rows) in zip(panels[:, 0], column, strict=True):
                _draw_claims(axes, title, rows, _looks(rows, None))
        canvas.supxlabel(f"{_READ}\na claim is an upper bound: a dot at or left of its bar supports it", fontsize=8)
        style_figures.despine(canvas)
    return canvas


def _length(column: Sequence[tuple[str, Sequence[RateRecord]]]) -> int:
    return sum(len(rows) + 4 for _, rows in column)


def _draw_claims(axes: Axes, title: str, rows: Sequence[RateRecord], style: Mapping[str, style_figures.Look]) -> None:
    for place, row in enumerate(rows):
        look = style[name_of(row)]
        color = look["color"]
        if row["claimed"] is not None:
            axes.plot([row["claimed"]] * 2, [place - 0.32, place + 0.32], color=style_figures.INK, linewidth=2)
            axes.plot([row["target"]] * 2, [place - 0.32, place + 0.32], color=style_figures.INK, linewidth=0.7)
        if row["log_free"] is not None:
            axes.plot([row["low_free"], row["high_free"]], [place, place], color=color, linewidth=3)
            axes.plot([row["log_free"], row["second_half"]], [place, place], color=color, linewidth=0.8)
            axes.plot(row["log_free"], place, look["marker"], color=color, markersize=6)
        if row["measured"] is not None:
            axes.plot(row["measured"], place, look["marker"], markerfacecolor="none", color=color, markersize=9)
        number = "" if row["log_free"] is None else f"{row['log_free']:.2f}  "
        feeling = mood(row["verdict"])
        said = f"{number}{SIGNS[feeling]} {printable(row['verdict'])}"
        axes.annotate(
            said, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8,
            color=style_figures.VERDICTS[feeling], annotation_clip=False,
        ).set_parse_math(False)  # fmt: skip
    axes.set_yticks(range(len(rows)))
    for text, row in zip(axes.set_yticklabels([name_of(row) for row in rows]), rows, strict=True):
        text.set_parse_math(False)
        text.set_text(name_of(row))
    axes.margins(x=0.1)  # no mark on the edge, where the verdict begins
    axes.set(ylim=(len(rows) - 0.4, -0.6))
    axes.set_title(printable(title), parse_math=False, fontsize=9)
    axes.grid(axis="x", alpha=0.15, linewidth=0.6)


_READ = "exponent (thick bar: claimed, thin: expected here, dot and number: decides, hollow: all calls)"
_X = {"eps": "1/ε", "kappa": "condition number κ"}


def _looks(rows: Sequence[RateRecord], families: Mapping[str, str] | None) -> dict[str, style_figures.Look]:
    known = {name_of(row): str(row.get("family") or (families or {}).get(row["method"], "")) for row in rows}
    return style_figures.looks(list(known), known)
