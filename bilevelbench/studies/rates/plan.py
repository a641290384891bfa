"""The trials of a row of a complexity table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import Registry
from bilevelbench.plan.trial import Budget, Schedule, Spec, Trial
from bilevelbench.plan.trials import make_trial
from bilevelbench.results.schema import Results
from bilevelbench.results.status import Status
from bilevelbench.studies.rates.presets import chosen_at, preset_of, weaker
from bilevelbench.studies.rates.suite import Preset, RateRow, RateSuite

_RATIO = 1.01  # evaluations: one percent apart in cost
_QUIET = 2  # without noise a run may take twice the steps that it took with it


@dataclass(frozen=True)
class Point:
    """One trial's place in a row: its accuracy, its horizon or what is swept, and its seed."""

    value: float
    seed: int
    trial: Trial


def plan_row(
    row: RateRow,
    suite: RateSuite,
    registry: Registry,
    preset: Preset = "rate",
    *,
    grid: Sequence[float] | None = None,
    caps: Mapping[float, int] | None = None,
    factor: float = 1.0,
) -> list[Point]:
    """A trial for each grid value and seed; `caps` are the steps that it may take at a value, if not the row's."""
    out = []
    preset, horizon = preset_of(row, preset), row.rule == "horizon"
    for value in row.grid() if grid is None else grid:
        name, params, settings = chosen_at(row, suite, registry, value, preset, factor)
        eps = value if row.sweep is None else row.at_eps
        method, problem = registry.algorithm(row.method).value, registry.problem(name).value
        budget = Budget(steps=caps[value]) if caps else Budget(steps=round(value)) if horizon else row.cap
        for seed in range(suite.first_seed, suite.first_seed + row.seeds):
            data_seed = problem.data_sets[seed % len(problem.data_sets)]
            trial = make_trial(
                registry,
                Spec(name=row.method, params=settings),
                Spec(name=name, params={"data_seed": data_seed} | params),
                seed=seed,
                budget=budget,
                targets=() if horizon else (eps,),
                schedule=Schedule(
                    ratio=1e9 if horizon else _RATIO,
                    mean=row.rule in ("mean", "horizon"),
                    second_order=row.rule == "second_order",
                ),
                label=row.label or method.name,
            )
            out.append(Point(value, seed, trial))
    return out


def plan_weakened(row: RateRow, registry: Registry, points: Sequence[Point], results: Results) -> list[Point]:
    """The necessity check, where the row itself got to, within a multiple of the steps that it took there.

    It has the parameters of the row's own trials but for what is taken away; of a tuned row the x-step that was found.
    """
    if row.weakened is None:
        return []
    table, horizon = runs_by_value(points, results), row.rule == "horizon"
    there = row.grid() if horizon else whole(row, table)
    out = []
    for p in points:
        if p.value not in there:
            continue
        spec = p.trial.algorithm
        settings = weaker(spec.params, row.weakened, points[0].trial.algorithm.params)
        make(registry.algorithm(spec.key), settings)  # a parameter that the method does not have is refused here
        most = max(1, round(row.weakened.patience * int(table[p.value]["steps"].max())))
        budget = p.trial.budget if horizon else Budget(steps=most)
        changed = Spec(name=spec.name, params=settings, file=spec.file)
        out.append(Point(p.value, p.seed, _changed(p.trial, algorithm=changed, budget=budget)))
    return out


def plan_own_notion(row: RateRow, points: Sequence[Point]) -> list[Point]:
    """The same trials, stopped by the method's own notion of stationarity, which it reports as a curve column."""
    if row.own_notion is None or row.rule == "horizon":
        return []
    schedule = Schedule(ratio=_RATIO, on=row.own_notion)
    return [Point(p.value, p.seed, _changed(p.trial, schedule=schedule)) for p in points]


def _changed(trial: Trial, **fields: Any) -> Trial:
    """Another trial; a copy of this one would keep its id."""
    return Trial(**{name: getattr(trial, name) for name in Trial.model_fields} | fields)


def plan_against(row: RateRow, suite: RateSuite, registry: Registry) -> list[Point]:
    """The same row with another preset."""
    if row.against is None:
        return []
    return plan_row(row.model_copy(update={"preset": row.against}), suite, registry)


def plan_without_noise(row: RateRow, points: Sequence[Point], results: Results) -> list[Point]:
    """The same parameters where there is no noise, within the steps that the row took."""
    if not row.without_noise:
        return []
    table = runs_by_value(points, results)
    there = whole(row, table)
    out = []
    for p in points:
        if p.value not in there:
            continue
        params = {name: value for name, value in p.trial.problem.params.items() if not name.startswith("sigma_")}
        most = _QUIET * int(table[p.value]["steps"].max())
        budget = p.trial.budget if row.rule == "horizon" else Budget(steps=most)
        problem = p.trial.problem.model_copy(update={"params": params})
        out.append(Point(p.value, p.seed, _changed(p.trial, problem=problem, budget=budget)))
    return out


def runs_by_value(
    points: Sequence[Point], results: Results, accuracy: str = "mean_grad_phi"
) -> dict[float, pd.DataFrame]:
    """The runs of each grid value, with the last value of the column whose accuracy the horizon rule looks at."""
    runs = results.runs.set_index("trial_id")
    last = results.only(p.trial.id for p in points).curve.groupby("trial_id").last()
    out: dict[float, pd.DataFrame] = {}
    for value in dict.fromkeys(p.value for p in points):
        mine = [p.trial.id for p in points if p.value == value and p.trial.id in runs.index]
        frame = runs.loc[mine].copy()
        if accuracy in last:
            frame["accuracy"] = last[accuracy].reindex(mine).to_numpy()
        out[value] = frame
    return out


def whole(row: RateRow, table: Mapping[float, pd.DataFrame]) -> list[float]:
    """The values that every seed reached. Reached and unreached lanes are never mixed: the others leave the fit."""
    horizons = row.rule == "horizon"
    there = [value for value in row.grid() if value in table and len(table[value]) == row.seeds]
    return [value for value in there if bool(which_reached(table[value], horizons).all())]


def which_reached(frame: pd.DataFrame, horizons: bool) -> pd.Series[bool]:
    """The trials that met their accuracy, or came to the end of their horizon with one that is a number."""
    met: pd.Series[bool] = frame["status"] == (Status.BUDGET if horizons else Status.TARGET)
    return met & frame["accuracy"].map(math.isfinite) if horizons else met
