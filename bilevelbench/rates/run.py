"""`bilevelbench rates`: run the rows of a table, measure, and write what was found."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from bilevelbench.api import run_trials
from bilevelbench.executor import Done
from bilevelbench.rates.measure import Measurement, Point, measure, plan_own_notion, plan_row, plan_weakened
from bilevelbench.rates.suite import RateSuite
from bilevelbench.registry import Registry
from bilevelbench.results import Results
from bilevelbench.store import Store

Progress = Callable[[Done], None]


def run_rates(
    suite: RateSuite,
    plugins: Registry,
    out: Path,
    methods: Sequence[str] = (),
    quick: bool = False,
    preset: str = "rate",
    jobs: int = 0,
    progress: Progress | None = None,
) -> list[Measurement]:
    """Two passes, since the necessity check is held against the steps that a row took. Resumes like any run."""
    rows = [row.quickly() if quick else row for row in suite.row if not methods or row.method in methods]
    store = Store(out)
    planned = [(row, plan_row(row, suite, plugins, preset), plan_own_notion(row, suite, plugins)) for row in rows]
    results = _run([p for _, points, own in planned for p in (*points, *own)], store, plugins, jobs, progress)
    weakened = [plan_weakened(row, suite, plugins, points, results) for row, points, _ in planned]
    results = _run([p for points in weakened for p in points], store, plugins, jobs, progress)
    q = _tail_power(suite)
    found = [
        measure(row, points, weak, own, results, plugins, q)
        for (row, points, own), weak in zip(planned, weakened, strict=True)
    ]
    path = out / "rates.json"
    path.write_text(json.dumps({"title": suite.title, "rows": [m.as_dict() for m in found]}, indent=1) + "\n")
    return found


def _run(points: Sequence[Point], store: Store, plugins: Registry, jobs: int, progress: Progress | None) -> Results:
    return run_trials([p.trial for p in points], store, plugins, jobs, progress)


def _tail_power(suite: RateSuite) -> float:
    return float(suite.problem_params.get("q", 1.05))
