"""The public names with the first sentence about each, and where they are explained."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from fragments import code, prose, table

import bilevelbench

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference"
#: An entry of a reference page: one that mkdocstrings writes, or a heading for what has no docstring.
ENTRY = re.compile(r"^(?:::: (bilevelbench\.\w+)|## `(\w+)`)$", re.M)
#: What has no docstring of its own.
_PLAIN = {
    "__version__": "The installed version.",
    "hookimpl": "Marks the functions of a plugin package that name what it brings.",
    "PerLane": "An integer field that may differ between the lanes of a pack.",
}


def explained() -> dict[str, str]:
    """The place of each public name, as a link from the page of all names."""
    return {
        (entry[1] or entry[2]).removeprefix("bilevelbench."): f"{path.stem}.html#{entry[1] or entry[2]}"
        for path in sorted(PAGES.glob("*.md"))
        for entry in ENTRY.finditer(path.read_text(encoding="utf-8"))
    }


def name_table() -> str:
    places = explained()
    rows = [
        (f'<a href="{places[name]}">{code(name)}</a>', prose(about(name)))
        for name in sorted(bilevelbench.__all__, key=str.lower)
    ]
    return table(("name", "what it is"), rows)


def about(name: str) -> str:
    """The first sentence."""
    text = _PLAIN.get(name) or inspect.getdoc(getattr(bilevelbench, name)) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.:;])\s+(?=[A-Z`])", first)[0].rstrip(":;")
