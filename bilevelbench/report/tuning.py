"""Tuning in a report: what each method was given and what came of it, and how its score depends on each parameter."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilevelbench.errors import StoreError
from bilevelbench.report import figures
from bilevelbench.report.tables import number, pipe_table, printable
from bilevelbench.results import Results

FILE = "tuning.json"
_ROW = (
    "method", "family", "problem", "space", "grid", "settings", "trials", "failed", "cost", "calls", "seconds", "best",
    "score", "remark", "tried",
)  # fmt: skip


@dataclass(frozen=True)
class Tuning:
    """`rule` as the table `[tune]` of the suite has it; `rows` one for each method and problem."""

    title: str
    rule: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def problems(self) -> list[str]:
        return list(dict.fromkeys(row["problem"] for row in self.rows))


def read_tuning(folder: Path) -> Tuning | None:
    """What `bilevelbench tune` left in a folder; None if it was not there."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        rows, rule = record["rows"], record["rule"]
        missing = [name for row in rows for name in _ROW if name not in row]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{str(path)!r} cannot be read ({error!r}); run `bilevelbench tune` again") from None
    if missing:
        raise StoreError(f"{str(path)!r}: a row has no {missing[0]!r}; run `bilevelbench tune` again")
    return Tuning(printable(record.get("title", "")), rule, rows)


def tuned_trials(results: Results) -> set[str]:
    """Ids of the trials whose parameters `bilevelbench tune` has found."""
    trials = (trial for record in results.records for trial in record.get("trials", []))
    return {str(trial["id"]) for trial in trials if trial.get("tuned")}


def only(results: Results, of: pd.Series[bool]) -> Results:
    """Some of the trials, as a mask over `runs`."""
    runs = results.runs[of]
    curve = results.curve[results.curve["trial_id"].isin(runs["trial_id"])]
    return Results(runs, curve, results.records, results.problems)


def table(tuning: Tuning) -> pd.DataFrame:
    """One row a method and problem, numbers in full; on each problem ranked by the metric that chose."""
    columns = (
        "problem",
        "method",
        "settings",
        "grid",
        "trials",
        "failed",
        "calls",
        "cost",
        "seconds",
        "score",
        "remark",
    )
    rows = [{name: row[name] for name in columns} | {"best": parameters(row["best"])} for row in tuning.rows]
    frame = pd.DataFrame(rows)
    frame["score"] = frame["score"].astype(float).fillna(np.inf)
    place = frame["problem"].map({problem: n for n, problem in enumerate(tuning.problems)})
    return (
        frame.assign(place=place)
        .sort_values(["place", "score"], kind="stable", ignore_index=True)
        .drop(columns="place")
    )


def readable(tuning: Tuning) -> pd.DataFrame:
    """The same for people."""
    full = table(tuning)
    return pd.DataFrame(
        {
            "problem": full["problem"].map(printable),
            "method": full["method"].map(printable),
            "settings": [f"{tried} of {grid}" for tried, grid in zip(full["settings"], full["grid"], strict=True)]
            if tuning.rule["search"] != "tpe"
            else full["settings"].astype(str),
            "trials": full["trials"],
            "failed": full["failed"],
            "calls": full["calls"].map(lambda n: f"{n:,}"),
            "seconds": full["seconds"].map(lambda s: f"{s:.1f}"),
            tuning.rule["by"]: [
                number(score, 6) if math.isfinite(score) else "no step" if remark else "half or more failed"
                for score, remark in zip(full["score"], full["remark"], strict=True)
            ],
            "best": full["best"],
        }
    )


def markdown(tuning: Tuning) -> str:
    notes = "".join(f"- {note}\n" for note in remarks(tuning))
    return f"### Tuning\n\n{pipe_table(readable(tuning))}\n{notes}"


def remarks(tuning: Tuning) -> list[str]:
    """What a reader has to know of the rule: how much each method was given, and who was given less than it could use."""
    rule = tuning.rule
    given = {
        "grid": f"Every method was given {rule['trials']} settings on each problem, each with the budget of the suite.",
        "halving": f"Every method was given {rule['trials']} settings and at most {rule['cost'] or 0:,.10g} calls on each "
        f"problem: few calls for all, {rule['factor']} times as many for the best one in {rule['factor']}, and so on.",
        "tpe": f"Every method was given {rule['trials']} settings on each problem, asked of a tree-structured Parzen "
        "estimator; what is worse than the median after a third of the budget ends there.",
    }[rule["search"]]
    out = [
        f"{given} Chosen by the median of {rule['by']} at the end; a failure is infinite, and so is a trial without a step."
    ]
    if rule["search"] != "tpe":
        drawn = [row["method"] for row in tuning.rows if row["grid"] > row["settings"]]
        whole = [row["method"] for row in tuning.rows if row["grid"] < rule["trials"]]
        out += [f"Drawn from a larger grid, with seed {rule['seed']}: {_names(drawn)}."] if drawn else []
        out += [f"Smaller than {rule['trials']}, and so tried whole: the grid of {_names(whole)}."] if whole else []
    out += [printable(row["remark"]) for row in tuning.rows if row["remark"]]
    if rule["by"] == "grad_phi":
        out.append("|grad phi| is also small where x has run away; look at phi before believing this choice.")
    return out


def sensitivity_figure(tuning: Tuning, problem: str) -> Figure | None:
    """The best score over all other parameters against each one, a line a method; crosses are settings that failed.

    A setting that was run with several budgets counts with the score of the last one. None if everything failed.
    """
    points = _points(tuning, problem)
    if not np.isfinite(points["score"]).any():
        return None
    names = list(dict.fromkeys(points["parameter"]))
    known = {printable(row["method"]): row["family"] for row in tuning.rows}
    style = figures.looks(list(known), known)
    with figures.settings():
        figure = Figure(figsize=(3.2 * len(names) + 2.2, 3.4), layout="constrained")
        row = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
        lines: dict[str, Any] = {}
        for axes, name in zip(row, names, strict=True):
            lines |= _panel(axes, points[points["parameter"] == name], style)
            axes.set_xlabel(name.replace("_", " "), parse_math=False)
        _range(row[0], points.loc[np.isfinite(points["score"]), "score"])
        row[0].set_ylabel(f"{tuning.rule['by']}, best over the others", parse_math=False)
        figures.legend(row[-1], list(lines.values()), list(lines))
        sns.despine(figure)
    return figure


def _range(axes: Axes, scores: pd.Series[float]) -> None:
    """Room for what is near the best: a setting that has almost diverged may be as large as numbers get."""
    least, middle = float(scores.min()), float(scores.median())
    if least > 0 and scores.max() > 10 * least:
        axes.set(yscale="log", ylim=(least / 1.5, 1.5 * min(float(scores.max()), 100 * least)))
    elif middle > least:
        axes.set_ylim(least - 0.2 * (middle - least), min(float(scores.max()), least + 4 * (middle - least)) + 1e-12)


def _panel(axes: Axes, points: pd.DataFrame, style: Mapping[str, figures.Look]) -> dict[str, Any]:
    lines = {}
    words = points["value"].map(lambda v: isinstance(v, str)).any()
    points = points.assign(value=points["value"].astype(str if words else float))
    for method, mine in points.groupby("method"):
        best = mine.groupby("value")["score"].min()
        best = best[np.isfinite(best)]
        (lines[str(method)],) = axes.plot(
            best.index, best.to_numpy(), linewidth=1.5, markersize=4, **style[str(method)]
        )
        lost = mine[~np.isfinite(mine["score"])]
        top = np.full(len(lost), 0.98)
        axes.plot(
            lost["value"], top, "x", color=style[str(method)]["color"], transform=axes.get_xaxis_transform(), alpha=0.5
        )
    if not words and (points["value"] > 0).all():
        axes.set_xscale("log")
    axes.grid(alpha=0.15, linewidth=0.6)
    return lines


def _points(tuning: Tuning, problem: str) -> pd.DataFrame:
    """One row a setting and parameter."""
    rows = []
    for row in tuning.rows:
        if row["problem"] != problem:
            continue
        last = {json.dumps(one["choice"], sort_keys=True): one for one in row["tried"]}
        for one in last.values():
            score = math.inf if one["score"] is None else one["score"]
            for name, value in one["choice"].items():
                rows.append({"method": printable(row["method"]), "parameter": name, "value": value, "score": score})
    return pd.DataFrame(rows, columns=["method", "parameter", "value", "score"])


def parameters(params: Mapping[str, Any]) -> str:
    """`lam=10, eta_x=0.1`, to six digits."""
    return ", ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items())


def _names(methods: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(map(printable, methods)))
