"""What tuning leaves behind: `tuning.json` for the report, and `best.toml`, a suite to run."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from bilevelbench.plan.suite import AlgorithmEntry, ProblemEntry, Suite
from bilevelbench.report.analysis.tuning import TUNING
from bilevelbench.results.files import replace_file
from bilevelbench.results.schema import Results
from bilevelbench.studies.tuning.study import EQUAL, Job, Target, search_seeds

BEST = "best.toml"


def tuning_record(suite: Suite, jobs: Sequence[Job], results: Results) -> dict[str, Any]:
    """The rule, and for each method and problem what was tried, what it cost, and what won."""
    rule, rows = suite.tune.model_dump(mode="json"), [_row(job, results) for job in jobs]
    return {
        "title": suite.title,
        "summary": _summary(rule, rows),
        "rule": rule,
        "seeds": list(search_seeds(suite)),
        "rows": rows,
    }


def _row(job: Job, results: Results) -> dict[str, Any]:
    assert job.best is not None
    runs = results.only(job.trials).runs
    lanes = np.maximum(runs["pack_lanes"].to_numpy(dtype=float), 1.0)
    return {
        "method": job.method.label,
        "algorithm": str(runs["algorithm"].iloc[0]),
        "family": job.method.family,
        "problem": str(job.target.problem),
        "data_seeds": list(job.target.data_seeds),
        "space": {d.name: {"fields": list(d.fields), "values": list(d.values)} for d in job.method.dimensions},
        "grid": job.method.size,
        "settings": job.settings,
        "allowed": job.cost,
        "trials": len(job.trials),
        "failed": sum(one.failed for one in job.tried),
        "cost": float(runs["cost"].sum()),
        "calls": int(runs[["first_order", "second_order", "value"]].to_numpy().sum()),
        "seconds": float((runs["seconds"].to_numpy(dtype=float) / lanes).sum()),
        "best": job.method.params(job.best.choice),
        "score": _finite(job.best.score),
        "remark": job.remark,
        "tried": [
            {"choice": one.choice, "budget": one.budget.model_dump(exclude_none=True), "score": _finite(one.score)}
            for one in job.tried
        ],
    }


def best_suite(suite: Suite, jobs: Sequence[Job], record: dict[str, Any]) -> Suite:
    """The best parameters, each for its problem, on seeds and data that the search has not seen."""
    first = max(search_seeds(suite)) + 1
    return Suite(
        title=f"{suite.title or 'best'}, tuned",
        description=record["summary"],
        algorithm=tuple(_entry(job) for job in jobs),
        problem=tuple(one for target in dict.fromkeys(job.target for job in jobs) for one in _problems(target)),
        seeds=tuple(range(first, first + len(suite.seed_list))),
        budget=suite.budget,
        targets=suite.targets,
        schedule=suite.schedule,
        dtype=suite.dtype,
        tuned=suite.tune.by,
        figure=suite.figure,
    )


def _summary(rule: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """How the parameters were found and what that cost, in sentences."""
    if rule["equal_cost"]:
        return _equal_summary(rule, rows)
    spent = []
    for method, group in itertools.groupby(sorted(rows, key=lambda r: r["method"]), lambda r: r["method"]):
        mine = list(group)
        settings, trials, calls = (sum(row[key] for row in mine) for key in ("settings", "trials", "calls"))
        seconds = sum(row["seconds"] for row in mine)
        spent.append(f"{method}: {settings} settings, {trials} trials, {calls:,} calls, {seconds:.1f} s")
    limit = f" and at most {rule['cost']:,.10g} calls" if rule["cost"] is not None else ""
    return (
        f"Parameters found by {rule['search']} search: at most {rule['trials']} settings{limit} for each method and problem, "
        f"chosen by the median of {rule['by']}. Spent on it: {'; '.join(spent)}."
    )


def _equal_summary(rule: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    searched = [row for row in rows if row["allowed"] is not None]
    shares = [row["cost"] / row["allowed"] for row in searched]
    settings = [row["settings"] for row in searched]
    own = ", the method's own first" if rule["defaults"] else ""
    equal = min(shares) >= 1 - EQUAL
    level = "spent the same on every method" if equal else "had the same to spend on every method, and could not always"
    return (
        f"Parameters found by {rule['search']} search, which {level}: "
        f"{_span(f'{min(shares):.1%}', f'{max(shares):.1%}')} of {_amounts(searched)} for each method and problem, on "
        f"{_span(str(min(settings)), str(max(settings)))} settings{own}, chosen by the median of {rule['by']} at the whole "
        f"budget. In all {sum(row['trials'] for row in rows):,} trials and {sum(row['seconds'] for row in rows):,.0f} s."
    )


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _amounts(rows: Sequence[dict[str, Any]]) -> str:
    """`a cost of 120,000`, or what each problem was given where that differs."""
    given = {row["problem"]: f"a cost of {row['allowed']:,.10g}" for row in rows}
    if len(set(given.values())) == 1:
        return next(iter(given.values()))
    return " and ".join(f"{amount} on {problem}" for problem, amount in given.items())


def _entry(job: Job) -> AlgorithmEntry:
    assert job.best is not None
    params = {name: [value] for name, value in job.method.params(job.best.choice).items() if value is not None}
    return AlgorithmEntry(
        name=job.method.name,
        label=job.method.label,
        params=params,
        problems=tuple(str(problem) for problem, _ in job.target.report_on),
    )


def _problems(target: Target) -> Iterator[ProblemEntry]:
    for problem, seeds in target.report_on:
        params: dict[str, Any] = {name: [value] for name, value in problem.params.items()}
        yield ProblemEntry(
            name=problem.name,
            params={**params, "data_seed": list(seeds)},
            budget=target.entry.budget,
            targets=target.entry.targets,
        )


def write_tuning(folder: Path, record: dict[str, Any], best: Suite) -> None:
    texts = {TUNING: json.dumps(record, indent=1, allow_nan=False) + "\n", BEST: suite_toml(best)}
    for name, text in texts.items():
        replace_file(folder / name, text.encode())


def suite_toml(suite: Suite) -> str:
    """A suite as a file that reads as the same suite."""
    return tomli_w.dumps(_set(suite.model_dump(mode="json", exclude_defaults=True)))


def _set(value: Any) -> Any:
    """TOML has no null: what is None is left out."""
    if isinstance(value, dict):
        return {key: _set(one) for key, one in value.items() if one is not None}
    return [_set(one) for one in value] if isinstance(value, list) else value


def _finite(score: float) -> float | None:
    """JSON has no infinity; None is a failure."""
    return score if math.isfinite(score) else None
