"""Tables in Markdown."""

from __future__ import annotations

import pandas as pd

from bilevelbench.report.text import WORDS, printable


def pipe_table(frame: pd.DataFrame) -> str:
    """A GitHub table."""
    rule = "".join(" --- |" if column in WORDS else " ---: |" for column in frame.columns)
    lines = ["| " + " | ".join(map(markdown_text, frame.columns)) + " |", "|" + rule]
    lines += ["| " + " | ".join(markdown_text(v) for v in row) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines) + "\n"


def markdown_text(value: object) -> str:
    """Text for Markdown: what would end a cell or start a tag is escaped."""
    text = printable(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\\", "\\\\").replace("|", "\\|")
