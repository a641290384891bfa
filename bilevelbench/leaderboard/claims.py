"""Claims about rates beside what was measured: rows of tables, the marks of the claims figure, and a plot for a method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bilevelbench.leaderboard.facts import method_facts
from bilevelbench.leaderboard.fragments import number_text
from bilevelbench.leaderboard.names import paper_name
from bilevelbench.leaderboard.site import Site
from bilevelbench.model.family import family_of
from bilevelbench.report.analysis.rates import COLUMNS, RateRecord, RateTable, cells, notes
from bilevelbench.report.figures.rates import claims_figure
from bilevelbench.report.figures.style import figure_file
from bilevelbench.report.text import formula
from bilevelbench.untrusted import slug

#: The kinds of file in which the claims figure lies beside the pages; the PNG is the preview of the page.
PICTURE, KINDS = "figures/claims", ("svg", "png", "pdf")

#: Where the scale of a strip begins and ends, in percent of its width.
_START, _END = 3.0, 88.0
#: The room that a number takes on a narrow screen.
_NUMBER = 12.0


def rate_tables(site: Site) -> list[dict[str, Any]]:
    return [_rate_table(site, table) for table in site.material.rates]


def pictures(site: Site) -> dict[str, bytes]:
    """The claims figure as files, with a panel for each table; nothing where no rate was measured."""
    tables = [(table.title, [_named(site, row) for row in table.rows]) for table in site.material.rates]
    if not site.measured:
        return {}
    figure = claims_figure([(title, rows) for title, rows in tables if rows])
    return {f"{PICTURE}.{kind}": figure_file(figure, kind) for kind in KINDS}


def rate_row(site: Site, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a table says of a claim, and the page of its method."""
    record = _named(site, row)
    texts = dict(zip(COLUMNS, cells(record), strict=True))
    page = "" if row["method"] in site.material.foreign else site.method_file.get(row["method"], "")
    return {
        **texts, "name": texts["method"], "claim": texts["claimed"], "second_half": texts["second half"],
        "method": row["method"], "footnote": formula(row["footnote"]), "page": page, "family": record["family"],
    }  # fmt: skip


def _named(site: Site, row: Mapping[str, Any]) -> RateRecord:
    """The record with the name of its method as the paper has it, and its family."""
    fact = method_facts(site.material.facts, row["method"])
    family = family_of(str(row.get("family") or fact["family"]))
    return {**row, "label": paper_name(row["label"], row["method"], str(fact["title"])), "family": family}


def _rate_table(site: Site, table: RateTable) -> dict[str, Any]:
    rows = table.rows
    numbers = [v for r in rows for v in (r["claimed"], r["target"], r["high"], r["high_free"]) if v is not None]
    top = float(np.ceil(max(numbers, default=1.0) + 0.25))

    def place(value: float | None) -> float | None:
        return None if value is None else round(_START + (_END - _START) * min(max(value, 0.0), top) / top, 2)

    shown = [rate_row(site, row) for row in rows]
    for cell, row in zip(shown, rows, strict=True):
        columns = {"claim": "claimed", "expected": "target", "dot": "log_free", "low": "low_free", "high": "high_free",
                   "calls": "measured"}  # fmt: skip
        marks = {mark: place(row[column]) for mark, column in columns.items()}
        cell["mark"] = {
            **marks, "beside": beside(marks["dot"], marks.values()),
            "number": "" if row["log_free"] is None else f"{row['log_free']:.2f}",
        }  # fmt: skip
    step = 1 if top <= 8 else 2
    return {
        "title": table.title, "made": table.made, "rows": shown, "id": slug(table.title),
        "notes": [formula(note) for note in notes([_named(site, row) for row in rows])],
        "ticks": [(place(float(v)), v) for v in range(0, int(top) + 1, step)],
        "over": " or ".join(sorted({"1/ε" if r["over"] == "eps" else formula(r["over"]) for r in rows})),
    }  # fmt: skip


def beside(dot: float | None, marks: Iterable[float | None]) -> float | None:
    """Behind which mark the number of a dot has room: the dot itself, or the last of those that stand close behind it."""
    for mark in sorted(mark for mark in marks if mark is not None):
        if dot is not None and dot < mark < dot + _NUMBER:
            dot = mark
    return dot


#: The box of a rate plot: its size, and where its axes are; the numbers at the left are up to nine characters wide.
_BOX = {"width": 400, "height": 240, "left": 92, "right": 388, "top": 12, "bottom": 196}


def rate_plot(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Cost against 1/eps on log axes with the claimed slope through the first point."""
    points = [(1 / p["eps"], p["cost"]) for p in row["points"] if p.get("eps") and p.get("cost")]
    if row["over"] != "eps" or len(points) < 2:
        return None
    x, y = (np.log10(np.array(v)) for v in zip(*points, strict=True))
    claim = y[0] + (row["claimed"] or 0.0) * (x - x[0])
    low, high = min(y.min(), claim.min()), max(y.max(), claim.max())

    def at(u: float, v: float) -> str:
        across = _BOX["left"] + 6 + (_BOX["right"] - _BOX["left"] - 12) * (u - x[0]) / (x[-1] - x[0])
        return f"{across:.1f},{_BOX['bottom'] - 6 - (_BOX['bottom'] - _BOX['top'] - 12) * (v - low) / (high - low or 1):.1f}"

    def line(values: Sequence[float]) -> str:
        return " ".join(at(u, v) for u, v in zip(x, values, strict=True))

    return {
        "line": line(y), "dots": [dot.split(",") for dot in line(y).split(" ")],
        "claim": "" if row["claimed"] is None else line(claim),
        "x": [number_text(10 ** x[0]), number_text(10 ** x[-1])],
        "y": [number_text(10**low), number_text(10**high)], "box": _BOX,
    }  # fmt: skip
