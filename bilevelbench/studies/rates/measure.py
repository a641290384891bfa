"""From the results of a row's trials to measured exponents, and a verdict on its claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.claim import Claim
from bilevelbench.model.queries import QUERIES
from bilevelbench.report.analysis import predict
from bilevelbench.report.analysis.fit import OUTSIDE, Fit, range_needed, slope_of_logs, verdict
from bilevelbench.results.schema import Results
from bilevelbench.results.status import Status
from bilevelbench.studies.rates.plan import Point, runs_by_value, which_reached, whole
from bilevelbench.studies.rates.presets import preset_of
from bilevelbench.studies.rates.sides import (
    FEWEST,
    Sides,
    against,
    fit_row,
    logarithm,
    necessity,
    noise,
    own_notion,
)
from bilevelbench.studies.rates.suite import Preset, RateRow


@dataclass(frozen=True)
class Measurement:
    """A row of `bilevelbench rates`. `measured` is the slope of the calls, `measured_steps` that of the steps.

    `log_free` is the slope that decides, of the count `log_free_of`; `low_free` and `high_free` are its interval over seeds,
    `second_half` the same slope on the second half of the range. `columns` has the slope and the interval of each query.
    """

    table: int | None
    method: str
    label: str
    setting: str
    oracle: str
    over: str
    claimed: float | None
    lower_bound: float | None
    tilde: bool
    extra: str
    footnote: str
    problem: str
    preset: str
    set_by: str
    q: float | None
    target: float | None
    predicted: float | None
    measured: float | None
    low: float | None
    high: float | None
    measured_steps: float | None
    low_steps: float | None
    high_steps: float | None
    log_free: float | None
    low_free: float | None
    high_free: float | None
    log_free_of: str
    second_half: float | None
    local_slopes: list[float]
    columns: dict[str, list[float]]
    eps_max: float | None
    eps_min: float | None
    rule: str
    seeds: int
    success: float | None  # of all trials, the share that reached its accuracy: for methods that rely on chance
    largest_eps: float | None  # above which the preset does not do what its theorem says
    verdict: str
    unreached: list[dict[str, Any]]
    necessity: str
    tuned: str
    own_notion: str
    noise: str
    needed: str  # the range that a verdict would take
    against: str  # the calls of another preset
    logarithm: str  # in the calls of a step
    note: str
    points: list[dict[str, float]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def claim_of(cls: type[Algorithm], row: RateRow) -> Claim | None:
    """That of the row's table, or the one that is in no table; of a row without a table the first of its setting."""
    mine = [claim for claim in cls.claims if claim.setting == row.setting]
    if row.table is None:
        return mine[0] if mine else None
    found = next((claim for table in (row.table, None) for claim in mine if claim.table == table), None)
    if found is None:
        raise InvalidInput(f"{cls.name} claims nothing for table {row.table}, setting {row.setting!r}")
    return found


def exponent_of(claim: Claim | None, row: RateRow) -> float | None:
    """What is claimed about that which varies; None: nothing."""
    if row.claimed is not None:
        return row.claimed
    if claim is None:
        return None
    return {None: claim.eps_exp, "kappa": claim.kappa_exp, "n": claim.n_exp}.get(row.sweep)


def target_of(exponent: float | None, row: RateRow, q: float | None) -> float | None:
    """The slope that an exact run of the claim shows on the row's instance, whose tail has the exponent q."""
    return None if exponent is None else row.expected or predict.asymptotic(exponent, row.set_by, q)


def measure(
    row: RateRow,
    points: Sequence[Point],
    sides: Sides,
    results: Results,
    registry: Registry,
    q: float | None = None,
    tuned: str = "",
    preset: Preset = "rate",
) -> Measurement:
    """What these points say about the row, and what its side experiments do."""
    cls = registry.algorithm(row.method).value
    claim = claim_of(cls, row)
    exponent = exponent_of(claim, row)
    target = target_of(exponent, row, q)
    table = runs_by_value(points, results)
    values = whole(row, table)
    counted = _counted(row)
    if row.over is not None:
        _divide(table, points, row, counted)
    fits = {name: fit_row(table, values, name, row) for name in ("cost", "steps", counted)}
    reached = [_accuracy(table[v], v, row) for v in values]
    logs = slope_of_logs(reached, max(1, claim.log_power)) if row.logs and claim and claim.tilde else 0.0
    largest = None if row.eps is None else _largest_eps(cls, points)
    outside = largest is not None and all(value > largest for value in row.grid())
    said = verdict(fits[counted], exponent, target, len(values), row.rule == "horizon", logs)
    shown = [_point(table[v], v, row) for v in values]
    return Measurement(
        **stated(row, cls, claim, str(points[0].trial.problem.variant)),
        **lines(fits["cost"], fits["steps"], fits[counted]),
        preset=preset_of(row, preset),
        q=q,
        claimed=exponent,
        target=target,
        predicted=None if q is None or row.eps is None else _predicted(cls, points, values, q, row.rule),
        log_free_of=counted,
        columns=_columns(cls, table, values, row),
        eps_max=max(reached) if reached else None,
        eps_min=min(reached) if reached else None,
        success=_success(table) if row.rule == "second_order" else None,
        largest_eps=largest,
        verdict=OUTSIDE if outside else said,
        unreached=[_unreached(v, table[v], row) for v in row.grid() if v not in values],
        necessity=necessity(row, sides.weakened, results, fits["cost"]),
        tuned=tuned,
        own_notion=own_notion(row, sides.own or points, results),
        noise=noise(row, points, sides.without_noise, results),
        needed=range_needed(said, shown, _slopes(fits[counted]), row.sweep or "eps", row.rule == "horizon"),
        against=against(row, points, sides.against, results),
        logarithm=logarithm(row, shown) if claim and claim.tilde else "",
        points=shown,
    )


def stated(row: RateRow, cls: type[Algorithm], claim: Claim | None, problem: str) -> dict[str, Any]:
    """What was said before anything was measured."""
    return {
        "table": claim.table if claim else None,
        "method": cls.name,
        "label": row.label or cls.name,
        "setting": row.setting,
        "oracle": claim.oracle if claim else "gradient" if cls.first_order() else "HVP",
        "over": row.sweep or "eps",
        "lower_bound": row.lower_bound,
        "tilde": bool(claim and claim.tilde),
        "extra": claim.extra if claim else "",
        "footnote": claim.footnote if claim else "",
        "problem": problem,
        "set_by": row.set_by,
        "rule": row.rule,
        "seeds": row.seeds,
        "note": row.note,
    }


def lines(calls: Fit | None, steps: Fit | None, free: Fit | None) -> dict[str, Any]:
    """The three lines that were fitted; None for one that had too few points."""
    return {
        "measured": calls.slope if calls else None,
        "low": calls.low if calls else None,
        "high": calls.high if calls else None,
        "measured_steps": steps.slope if steps else None,
        "low_steps": steps.low if steps else None,
        "high_steps": steps.high if steps else None,
        "log_free": free.slope if free else None,
        "low_free": free.low if free else None,
        "high_free": free.high if free else None,
        "second_half": free.second_half if free else None,
        "local_slopes": list(free.local) if free else [],
    }


def _slopes(free: Fit | None) -> tuple[float, float] | None:
    return None if free is None else (free.slope, free.second_half)


def _columns(
    cls: type[Algorithm], table: Mapping[float, pd.DataFrame], values: list[float], row: RateRow
) -> dict[str, list[float]]:
    """Each query of the method by itself, as far as every trial made it."""
    asked = dict.fromkeys(query.column for name, query in QUERIES.items() if name in cls.uses)
    made = [name for name in asked if all((table[v][name] > 0).all() for v in values)]
    fits = {name: fit_row(table, values, name, row) for name in made}
    return {name: [found.slope, found.low, found.high] for name, found in fits.items() if found is not None}


def _counted(row: RateRow) -> str:
    """What the verdict is about, in words of the tables."""
    if row.over is None:
        return row.log_free
    power = "" if row.over_power == 1 else f"^{row.over_power:g}"
    return f"{row.log_free} / " + (f"({row.over}/{row.sweep}{power})" if row.over_power else row.over)


def _divide(table: dict[float, pd.DataFrame], points: Sequence[Point], row: RateRow, counted: str) -> None:
    """A count without its known logarithm: over the parameter of the preset that holds it."""
    given = {p.value: p.trial.algorithm.params for p in points}
    for value, frame in table.items():
        if row.over not in given[value]:
            raise InvalidInput(
                f"over = {row.over!r}: the preset sets no such parameter{suggestion(str(row.over), given[value])}"
            )
        frame[counted] = frame[row.log_free] / given[value][row.over] * value**row.over_power


def _success(table: Mapping[float, pd.DataFrame]) -> float:
    status = pd.concat([frame["status"] for frame in table.values()])
    return float((status == Status.TARGET).mean())


def _accuracy(frame: pd.DataFrame, value: float, row: RateRow) -> float:
    return float(frame["accuracy"].mean()) if row.rule == "horizon" else value


def _point(frame: pd.DataFrame, value: float, row: RateRow) -> dict[str, float]:
    return {
        "eps": _accuracy(frame, value, row),
        "cost": float(np.exp(np.log(frame["cost"]).mean())),
        "cost_low": float(frame["cost"].min()),
        "cost_high": float(frame["cost"].max()),
        "steps": float(np.exp(np.log(frame["steps"]).mean())),
        "second_order": float(frame["second_order"].median()),
    }


def _unreached(value: float, frame: pd.DataFrame, row: RateRow) -> dict[str, Any]:
    """How many seeds got there, how the trials ended, and the message of one that did not: it may say why."""
    reached = which_reached(frame, row.rule == "horizon")
    statuses = {str(k): int(v) for k, v in frame["status"].value_counts().items()}
    failed = frame[frame["status"].isin([status for status in Status if status.failed])]
    return {
        "value": value,
        "reached": int(reached.sum()),
        "seeds": row.seeds,
        "statuses": statuses,
        "message": "" if failed.empty else str(failed["message"].iloc[0]),
    }


def _predicted(cls: type[Algorithm], points: Sequence[Point], values: list[float], q: float, rule: str) -> float | None:
    methods = {p.value: cls.model_validate(p.trial.algorithm.params) for p in points}
    etas = [methods[v].x_step() for v in values]
    if len(values) < FEWEST or any(eta is None for eta in etas) or rule == "second_order":
        return None
    return predict.slope(values, [eta for eta in etas if eta is not None], q, rule)


def _largest_eps(cls: type[Algorithm], points: Sequence[Point]) -> float | None:
    """Over the grid, whose presets all have the theorem's powers of eps."""
    each = (cls.model_validate(p.trial.algorithm.params).largest_eps(p.value) for p in points)
    return min((eps for eps in each if eps is not None), default=None)
