"""Pieces of pages: names of files, data for scripts, numbers in words, small drawings. No results and no templates."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from bilevelbench.report.text import number


def script_json(value: Any) -> str:
    """JSON that nothing in a page can take for a tag, whether it stands in a file or in a script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def breakable(name: object) -> Markup:
    """A name that breaks where it may: `source_cleaning[corruption=0.5,n_val=500]` after a comma, and not within a word."""
    return Markup(re.sub(r"([_,\[])", r"\1<wbr>", str(escape(name))))


def number_text(value: Any) -> str:
    return "–" if value is None else number(float(value))


def exact_text(value: Any) -> str:
    return "" if value is None or not np.isfinite(float(value)) else f"{float(value):.10g}"


def times(value: float) -> str:
    """1.0×, 1.7×, 340×: a cost over the best one's."""
    if not np.isfinite(value):
        return "not reached"
    return f"{value:.1f}×" if value < 100 else f"{number(value)}×"


def duration(seconds: float) -> str:
    """`40 minutes`, `3.2 hours`; nothing for nothing."""
    if seconds <= 0:
        return ""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds)} seconds"


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


def polyline(values: Sequence[float], lowest: float) -> str:
    width, height = 72.0, 18.0
    step = width / max(len(values) - 1, 1)
    return " ".join(f"{1 + i * step:.1f},{2 + (v / lowest) * height:.1f}" for i, v in enumerate(values))
