"""Checks of methods and problems alike: their names and their words; and what several files of checks share."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.field_texts import field_texts
from bilevelbench.model.known import KnownFailure
from bilevelbench.model.problem import Problem
from bilevelbench.plan.trial import Spec
from bilevelbench.testing.outcome import Failure

Plugin = Algorithm | Problem

STEPS = 3  # of a method that is stepped by hand


def kind_of(plugin: Plugin) -> str:
    return "method" if isinstance(plugin, Algorithm) else "problem"


def title_of(plugin: Plugin) -> str:
    """Its name and the parameters that it was given."""
    return str(Spec(name=plugin.name, params=plugin.model_dump(exclude_unset=True)))


def usual_parameters(cls: type[Plugin]) -> dict[str, Any]:
    """The parameters with which a class is checked if none are given."""
    return dict(cls.checked_with) if issubclass(cls, Problem) else {}


def check_name(plugin: Plugin) -> None:
    """A name is a word: it stands in commands, tables, file names and pages."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_+-]*", plugin.name):
        raise Failure(
            "a name of letters, digits and _ + -, beginning with a letter",
            repr(plugin.name),
            'choose another one: name = "my_method"',
        )


def check_name_is_free(plugin: Plugin) -> None:
    """No other plugin has this name: two that share one cannot be told apart in a table."""
    tables: Mapping[str, Any] = registry().algorithms if isinstance(plugin, Algorithm) else registry().problems
    taken = tables.get(plugin.name)
    if taken is not None and taken.value is not type(plugin):
        raise Failure(
            f"a {kind_of(plugin)} with a name of its own",
            f"{plugin.name!r}, which belongs to class {taken.value.__name__} of plugin {taken.plugin!r}",
            "rename yours",
        )


def check_documented(plugin: Plugin) -> None:
    """A docstring with the equations; for a method also a line on each parameter."""
    cls = type(plugin)
    module = sys.modules.get(cls.__module__)
    if not (cls.__dict__.get("__doc__") or (module and module.__doc__)):
        raise Failure(
            "a docstring of the class or its file",
            "none",
            "write the equations there: `bilevelbench info` prints them",
        )
    silent = [name for name, text in field_texts(cls).items() if not text]
    if silent and isinstance(plugin, Algorithm):
        raise Failure(
            "a line on each parameter",
            f"none on {', '.join(silent)}",
            f'write a docstring below the field: `{silent[0]}: float = 0.1` and then `"""x-step"""`',
        )


def known_exceptions(plugin: Plugin, checks: list[str]) -> dict[str, KnownFailure]:
    """The class's own list, `known_exceptions: ClassVar = {"check": KnownFailure(reason="...", says="...")}`."""
    known: dict[str, Any] = dict(getattr(type(plugin), "known_exceptions", {}))
    for name, failure in known.items():
        if name not in checks:
            raise Failure("names of checks in `known_exceptions`", repr(name), f"correct it{suggestion(name, checks)}")
        if not isinstance(failure, KnownFailure) or not failure.reason.strip() or not failure.says.strip():
            raise Failure(
                f"a KnownFailure with a reason and words of the failure for the known exception {name!r}",
                repr(failure),
                'write KnownFailure(reason="why the rule cannot hold", says="part of the sentence that the check prints")',
            )
    return known


def is_valid(cls: type[Algorithm], given: dict[str, Any], constants: Any) -> bool:
    """Whether a method can be made with these parameters."""
    try:
        cls.model_validate(given).resolve(constants)
    except (ValidationError, InvalidInput):
        return False
    return True
