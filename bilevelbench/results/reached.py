"""What counts as reached: the single rule, for the runner, the progress display, every table, rank and page.

- A trial that ended `diverged`, `error` or `invalid` has reached nothing, whatever its curve went through.
- A point counts where phi is not above the trial's first, up to rounding: a small gradient uphill is not progress.
- An accuracy is a share of |grad phi| at the start, the same for every trial on one problem and data seed. It is met where
  |grad phi| plus the bound of its error is at most that share. Without a bound (NaN) it never is.
- A trial that was held to second order (`schedule.second_order`) has the smallest eps for which both conditions hold, errors
  included, in the place of |grad phi|: a method that stays at a saddle has not arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.results.schema import Results
from bilevelbench.results.status import Status

#: phi may lie above its start by this share of max(1, |phi|): float32 has seven digits, and a start may be a solution.
SLACK = 1e-6

#: Starts of one problem and data seed that differ by a larger share than this disagree: float32 has seven digits.
_SAME_START = 1e-6

#: Certificates of trials in which no accuracy can be certified; unknown where a trial has no certificate.
UNCERTIFIED = ("not certified", "none", "not convex", "residual")  # the last is what results of schema 1 say

#: What a certificate adds where x is confined to a set: |grad phi| is then the length of x - P(x - grad phi).
MAPPING = "gradient mapping"


def not_above(phi: Any, start: Any) -> Any:
    """Whether phi is not above its start, number by number; NaN is not."""
    return phi <= start + SLACK * np.maximum(1.0, np.abs(start))


def certified(measured: Any, error: Any) -> Any:
    """The accuracy that is sure, number by number: NaN, which meets nothing, where no bound of the error is known."""
    return measured + error


def failed(runs: pd.DataFrame) -> pd.Series[bool]:
    """Which trials failed."""
    return runs["status"].isin([status for status in Status if status.failed])


def counts(results: Results) -> pd.Series[bool]:
    """Which rows of the curve count."""
    curve = results.curve
    first = curve.sort_values("step", kind="stable").drop_duplicates("trial_id").set_index("trial_id")["phi"]
    lost = results.runs.loc[failed(results.runs), "trial_id"]
    downhill: pd.Series[bool] = not_above(curve["phi"], curve["trial_id"].map(first).astype(float))
    return downhill & ~curve["trial_id"].isin(lost)


def held_to_both(results: Results) -> set[str]:
    """Trials in which both conditions of second-order stationarity count."""
    trials = ((trial, trial.get("schedule")) for record in results.records for trial in record.get("trials", []))
    return {
        str(trial["id"])
        for trial, schedule in trials
        if "id" in trial and isinstance(schedule, Mapping) and schedule.get("second_order")
    }


def measured(results: Results) -> pd.DataFrame:
    """What accuracies are held against, by row of the curve: `value`, and `error`, a bound of its error."""
    curve, both = results.curve, held_to_both(results)
    found = pd.DataFrame({"value": curve["grad_phi"].astype(float), "error": curve["grad_phi_error"].astype(float)})
    if both:
        eps = curve["second_order_eps"].astype(float) if "second_order_eps" in curve else np.nan
        mine = curve["trial_id"].isin(both)
        found = found.assign(value=found["value"].where(~mine, eps), error=found["error"].where(~mine, 0.0))
    return found


def starts(results: Results) -> pd.DataFrame:
    """By trial: `start`, what is measured at x0 on its problem and data seed, and whether its own curve `agrees` with that.

    Where trials disagree the first certified one counts, and without any the first that is finite; NaN if none is.
    """
    curve = measured(results).assign(trial_id=results.curve["trial_id"], step=results.curve["step"])
    first = curve.sort_values("step", kind="stable").drop_duplicates("trial_id").set_index("trial_id")
    first = first.reindex(results.runs["trial_id"])
    own = first["value"].where(np.isfinite(first["value"]))
    seen = results.runs[["problem", "problem_params"]].set_axis(first.index)
    seen = seen.assign(own=own, both=first.index.isin(held_to_both(results)))
    order = (~np.isfinite(first["error"].to_numpy(dtype=float))).argsort(kind="stable")
    alike = ["problem", "problem_params", "both"]
    chosen = seen.iloc[order].groupby(alike)["own"].first().rename("start")
    start = seen.join(chosen, on=alike)["start"].astype(float)
    return pd.DataFrame({"start": start, "agrees": own.isna() | ((own - start).abs() <= _SAME_START * start)})


def first_met(results: Results, accuracies: Sequence[float]) -> list[pd.DataFrame]:
    """For each accuracy, by trial the first row of the curve that certifies accuracy * start; absent: never."""
    found = measured(results)
    rows = results.curve.assign(_sure=certified(found["value"], found["error"]))
    rows = rows[counts(results)].sort_values("cost", kind="stable")
    sure = rows.pop("_sure").to_numpy(dtype=float)
    start = rows["trial_id"].map(starts(results)["start"]).to_numpy(dtype=float)
    return [rows[sure <= accuracy * start].drop_duplicates("trial_id").set_index("trial_id") for accuracy in accuracies]


def best(results: Results) -> pd.Series[float]:
    """The smallest of what is measured, by trial, certified or not; infinite where nothing counts."""
    kept = counts(results)
    smallest = measured(results).loc[kept, "value"].groupby(results.curve.loc[kept, "trial_id"]).min()
    return smallest.reindex(results.runs["trial_id"]).fillna(np.inf)


def uncertified(runs: pd.DataFrame) -> pd.Series[bool]:
    """Trials that did not fail and could not have certified any accuracy."""
    return kind(runs).isin(UNCERTIFIED) & ~failed(runs)


def kind(runs: pd.DataFrame) -> pd.Series[str]:
    """The certificate without what it adds."""
    return runs["certificate"].map(lambda text: str(text).partition("; ")[0])


def is_mapping(runs: pd.DataFrame) -> pd.Series[bool]:
    """Trials in which x is confined to a set."""
    return runs["certificate"].map(lambda text: str(text).endswith(f"; {MAPPING}")).astype(bool)
