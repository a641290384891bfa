"""Verdicts as rows of a table: a claim on a problem, both sides in numbers, how many trials, and the word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from bilevelbench.plan.figure import Falls, FigureCheck, Ranking
from bilevelbench.report.analysis.verdicts import Experiment, ExperimentOutcome, judge
from bilevelbench.report.text import number, printable
from bilevelbench.results.status import Status


@dataclass(frozen=True)
class VerdictRow:
    """`ours` and `theirs` are medians over trials at their ends; of a claim about one side alone, `theirs` is its start."""

    claim: str
    problem: str
    ours: str
    theirs: str
    seeds: int
    word: str
    reason: str


def verdict_rows(outcome: ExperimentOutcome) -> list[VerdictRow]:
    """One for each claim on each problem, in the order of the figure; a problem has the name of its panel, if it has one."""
    planned = outcome.experiment.trials
    names = {printable(p.problem): printable(p.title) for p in outcome.figure.panel if p.problem and p.title}
    rows = []
    for problem in dict.fromkeys(trial.problem for trial in planned):
        mine = tuple(trial for trial in planned if trial.problem == problem)
        part = Experiment(figure=outcome.figure, trials=mine)
        for check, verdict in zip(outcome.figure.check, judge(part, outcome.results), strict=True):
            ends = _ends(check, part, outcome)
            sides, name = _sides(check, ends), names.get(problem, problem)
            row = VerdictRow(verdict.claim, name, *sides, _seeds(check, ends), verdict.word, verdict.reason)
            rows.append((outcome.figure.check.index(check), row))
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def _ends(check: FigureCheck, part: Experiment, outcome: ExperimentOutcome) -> pd.DataFrame:
    """Method, start and end of what the claim is about, trial by trial; NaN where a trial has none, or has diverged."""
    column = check.columns[0] if isinstance(check, Falls) else check.column
    table = pd.DataFrame([{"trial_id": t.id, "method": t.method, "algorithm": t.algorithm} for t in part.trials])
    known = outcome.results.runs.set_index("trial_id")["status"]
    curve = outcome.results.curve
    seen = curve.dropna(subset=[column]).sort_values("step", kind="stable") if column in curve else curve.head(0)
    groups = seen.groupby("trial_id")[column] if column in seen else None
    table["start"] = table["trial_id"].map(groups.first()) if groups is not None else float("nan")
    table["end"] = table["trial_id"].map(groups.last()) if groups is not None else float("nan")
    table.loc[table["trial_id"].map(known) == Status.DIVERGED, "end"] = float("nan")
    return table


def _sides(check: FigureCheck, ends: pd.DataFrame) -> tuple[str, str]:
    if isinstance(check, Falls):
        methods = check.methods or tuple(dict.fromkeys(ends["method"]))
        return _medians(methods, ends, "end"), f"at the start {_medians(methods, ends, 'start')}"
    left, right = (check.better, check.worse) if isinstance(check, Ranking) else (check.low, check.high)
    return _medians(left, ends, "end"), _medians(right, ends, "end")


def _medians(methods: Sequence[str], ends: pd.DataFrame, column: str) -> str:
    """`F2BA 0.012 [0.011, 0.014], PBGD none`: the median, and from the lowest to the highest where they differ."""
    said = []
    for method in methods:
        values = ends.loc[_is(method, ends), column].dropna()
        if values.empty:
            said.append(f"{method} none")
            continue
        spread = f" [{number(values.min(), 3)}, {number(values.max(), 3)}]" if values.min() < values.max() else ""
        said.append(f"{method} {number(float(values.median()), 3)}{spread}")
    return printable("; ".join(said))


def _is(method: str, ends: pd.DataFrame) -> pd.Series[bool]:
    """By its label, or else by its name."""
    mine = ends["method"] == method
    return mine if mine.any() else ends["algorithm"] == method


def _seeds(check: FigureCheck, ends: pd.DataFrame) -> int:
    """Trials of a method that the claim is about, of the one that has fewest."""
    if isinstance(check, Falls):
        methods = check.methods or tuple(dict.fromkeys(ends["method"]))
    else:
        methods = (*check.better, *check.worse) if isinstance(check, Ranking) else (*check.low, *check.high)
    return min(int(_is(method, ends).sum()) for method in methods)
