"""`bilevelbench rates`: run the rows of a table, measure, and write what was found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.model.problem import Problem
from bilevelbench.studies.rates.counted import measure_counted
from bilevelbench.studies.rates.measure import Measurement, measure
from bilevelbench.studies.rates.plan import (
    Point,
    plan_against,
    plan_own_notion,
    plan_row,
    plan_weakened,
    plan_without_noise,
)
from bilevelbench.studies.rates.presets import preset_of
from bilevelbench.studies.rates.sides import Sides
from bilevelbench.studies.rates.suite import Preset, RateRow, RateSuite
from bilevelbench.studies.rates.tuned import Run, TunedRow, search


@dataclass(frozen=True)
class _Planned:
    row: RateRow
    points: list[Point]
    own: list[Point]
    against: list[Point]
    tuned: str = ""


def run_rates(
    suite: RateSuite,
    registry: Registry,
    run: Run,
    methods: Sequence[str] = (),
    quick: bool = False,
    preset: Preset = "rate",
    setting: str | None = None,
) -> list[Measurement]:
    """Two passes, since the necessity check is held against the steps that a row took."""
    rows = wanted(suite, methods, setting, quick)
    planned = _planned([row for row in rows if not row.counted], suite, registry, run, preset)
    results = run([p.trial for one in planned for p in (*one.points, *one.own, *one.against)])
    weakened = [plan_weakened(one.row, registry, one.points, results) for one in planned]
    quiet = [plan_without_noise(one.row, one.points, results) for one in planned]
    results = run([p.trial for points in (*weakened, *quiet) for p in points])
    measured = [
        measure(
            one.row, one.points, Sides(weak, one.own, still, one.against), results, registry,
            drift_of(suite, one.row, registry), one.tuned, preset,
        )
        for one, weak, still in zip(planned, weakened, quiet, strict=True)
    ]  # fmt: skip
    run_rows = iter(measured)
    return [measure_counted(row, suite, registry, preset) if row.counted else next(run_rows) for row in rows]


def wanted(suite: RateSuite, methods: Sequence[str], setting: str | None, quick: bool) -> list[RateRow]:
    """The rows of these methods and this setting, or all, in their quick form if that is asked for."""
    known = [row.method for row in suite.row]
    for name in methods:
        if name not in known:
            raise InvalidInput(f"{suite.title} has no row for {name!r}{suggestion(name, known)}")
    settings = sorted({row.setting for row in suite.row})
    if setting is not None and setting not in settings:
        raise InvalidInput(f"{suite.title} has no setting {setting!r}; it has {', '.join(settings)}")
    rows = [
        row.quickly() if quick else row
        for row in suite.row
        if (not methods or row.method in methods) and (setting is None or setting == row.setting)
    ]
    return [row for row in rows if row is not None]


def _planned(rows: Sequence[RateRow], suite: RateSuite, registry: Registry, run: Run, preset: Preset) -> list[_Planned]:
    found = iter(search([row for row in rows if preset_of(row, preset) == "tuned"], suite, registry, run))
    out = []
    for row in rows:
        is_tuned = preset_of(row, preset) == "tuned"
        main = next(found) if is_tuned else TunedRow(plan_row(row, suite, registry, preset), "")
        own, against = plan_own_notion(row, main.points), plan_against(row, suite, registry)
        out.append(_Planned(row, main.points, own, against, main.told))
    return out


def drift_of(suite: RateSuite, row: RateRow, registry: Registry) -> float | None:
    """The exponent q of the row's instance, if it knows one."""
    name, params = suite.problem_of(row)
    made: Problem = make(registry.problem(name), params)
    return made.drift_exponent()


def write(found: Sequence[Measurement], title: str, made: str, path: Path) -> None:
    """What the report reads: claims and measurements together, and when and where they were made."""
    text = json.dumps({"title": title, "made": made, "rows": [m.as_dict() for m in found]}, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
