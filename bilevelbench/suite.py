"""A suite: which methods on which problems, with which budgets; a TOML file, or what the command line says."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from bilevelbench.errors import InvalidInput
from bilevelbench.registry import Entry, Registry, faults, make
from bilevelbench.trial import Budget, Schedule, Spec, Trial, expand

M = TypeVar("M", bound=BaseModel)


def read_suite(path: Path, model: type[M]) -> M:
    """A TOML file as this model, with errors in sentences."""
    try:
        return model.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"suite {path} is no valid TOML: {error}") from None
    except ValidationError as error:
        raise InvalidInput(f"suite {path}: {faults(error)}") from None


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AlgorithmEntry(_Table):
    """A method and the values of its parameters to run; a list is a grid. `problems` restricts it to some."""

    name: str
    params: dict[str, Any] = {}
    label: str = ""
    problems: tuple[str, ...] | None = None


class ProblemEntry(_Table):
    """A problem; `budget` and `targets` override the suite's. Under `[[override]]` it settles only those of a problem."""

    name: str
    params: dict[str, Any] = {}
    budget: Budget | None = None
    targets: tuple[PositiveFloat, ...] | None = None


class Suite(_Table):
    """`algorithm = "all"` is every registered method with its default parameters, `problem = "all"` every embedded problem.

    Seeds 0 to `seeds` - 1 move noise and draws, `data_seeds` the problems' data.
    """

    title: str = ""
    description: str = ""
    algorithm: Literal["all"] | tuple[AlgorithmEntry, ...] = "all"
    problem: Literal["all"] | tuple[ProblemEntry, ...] = "all"
    override: tuple[ProblemEntry, ...] = ()
    seeds: PositiveInt | tuple[NonNegativeInt, ...] = 1
    data_seeds: PositiveInt = 1
    budget: Budget
    targets: tuple[PositiveFloat, ...] = ()
    schedule: Schedule = Schedule()
    dtype: Literal["float64", "float32"] = "float64"

    @classmethod
    def load(cls, path: Path) -> Suite:
        return read_suite(path, cls)

    def trials(self, registry: Registry) -> list[Trial]:
        """Every trial, validated one by one: a caller's mistake is found here, before anything runs."""
        seeds = range(self.seeds) if isinstance(self.seeds, int) else self.seeds
        out: dict[str, Trial] = {}
        for problem, entry in self._problems(registry):
            for algorithm, label in self._algorithms(registry, entry.name):
                for seed in seeds:
                    trial = make_trial(
                        registry,
                        algorithm,
                        problem,
                        seed=seed,
                        budget=entry.budget or self.budget,
                        targets=self.targets if entry.targets is None else entry.targets,
                        schedule=self.schedule,
                        dtype=self.dtype,
                        label=label,
                    )
                    out.setdefault(trial.id, trial)
        return list(out.values())

    def _problems(self, registry: Registry) -> Iterator[tuple[Spec, ProblemEntry]]:
        entries: Sequence[ProblemEntry]
        if self.problem == "all":
            known = {entry.name: entry for entry in self.override}
            names = [name for name, entry in registry.problems.items() if entry.value.embedded]
            entries = [known.get(name, ProblemEntry(name=name)) for name in names]
        else:
            entries = self.problem
        for entry in entries:
            params = entry.params
            if self.data_seeds > 1 and "data_seed" not in params:
                choice = registry.problem(entry.name).value.data_sets
                params = {**params, "data_seed": list(choice[: self.data_seeds])}
            for spec in expand(entry.name, params):
                yield spec, entry

    def _algorithms(self, registry: Registry, problem: str) -> Iterator[tuple[Spec, str]]:
        if self.algorithm == "all":
            for name in registry.algorithms:
                yield Spec(name=name), name
            return
        for entry in self.algorithm:
            if entry.problems is None or problem in entry.problems:
                for spec in expand(entry.name, entry.params):
                    yield spec, entry.label or str(spec)


def _named(spec: Spec, entry: Entry[Any]) -> Spec:
    """A loose file under the name of its class: moving the file makes no new trial, editing it does."""
    if spec.name == entry.value.name:
        return spec
    file, colon, cls = spec.name.rpartition(":") if ".py:" in spec.name else (spec.name, "", "")
    return Spec(name=entry.value.name, params=spec.params, file=f"{Path(file).resolve()}{colon}{cls}")


def make_trial(registry: Registry, algorithm: Spec, problem: Spec, **rest: Any) -> Trial:
    """A trial whose names and parameters were checked, with the plugins' versions in it."""
    a, p = registry.algorithm(algorithm.key), registry.problem(problem.key)
    make(a, algorithm.params)
    make(p, problem.params)
    algorithm, problem = _named(algorithm, a), _named(problem, p)
    try:
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
