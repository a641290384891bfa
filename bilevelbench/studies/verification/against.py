"""Results held against the official ones: the same trials have the same numbers, and no curve has two names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from bilevelbench.errors import StoreError
from bilevelbench.results.compare import GROWING, first_difference
from bilevelbench.results.schema import Results, Tables
from bilevelbench.results.tables import load_results
from bilevelbench.studies.verification.parameters import on_common_parameters

#: What makes two trials the same but for their budget, targets and schedule.
_SAME = (
    "algorithm", "algorithm_params", "problem", "problem_params", "seed", "dtype", "plugin", "plugin_version",
    "problem_plugin", "problem_plugin_version",
)  # fmt: skip

#: A curve is a copy if this share of its values, to so many digits, is in another one, and there are enough of them.
_SHARE, _DIGITS, _ENOUGH = 0.8, 5, 5


def official(folder: Path) -> Results:
    """The results of a folder, or of the folders in it."""
    folders = [folder] if _holds(folder) else sorted(path for path in folder.glob("*") if _holds(path))
    if not folders:
        raise StoreError(
            f"there are no results in {str(folder)!r}, nor in the folders in it; name another with --against"
        )
    found = [load_results(path) for path in folders]
    runs = pd.concat([one.runs for one in found], ignore_index=True).drop_duplicates("trial_id")
    curves, seen = [], set[str]()
    for one in found:
        curves.append(one.curve[~one.curve["trial_id"].isin(seen)])
        seen |= set(one.runs["trial_id"])
    return Results(runs, pd.concat(curves, ignore_index=True), [record for one in found for record in one.records])


def _holds(folder: Path) -> bool:
    return (folder / "packs").is_dir() or (folder / "runs.parquet").is_file()


def differences(mine: Results, theirs: Results) -> Iterator[tuple[str, str]]:
    """(trial, sentence) for each trial that the official folder has with other numbers."""
    by_id = set(theirs.runs["trial_id"])
    alike = _by_question(theirs.runs)
    mine_of, theirs_of = _by_trial(mine), _by_trial(theirs)
    for row in mine.runs.to_dict("records"):
        trial = row["trial_id"]
        if trial in by_id:
            found = first_difference(*on_common_parameters(mine_of(trial), theirs_of(trial)), tolerances=GROWING)
            if found is not None:
                yield trial, f"the official folder has this trial; the first column that differs is {found[1]}"
        elif (other := alike.get(_question(row))) is not None:
            said = _on_common_steps(mine_of(trial)[1], theirs_of(other)[1], str(row["dtype"]))
            if said:
                yield trial, f"the official trial {other} is the same but for its limits; {said}"


def _by_question(runs: pd.DataFrame) -> dict[tuple[Any, ...], str]:
    return {_question(row): row["trial_id"] for row in runs.to_dict("records")}


def _question(row: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _SAME)


def _by_trial(results: Results) -> Callable[[str], Tables]:
    """The rows of one trial, without a look through those of all others."""
    runs, curves = (dict(iter(table.groupby("trial_id", sort=False))) for table in (results.runs, results.curve))
    nothing = results.curve.iloc[:0]
    return lambda trial: (runs[trial], curves.get(trial, nothing))


def _on_common_steps(a: pd.DataFrame, b: pd.DataFrame, dtype: str) -> str:
    """Where two curves that should be one differ; the last evaluation of each is where its own limit was."""
    both = a.iloc[:-1].merge(b.iloc[:-1], on="step", suffixes=("", "_b"))
    relative, floor, growth, most = GROWING.get(dtype, GROWING["float64"])
    scale = both["grad_phi"].abs().cummax()
    for row, size in zip(both.to_dict("records"), scale, strict=True):
        factor = min(1 + growth * row["step"], most)
        x, y = row["grad_phi"], row["grad_phi_b"]
        if row["cost"] != row["cost_b"]:
            return f"after {row['step']} steps it has cost {row['cost']:.10g}, and there {row['cost_b']:.10g}"
        if abs(x - y) > factor * (relative * max(abs(x), abs(y)) + floor * size):
            return f"after {row['step']} steps |grad phi| is {x!r}, and there {y!r}"
    return ""


def copies(mine: Results, theirs: Results) -> dict[str, str]:
    """By trial: whose curve it has, where that is another method's.

    All methods start at one point, so the first value says nothing. Values are compared without their costs and steps, which
    a forger would change.
    """
    known: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    owner = {row["trial_id"]: row for row in theirs.runs.to_dict("records")}
    for trial, values in _values(theirs).items():
        row = owner[trial]
        for value in values:
            known[row["problem"], row["problem_params"], value].append(trial)
    mine_rows = {row["trial_id"]: row for row in mine.runs.to_dict("records")}
    found = {}
    for trial, values in _values(mine).items():
        row = mine_rows[trial]
        if len(values) < _ENOUGH or trial in owner:  # what the official folder holds itself is its own
            continue
        seen = Counter(
            other
            for value in values
            for other in known[row["problem"], row["problem_params"], value]
            if _method(owner[other]) != _method(row)
        )
        for other, count in seen.most_common(1):
            if count >= _SHARE * len(values):
                name = owner[other]["algorithm"]
                found[trial] = f"its curve is that of {name} (official trial {other}): {count} of {len(values)} values"
    return found


def _method(row: dict[Any, Any]) -> tuple[str, str]:
    return row["plugin"], row["algorithm"]


def _values(results: Results) -> dict[str, set[str]]:
    """|grad phi| along each curve, after its start, to few digits."""
    curve = results.curve[results.curve["step"] > 0].dropna(subset=["grad_phi"])
    texts = curve["grad_phi"].map(lambda value: f"{value:.{_DIGITS - 1}e}")
    return {str(trial): set(group) for trial, group in texts.groupby(curve["trial_id"])}
