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


_SIGNS = {"eps": "ε", "kappa": "κ", "ell": "ℓ", "phi": "φ", "lam": "λ", "rho": "ρ", "dx": "dₓ"}
_RAISED = str.maketrans("-.0123456789", "⁻·⁰¹²³⁴⁵⁶⁷⁸⁹")


def raised(text: str) -> str:
    """A number as a power."""
    return text.translate(_RAISED)


def formula(text: str) -> str:
    """`ell^3 eps^-1.5` as ℓ³ ε⁻¹·⁵: words for signs and powers of numbers, and everything else as it is."""
    named = re.sub(r"\bgrad phi\b", "∇φ", text)
    named = re.sub(r"\b[a-z]+\b", lambda word: _SIGNS.get(word[0], word[0]), named)
    return re.sub(r"\^(-?\d+(?:\.\d+)?)", lambda power: raised(power[1]), named)


def interval_end(value: float) -> str:
    """An end of an interval."""
    return "∞" if value == math.inf else number(value)


def superscripts(text: str) -> str:
    """10⁻²·⁵ for 10^-2.5, for pages."""
    return re.sub(r"\b10\^(-?[0-9.]*[0-9])", lambda found: "10" + raised(found[1]), text)


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
    "ours",
    "theirs",
    "by",
)
