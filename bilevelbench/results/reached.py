"""What counts as reached: the single rule, for the runner, the progress display, every table, rank and page.

- A trial that ended `diverged`, `error` or `invalid` has reached nothing, whatever its curve went through.
- A point counts where phi is not above the trial's first, up to rounding: a small gradient uphill is not progress.
- An accuracy is met where |grad phi| plus the bound of its error is at most that. Without a bound (NaN) it never is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.results.schema import Results
from bilevelbench.results.status import Status

#: phi may lie above its start by this share of max(1, |phi|): float32 has seven digits, and a start may be a solution.
SLACK = 1e-6

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


def first_met(results: Results, eps: float) -> pd.DataFrame:
    """By trial the first row of the curve that certifies |grad phi| <= eps; absent: never."""
    rows = results.curve[counts(results)]
    met: pd.DataFrame = rows[certified(rows["grad_phi"], rows["grad_phi_error"]) <= eps]
    return met.sort_values("cost", kind="stable").drop_duplicates("trial_id").set_index("trial_id")


def best(results: Results) -> pd.Series[float]:
    """The smallest |grad phi| by trial, certified or not; infinite where nothing counts."""
    smallest = results.curve[counts(results)].groupby("trial_id")["grad_phi"].min()
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
