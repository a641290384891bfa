"""Checks applied to plugins: as a list of outcomes, or as pytest's parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bilevelbench.errors import BilevelbenchError, BudgetExhausted, InvalidInput, MissingData
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.known import KnownFailure
from bilevelbench.model.problem import Problem
from bilevelbench.model.rounding import one_thread
from bilevelbench.testing.checks.algorithm import ALGORITHM_CHECKS, DEEP_CHECKS
from bilevelbench.testing.checks.common import (
    Plugin,
    check_documented,
    check_name,
    check_name_is_free,
    kind_of,
    known_exceptions,
    title_of,
    usual_parameters,
)
from bilevelbench.testing.checks.problem import PROBLEM_CHECKS
from bilevelbench.testing.outcome import Failure, Outcome, Skip
from bilevelbench.testing.stepper import told, way_out

if TYPE_CHECKING:
    import pytest

#: Without these a plugin cannot be tried at all, and all checks that try it are skipped.
_FIRST = ("runs", "builds")
_WORDS = (check_name, check_name_is_free, check_documented)


@dataclass(frozen=True)
class Check:
    """One property, by name."""

    name: str
    function: Callable[[Any], None]
    what: str
    names: tuple[str, ...]

    @property
    def tries(self) -> bool:
        """Whether it needs a plugin that runs."""
        return self.function not in _WORDS and self.name not in (*_FIRST, "claims")

    def __call__(self, plugin: Plugin) -> Outcome:
        began = time.perf_counter()
        status, message = self._verdict(plugin)
        return Outcome(title_of(plugin), kind_of(plugin), self.name, status, message, time.perf_counter() - began)  # type: ignore[arg-type]

    def _verdict(self, plugin: Plugin) -> tuple[Any, str]:
        known: KnownFailure | None = None
        try:
            known = known_exceptions(plugin, list(self.names)).get(self.name)
            with one_thread():
                self.function(plugin)
        except (Skip, MissingData) as skip:  # what cannot be read cannot be judged
            return "skipped", str(skip)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except (Failure, BudgetExhausted, Exception, SystemExit) as error:
            message = str(error) if isinstance(error, Failure) else self._surprise(error, plugin)
            if known is None:
                return "failed", message
            if known.says in message:
                return "known", f"{known.reason} ({message})"
            return "failed", f"{message}; it is not the known failure, which says {known.says!r}"
        if known is not None:
            return (
                "failed",
                f"expected a failure, since `known_exceptions` lists {self.name!r}; saw none; take it off the list",
            )
        return "passed", ""

    def _surprise(self, error: BaseException, plugin: Plugin) -> str:
        message = told(error, plugin)
        mend = "do as it says" if isinstance(error, BilevelbenchError) else way_out(message)
        return str(Failure(f"no error in the check {self.name!r}", message, mend))


def checks_for(plugin: Plugin, deep: bool = False) -> list[Check]:
    """All checks of a method or of a problem, in order; `deep` adds those of a method that take long."""
    functions: Sequence[Callable[[Any], None]]
    functions = (*ALGORITHM_CHECKS, *DEEP_CHECKS) if isinstance(plugin, Algorithm) else PROBLEM_CHECKS
    names = tuple(function.__name__.removeprefix("check_") for function in functions)
    return [
        Check(name, function, (function.__doc__ or "").strip(), names)
        for name, function in zip(names, functions, strict=True)
        if deep or function not in DEEP_CHECKS
    ]


def run_checks(
    plugin: Plugin | type[Plugin], begin: Callable[[str], None] = lambda name: None, deep: bool = False
) -> Iterator[Outcome]:
    """One outcome per check; `begin` hears the name of each before it starts."""
    made = _made(plugin)
    lost = ""
    for check in checks_for(made, deep):
        if lost and check.tries:
            yield Outcome(title_of(made), kind_of(made), check.name, "skipped", lost)  # type: ignore[arg-type]
            continue
        begin(check.name)
        outcome = check(made)
        if check.name in _FIRST and outcome.status == "failed":
            lost = f"{check.name!r} failed"
        elif check.name == "builds" and outcome.status == "skipped":
            lost = "'builds' was skipped"
        yield outcome


def parametrize_with_checks(plugins: Iterable[Plugin | type[Plugin]]) -> pytest.MarkDecorator:
    """A test for each check of each plugin.

    @parametrize_with_checks([SOBA(), SOBA(batch_size=1)])
    def test_conformance(plugin, check):
        check(plugin)
    """
    import pytest

    cases = []
    for n, made in enumerate(map(_made, plugins)):
        cases += [
            pytest.param(made, _Asserted(check), id=f"{made.name}-{n}-{check.name}") for check in checks_for(made)
        ]
    return pytest.mark.parametrize(("plugin", "check"), cases)


@dataclass(frozen=True)
class _Asserted:
    """A check that tells pytest its outcome."""

    check: Check

    def __call__(self, plugin: Plugin) -> None:
        import pytest

        __tracebackhide__ = True
        outcome = self.check(plugin)
        if outcome.status == "failed":
            pytest.fail(outcome.message, pytrace=False)
        if outcome.status == "known":
            pytest.xfail(outcome.message)
        if outcome.status == "skipped":
            pytest.skip(outcome.message)


def _made(plugin: Plugin | type[Plugin]) -> Plugin:
    if isinstance(plugin, Algorithm | Problem):
        return plugin
    try:
        return plugin(**usual_parameters(plugin))
    except Exception as error:
        raise InvalidInput(
            f"{getattr(plugin, '__name__', plugin)} cannot be made without parameters: {error}; give an object of it"
        ) from None
