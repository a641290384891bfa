"""`bilevelbench rates`: run the rows of a table, measure, and write what was found."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.plan.trial import Trial
from bilevelbench.results.schema import Results
from bilevelbench.studies.rates.measure import Measurement, measure
from bilevelbench.studies.rates.plan import plan_own_notion, plan_row, plan_weakened
from bilevelbench.studies.rates.suite import RateRow, RateSuite

#: Runs trials that are not stored yet and returns everything that is.
Run = Callable[[Sequence[Trial]], Results]


def run_rates(
    suite: RateSuite,
    registry: Registry,
    run: Run,
    methods: Sequence[str] = (),
    quick: bool = False,
    preset: str = "rate",
    setting: str | None = None,
) -> list[Measurement]:
    """Two passes, since the necessity check is held against the steps that a row took."""
    known = [row.method for row in suite.row]
    for name in methods:
        if name not in known:
            raise InvalidInput(f"{suite.title} has no row for {name!r}{suggestion(name, known)}")
    settings = sorted({row.setting for row in suite.row})
    if setting is not None and setting not in settings:
        raise InvalidInput(f"{suite.title} has no setting {setting!r}; it has {', '.join(settings)}")
    wanted = [row for row in suite.row if not methods or row.method in methods]
    rows = [row.quickly() if quick else row for row in wanted if setting in (None, row.setting)]
    planned = [(row, plan_row(row, suite, registry, preset), plan_own_notion(row, suite, registry)) for row in rows]
    results = run([p.trial for _, points, own in planned for p in (*points, *own)])
    weakened = [plan_weakened(row, suite, registry, points, results) for row, points, _ in planned]
    results = run([p.trial for points in weakened for p in points])
    return [
        measure(row, points, weak, own, results, registry, _tail(suite, row, registry))
        for (row, points, own), weak in zip(planned, weakened, strict=True)
    ]


def _tail(suite: RateSuite, row: RateRow, registry: Registry) -> float:
    """The exponent q of the row's instance."""
    made = make(registry.problem(suite.problem), {**suite.problem_params, **row.problem})
    q = getattr(made, "q", None)
    if q is None:
        raise InvalidInput(f"problem {suite.problem!r} has no tail exponent q, so a claim predicts no slope on it")
    return float(q)


def write(found: Sequence[Measurement], title: str, path: Path) -> None:
    """What the report reads: claims and measurements together."""
    text = json.dumps({"title": title, "rows": [m.as_dict() for m in found]}, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
