"""What a folder of results holds for a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from bilevelbench.errors import StoreError
from bilevelbench.report.analysis import rates, tuning, verdicts
from bilevelbench.report.analysis.intervals import ranking
from bilevelbench.report.analysis.summary import TARGETS, summary
from bilevelbench.results.schema import Results, curve_frame, runs_frame
from bilevelbench.results.tables import load_results


def _nothing(methods: Iterable[str]) -> dict[str, list[str]]:
    return {}


@dataclass(frozen=True)
class Report:
    """What a folder holds. `weight` is the cost of one product with second derivatives in gradients.

    `cite` tells what methods cite, as far as they are known here.
    """

    results: Results
    rates: list[rates.RateTable] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    weight: float = 1.0
    experiments: list[verdicts.ExperimentOutcome] = field(default_factory=list)
    tuning: tuning.Tuning | None = None
    cite: Callable[[Iterable[str]], dict[str, list[str]]] = _nothing

    def ranking(self) -> pd.DataFrame | None:
        """None where there is nothing to compare."""
        if self.results.runs.empty:
            return None
        table = ranking(self.results, TARGETS, self.weight)
        return table if len(table) > 1 else None


def read_report(folder: Path, weight: float = 1.0) -> Report:
    """The results, measured rates and tuning in a folder; one of them is enough."""
    tables, warnings = rates.find_rates(folder)
    try:
        results = load_results(folder)
    except StoreError:
        if not tables:
            raise
        results = Results(runs_frame([]), curve_frame([]), [])
    found = tuning.read_tuning(folder)
    if found is not None:  # the trials of a search are not results to be compared
        results = results.only(tuning.tuned_trials(results))
    if results.runs.empty and not tables and found is None:
        summary(results)  # says so
    outcomes, unusable = verdicts.find_outcomes(folder, results)
    return Report(results, tables, [*results.warnings, *warnings, *unusable], weight, outcomes, found)
