"""bilevelbench from Python: `run` for experiments, `tune` for parameters, `load` for what is stored; `solve` is elsewhere."""

from __future__ import annotations

import copy
import hashlib
import inspect
import itertools
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import ValidationError

from bilevelbench.discovery.entry import Entry
from bilevelbench.discovery.registry import Registry
from bilevelbench.discovery.registry import registry as installed
from bilevelbench.display import Tell, shown
from bilevelbench.engine.agents.leader import dismiss
from bilevelbench.engine.loop import run_pack
from bilevelbench.engine.record import PackResult
from bilevelbench.errors import InvalidInput, faults
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.run import run_trials
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.problem import Problem
from bilevelbench.plan.packs import plan
from bilevelbench.plan.spec_text import parse_lists, parse_spec
from bilevelbench.plan.suite import AlgorithmEntry, ProblemEntry, Suite
from bilevelbench.plan.trial import SESSION, Compile, Schedule, Spec, Trial, checked_budget
from bilevelbench.plan.trials import make_trial
from bilevelbench.plan.tuning import Tune
from bilevelbench.report.notebook import Results
from bilevelbench.results import schema
from bilevelbench.results.schema import curve_of, runs_of
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results
from bilevelbench.studies.tuning.study import run_tuning

Chosen = str | Algorithm | Problem


def run(
    algorithms: Chosen | Sequence[Chosen],
    problems: Chosen | Sequence[Chosen],
    *,
    seeds: int | Sequence[int] = 1,
    budget: float | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    targets: Sequence[float] = (),
    dtype: str = "float64",
    schedule: Schedule | None = None,
    out: str | Path | None = None,
    jobs: int = 0,
    progress: bool | None = None,
    compile: Compile = "never",
) -> Results:
    """Run every method on every problem with every seed; `.runs` has one row per trial, `.curve` one per evaluation.

        bilevelbench.run("f2ba[lam=10,100]", "quadratic", steps=200).runs

    Methods and problems are names, files or objects. `budget` is in calls (samples on a stochastic problem). With `out`
    the results are stored there, and what is stored already is not run again. `jobs` is the number of
    worker processes; 0 runs in this one. `progress=True` shows how far it is, as does None where somebody watches.
    `compile="auto"` compiles steps where that pays, "always" wherever it can be done; they round otherwise then.
    """
    folder = None if out is None else Path(out).absolute()  # plugins may change the working directory
    registry = _session()
    limit = checked_budget(budget=budget, steps=steps, seconds=seconds)
    trials = [
        make_trial(
            registry, a, p, seed=seed, budget=limit, targets=tuple(targets), schedule=schedule or Schedule(), dtype=dtype,
            label=str(a), compile=compile,
        )
        for p in _specs(problems, registry)
        for a in _specs(algorithms, registry)
        for seed in (range(seeds) if isinstance(seeds, int) else seeds)
    ]  # fmt: skip
    trials = list({t.id: t for t in trials}.values())
    if folder is None and jobs:
        raise InvalidInput(f"jobs = {jobs} needs a folder for the results; set `out`")
    with shown("trials", len(trials), progress, counted=True) as tell:
        told = _adding_up(tell)
        if folder is None:
            return _run_here(trials, registry, told)
        results = run_trials(
            trials, Store(folder), registry, Execution(jobs=jobs), lambda done: told(done.trials, ", ".join(done.best))
        )
    return Results.of(results)


def _adding_up(tell: Tell) -> Callable[[int, str], None]:
    """Is told what was done since it was told last, and tells of all of it."""
    finished = 0

    def told(done: int, what: str) -> None:
        nonlocal finished
        finished += done
        tell(finished, what)

    return told


def _run_here(trials: list[Trial], registry: Registry, told: Callable[[int, str], None]) -> Results:
    """In this process, without a folder."""
    whole = PackResult()
    try:
        for pack in plan(trials, registry):
            whole.extend(run_pack(pack, registry))
            told(len(pack), f"{pack[0].algorithm.name} on {pack[0].problem.name}")
    finally:
        dismiss()
    return Results(runs_of(whole.runs).to_pandas(), curve_of(whole.curve.columns).to_pandas(), [])


def tune(
    algorithm: str | Algorithm,
    problem: str | Problem,
    *,
    settings: int = 36,
    by: str = "phi",
    search: Literal["grid", "halving", "tpe"] = "grid",
    cost: float | None = None,
    seeds: int = 1,
    budget: float | None = None,
    steps: int | None = None,
    dtype: Literal["float64", "float32"] = "float64",
    schedule: Schedule | None = None,
) -> Tuned:
    """Find the parameters of a method on a problem that make `by` small at the end: `bilevelbench tune` from Python.

        bilevelbench.tune("f2ba", "quadratic", settings=36, steps=200).best

    Searched are the parameters to which the method gives a role, over decades, or the lists in "f2ba[lam=10,100]". A problem of
    your own functions is a `Problem` whose `build` returns `from_functions(...)`. "halving" shares out `cost` calls.
    """
    registry = _session()
    tuned, on = _lists(algorithm, registry), _lists(problem, registry)
    try:
        suite = Suite(
            algorithm=(AlgorithmEntry(name=tuned[0], params=tuned[1]),),
            problem=(ProblemEntry(name=on[0], params=on[1]),),
            seeds=seeds,
            budget=checked_budget(budget=budget, steps=steps),
            schedule=schedule or Schedule(),
            dtype=dtype,
            tune=Tune(by=by, search=search, trials=settings, cost=cost, fresh_data=False),
        )
    except ValidationError as error:
        raise InvalidInput(faults(error)) from None
    whole = PackResult()

    def run_all(trials: Sequence[Trial]) -> schema.Results:
        done = {row["trial_id"] for row in whole.runs}
        for pack in plan([trial for trial in trials if trial.id not in done], registry):
            whole.extend(run_pack(pack, registry))
        return Results(runs_of(whole.runs).to_pandas(), curve_of(whole.curve.columns).to_pandas(), [])

    (job,), results = run_tuning(suite, registry, run_all)
    assert job.best is not None  # the search is over
    tried = [
        {**job.method.params(one.choice), **one.budget.model_dump(exclude_none=True), by: one.score}
        for one in job.tried
    ]
    return Tuned(job.method.params(job.best.choice), job.best.score, by, Results.of(results), tuple(tried))


@dataclass(frozen=True)
class Tuned:
    """What `tune` has found: the `best` parameters, their `score`, and all trials in `results`."""

    best: dict[str, Any]
    score: float
    by: str
    results: Results = field(repr=False)
    tried: tuple[dict[str, Any], ...] = field(repr=False)

    def table(self) -> pd.DataFrame:
        """One row for each setting and budget, the best first; infinite where it failed."""
        return pd.DataFrame(self.tried).sort_values(self.by, kind="stable", ignore_index=True)


def load(folder: str | Path) -> Results:
    """The results in a folder that `run` or `bilevelbench run` has written."""
    return Results.of(load_results(folder))


def _session() -> Registry:
    """What is installed, to which classes of this session can be added."""
    registry = copy.copy(installed())
    registry.algorithms, registry.problems = dict(registry.algorithms), dict(registry.problems)
    return registry


def _lists(chosen: Chosen, registry: Registry) -> tuple[str, dict[str, Any]]:
    """A name, and its parameters, of which lists are searched."""
    if isinstance(chosen, str):
        return parse_lists(chosen)
    (spec,) = _specs(chosen, registry)
    return spec.name, spec.params


def _specs(chosen: Chosen | Sequence[Chosen], registry: Registry) -> list[Spec]:
    items = [chosen] if isinstance(chosen, (str, Algorithm, Problem)) else list(chosen)
    out: list[Spec] = []
    for item in items:
        if isinstance(item, str):
            out += parse_spec(item)
            continue
        is_method = isinstance(item, Algorithm)
        table: dict[str, Any] = registry.algorithms if is_method else registry.problems
        taken = table.setdefault(item.name, Entry(type(item), SESSION, _source_version(type(item))))
        if taken.value is not type(item):
            kind = "method" if is_method else "problem"
            raise InvalidInput(
                f"two {kind}s are called {item.name!r}: your class {type(item).__name__} and {taken.value.__name__} "
                f"of plugin {taken.plugin!r}; rename yours"
            )
        out.append(Spec(name=item.name, params=item.model_dump(mode="json", exclude_unset=True)))
    return out


def _source_version(cls: type) -> str:
    """A hash of the source of a class and of those it is made from, so that an edited class is a new one."""
    linecache.checkcache()
    own = itertools.takewhile(lambda base: base not in (Algorithm, Problem), cls.__mro__)
    try:
        source = "".join(inspect.getsource(base) for base in own)
    except (OSError, TypeError):  # typed into an interpreter
        return "unversioned"
    return hashlib.sha256(source.encode()).hexdigest()[:12]
