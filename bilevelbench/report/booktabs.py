"""Booktabs tables for a paper: every name shows as it is, in any LaTeX engine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pandas as pd

from bilevelbench.report.text import WORDS, printable

_SIGNS = r"\varepsilon \kappa \ell \varphi \lambda \rho \nabla"
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "–": r"\textendash{}",
    "∞": r"$\infty$",
    "…": r"\dots{}",
    "·": r"\textperiodcentered{}",
    "ₓ": r"\textsubscript{x}",
    **{c: rf"${name}$" for c, name in zip("εκℓφλρ∇", _SIGNS.split(), strict=True)},
    **{c: rf"\textsuperscript{{{n}}}" for n, c in zip("0123456789-+", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", strict=True)},
    **{c: rf"\{c}" for c in "&%$#_{}"},
}

#: What tables and escaped names need.
PREAMBLE = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage{textcomp}
\usepackage{booktabs}
\usepackage{graphicx}
"""
HEAD = (
    PREAMBLE
    + r"""\usepackage[landscape,margin=1.5cm]{geometry}
\begin{document}
"""
)
TAIL = "\\end{document}\n"


def escape(text: object) -> str:
    """Text that prints as itself. What a Latin font lacks is named by its code point."""
    escaped = "".join(_character(c) for c in printable(text))
    return re.sub(r"([-,])(?=\1)", r"\1{}", escaped)  # no ligatures: two minus signs must not become a dash


def _character(c: str) -> str:
    if c in _SPECIAL:
        return _SPECIAL[c]
    if " " <= c <= "~" or (c.isalpha() and "À" <= c <= "ÿ"):  # what the T1 encoding has
        return c
    return rf"\texttt{{U+{ord(c):04X}}}"


def table(frame: pd.DataFrame, caption: str, notes: Sequence[str] = ()) -> str:
    """A floating booktabs table; columns of words start at the left, numbers end at the right."""
    sides = "".join("l" if column in WORDS else "r" for column in frame.columns)
    lines = [
        r"\begin{table}[htbp]",
        r"\centering\footnotesize",
        rf"\caption{{{escape(caption)}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        _line(frame.columns),
        r"\midrule",
        *map(_line, frame.itertuples(index=False)),
        r"\bottomrule",
        r"\end{tabular}}",
        *(rf"\par\smallskip {escape(note)}" for note in notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _line(values: Iterable[object]) -> str:
    cells = [escape(value) for value in values]
    if cells[0].startswith(("[", "*")):  # the end of the row before would take it for its argument
        cells[0] = "{}" + cells[0]
    return " & ".join(cells) + r" \\"


def document(tables: Sequence[str]) -> str:
    """A whole file around tables, or around `\\input` lines that name their files."""
    return HEAD + "\\clearpage\n".join(tables) + TAIL


def faults(text: str) -> list[str]:
    """What a compiler would object to, as far as one can see without one: environments, braces, columns, letters."""
    found, open_ = [], []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            open_.append(name)
        elif not open_ or open_.pop() != name:
            found.append(f"\\end{{{name}}} without its beginning")
    found += [f"\\begin{{{name}}} without an end" for name in open_]
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    depth = 0
    for c in bare:
        depth += (c == "{") - (c == "}")
        if depth < 0:
            break
    if depth:
        found.append("braces do not match")
    if bare.count("$") % 2:
        found.append("a formula is not closed")
    for sides, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        for line in body.splitlines():
            cells = len(re.findall(r"(?<!\\)&", line)) + 1
            if line.endswith(r" \\") and cells != len(sides):
                found.append(f"{cells} cells in {len(sides)} columns: {line[:60]}")
    found += [f"no font has {c!r}" for c in sorted(set(text)) if not (c == "\n" or " " <= c <= "~" or "À" <= c <= "ÿ")]
    return found
