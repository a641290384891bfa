"""From a row of the suite to its trials, and from their results to a measured exponent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.claim import Claim
from bilevelbench.report.analysis import predict
from bilevelbench.report.analysis.fit import Fit, fit, verdict
from bilevelbench.results.schema import Results
from bilevelbench.results.status import Status
from bilevelbench.studies.rates.plan import Point, all_reached, runs_by_value, which_reached
from bilevelbench.studies.rates.suite import RateRow


@dataclass(frozen=True)
class Measurement:
    """A row of `bilevelbench rates`. `measured` is the slope of the calls, `measured_steps` that of the steps."""

    table: int | None
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


def claim_of(cls: type[Algorithm], row: RateRow) -> Claim:
    """That of the row's table, or the one that is in no table."""
    there = {claim.table: claim for claim in cls.claims if claim.setting == row.setting}
    found = there.get(row.table) or there.get(None)
    if found is None:
        raise InvalidInput(f"{cls.name} claims nothing for table {row.table}, setting {row.setting!r}")
    return found


def measure(
    row: RateRow,
    points: Sequence[Point],
    weakened: Sequence[Point],
    own: Sequence[Point],
    results: Results,
    registry: Registry,
    q: float,
) -> Measurement:
    """What these points say about the row; `weakened` and `own` are those of its two side experiments."""
    cls = registry.algorithm(row.method).value
    claim = claim_of(cls, row)
    horizons, over_kappa = row.rule == "horizon", row.kappas is not None
    table = runs_by_value(points, results)
    whole = [value for value in row.grid() if len(table[value]) == row.seeds and all_reached(table[value], horizons)]
    exponent = claim.kappa_exp if over_kappa else claim.eps_exp
    if exponent is None:
        raise InvalidInput(f"{row.method} claims no exponent of kappa")
    target = predict.asymptotic(exponent, row.set_by, q)
    if row.over is not None:
        _divide(table, points, row.log_free, row.over)
    counted = row.log_free if row.over is None else f"{row.log_free} / {row.over}"
    fits = {name: _fit(table, whole, name, horizons, over_kappa) for name in ("cost", "steps", counted)}
    reached = [_accuracy(table[v], v, horizons) for v in whole]
    return Measurement(
        **_stated(row, claim, exponent),
        **_slopes(fits["cost"], fits["steps"], fits[counted]),
        q=q,
        target=target,
        predicted=None if horizons or over_kappa else _predicted(cls, points, whole, q, row.rule),
        log_free_of=counted,
        eps_max=max(reached) if reached else None,
        eps_min=min(reached) if reached else None,
        success=_success(table) if row.rule == "second_order" else None,
        verdict=verdict(fits[counted], exponent, target, len(whole), horizons),
        unreached=[_unreached(v, table[v], row.seeds, horizons) for v in row.grid() if v not in whole],
        necessity=_necessity(row, weakened, results, horizons),
        own_notion=_own(row, own or points, results),
        points=[_point(table[v], v, horizons) for v in whole],
    )


def _stated(row: RateRow, claim: Claim, exponent: float) -> dict[str, Any]:
    """What was said before anything was measured."""
    return {
        "table": claim.table,
        "method": row.method,
        "label": row.label or row.method,
        "setting": row.setting,
        "oracle": claim.oracle,
        "over": "eps" if row.kappas is None else "kappa",
        "claimed": exponent,
        "tilde": claim.tilde,
        "extra": claim.extra,
        "footnote": claim.footnote,
        "set_by": row.set_by,
        "rule": row.rule,
        "seeds": row.seeds,
        "note": row.note,
    }


def _slopes(calls: Fit | None, steps: Fit | None, free: Fit | None) -> dict[str, Any]:
    """The three lines that were fitted; None for one that had too few points."""
    return {
        "measured": calls.slope if calls else None,
        "low": calls.low if calls else None,
        "high": calls.high if calls else None,
        "measured_steps": steps.slope if steps else None,
        "low_steps": steps.low if steps else None,
        "high_steps": steps.high if steps else None,
        "log_free": free.slope if free else None,
        "second_half": free.second_half if free else None,
        "local_slopes": list(free.local) if free else [],
    }


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
    return float((status == Status.TARGET).mean())


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
    good = int(which_reached(frame, horizons).sum())
    statuses = {str(k): int(v) for k, v in frame["status"].value_counts().items()}
    return {"value": value, "reached": good, "seeds": seeds, "statuses": statuses}


def _predicted(cls: type[Algorithm], points: Sequence[Point], values: list[float], q: float, rule: str) -> float | None:
    methods = {p.value: cls.model_validate(p.trial.algorithm.params) for p in points}
    etas = [methods[v].x_step() for v in values]
    if len(values) < 3 or any(eta is None for eta in etas) or rule == "second_order":
        return None
    return predict.slope(values, [eta for eta in etas if eta is not None], q, rule)


def _necessity(row: RateRow, points: Sequence[Point], results: Results, horizons: bool) -> str:
    """What the weakened row shows, in words."""
    if row.weakened is None:
        return ""
    table = runs_by_value(points, results)
    if not table:
        return "not checked: the row itself reached nothing"
    if horizons:
        values = [v for v in table if all_reached(table[v], True)]
        found = _fit(table, values, "cost", True)
        if found is None:
            return f"{row.weakened.text}: no slope, {len(values)} of {len(table)} horizons were finished by all seeds"
        end = found.local[-1]
        return f"{row.weakened.text}: slope {found.slope:.2f}, at the end {end:.2f}"
    reached = {v: int((frame["status"] == Status.TARGET).sum()) for v, frame in table.items()}
    told = ", ".join(f"{v:.3g} by {n} of {row.seeds}" for v, n in reached.items())
    within = f"{row.weakened.text}: eps {told} seeds within {row.weakened.patience:g} times the most steps of the row"
    if min(reached.values()) == row.seeds:
        return f"{within}; this part of the preset is not needed here"
    return f"{within}; without this part of the preset it takes longer or never gets there"


def _own(row: RateRow, points: Sequence[Point], results: Results) -> str:
    if row.own_notion is None:
        return ""
    table = runs_by_value(points, results, row.own_notion if row.rule == "horizon" else "mean_grad_phi")
    horizons = row.rule == "horizon"
    values = [v for v in row.grid() if len(table[v]) == row.seeds and all_reached(table[v], horizons)]
    found = _fit(table, values, "cost", horizons)
    if found is None:
        what = "horizons finished" if horizons else "eps reached"
        return f"{row.own_notion}: {len(values)} {what} by all seeds, too few for a slope"
    return f"{row.own_notion}: {found.slope:.2f} [{found.low:.2f}, {found.high:.2f}] in calls"
