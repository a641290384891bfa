"""What problems measure by themselves, as columns of a table: test loss, accuracy, weight of garbage."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bilevelbench.report.analysis.summary import measure_column, titled
from bilevelbench.report.text import number
from bilevelbench.results import reached
from bilevelbench.results.schema import CURVE, Results

#: What the meter and the evaluator add to curves, which other columns of a table are made of.
_NOT_METRICS = frozenset(
    {"second_order_samples", "mean_grad_phi", "second_order_eps", "min_eigenvalue", "min_eigenvalue_error"}
)


def final_metrics(results: Results, title: str) -> pd.DataFrame:
    """By method on one problem: the median over trials of the last value of each metric; a failed trial has none.

    A metric is what every method has a value of: what only some have are columns of theirs.
    """
    runs = titled(results.runs)
    sound = runs[(runs["title"] == title) & ~reached.failed(runs)]
    curve = results.curve.merge(sound[["trial_id", "method"]], on="trial_id")
    names = [name for name in curve.columns if name not in {*CURVE, *_NOT_METRICS, "method"}]
    medians = curve.groupby(["method", "trial_id"], sort=False)[names].last().groupby("method").median()
    known: pd.DataFrame = medians.loc[:, np.isfinite(medians.to_numpy(dtype=float)).all(0)]
    return known


def with_metrics(results: Results, exact: pd.DataFrame, people: pd.DataFrame) -> pd.DataFrame:
    """A readable table of one problem with its metrics behind the method's name.

    Where no norm of the hypergradient was evaluated (`schedule.phi = false`) they stand in the place of the columns that
    are made of it. `exact` is the summary that the table was made of.
    """
    found = final_metrics(results, str(exact["problem"].iloc[0]))
    if found.empty or not len(found.columns):
        return people
    values = found.reindex(exact["method"])
    columns = {name: [number(float(v)) for v in values[name]] for name in found.columns if name not in people}
    norms = results.curve.loc[results.curve["trial_id"].isin(_trials(results, exact)), "grad_phi"]
    blank = not np.isfinite(norms.to_numpy(dtype=float)).any()
    kept = [c for c in people.columns if not (blank and (c == measure_column(people) or c.startswith("cost to ")))]
    place = kept.index("method") + 1
    out = people.assign(**columns)
    return out[[*kept[:place], *columns, *kept[place:]]]


def _trials(results: Results, exact: pd.DataFrame) -> pd.Series[str]:
    runs = titled(results.runs)
    trials: pd.Series[str] = runs.loc[runs["title"] == exact["problem"].iloc[0], "trial_id"]
    return trials
