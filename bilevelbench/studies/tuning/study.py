"""Tune every method on every problem: the searches go side by side, and each round of all of them is run at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.plan.suite import ProblemEntry, Suite
from bilevelbench.plan.trial import Budget, Spec, Trial
from bilevelbench.plan.trials import make_trial
from bilevelbench.plan.tuning import Tune
from bilevelbench.report.analysis.ranking import median
from bilevelbench.results import reached
from bilevelbench.results.schema import CURVE, Results
from bilevelbench.studies.tuning import search
from bilevelbench.studies.tuning.search import Ask, Best, Search, Seen
from bilevelbench.studies.tuning.space import Choice, Method, method_of
from bilevelbench.studies.tuning.tpe import tpe

#: Settings that halving leaves the whole budget for, where every search spends the same.
_FINALS = 2

#: Searches of the same cost differ by no more than this.
EQUAL = 0.02

#: Runs trials that are not stored yet and returns everything that is.
Run = Callable[[Sequence[Trial]], Results]


@dataclass(frozen=True, eq=False)  # a spec is not hashable
class Target:
    """A problem to tune on: without its data, with each data set; what to report on, problems with their data seeds."""

    problem: Spec
    data: tuple[Spec, ...]
    data_seeds: tuple[int, ...]
    report_on: tuple[tuple[Spec, tuple[int, ...]], ...]
    entry: ProblemEntry


@dataclass(frozen=True)
class Tried:
    """A setting with a budget, and what came of it."""

    choice: Choice
    budget: Budget
    score: float
    failed: int


@dataclass(eq=False)  # two jobs are never the same one
class Job:
    """One method on one problem: its search, what it has asked for, and what was seen so far.

    `settings` are those that were planned, and more if the search went on to spend `cost`.
    """

    method: Method
    target: Target
    settings: int
    search: Search
    cost: float | None = None
    spent: float = 0.0
    tried: list[Tried] = field(default_factory=list)
    trials: dict[str, Trial] = field(default_factory=dict)
    steps: int = 0  # the most that any of its trials made
    best: Best | None = None

    def __post_init__(self) -> None:
        self.asked = next(self.search)

    def answer(self, rows: Sequence[Sequence[Trial]], seen: list[Seen]) -> None:
        """The trials of each setting that was asked for, and what was seen of it."""
        for ask, row, one in zip(self.asked, rows, seen, strict=True):
            self.tried.append(Tried(ask.choice, ask.budget, one.score, one.failed))
            self.trials |= {trial.id: trial for trial in row}
        self.spent += sum(one.cost for one in seen)
        self.settings = max(self.settings, len({repr(one.choice) for one in self.tried}))
        try:
            self.asked = self.search.send(seen)
        except StopIteration as end:
            self.best = end.value

    @property
    def remark(self) -> str:
        """What its row has to say."""
        if not self.method.dimensions:
            return f"{self.method.label} has no parameters to tune on {self.target.problem}: it runs as it is."
        if self.steps and self.cost is not None and self.spent < (1 - EQUAL) * self.cost:
            return (
                f"The search of {self.method.label} on {self.target.problem} spent {self.spent / self.cost:.1%} of its cost: "
                f"after {self.settings} settings, most of which failed early, it was ended."
            )
        if self.steps:
            return ""
        most = max(one.budget.cost or math.inf for one in self.tried)
        limit = "its budget" if math.isinf(most) else f"{most:,.10g} calls"
        return (
            f"No setting of {self.method.label} made a single step on {self.target.problem} within {limit}; give it more of "
            "them, or try fewer settings."
        )


def run_tuning(suite: Suite, registry: Registry, run: Run) -> tuple[list[Job], Results]:
    """Every job with its best choice, and all trials that are stored."""
    targets = _targets(suite, registry)
    by = suite.tune.by
    if by in ("phi", "grad_phi"):
        unsolved = [t for t in targets if not (suite.schedule.phi and registry.problem(t.problem.key).value.solves_phi)]
        _need_phi(by, unsolved, registry)
    jobs = _jobs(suite, registry, targets)
    while going := [job for job in jobs if job.best is None]:
        rounds = {job: [_trials(job, ask, suite, registry) for ask in job.asked] for job in going}
        results = run([trial for rows in rounds.values() for row in rows for trial in row])
        table = _ends(results, by)
        for job, rows in rounds.items():
            _check(job, rows, results, by)
            job.steps = max(job.steps, int(table.loc[[t.id for row in rows for t in row], "steps"].max()))
            job.answer(rows, [_seen(row, table, job.trials) for row in rows])
    return jobs, results


def _targets(suite: Suite, registry: Registry) -> list[Target]:
    grouped: dict[str, list[tuple[Spec, ProblemEntry]]] = {}
    for spec, entry in suite.problems(registry):
        grouped.setdefault(str(spec.variant), []).append((spec, entry))
    if suite.tune.problem_params:
        return _elsewhere(grouped, suite.tune, registry)
    return [_target(pairs, suite.tune.fresh_data, registry) for pairs in grouped.values()]


def _elsewhere(
    grouped: Mapping[str, Sequence[tuple[Spec, ProblemEntry]]], plan: Tune, registry: Registry
) -> list[Target]:
    """Problems with other parameters to search on; what differs in these parameters alone is searched on once."""
    targets: dict[str, Target] = {}
    for pairs in grouped.values():
        (first, entry), asked = pairs[0], tuple(spec for spec, _ in pairs)
        changed = [spec.model_copy(update={"params": {**spec.params, **plan.problem_params}}) for spec in asked]
        data = tuple({str(spec): spec for spec in changed}.values())
        if plan.fresh_data and (seen := {str(spec) for spec in data} & {str(spec) for spec in asked}):
            raise InvalidInput(
                f"problem_params = {plan.problem_params} leave {min(seen)} as it is, which the report runs on too; change "
                "more of it, or set fresh_data = false"
            )
        problem = data[0].variant
        before = targets.get(str(problem))
        report_on = (*(before.report_on if before else ()), (first.variant, _data_seeds(asked, registry)))
        targets[str(problem)] = Target(problem, data, _data_seeds(data, registry), report_on, entry)
    return list(targets.values())


def _data_seeds(specs: Sequence[Spec], registry: Registry) -> tuple[int, ...]:
    default = registry.problem(specs[0].key).value.model_fields["data_seed"].default
    return tuple(spec.params.get("data_seed", default) for spec in specs)


def _target(pairs: Sequence[tuple[Spec, ProblemEntry]], fresh: bool, registry: Registry) -> Target:
    first, entry = pairs[0]
    cls = registry.problem(first.key).value
    data = tuple(spec for spec, _ in pairs)
    used = _data_seeds(data, registry)
    report_on = used
    if fresh:
        report_on = tuple(itertools.islice((seed for seed in cls.data_sets if seed not in used), len(used)))
        if len(report_on) < len(used):
            raise InvalidInput(
                f"{first.name} has {len(cls.data_sets)} data sets, too few to tune on {len(used)} and report on others; tune "
                "on fewer, or set fresh_data = false"
            )
    return Target(first.variant, data, used, ((first.variant, report_on),), entry)


def _jobs(suite: Suite, registry: Registry, targets: Sequence[Target]) -> list[Job]:
    plan = suite.tune
    jobs: list[Job] = []
    for entry in suite.algorithms(registry):
        method = method_of(entry, registry, plan.grid)
        for target in targets:
            if not any(suite.meets(entry, problem, registry) for problem, _ in target.report_on):
                continue
            if any(job.method.label == method.label and job.target is target for job in jobs):
                raise InvalidInput(f"two methods are called {method.label!r}; tell them apart with `label`")
            budget = target.entry.budget or suite.budget
            repeats = len(target.data) * len(search_seeds(suite))
            jobs.append(_job(plan, method, target, budget, repeats))
    if not jobs:
        raise InvalidInput("there is nothing to tune: no method meets any problem; name others with -a and -p")
    if not any(job.method.dimensions for job in jobs):
        name = jobs[0].method.name
        raise InvalidInput(
            f"{name} has no tunable parameters: write lists, {name}[parameter=0.1,1,10], or name the roles of its parameters "
            'in its class, tuned = {"parameter": "upper_step"}'
        )
    return jobs


def _job(plan: Tune, method: Method, target: Target, budget: Budget, repeats: int) -> Job:
    if not method.dimensions:
        return Job(method, target, 1, search.grid([{}], budget))
    if plan.search == "tpe":
        return Job(method, target, plan.trials, tpe(method.dimensions, plan.trials, budget, plan.seed))
    settings = _first(plan, method)
    if not plan.equal_cost:
        return Job(method, target, len(settings), _search(plan, settings, budget, plan.cost, repeats))
    if budget.cost is None:
        raise InvalidInput(f"equal_cost needs a budget in calls on {target.problem}; set budget.cost, or --budget")
    whole = budget.cost * repeats
    cost = plan.trials * whole if plan.cost is None else plan.cost
    shared = None if plan.cost is None else plan.cost - _FINALS * whole
    if shared is not None and shared <= 0:
        raise InvalidInput(
            f"cost = {cost:,.10g} is too little to try {_FINALS} settings of {method.label} with the whole budget on "
            f"{target.problem}, {repeats} trials each; give more than {_FINALS * whole:,.10g}, or a smaller budget"
        )
    base = _search(plan, settings, budget, shared, repeats)
    further = method.further(settings, plan.seed)
    return Job(method, target, len(settings), search.levelled(base, further, budget, cost, repeats), cost)


def _first(plan: Tune, method: Method) -> list[Choice]:
    """The settings that a search begins with."""
    if not plan.defaults:
        return method.settings(plan.trials, plan.seed)
    return [{}, *(method.settings(plan.trials - 1, plan.seed) if plan.trials > 1 else [])]


def _search(plan: Tune, settings: list[Choice], budget: Budget, cost: float | None, repeats: int) -> Search:
    if plan.search == "grid":
        return search.grid(settings, budget)
    assert cost is not None  # the settings say so
    return search.halving(settings, budget, cost / repeats, plan.factor)


def search_seeds(suite: Suite) -> Sequence[int]:
    return suite.seed_list if suite.tune.seeds is None else range(suite.tune.seeds)


def _trials(job: Job, ask: Ask, suite: Suite, registry: Registry) -> list[Trial]:
    """One for each data set and seed. Without targets: a trial that ends early is not seen at the end of its budget."""
    spec = Spec(name=job.method.name, params=job.method.params(ask.choice))
    label = str(Spec(name=job.method.label.partition("[")[0], params=spec.params))
    return [
        make_trial(
            registry, spec, data, seed=seed, budget=ask.budget, schedule=suite.schedule, dtype=suite.dtype, label=label
        )
        for data in job.target.data
        for seed in search_seeds(suite)
    ]  # fmt: skip


def _ends(results: Results, by: str) -> pd.DataFrame:
    """By trial: its score at its last evaluation, infinite if it failed, has none or made no step; and its steps."""
    last = results.curve.drop_duplicates("trial_id", keep="last").set_index("trial_id")
    runs = results.runs.set_index("trial_id")
    value = last[by] if by in last else pd.Series(np.nan, index=last.index)
    score = value.reindex(runs.index)
    good = np.isfinite(score) & ~reached.failed(runs) & (runs["steps"] > 0)
    columns = {"score": score.where(good, np.inf), "scored": good, "steps": runs["steps"], "cost": runs["cost"]}
    return pd.DataFrame(columns)


def _check(job: Job, rows: Sequence[Sequence[Trial]], results: Results, by: str) -> None:
    """A mistake that only shows in the results; they are kept, so the corrected command does not run them again."""
    curve = results.only(trial.id for row in rows for trial in row).curve
    seen = [
        c for c in curve.columns if (c in ("phi", "grad_phi", "g_y") or c not in CURVE) and np.isfinite(curve[c]).any()
    ]
    if len(curve) and by not in seen:  # not even where a trial starts
        known = [c for c in seen if not c.startswith("test_")]
        raise InvalidInput(f"trials on {job.target.problem} have no {by!r} to select by{suggestion(by, known)}")


def _seen(row: Sequence[Trial], table: pd.DataFrame, before: Mapping[str, Trial]) -> Seen:
    """What is asked for again, as halving does where two rungs have the whole budget, was paid for before."""
    part = table.loc[[trial.id for trial in row]]
    failed, cost = int((~part["scored"]).sum()), float(part.loc[~part.index.isin(before), "cost"].sum())
    return Seen(float(median(part["score"].to_numpy())), failed, cost)


def _need_phi(by: str, targets: Sequence[Target], registry: Registry) -> None:
    """Without the lower level's solution phi is known only where it has a closed form; building says which metrics are."""
    for target in targets:
        problem: Any = make(registry.problem(target.problem.key), target.problem.params)
        instance = problem.build()
        if instance.reference is None:
            there = ", ".join(name for name in instance.metrics if not name.startswith("test_")) or "none"
            raise InvalidInput(
                f"by = {by!r} needs phi on {target.problem}, and schedule.phi = false leaves it out; select by one of the "
                f"problem's own metrics ({there}), or leave schedule.phi true"
            )
