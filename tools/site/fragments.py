"""Pieces of HTML that the generated pages share."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape

from mathematics import equations

_FORMULA = re.compile(r"^(?:[fg](?:\(x, y\))? = |[fg]_i)")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are HTML; a wide one scrolls by itself."""
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    first = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f"<table><thead><tr>{first}</tr></thead><tbody>{cells}</tbody></table>"


def code(text: object) -> str:
    return f"<code>{escape(str(text))}</code>"


def prose(text: str) -> str:
    """A paragraph of a docstring: what stands in backticks is code, and all else is as it is written."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(code(part) if n % 2 else escape(part) for n, part in enumerate(parts))


def docstring(text: str, names: Collection[str]) -> str:
    """Paragraphs, and blocks of equations where lines are indented or where a paragraph begins with a formula of f or g."""
    out: list[str] = []
    for lines, indented in _runs(text.splitlines()):
        if indented:
            out.append(equations(lines, names))
        elif _FORMULA.match(lines[0]):
            out.append(equations(re.split(r";\s{2,}", " ".join(lines)), names))
        else:
            out.append(f"<p>{prose(' '.join(lines))}</p>")
    return "\n".join(out)


_FENCE = re.compile(r" *```")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d+\.) ")


def set_equations(markdown: str) -> str:
    """A page with its indented blocks set as equations; what is indented in a list belongs to an item, and code stays code."""
    out: list[str] = []
    block: list[str] = []
    fenced = listed = False
    for line in [*markdown.split("\n"), ""]:
        indented = line.startswith("    ") and not line.isspace()
        if block or (indented and not fenced and not listed and not (out and out[-1].strip())):
            if indented:
                block.append(line)
                continue
            out.append(equations(block))
            block = []
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and line.strip() and not indented:
            listed = bool(_ITEM.match(line)) or (listed and bool(out[-1].strip()))
        out.append(line)
    return "\n".join(out[:-1])


def _runs(lines: list[str]) -> Iterable[tuple[list[str], bool]]:
    """Neighbouring lines that are alike: indented or not, with no blank line between them unless both are indented."""
    run: list[str] = []
    for line in [*lines, ""]:
        indented = line.startswith("    ")
        if run and (not line.strip() or indented != run[0].startswith("    ")):
            yield run, run[0].startswith("    ")
            run = []
        if line.strip():
            run.append(line.rstrip())
