"""The pictures that problems show of the answers of trials, as packs hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bilevelbench.report.analysis.summary import titled
from bilevelbench.report.text import printable
from bilevelbench.results import reached
from bilevelbench.results.png import redrawn
from bilevelbench.results.schema import Results

#: At most so many methods have pictures on a page, the first ones of the problem's table.
SHOWN = 4


@dataclass(frozen=True)
class Picture:
    """One PNG, as base64, of the answer of a method."""

    method: str
    title: str
    png: str


def pictures(results: Results, problem: str, methods: Sequence[str]) -> list[Picture]:
    """Of the first trial of each method that did not fail, in the order of `methods`."""
    stored: dict[str, Any] = {}
    for record in results.records:
        stored |= record.get("pictures") or {}
    runs = titled(results.runs[~reached.failed(results.runs)])
    runs = runs[(runs["title"] == problem) & runs["trial_id"].isin(stored)].drop_duplicates("method")
    trials = dict(zip(runs["method"], runs["trial_id"], strict=True))
    found = []
    for method in (method for method in dict.fromkeys(methods) if method in trials):
        drawn = redrawn({method: stored[trials[method]]}).get(method, {})
        found += [[Picture(method, printable(title), png) for title, png in drawn.items()]] if drawn else []
    return [picture for of_method in found[:SHOWN] for picture in of_method]
