"""A suite: which methods on which problems, with which budgets; a TOML file, or what the command line says."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, PositiveFloat, ValidationError

from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, faults
from bilevelbench.plan.figure import PaperFigure
from bilevelbench.plan.pairing import obstacle
from bilevelbench.plan.spec_text import MOST, expand, parse_spec
from bilevelbench.plan.trial import Budget, Compile, Frozen, Schedule, Spec, Trial
from bilevelbench.plan.trials import make_trial
from bilevelbench.plan.tuning import Tune
from bilevelbench.untrusted import Refused, read_bytes

M = TypeVar("M", bound=BaseModel)

_MOST_BYTES = 2**24


def read_suite(path: Path, model: type[M]) -> M:
    """A TOML file as this model, with errors in sentences."""
    try:
        return model.model_validate(_toml(path))
    except ValidationError as error:
        raise InvalidInput(f"suite {path}: {faults(error)}") from None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_bytes(path, most=_MOST_BYTES).decode("utf-8"))
    except Refused as refused:
        raise InvalidInput(f"suite {path} {refused}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"suite {path} is not valid UTF-8; save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"suite {path} is not valid TOML: {error}") from None


class AlgorithmEntry(Frozen):
    """A method and the values of its parameters to run; a list is a grid.

    `problems` restricts it to some: a name, or `name[param=value]` for one with these parameters beside its data seed.
    """

    name: str
    params: dict[str, Any] = {}
    label: Annotated[str, Field(max_length=200)] = ""
    problems: tuple[str, ...] | None = None

    def runs_on(self, problem: Spec) -> bool:
        if self.problems is None:
            return True
        named = {str(spec.variant) for text in self.problems for spec in parse_spec(text)}
        return not named.isdisjoint({problem.name, str(problem.variant)})


class ProblemEntry(Frozen):
    """A problem; `budget` and `targets` override the suite's. Under `[[override]]` and `[[also]]` see `Suite`."""

    name: str
    params: dict[str, Any] = {}
    budget: Budget | None = None
    targets: tuple[PositiveFloat, ...] | None = None


class Suite(Frozen):
    """`algorithm = "all"` is every registered method with its default parameters, `problem = "all"` every embedded problem;
    methods and problems of which one comes from "all" meet only where they can (`pairing`). Beside "all", `[[override]]` sets
    budget and targets of an embedded problem, `[[also]]` adds one that is not embedded, and `without` names methods that are
    left out.

    Seeds 0 to `seeds` - 1 move noise and draws, `data_seeds` the problems' data. `tune` says how `bilevelbench tune`
    searches; `tuned` is the metric by which the parameters were chosen, in a suite that it has written. `figure` is
    what a report makes of it. `compile`: whether steps are compiled, which rounds otherwise: "auto" where that pays,
    "always" wherever it can be done.
    """

    title: str = ""
    description: str = ""
    algorithm: Literal["all"] | tuple[AlgorithmEntry, ...] = "all"
    problem: Literal["all"] | tuple[ProblemEntry, ...] = "all"
    override: tuple[ProblemEntry, ...] = ()
    also: tuple[ProblemEntry, ...] = ()
    without: tuple[str, ...] = ()
    seeds: Annotated[int, Field(ge=1, le=MOST)] | tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = 1
    data_seeds: Annotated[int, Field(ge=1, le=MOST)] = 1
    budget: Budget
    targets: tuple[PositiveFloat, ...] = ()
    schedule: Schedule = Schedule()
    dtype: Literal["float64", "float32"] = "float64"
    tune: Tune = Tune()
    tuned: str = ""
    compile: Compile = "never"
    figure: PaperFigure | None = None

    @classmethod
    def load(cls, path: Path) -> Suite:
        return read_suite(path, cls)

    def trials(self, registry: Registry) -> list[Trial]:
        """Every trial, validated one by one: a caller's mistake is found here, before anything runs."""
        out: dict[str, Trial] = {}
        planned = 0
        for problem, entry in self.problems(registry):
            for algorithm, label in self._specs(registry, problem):
                planned += len(self.seed_list)
                if planned > MOST:
                    raise InvalidInput(f"a plan of more than {MOST:,} trials; shorten its lists, or take fewer seeds")
                for seed in self.seed_list:
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
                        tuned=self.tuned,
                        compile=self.compile,
                    )
                    out.setdefault(trial.id, trial)
        return list(out.values())

    @property
    def seed_list(self) -> Sequence[int]:
        return range(self.seeds) if isinstance(self.seeds, int) else self.seeds

    def problems(self, registry: Registry) -> Iterator[tuple[Spec, ProblemEntry]]:
        """Every problem with every data seed, and the entry that it comes from."""
        entries: Sequence[ProblemEntry]
        if self.problem == "all":
            known = {entry.name: entry for entry in self.override}
            names = [name for name, entry in registry.problems.items() if entry.value.embedded]
            entries = [*(known.get(name, ProblemEntry(name=name)) for name in names), *self.also]
        else:
            entries = self.problem
        for entry in entries:
            params = entry.params
            if self.data_seeds > 1 and "data_seed" not in params:
                choice = registry.problem(entry.name).value.data_sets
                params = {**params, "data_seed": list(choice[: self.data_seeds])}
            for spec in expand(entry.name, params):
                yield spec, entry

    def algorithms(self, registry: Registry) -> tuple[AlgorithmEntry, ...]:
        if self.algorithm == "all":
            for name in self.without:
                registry.algorithm(name)  # an error, if there is none
            return tuple(AlgorithmEntry(name=name) for name in registry.algorithms)
        return self.algorithm

    def meets(self, entry: AlgorithmEntry, problem: Spec, registry: Registry) -> bool:
        return entry.runs_on(problem) and self._obstacle(entry, problem, registry) is None

    def left_out(self, registry: Registry) -> dict[str, dict[str, set[str]]]:
        """The problems that a method does not meet although nobody said so, by reason and method."""
        out: dict[str, dict[str, set[str]]] = {}
        for problem, _ in self.problems(registry):
            for entry in self.algorithms(registry):
                why = self._obstacle(entry, problem, registry) if entry.runs_on(problem) else None
                if why is not None:
                    out.setdefault(why, {}).setdefault(entry.name, set()).add(str(problem.variant))
        return out

    def _obstacle(self, entry: AlgorithmEntry, problem: Spec, registry: Registry) -> str | None:
        """None for what was named by both its names: that is tried, and told what is wrong."""
        if self.algorithm != "all" and self.problem != "all":
            return None
        if self.algorithm == "all" and entry.name in self.without:
            return "is not in this suite"
        return obstacle(registry.algorithm(entry.name).value, registry.problem(problem.key).value)

    def _specs(self, registry: Registry, problem: Spec) -> Iterator[tuple[Spec, str]]:
        for entry in self.algorithms(registry):
            if self.meets(entry, problem, registry):
                for spec in expand(entry.name, entry.params):
                    yield spec, entry.label or str(spec)


class Collection(Frozen):
    """Suites that run together into one folder, by name or as TOML files beside this one."""

    title: str = ""
    description: str = ""
    include: Annotated[tuple[str, ...], Field(min_length=1)]


def load_suites(path: Path, registry: Registry, within: tuple[Path, ...] = ()) -> list[Suite]:
    """The suite in a file, or those that it includes; `within` are the files that include this one."""
    if "include" not in _toml(path):
        return [Suite.load(path)]
    if path in within:
        raise InvalidInput(f"suite {path} includes itself; take it out of `include`")
    names = read_suite(path, Collection).include
    beside = [str(path.parent / name) if name.endswith(".toml") else name for name in names]
    return [suite for name in beside for suite in load_suites(registry.suite(name), registry, (*within, path))]
