"""`--format csv`: the tables of a report with numbers in full."""

from __future__ import annotations

import pandas as pd

from bilevelbench.report.analysis import failures, rates, tuning, verdicts
from bilevelbench.report.analysis.ranking import costs, expected_running_time
from bilevelbench.report.analysis.summary import TARGETS, summary
from bilevelbench.report.comma_table import comma_table
from bilevelbench.report.contents import Report

default_file: str | None = None
figure_kinds: tuple[str, ...] = ("svg", "png")


def document(report: Report, command: str = "") -> str:
    """The first table; the others have other columns and need files of their own."""
    return next(iter(files(report).values()))


def files(report: Report, command: str = "") -> dict[str, str]:
    out: dict[str, pd.DataFrame] = {}
    if not report.results.runs.empty:
        out["results.csv"] = failures.with_sentences(summary(report.results), report.results.runs)
        out["running_time.csv"] = expected_running_time(
            costs(report.results, TARGETS), report.results.runs, report.weight
        )
    board = report.ranking()
    if board is not None:
        out["ranking.csv"] = board
    if report.tuning is not None:
        out["tuning.csv"] = tuning.table(report.tuning)
    if report.experiments:
        out["experiments.csv"] = verdicts.frame(report.experiments)
    if report.rates:
        out["rates.csv"] = pd.concat([rates.frame(t.rows) for t in report.rates], ignore_index=True)
    return {name: comma_table(table) for name, table in out.items()}
