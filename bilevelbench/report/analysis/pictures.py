"""The pictures that problems show of the answers of trials, as packs hold them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bilevelbench.report.analysis.summary import titled
from bilevelbench.report.text import printable
from bilevelbench.results import reached
from bilevelbench.results.schema import Results

#: At most so many methods have pictures on a page, the first ones of the problem's table.
SHOWN = 4
_PNG = b"\x89PNG\r\n\x1a\n"


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
    found = [_readable(method, stored[trials[method]]) for method in dict.fromkeys(methods) if method in trials]
    return [picture for of_method in [some for some in found if some][:SHOWN] for picture in of_method]


def _readable(method: str, shown: Any) -> list[Picture]:
    """What someone else has written may be anything; only what begins as a PNG does is shown."""
    if not isinstance(shown, Mapping):
        return []
    return [Picture(method, printable(title), png) for title, png in shown.items() if _is_png(png)]


def _is_png(text: Any) -> bool:
    try:
        return isinstance(text, str) and base64.b64decode(text, validate=True).startswith(_PNG)
    except (binascii.Error, ValueError):
        return False
