"""What no run of a trial can have given, by what the trial asks for and by what its method declares.

`bilevelbench.results.possible` holds tables against themselves when they are read; here a row is held against its trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bilevelbench.engine.lane import OF_PHI
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.queries import COLUMNS, TOTALS
from bilevelbench.plan.trial import Trial
from bilevelbench.results.compare import TOLERANCES
from bilevelbench.results.reached import certified
from bilevelbench.results.status import Status
from bilevelbench.untrusted import parameters

#: Declared calls are added up over so many steps; a forger who is honest for longer is left to the sample.
_STEPS = 5000
#: What a published number may be away from one that it repeats.
_SLACK = TOLERANCES["float32"].relative
#: Certificates of trials that claim no phi.
_WITHOUT_PHI = ("none", "not convex")


@dataclass(frozen=True, eq=False)
class Stored:
    """A trial as stored: its row of `runs`, and its rows of `curve` in their order."""

    trial: Trial
    row: Mapping[Any, Any]
    curve: pd.DataFrame

    @property
    def status(self) -> Status:
        return Status(self.row["status"])


def impossible_of(stored: Stored, method: Algorithm | None) -> str | None:
    """What is wrong with a trial, as a sentence; None if it may be true. `method` is None where its plugin is not here."""
    return next(_faults(stored, method), None)


def _faults(stored: Stored, method: Algorithm | None) -> Iterator[str]:
    if method is not None:
        yield from _parameters(stored)
        yield from _declared(stored, method)
    yield from _budget(stored)
    yield from _curve(stored)
    yield from _ending(stored)
    if method is not None:
        yield from _calls(stored, method)


def _budget(stored: Stored) -> Iterator[str]:
    row, budget = stored.row, stored.trial.budget
    if row["cost"] > budget.most:
        yield f"it spent {row['cost']:.10g}, and its budget is {budget.most:.10g}"
    if budget.steps is not None and row["steps"] > budget.steps:
        yield f"it made {row['steps']} steps, and its budget is {budget.steps}"
    calls = row["first_order"] + row["second_order"]
    if row["cost"] < calls:
        yield f"it cost {row['cost']:.10g}, less than its {calls} gradients and products"


def _curve(stored: Stored) -> Iterator[str]:
    """Along a curve calls never fall and cost at least one sample each; `runs` repeats what is seen there."""
    row, curve = stored.row, stored.curve
    if curve.empty:
        if np.isfinite(row["best_grad_phi"]):
            yield f"it has a best_grad_phi of {row['best_grad_phi']:.4g} and no evaluation"
        return
    if curve["step"].iloc[0] != 0:
        yield f"its curve begins at step {curve['step'].iloc[0]}, and every trial is looked at before its first step"
    for name in TOTALS:
        if (np.diff(curve[name]) < 0).any():
            yield f"its curve has a {name} that falls"
        if curve[name].iloc[-1] > row[name]:
            yield f"its curve counts {curve[name].iloc[-1]} of {name}, and its row {row[name]}"
    dear = curve["cost"] < curve["first_order"] + curve["second_order"]
    if dear.any():
        at = curve[dear].iloc[0]
        yield f"at step {at['step']} it has a cost of {at['cost']:.10g}, less than its gradients and products"
    for name, end in (("last_phi", "phi"), ("last_grad_phi", "grad_phi")):
        seen = float(curve[end].iloc[-1])
        if not _alike(float(row[name]), seen):
            yield f"its {name} is {row[name]:.6g}, and its curve ends with {seen:.6g}"
    smallest = float(curve["grad_phi"].min())
    if row["best_grad_phi"] < smallest * (1 - _SLACK):
        yield f"its best_grad_phi is {row['best_grad_phi']:.6g}, and no evaluation is below {smallest:.6g}"


def _alike(a: float, b: float) -> bool:
    return (np.isnan(a) and np.isnan(b)) or a == b or abs(a - b) <= _SLACK * max(abs(a), abs(b))


def _ending(stored: Stored) -> Iterator[str]:
    """A trial that did not fail ends with finite numbers, and one that met its target has done so."""
    row, curve, status = stored.row, stored.curve, stored.status
    if curve.empty or status.failed:
        return
    last = curve.iloc[-1]
    claims = str(row["certificate"]).partition("; ")[0] not in _WITHOUT_PHI
    for name in ("phi", "grad_phi"):
        if np.isinf(last[name]) or (claims and np.isnan(last[name])):
            yield f"it ends with {name} = {last[name]} and the status {status}; what is not finite has failed"
    if status is Status.TARGET:
        yield from _target(stored, last)


def _target(stored: Stored, last: pd.Series[Any]) -> Iterator[str]:
    trial = stored.trial
    column = trial.schedule.target_column
    if not trial.targets:
        yield "it met a target, and has none"
    elif column not in last:
        yield f"it met a target of {column!r}, which its curve does not have"
    else:
        reached = certified(last[column], last["grad_phi_error"] if OF_PHI.get(column) else 0.0)
        if not reached <= min(trial.targets) * (1 + _SLACK):
            yield f"it met the target {min(trial.targets):g}, and its last evaluation certifies {reached:.4g}"


def _parameters(stored: Stored) -> Iterator[str]:
    """What was asked for is what the method was given."""
    given = parameters(stored.row["algorithm_params"]) or {}
    for name, value in stored.trial.algorithm.params.items():
        if value is not None and given.get(name) != value:  # None: the method takes it from the constants
            yield f"it was to have {name} = {value!r}, and says that it had {given.get(name)!r}"


def _declared(stored: Stored, method: Algorithm) -> Iterator[str]:
    """The oracle refuses what a method does not declare."""
    for column, queries in (COLUMNS | TOTALS).items():
        if stored.row[column] > 0 and method.uses.isdisjoint(queries):
            kind = ", being a first-order method" if column in ("hvp", "jvp", "second_order") else ""
            yield f"it counts {stored.row[column]} of {column}, none of which {method.name} declares{kind}"
    if stored.status is Status.STOPPED and type(method).stopped is Algorithm.stopped:
        yield f"it came to the method's own end, and {method.name} has none"


def _calls(stored: Stored, method: Algorithm) -> Iterator[str]:
    """Where a method declares what its steps cost, that is what they cost."""
    row, curve = stored.row, stored.curve
    if curve.empty or curve["step"].iloc[0] != 0:
        return
    ended = int(row["steps"])
    spent = _spent(method, min(ended + 1, _STEPS))
    if spent is None:
        return
    exact = "second_order_samples" not in curve or curve["second_order_samples"].isna().all()
    columns = {"first_order": "gradients", "second_order": "products"} | ({"cost": "calls"} if exact else {})
    # the step that a budget or an exception cut short is on the account as far as it came
    cut = stored.status is Status.BUDGET or stored.status.broken
    for name, words in columns.items():
        start, sums = float(curve[name].iloc[0]), spent[name]
        seen = [(int(step), float(count)) for step, count in zip(curve["step"], curve[name], strict=True)]
        for step, count in (*seen, (ended, float(row[name]))):
            if step + 1 >= len(sums):
                break
            least, most = start + sums[step], start + sums[step + 1]
            if count < least or (count > least and not (cut and step == ended and count <= most)):
                yield (
                    f"after {step} steps it has made {count:.10g} {words}, and {method.name} declares steps that make "
                    f"{least:.10g}"
                )
                return
    budget = stored.trial.budget
    over = budget.steps is not None and ended >= budget.steps
    if (
        exact
        and stored.status is Status.BUDGET
        and budget.cost is not None
        and not over
        and ended + 1 < len(spent["cost"])
    ):
        after = float(curve["cost"].iloc[0]) + spent["cost"][ended + 1]
        if after <= budget.cost:
            yield (
                f"it ended by its budget of {budget.cost:.10g} after {row['cost']:.10g}, and {method.name} declares a next "
                f"step after which it would have spent {after:.10g}"
            )


def _spent(method: Algorithm, steps: int) -> dict[str, NDArray[np.float64]] | None:
    """What the first steps have cost together, from 0 steps on; None where the method does not declare it."""
    rows = []
    for step in range(1, steps + 1):
        try:
            calls = method.calls(step)
        except Exception:  # a plugin's own mistake is no proof against its results
            return None
        if calls is None:
            return None
        ones, twos = (sum(calls.get(query, 0) for query in queries) for queries in TOTALS.values())
        rows.append((ones, twos, sum(calls.values())))
    sums = np.vstack([np.zeros((1, 3)), np.cumsum(np.array(rows, dtype=float).reshape(-1, 3), axis=0)])
    return dict(zip(("first_order", "second_order", "cost"), sums.T, strict=True))
