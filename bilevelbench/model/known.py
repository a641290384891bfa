"""A failure of the conformance kit that a plugin knows of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownFailure:
    """Why a check cannot pass, and words that its failure says: a failure that does not say them is not excused."""

    reason: str
    says: str
