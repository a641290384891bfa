"""`--format md`: a report in Markdown, as GitHub shows it."""

from __future__ import annotations

import pandas as pd

from bilevelbench.report.analysis import failures, rates, tuning, verdicts
from bilevelbench.report.analysis.summary import RANKING, readable, readable_board, summary
from bilevelbench.report.contents import Report
from bilevelbench.report.pipe_table import pipe_table

default_file: str | None = None
figure_kinds: tuple[str, ...] = ("svg", "png")


def document(report: Report, command: str = "") -> str:
    return _markdown(report, pictures=False)


def files(report: Report, command: str = "") -> dict[str, str]:
    """With links to the figures of experiments, which a folder has."""
    return {"report.md": _markdown(report, pictures=True)}


def summary_table(table: pd.DataFrame) -> str:
    return pipe_table(readable(table, spread=True))


def _markdown(report: Report, pictures: bool) -> str:
    parts = [] if report.tuning is None else [tuning.markdown(report.tuning)]
    parts += [] if report.results.runs.empty else [summary_table(summary(report.results))]
    board = report.ranking()
    if board is not None:
        parts.append(f"### {RANKING}\n\n{pipe_table(readable_board(board))}")
    lost = failures.failures(report.results.runs)
    if len(lost):
        parts.append(f"### Failures\n\n{pipe_table(failures.readable(lost))}")
    for outcome in report.experiments:
        picture = f"figures/experiment-{outcome.figure.name}.svg" if pictures else ""
        parts.append(verdicts.markdown(outcome, picture))
    parts += [rates.markdown(t.title, t.rows) for t in report.rates]
    return "\n".join(parts)
