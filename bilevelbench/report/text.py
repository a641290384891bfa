"""Numbers and names as text that cannot break a table."""

from __future__ import annotations

import math
import re

from bilevelbench.untrusted import visible


def printable(text: object) -> str:
    """Text for a terminal, a table or an SVG: on one line, with every character to be seen."""
    return visible(" ".join(str(text).split()))


def number(value: float, digits: int = 2) -> str:
    """Two significant digits with thousands separators or a power of ten; a dash for what is not a finite number."""
    if not math.isfinite(value):
        return "–"
    if abs(value) < 100 and value == int(value):
        return f"{value:.0f}"
    if 1e-2 <= abs(value) < 1e7:
        rounded = float(f"{value:.{digits - 1}e}")
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
        return f"{rounded:,.{decimals}f}"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def interval_end(value: float) -> str:
    """An end of an interval."""
    return "∞" if value == math.inf else number(value)


_RAISED = str.maketrans("-.0123456789", "⁻·⁰¹²³⁴⁵⁶⁷⁸⁹")


def superscripts(text: str) -> str:
    """10⁻²·⁵ for 10^-2.5, for pages."""
    return re.sub(r"\b10\^(-?[0-9.]*[0-9])", lambda found: "10" + found[1].translate(_RAISED), text)


#: Columns of words, which start at the left.
WORDS = (
    "problem",
    "method",
    "ended",
    "what happened",
    "oracle",
    "claimed",
    "verdict",
    "range",
    "figure",
    "claim",
    "by",
)
