"""Summaries of results: one row a method and problem, failures counted and never dropped."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bilevelbench.errors import StoreError
from bilevelbench.results import Results

#: |grad phi| at which the cost is read off a curve.
ACCURACIES = (1e-1, 1e-2, 1e-3)

FAILED = ("diverged", "error", "invalid", "timeout")


def summary(results: Results, accuracies: Sequence[float] = ACCURACIES) -> pd.DataFrame:
    """Medians over trials of one method (as labelled) on one problem, best final gradient first.

    The cost to an accuracy is that of the first evaluation that meets it; a trial that never does costs infinitely much,
    so a median is infinite when half of the trials fail.
    """
    runs = results.runs
    if runs.empty:
        raise StoreError("there are no results to report; run something first: bilevelbench run --all")
    columns = [f"cost_to_{eps:g}" for eps in accuracies]
    costs = cost_to(results, accuracies)
    table = runs.merge(costs, left_on="trial_id", right_index=True, how="left")
    table[columns] = table[columns].fillna(np.inf)
    table["failed"] = table["status"].isin(FAILED)
    table["grad_phi_or_inf"] = table["best_grad_phi"].fillna(np.inf)
    table["variant"] = table["problem_params"].map(variant)
    rows = []
    for (problem, params, label, algorithm), group in table.groupby(
        ["problem", "variant", "label", "algorithm"], sort=False, dropna=False
    ):
        rows.append(
            {
                "problem": f"{problem}{params}",
                "method": label or algorithm,
                "algorithm": algorithm,
                "trials": len(group),
                "failed": int(group["failed"].sum()),
                "reached_target": int((group["status"] == "target").sum()),
                "best_grad_phi": float(group["grad_phi_or_inf"].median()),
                "phi": float(group["phi"].median()),
                **{name: float(group[name].median()) for name in columns},
                "first_order": float(group["first_order"].median()),
                "second_order": float(group["second_order"].median()),
                "cost": float(group["cost"].median()),
                "statuses": ", ".join(f"{n} {s}" for s, n in group["status"].value_counts().items()),
            }
        )
    return pd.DataFrame(rows).sort_values(["problem", "best_grad_phi", "method"], kind="stable", ignore_index=True)


def variant(problem_params: str) -> str:
    """`[dim_x=5]` for what was set beside the data: trials on several data sets are repetitions of one problem."""
    params = {k: v for k, v in json.loads(problem_params or "{}").items() if k != "data_seed"}
    inside = ",".join(f"{k}={v}" for k, v in params.items())
    return f"[{inside}]" if inside else ""


def cost_to(results: Results, accuracies: Sequence[float] = ACCURACIES) -> pd.DataFrame:
    """Cost of the first evaluation with |grad phi| plus its error bound at most eps, by trial; absent: never."""
    curve = results.curve
    certified = curve["grad_phi"] + curve["grad_phi_error"].fillna(0.0)
    columns = {}
    for eps in accuracies:
        met = curve[certified <= eps]
        columns[f"cost_to_{eps:g}"] = met.groupby("trial_id")["cost"].min()
    frame = pd.DataFrame(columns)
    return frame.reindex(results.runs["trial_id"])


def number(value: float, digits: int = 2) -> str:
    """Two significant digits with thousands separators or a power of ten; never a bare NaN."""
    if np.isnan(value):
        return "–"
    if np.isinf(value):
        return "not reached"
    if value == 0:
        return "0"
    if 1e-2 <= abs(value) < 1e7:
        rounded = float(f"{value:.{digits - 1}e}")
        return f"{rounded:,.0f}" if abs(rounded) >= 10 else f"{rounded:.{digits}g}"
    return f"{value:.{digits - 1}e}"


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The summary for people: words in the header, few digits."""
    out = pd.DataFrame(
        {
            "problem": table["problem"],
            "method": table["method"],
            "|grad phi|": table["best_grad_phi"].map(number),
            **{
                f"cost to {name.removeprefix('cost_to_')}": table[name].map(number)
                for name in table.columns
                if name.startswith("cost_to_")
            },
            "gradients": table["first_order"].map(number),
            "HVP + JVP": table["second_order"].map(number),
            "trials": table["trials"],
            "ended": table["statuses"],
        }
    )
    return out


def markdown(table: pd.DataFrame) -> str:
    """A GitHub table; a bar or a line break in a cell is escaped."""
    frame = readable(table)

    def cell(value: object) -> str:
        text = str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
        return text.replace("<", "&lt;").replace(">", "&gt;")

    lines = ["| " + " | ".join(map(cell, frame.columns)) + " |", "|" + " --- |" * len(frame.columns)]
    lines += ["| " + " | ".join(cell(v) for v in row) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines) + "\n"
