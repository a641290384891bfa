"""The public names with the first sentence about each, and where they are explained."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from fragments import code, prose, table

import bilevelbench

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference"
_NAMED = re.compile(r"^(?:::: bilevelbench\.(\w+)|## .*\{ #bilevelbench\.(\w+) \})$", re.M)
#: What has no docstring of its own.
_PLAIN = {
    "__version__": "The installed version.",
    "hookimpl": "Marks the functions of a plugin package that name what it brings.",
    "PerLane": "An integer field that may differ between the lanes of a pack.",
}


def explained() -> dict[str, str]:
    """The page of each public name."""
    return {
        name: path.stem
        for path in sorted(PAGES.glob("*.md"))
        for found in _NAMED.findall(path.read_text(encoding="utf-8"))
        for name in found
        if name
    }


def name_table() -> str:
    pages = explained()
    rows = [
        (f'<a href="{pages[name]}.html#bilevelbench.{name}">{code(name)}</a>', prose(about(name)))
        for name in sorted(bilevelbench.__all__, key=str.lower)
    ]
    return table(("name", "what it is"), rows)


def about(name: str) -> str:
    """The first sentence."""
    text = _PLAIN.get(name) or inspect.getdoc(getattr(bilevelbench, name)) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.:;])\s+(?=[A-Z`])", first)[0].rstrip(":;")
