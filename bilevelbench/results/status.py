"""How a trial ends: the single list of endings, with what each means."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

#: How the `message` of a trial begins to say why its steps were interpreted; it says so last.
NOT_COMPILED = "not compiled, since "


class Status(StrEnum):
    """The column `status` of `runs`; a member is the text that is stored.

    `failed`: the trial has reached nothing (`bilevelbench.results.reached`); a time limit is a limit like a budget.
    `broken`: moreover, what was measured is not to be used.
    """

    sentence: str
    failed: bool
    broken: bool

    def __new__(cls, text: str, sentence: str = "", failed: bool = False, broken: bool = False) -> Self:
        member = str.__new__(cls, text)
        member._value_ = text
        member.sentence, member.failed, member.broken = sentence, failed, broken
        return member

    TARGET = "target", "an evaluation met the target"
    BUDGET = "budget", "the next call would have passed the budget"
    TIMEOUT = "timeout", "the time limit of the trial was reached"
    DIVERGED = "diverged", "an iterate was no longer finite, or x was beyond the problem's `x_limit`", True
    ERROR = (
        "error",
        "the method or the problem raised an exception or asked an undeclared query, or its process died or hung",
        True,
        True,
    )
    INVALID = (
        "invalid",
        "the two counts disagree, since f or g was called past the oracle, or the plugin changed what counts and measures",
        True,
        True,
    )
    STOPPED = "stopped", "the method ended by its own rule"
    INTERRUPTED = "interrupted", "a callback or Ctrl-C ended it; only `solve` gives back such a run"
