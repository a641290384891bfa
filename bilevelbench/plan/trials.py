"""Trials that were checked against the plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bilevelbench.discovery.entry import Entry, make
from bilevelbench.discovery.loose_files import file_and_class
from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, faults
from bilevelbench.model.algorithm import Algorithm, Distributed
from bilevelbench.model.problem import Problem, Shared
from bilevelbench.plan.trial import Schedule, Spec, Trial


def _named(spec: Spec, entry: Entry[Any]) -> Spec:
    """A loose file under the name of its class: moving the file makes no new trial, editing it does."""
    if spec.name == entry.value.name:
        return spec
    file, wanted = file_and_class(spec.name)
    path = str(Path(file).resolve())
    return Spec(name=entry.value.name, params=spec.params, file=path if wanted is None else f"{path}:{wanted}")


def shared_problems(registry: Registry) -> tuple[str, ...]:
    return tuple(name for name, entry in registry.problems.items() if issubclass(entry.value, Shared))


def _check_agents(method: Algorithm, problem: Problem, registry: Registry) -> None:
    """A distributed method needs a problem that is a mean over agents, and as many of them as it is told."""
    if not isinstance(method, Distributed):
        return
    if not isinstance(problem, Shared):
        known = ", ".join(shared_problems(registry)) or "none is installed"
        raise InvalidInput(
            f"{method.name} is run by agents, and {problem.name} is not shared between agents; choose one that is: {known}"
        )
    if method.agents not in (None, problem.agents):
        raise InvalidInput(
            f"{method.name} with agents = {method.agents} on {problem.name} with agents = {problem.agents}; leave it out of "
            f"the method, or write {problem.name}[agents={method.agents}]"
        )


def make_trial(registry: Registry, algorithm: Spec, problem: Spec, **rest: Any) -> Trial:
    """A trial whose names and parameters were checked, with the plugins' versions in it."""
    a, p = registry.algorithm(algorithm.key), registry.problem(problem.key)
    _check_agents(make(a, algorithm.params), make(p, problem.params), registry)
    algorithm, problem = _named(algorithm, a), _named(problem, p)
    try:
        if not p.value.solves_phi:
            rest["schedule"] = rest.get("schedule", Schedule()).without_phi()
        return Trial(
            algorithm=algorithm,
            problem=problem,
            plugin=a.plugin,
            plugin_version=a.version,
            problem_plugin=p.plugin,
            problem_plugin_version=p.version,
            **rest,
        )
    except ValidationError as error:
        raise InvalidInput(faults(error)) from None
