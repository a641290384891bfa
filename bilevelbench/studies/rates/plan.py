"""The trials of a row of a complexity table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import Registry
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.constants import Constants
from bilevelbench.model.problem import Problem
from bilevelbench.model.rounding import one_thread
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.trial import Budget, Schedule, Spec, Trial
from bilevelbench.plan.trials import make_trial
from bilevelbench.results.schema import Results
from bilevelbench.results.status import Status
from bilevelbench.studies.rates.suite import RateRow, RateSuite, Weakened

_RATIO = 1.01  # evaluations: one percent apart in cost


@dataclass(frozen=True)
class Point:
    """One trial's place in a row: its accuracy or horizon, and its seed."""

    value: float
    seed: int
    trial: Trial


def plan_row(row: RateRow, suite: RateSuite, registry: Registry, preset: str = "rate") -> list[Point]:
    """A trial for each grid value and seed."""
    return _plan(row, suite, registry, row.grid(), row.cap, preset)


def plan_weakened(
    row: RateRow, suite: RateSuite, registry: Registry, points: Sequence[Point], results: Results
) -> list[Point]:
    """The necessity check, at the last grid values that the row itself reached, within a multiple of its steps."""
    if row.weakened is None:
        return []
    if row.rule == "horizon":
        return _plan(row, suite, registry, row.grid(), row.cap, "rate", row.weakened)
    table = runs_by_value(points, results)
    reached = [v for v in row.grid() if len(table[v]) == row.seeds and all_reached(table[v], False)]
    last = reached[-row.weakened.values :]
    if not last:
        return []
    steps = max(int(table[v]["steps"].max()) for v in last)
    cap = Budget(steps=max(1, round(row.weakened.patience * steps)))
    return _plan(row, suite, registry, last, cap, "rate", row.weakened)


def _plan(
    row: RateRow,
    suite: RateSuite,
    registry: Registry,
    grid: Sequence[float],
    cap: Budget,
    preset: str,
    weakened: Weakened | None = None,
) -> list[Point]:
    entry = registry.algorithm(row.method)
    horizon, over_kappa = row.rule == "horizon", row.kappas is not None
    out = []
    for value in grid:
        params = {**suite.problem_params, **row.problem}
        if over_kappa:
            params["mu"] = params["L"] / value
        constants = _constants(registry, suite.problem, params)
        eps = row.at_eps if over_kappa else value
        method = _preset(entry.value, constants, eps, row, "theory" if over_kappa else preset)
        chosen = {k: v for k, v in method.given().items() if v is not None} | row.params
        if weakened is not None:
            chosen |= {k: _times(chosen[k], factor) for k, factor in weakened.times.items()} | weakened.params
        budget = Budget(steps=round(value)) if horizon else cap
        for seed in range(suite.first_seed, suite.first_seed + row.seeds):
            trial = make_trial(
                registry,
                Spec(name=row.method, params=chosen),
                Spec(name=suite.problem, params={**params, "data_seed": seed}),
                seed=seed,
                budget=budget,
                targets=() if horizon else (eps,),
                schedule=Schedule(
                    ratio=1e9 if horizon else _RATIO,
                    mean=row.rule in ("mean", "horizon"),
                    second_order=row.rule == "second_order",
                ),
                label=row.label or row.method,
            )
            out.append(Point(value, seed, trial))
    return out


def _times(value: float, factor: float) -> float:
    return math.ceil(value * factor) if isinstance(value, int) else value * factor


def plan_own_notion(row: RateRow, suite: RateSuite, registry: Registry) -> list[Point]:
    """The same row, stopped by the method's own notion of stationarity, which it reports as a curve column."""
    if row.own_notion is None or row.rule == "horizon":
        return []
    schedule = Schedule(ratio=_RATIO, on=row.own_notion)
    return [
        Point(p.value, p.seed, p.trial.model_copy(update={"schedule": schedule}))
        for p in plan_row(row, suite, registry)
    ]


def _preset(cls: type[Algorithm], constants: Constants, value: float, row: RateRow, preset: str) -> Algorithm:
    if row.rule == "horizon":
        return cls.from_horizon(constants, round(value), row.scale)
    if preset == "theory":
        return cls.from_theory(constants, value)
    return cls.from_rate(constants, value, row.scale)


def _constants(registry: Registry, problem: str, params: dict[str, Any]) -> Constants:
    made: Problem = make(registry.problem(problem), params)
    with default_dtype(torch.float64), one_thread():
        constants = made.build().constants
    constants.problem = problem
    return constants


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


def all_reached(frame: pd.DataFrame, horizons: bool) -> bool:
    """Reached and unreached lanes are never mixed: a value with one unreached seed leaves the fit."""
    return bool(which_reached(frame, horizons).all())


def which_reached(frame: pd.DataFrame, horizons: bool) -> pd.Series[bool]:
    """The trials that met their accuracy, or came to the end of their horizon with one that is a number."""
    met: pd.Series[bool] = frame["status"] == (Status.BUDGET if horizons else Status.TARGET)
    return met & frame["accuracy"].map(math.isfinite) if horizons else met
