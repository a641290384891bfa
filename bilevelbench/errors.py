"""The exceptions. Each message names the culprit, the value and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class BilevelbenchError(Exception):
    """A mistake that the caller can fix; the command line prints it and exits with 2."""


class UnknownName(BilevelbenchError):
    """A name that no plugin, problem, suite or field has."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name = kind, name
        super().__init__(f"unknown {kind} {name!r}{suggestion(name, known)}{hint}")


class InvalidInput(BilevelbenchError):
    """A value that is out of range, of the wrong type or does not fit the others."""


class MissingData(InvalidInput):
    """A data file that is in none of the places where it is looked for."""


class MissingConstant(BilevelbenchError):
    """A preset or a default needs a constant that the problem does not declare."""

    def __init__(self, constant: str, problem: str, wanted_for: str = "") -> None:
        self.constant = constant
        where = f"problem {problem!r}" if problem else "the problem"
        need = f" (needed for {wanted_for})" if wanted_for else ""
        why = " above zero, so its lower level may not be strongly convex" if constant == "mu" else ""
        super().__init__(
            f"{where} declares no constant {constant!r}{why}{need}; declare it in `constants=` "
            "or set the parameter that depends on it yourself"
        )


class StoreError(BilevelbenchError):
    """A result folder or file that cannot be read or written."""


class MethodError(Exception):
    """A method broke the rules during a run; it becomes the `status` of its trial."""


class UndeclaredQuery(MethodError):
    """A step asked the oracle for something that is not in the method's `uses`."""

    def __init__(self, query: str, declared: Iterable[str]) -> None:
        super().__init__(
            f"the method asked for {query!r}, which its `uses` does not declare "
            f"(declared: {', '.join(sorted(declared)) or 'nothing'}); add it to `uses` or do not ask"
        )


class CountsDisagree(MethodError):
    """The oracle's meter and the instance's own count of passes differ."""


class Tampered(MethodError):
    """A method changed what it has no business with; its trial is `invalid`."""


class Peeked(Tampered):
    """A method asked for what only evaluations may know."""


class AgentLost(MethodError):
    """An agent of a distributed method died, failed or fell silent."""


class Untraceable(Exception):
    """A step that cannot be compiled; the text says why, after "since"."""


class CompiledDiffers(Exception):
    """Compiled steps that a trial has made are not those of its method; the text says how."""


class BudgetExhausted(BaseException):
    """Every lane has spent its budget. A BaseException, so that no `except Exception` of a method eats it."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'soba'?`, in whatever case, or the list of what there is when nothing is close."""
    names = sorted(set(known))
    by_letters = {known_name.casefold(): known_name for known_name in names}
    close = difflib.get_close_matches(name.casefold(), by_letters, n=1)
    if close:
        return f"; did you mean {by_letters[close[0]]!r}?"
    return f"; choose from {', '.join(names)}" if names else "; there are none"


def faults(error: ValidationError) -> str:
    """A pydantic error as a sentence: where, what was given (a whole table is not repeated), what was wanted."""
    out = []
    for e in error.errors():
        where, said = ".".join(map(str, e["loc"])) or "settings", e["msg"].removeprefix("Value error, ")
        given = "" if e["type"] == "value_error" and isinstance(e["input"], dict) else f" = {e['input']!r}"
        out.append(f"{where}{given}: {said[:1].lower()}{said[1:]}")
    return "; ".join(out)
