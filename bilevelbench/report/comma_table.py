"""Tables as CSV, which many people open in a spreadsheet."""

from __future__ import annotations

import pandas as pd

from bilevelbench.untrusted import visible

#: What a spreadsheet takes for the beginning of a formula, which may send the sheet elsewhere or start a program.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def comma_table(frame: pd.DataFrame, float_format: str | None = None) -> str:
    """Numbers as they are; a text that would be a formula gets an apostrophe, which makes it a text."""
    texts = frame.select_dtypes(exclude="number").columns
    safe = frame.assign(**{name: frame[name].map(_cell) for name in texts}).rename(columns=_cell)
    text: str = safe.to_csv(index=False, float_format=float_format)
    return text


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.lstrip(" ").startswith(_FORMULA) else visible(value)
