"""From a row of the suite to its trials, and from their results to a measured exponent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from bilevelbench.algorithm import Algorithm
from bilevelbench.claim import Claim
from bilevelbench.constants import Constants
from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.problem import Problem
from bilevelbench.rates import predict
from bilevelbench.rates.statistics import Fit, fit, verdict
from bilevelbench.rates.suite import RateSuite, Row, Weakened
from bilevelbench.registry import Registry, make
from bilevelbench.results import Results
from bilevelbench.rounding import one_thread
from bilevelbench.runner import default_dtype
from bilevelbench.suite import make_trial
from bilevelbench.trial import Budget, Schedule, Spec, Trial

_RATIO = 1.01  # evaluations: one percent apart in cost


@dataclass(frozen=True)
class Point:
    """One trial's place in a row: its accuracy or horizon, and its seed."""

    value: float
    seed: int
    trial: Trial


@dataclass(frozen=True)
class Measurement:
    """A row of `bilevelbench rates`. `measured` is the slope of the calls, `measured_steps` that of the steps."""

    table: int
    method: str
    label: str
    setting: str
    oracle: str
    over: str
    claimed: float
    tilde: bool
    extra: str
    footnote: str
    set_by: str
    q: float
    target: float
    predicted: float | None
    measured: float | None
    low: float | None
    high: float | None
    measured_steps: float | None
    low_steps: float | None
    high_steps: float | None
    log_free: float | None
    log_free_of: str
    second_half: float | None
    local_slopes: list[float]
    eps_max: float | None
    eps_min: float | None
    rule: str
    seeds: int
    success: float | None  # of all trials, the share that reached its accuracy: for methods that rely on chance
    verdict: str
    unreached: list[dict[str, Any]]
    necessity: str
    own_notion: str
    note: str
    points: list[dict[str, float]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def claim_of(cls: type[Algorithm], row: Row) -> Claim:
    for claim in cls.claims:
        if claim.table == row.table and claim.setting == row.setting:
            return claim
    raise InvalidInput(f"{cls.name} claims nothing for table {row.table}, setting {row.setting!r}")


def plan_row(row: Row, suite: RateSuite, plugins: Registry, preset: str = "rate") -> list[Point]:
    """A trial for each grid value and seed."""
    return _plan(row, suite, plugins, row.grid(), row.cap, preset)


def plan_weakened(
    row: Row, suite: RateSuite, plugins: Registry, points: Sequence[Point], results: Results
) -> list[Point]:
    """The necessity check, at the last grid values that the row itself reached, within a multiple of its steps."""
    if row.weakened is None:
        return []
    if row.rule == "horizon":
        return _plan(row, suite, plugins, row.grid(), row.cap, "rate", row.weakened)
    table = _table(points, results)
    reached = [v for v in row.grid() if len(table[v]) == row.seeds and _all_reached(table[v], False)]
    last = reached[-row.weakened.values :]
    if not last:
        return []
    steps = max(int(table[v]["steps"].max()) for v in last)
    cap = Budget(steps=max(1, round(row.weakened.patience * steps)))
    return _plan(row, suite, plugins, last, cap, "rate", row.weakened)


def _plan(
    row: Row,
    suite: RateSuite,
    plugins: Registry,
    grid: Sequence[float],
    cap: Budget,
    preset: str,
    weakened: Weakened | None = None,
) -> list[Point]:
    entry = plugins.algorithm(row.method)
    horizon, over_kappa = row.rule == "horizon", row.kappas is not None
    out = []
    for value in grid:
        params = {**suite.problem_params, **row.problem}
        if over_kappa:
            params["mu"] = params["L"] / value
        constants = _constants(plugins, suite.problem, params)
        eps = row.at_eps if over_kappa else value
        method = _preset(entry.value, constants, eps, row, "theory" if over_kappa else preset)
        chosen = {k: v for k, v in method.given().items() if v is not None} | row.params
        if weakened is not None:
            chosen |= {k: _times(chosen[k], factor) for k, factor in weakened.times.items()} | weakened.params
        budget = Budget(steps=round(value)) if horizon else cap
        for seed in range(suite.first_seed, suite.first_seed + row.seeds):
            trial = make_trial(
                plugins,
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


def plan_own_notion(row: Row, suite: RateSuite, plugins: Registry) -> list[Point]:
    """The same row, stopped by the method's own notion of stationarity, which it reports as a curve column."""
    if row.own_notion is None or row.rule == "horizon":
        return []
    schedule = Schedule(ratio=_RATIO, on=row.own_notion)
    return [
        Point(p.value, p.seed, p.trial.model_copy(update={"schedule": schedule})) for p in plan_row(row, suite, plugins)
    ]


def _preset(cls: type[Algorithm], constants: Constants, value: float, row: Row, preset: str) -> Algorithm:
    if row.rule == "horizon":
        return cls.from_horizon(constants, round(value), row.scale)
    if preset == "theory":
        return cls.from_theory(constants, value)
    return cls.from_rate(constants, value, row.scale)


def _constants(plugins: Registry, problem: str, params: dict[str, Any]) -> Constants:
    made: Problem = make(plugins.problem(problem), params)
    with default_dtype(torch.float64), one_thread():
        constants = made.build().constants
    constants.problem = problem
    return constants


def measure(
    row: Row,
    points: Sequence[Point],
    weakened: Sequence[Point],
    own: Sequence[Point],
    results: Results,
    plugins: Registry,
    q: float,
) -> Measurement:
    cls = plugins.algorithm(row.method).value
    claim = claim_of(cls, row)
    horizons = row.rule == "horizon"
    table = _table(points, results)
    whole = [value for value in row.grid() if len(table[value]) == row.seeds and _all_reached(table[value], horizons)]
    over_kappa = row.kappas is not None
    exponent = claim.kappa_exp if over_kappa else claim.eps_exp
    if exponent is None:
        raise InvalidInput(f"{row.method} claims no exponent of kappa")
    target = predict.asymptotic(exponent, row.set_by, q)
    if row.over is not None:
        _divide(table, points, row.log_free, row.over)
    counted = row.log_free if row.over is None else f"{row.log_free} / {row.over}"
    fits = {name: _fit(table, whole, name, horizons, over_kappa) for name in ("cost", "steps", counted)}
    free = fits[counted]
    predicted = None if horizons or over_kappa else _predicted(cls, points, whole, q, row.rule)
    said = verdict(free, exponent, target, len(whole), horizons)
    calls, steps = fits["cost"], fits["steps"]
    reached = [_accuracy(table[v], v, horizons) for v in whole]
    return Measurement(
        table=claim.table,
        method=row.method,
        label=row.label or row.method,
        setting=row.setting,
        oracle=claim.oracle,
        over="kappa" if over_kappa else "eps",
        claimed=exponent,
        tilde=claim.tilde,
        extra=claim.extra,
        footnote=claim.footnote,
        set_by=row.set_by,
        q=q,
        target=target,
        predicted=predicted,
        measured=calls.slope if calls else None,
        low=calls.low if calls else None,
        high=calls.high if calls else None,
        measured_steps=steps.slope if steps else None,
        low_steps=steps.low if steps else None,
        high_steps=steps.high if steps else None,
        log_free=free.slope if free else None,
        log_free_of=counted,
        second_half=free.second_half if free else None,
        local_slopes=list(free.local) if free else [],
        eps_max=max(reached) if reached else None,
        eps_min=min(reached) if reached else None,
        rule=row.rule,
        seeds=row.seeds,
        success=_success(table) if row.rule == "second_order" else None,
        verdict=said,
        unreached=[_unreached(v, table[v], row.seeds, horizons) for v in row.grid() if v not in whole],
        necessity=_necessity(row, weakened, results, horizons),
        own_notion=_own(row, own or points, results),
        note=row.note,
        points=[_point(table[v], v, horizons) for v in whole],
    )


def _table(points: Sequence[Point], results: Results, accuracy: str = "mean_grad_phi") -> dict[float, pd.DataFrame]:
    """The runs of each grid value, with the last value of the column whose accuracy the horizon rule looks at."""
    runs = results.runs.set_index("trial_id")
    ids = [p.trial.id for p in points]
    curve = results.curve[results.curve["trial_id"].isin(ids)]
    last = curve.groupby("trial_id").last()
    out: dict[float, pd.DataFrame] = {}
    for value in dict.fromkeys(p.value for p in points):
        mine = [p.trial.id for p in points if p.value == value and p.trial.id in runs.index]
        frame = runs.loc[mine].copy()
        if accuracy in last:
            frame["accuracy"] = last[accuracy].reindex(mine).to_numpy()
        out[value] = frame
    return out


def _divide(table: dict[float, pd.DataFrame], points: Sequence[Point], count: str, parameter: str) -> None:
    """A count without its known logarithm: over the parameter of the preset that holds it."""
    given = {p.value: p.trial.algorithm.params for p in points}
    for value, frame in table.items():
        if parameter not in given[value]:
            raise InvalidInput(
                f"over = {parameter!r}: the preset sets no such parameter{suggestion(parameter, given[value])}"
            )
        frame[f"{count} / {parameter}"] = frame[count] / given[value][parameter]


def _success(table: dict[float, pd.DataFrame]) -> float:
    status = pd.concat([frame["status"] for frame in table.values()])
    return float((status == "target").mean())


def _all_reached(frame: pd.DataFrame, horizons: bool) -> bool:
    """Reached and unreached lanes are never mixed: a value with one unreached seed leaves the fit."""
    return bool(_reached(frame, horizons).all())


def _reached(frame: pd.DataFrame, horizons: bool) -> pd.Series[bool]:
    """The trials that met their accuracy, or came to the end of their horizon with one that is a number."""
    met: pd.Series[bool] = frame["status"] == ("budget" if horizons else "target")
    return met & frame["accuracy"].map(math.isfinite) if horizons else met


def _fit(
    table: dict[float, pd.DataFrame], values: list[float], column: str, horizons: bool, over_kappa: bool = False
) -> Fit | None:
    if len(values) < 3:
        return None
    cost = np.log(np.stack([table[v][column].to_numpy(dtype=float) for v in values], axis=1))
    if horizons:
        x = -np.log(np.stack([table[v]["accuracy"].to_numpy(dtype=float) for v in values], axis=1))
        return fit(x, cost)
    inverse = 1.0 if over_kappa else -1.0
    return fit(inverse * np.log(np.asarray(values)), cost)


def _accuracy(frame: pd.DataFrame, value: float, horizons: bool) -> float:
    return float(frame["accuracy"].mean()) if horizons else value


def _point(frame: pd.DataFrame, value: float, horizons: bool) -> dict[str, float]:
    return {
        "eps": _accuracy(frame, value, horizons),
        "cost": float(np.exp(np.log(frame["cost"]).mean())),
        "cost_low": float(frame["cost"].min()),
        "cost_high": float(frame["cost"].max()),
        "steps": float(np.exp(np.log(frame["steps"]).mean())),
        "second_order": float(frame["second_order"].median()),
    }


def _unreached(value: float, frame: pd.DataFrame, seeds: int, horizons: bool) -> dict[str, Any]:
    good = int(_reached(frame, horizons).sum())
    statuses = {str(k): int(v) for k, v in frame["status"].value_counts().items()}
    return {"value": value, "reached": good, "seeds": seeds, "statuses": statuses}


def _predicted(cls: type[Algorithm], points: Sequence[Point], values: list[float], q: float, rule: str) -> float | None:
    methods = {p.value: cls.model_validate(p.trial.algorithm.params) for p in points}
    etas = [methods[v].x_step() for v in values]
    if len(values) < 3 or any(eta is None for eta in etas) or rule == "second_order":
        return None
    return predict.slope(values, [eta for eta in etas if eta is not None], q, rule)


def _necessity(row: Row, points: Sequence[Point], results: Results, horizons: bool) -> str:
    """What the weakened row shows, in words."""
    if row.weakened is None:
        return ""
    table = _table(points, results)
    if not table:
        return "not checked: the row itself reached nothing"
    if horizons:
        values = [v for v in table if _all_reached(table[v], True)]
        found = _fit(table, values, "cost", True)
        if found is None:
            return f"{row.weakened.text}: no slope, {len(values)} of {len(table)} horizons were finished by all seeds"
        end = found.local[-1]
        return f"{row.weakened.text}: slope {found.slope:.2f}, at the end {end:.2f}"
    reached = {v: int((frame["status"] == "target").sum()) for v, frame in table.items()}
    told = ", ".join(f"{v:.3g} by {n} of {row.seeds}" for v, n in reached.items())
    within = f"{row.weakened.text}: eps {told} seeds within {row.weakened.patience:g} times the most steps of the row"
    if min(reached.values()) == row.seeds:
        return f"{within}; this part of the preset is not needed here"
    return f"{within}; without this part of the preset it takes longer or never gets there"


def _own(row: Row, points: Sequence[Point], results: Results) -> str:
    if row.own_notion is None:
        return ""
    table = _table(points, results, row.own_notion if row.rule == "horizon" else "mean_grad_phi")
    horizons = row.rule == "horizon"
    values = [v for v in row.grid() if len(table[v]) == row.seeds and _all_reached(table[v], horizons)]
    found = _fit(table, values, "cost", horizons)
    if found is None:
        what = "horizons finished" if horizons else "eps reached"
        return f"{row.own_notion}: {len(values)} {what} by all seeds, too few for a slope"
    return f"{row.own_notion}: {found.slope:.2f} [{found.low:.2f}, {found.high:.2f}] in calls"
