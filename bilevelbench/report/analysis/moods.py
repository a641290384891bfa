"""What the word of a verdict means for its claim, whether it is about a rate or about an experiment."""

from __future__ import annotations

from typing import Literal

from bilevelbench.report.analysis.judgement import NOT_REPRODUCED, REPRODUCED

Mood = Literal["holds", "fails", "open"]

#: A sign beside the colour, which not everybody sees.
SIGNS: dict[Mood, str] = {"holds": "✓", "fails": "✗", "open": "?"}

_HOLDS, _FAILS = {"matches", "faster than claimed", REPRODUCED}, {"slower than claimed", NOT_REPRODUCED}


def mood(verdict: str) -> Mood:
    """`open` for every word that neither supports the claim nor contradicts it."""
    return "holds" if verdict in _HOLDS else "fails" if verdict in _FAILS else "open"
