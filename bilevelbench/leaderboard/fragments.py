"""Pieces of pages: names of files, data for scripts, numbers in words, small drawings. No results and no templates."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bilevelbench.report.analysis.rates import COLUMNS as RATE_COLUMNS
from bilevelbench.report.analysis.rates import RateTable, claimed
from bilevelbench.report.analysis.rates import cells as rate_cells
from bilevelbench.report.analysis.rates import notes as rate_notes
from bilevelbench.report.text import number
from bilevelbench.untrusted import slug


def script_json(value: Any) -> str:
    """JSON that nothing in a page can take for a tag, whether it stands in a file or in a script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def number_text(value: Any) -> str:
    return "–" if value is None else number(float(value))


def exact_text(value: Any) -> str:
    return "" if value is None or not np.isfinite(float(value)) else f"{float(value):.10g}"


def times(value: float) -> str:
    """1.0×, 1.7×, 340×: a cost over the best one's."""
    if not np.isfinite(value):
        return "not reached"
    return f"{value:.1f}×" if value < 100 else f"{number(value)}×"


def median_hvp_ratio(facts: Mapping[str, Any]) -> float | None:
    """The median over problems of the measured time of an HVP over that of a gradient, kept to the slider's range."""
    values = [float(v) for v in facts.get("hvp_ratio", {}).values() if v > 0]
    return round(min(max(statistics.median(values), 0.5), 10.0), 2) if values else None


def grouped(rows: Iterable[Mapping[Any, Any]], column: str) -> dict[str, list[dict[str, Any]]]:
    """Rows by what they have in a column, in their order."""
    out: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        out.setdefault(str(row[column]), []).append(dict(row))
    return out


def bands(groups: Sequence[int]) -> list[int]:
    """0 and 1 in turn, from group to group."""
    order = list(dict.fromkeys(groups))
    return [order.index(g) % 2 for g in groups]


def polyline(values: Sequence[float], lowest: float) -> str:
    width, height = 72.0, 18.0
    step = width / max(len(values) - 1, 1)
    return " ".join(f"{1 + i * step:.1f},{2 + (v / lowest) * height:.1f}" for i, v in enumerate(values))


def rate_row(row: Mapping[str, Any]) -> dict[str, Any]:
    data = dict(row)
    cells = dict(zip(RATE_COLUMNS, rate_cells(data), strict=True))
    return {
        **cells, "name": cells["method"], "claim": cells["claimed"], "second_half": cells["second half"],
        "method": row["method"], "footnote": row["footnote"],
    }  # fmt: skip


def rate_table(table: RateTable) -> dict[str, Any]:
    rows = table.rows
    numbers = [v for r in rows for v in (r["claimed"], r["target"], r["high"], r["high_free"]) if v is not None]
    top = np.ceil(max(numbers, default=1.0) + 0.25)

    def place(value: float | None) -> float | None:
        return None if value is None else round(190 + 400 * min(max(value, 0.0), top) / top, 1)

    marks = []
    for n, row in enumerate(rows):
        cells = rate_row(row)
        said = f"{cells['name']}: claimed {claimed(dict(row))}, measured {cells['decides']}, {cells['verdict']}"
        marks.append(
            {
                "y": 34 + 24 * n, "name": cells["name"], "verdict": cells["verdict"], "said": said,
                "claim": place(row["claimed"]), "expected": place(row["target"]), "dot": place(row["log_free"]),
                "low": place(row["low_free"]), "high": place(row["high_free"]), "calls": place(row["measured"]),
            }
        )  # fmt: skip
    return {
        "title": table.title, "rows": [rate_row(row) for row in rows], "notes": rate_notes(list(map(dict, rows))),
        "marks": marks, "height": 34 + 24 * len(rows) + 14,
        "ticks": [(place(float(v)), v) for v in range(int(top) + 1)],
        "id": slug(table.title), "over": " or ".join(sorted({"1/eps" if r["over"] == "eps" else r["over"] for r in rows})),
    }  # fmt: skip


def rate_plot(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Cost against 1/eps on log axes with the claimed slope through the first point, in a box of 360 x 200."""
    points = [(1 / p["eps"], p["cost"]) for p in row["points"] if p.get("eps") and p.get("cost")]
    if row["over"] != "eps" or len(points) < 2:
        return None
    x, y = (np.log10(np.array(v)) for v in zip(*points, strict=True))
    claim = y[0] + (row["claimed"] or 0.0) * (x - x[0])
    low, high = min(y.min(), claim.min()), max(y.max(), claim.max())

    def at(u: float, v: float) -> str:
        return f"{50 + 290 * (u - x[0]) / (x[-1] - x[0]):.1f},{170 - 150 * (v - low) / (high - low or 1):.1f}"

    return {
        "line": " ".join(at(u, v) for u, v in zip(x, y, strict=True)),
        "dots": [at(u, v).split(",") for u, v in zip(x, y, strict=True)],
        "claim": "" if row["claimed"] is None else " ".join(at(u, v) for u, v in zip(x, claim, strict=True)),
        "x": [number_text(10 ** x[0]), number_text(10 ** x[-1])],
        "y": [number_text(10**low), number_text(10**high)],
    }
