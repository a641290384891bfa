"""What a check says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

CheckStatus = Literal["passed", "failed", "known", "skipped"]


class Failure(AssertionError):
    """A rule that a plugin breaks, in one sentence: what was expected, what was seen, how to fix it."""

    def __init__(self, expected: str, seen: str, way_out: str) -> None:
        super().__init__(f"expected {expected}; saw {seen}; {way_out}")


class Skip(Exception):
    """A check that does not apply; the reason is its text."""


@dataclass(frozen=True)
class Outcome:
    """One check of one plugin. `known` is a failure that the plugin lists with a reason."""

    plugin: str
    kind: Literal["method", "problem", "file"]
    check: str
    status: CheckStatus
    message: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
