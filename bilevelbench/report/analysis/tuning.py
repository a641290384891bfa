"""Tuning in a report: what each method was given and what came of it, and how its score depends on each parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.errors import StoreError
from bilevelbench.report.pipe_table import pipe_table
from bilevelbench.report.text import number, printable
from bilevelbench.results.schema import Results
from bilevelbench.untrusted import LIST, NUMBER, NUMBER_OR_NONE, TABLE, TEXT, UNSHOWABLE, Refused, read_json, wrong_kind

TUNING = "tuning.json"
_ROW = {
    **dict.fromkeys(("method", "family", "problem", "remark"), TEXT),
    **dict.fromkeys(("grid", "settings", "trials", "failed", "calls"), (int,)),
    **dict.fromkeys(("cost", "seconds"), NUMBER),
    "score": NUMBER_OR_NONE, "space": TABLE, "best": TABLE, "tried": LIST,
}  # fmt: skip
_TRIED = {"choice": TABLE, "score": NUMBER_OR_NONE}
_RULE = {"search": TEXT, "by": TEXT, "trials": (int,), "cost": NUMBER_OR_NONE, "factor": (int,), "seed": (int,)}
_SEARCHES = ("grid", "halving", "tpe")


@dataclass(frozen=True)
class Tuning:
    """`rule` as the table `[tune]` of the suite has it; `rows` one for each method and problem."""

    title: str
    summary: str  # how the parameters were found, in sentences
    rule: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def problems(self) -> list[str]:
        return list(dict.fromkeys(row["problem"] for row in self.rows))


def read_tuning(folder: Path) -> Tuning | None:
    """What `bilevelbench tune` left in a folder; None if it was not there."""
    path = folder / TUNING
    if not path.is_file():
        return None
    try:
        record = read_json(path, folder)
    except Refused as refused:
        raise StoreError(f"{str(path)!r} {refused}; run `bilevelbench tune` again") from None
    fault = next(_faults(record), None)
    if fault:
        raise StoreError(f"{str(path)!r} {fault}; run `bilevelbench tune` again")
    title, summary = (printable(record.get(name, "")) for name in ("title", "summary"))
    found = Tuning(title, summary, record["rule"], record["rows"])
    try:
        if found.rows:
            readable(found), remarks(found)  # numbers that do not fit each other show here
    except UNSHOWABLE as error:
        raise StoreError(
            f"{str(path)!r} has a row that cannot be shown ({error!r}); run `bilevelbench tune` again"
        ) from None
    return found


def _faults(record: Mapping[str, Any]) -> Iterator[str | None]:
    """What is wrong with a tuning.json, as the end of a sentence."""
    fault = wrong_kind(record, {"rows": LIST, "rule": TABLE}) or wrong_kind(record["rule"], _RULE)
    if fault is None and record["rule"]["search"] not in _SEARCHES:
        fault = f"has a search {record['rule']['search']!r}; it is one of {', '.join(_SEARCHES)}"
    yield from filter(None, [fault])
    for row in record["rows"]:
        yield from filter(None, [wrong_kind(row, _ROW)])
        yield from filter(None, (wrong_kind(tried, _TRIED) for tried in row["tried"]))


def tuned_trials(results: Results) -> set[str]:
    """Ids of the trials whose parameters `bilevelbench tune` has found."""
    trials = (trial for record in results.records for trial in record.get("trials", []))
    return {str(trial["id"]) for trial in trials if trial.get("tuned")}


def table(tuning: Tuning) -> pd.DataFrame:
    """One row per method and problem, numbers in full; on each problem ranked by the metric that chose."""
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
    frame = pd.DataFrame(rows, columns=[*columns, "best"])
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
    frame = pd.DataFrame(
        {
            "problem": full["problem"].map(printable),
            "method": full["method"].map(printable),
            "settings": [f"{tried} of {grid}" for tried, grid in zip(full["settings"], full["grid"], strict=True)]
            if tuning.rule["search"] != "tpe" and not tuning.rule.get("equal_cost")  # which goes beyond the grid
            else full["settings"].astype(str),
            "trials": full["trials"],
            "failed": full["failed"],
            "calls": full["calls"].map(lambda n: f"{n:,}"),
            "seconds": full["seconds"].map(lambda s: f"{s:.1f}"),
            tuning.rule["by"]: [
                number(score, 6) if math.isfinite(score) else "no step" if remark else "half or more failed"
                for score, remark in zip(full["score"], full["remark"], strict=True)
            ],
            "best": full["best"].replace("", "as it is"),
        }
    )
    if tuning.rule.get("equal_cost"):
        frame.insert(list(frame.columns).index("calls"), "search cost", full["cost"].map(lambda cost: f"{cost:,.10g}"))
    return frame


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
    if rule.get("equal_cost"):
        out.append(_levelled(tuning.rows))
    if rule["search"] != "tpe":
        drawn = [row["method"] for row in tuning.rows if row["grid"] > row["settings"]]
        whole = [row["method"] for row in tuning.rows if row["grid"] < rule["trials"]]
        out += [f"Drawn from a larger grid, with seed {rule['seed']}: {_names(drawn)}."] if drawn else []
        out += [f"Smaller than {rule['trials']}, and so tried whole: the grid of {_names(whole)}."] if whole else []
    out += [printable(row["remark"]) for row in tuning.rows if row["remark"]]
    if rule["by"] == "grad_phi":
        out.append("|grad phi| is also small where x has run away; look at phi before believing this choice.")
    return out


def _levelled(rows: Sequence[Mapping[str, Any]]) -> str:
    """How equal the costs are, as they were recorded."""
    shares = [row["cost"] / row["allowed"] for row in rows if row.get("allowed")]
    if not shares:
        return "No method had anything to tune."
    return (
        "What settings left over that failed early went to further settings: every search spent "
        f"{min(shares):.1%} to {max(shares):.1%} of what it was given."
    )


def parameters(params: Mapping[str, Any]) -> str:
    """`lam=10, eta_x=0.1`, to six digits."""
    return ", ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items())


def _names(methods: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(map(printable, methods)))
