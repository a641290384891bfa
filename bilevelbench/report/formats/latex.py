"""`--format latex`: the tables of a report, a file each, and a document that inputs them."""

from __future__ import annotations

from bilevelbench.report import booktabs
from bilevelbench.report.analysis import failures, rates, tuning, verdicts
from bilevelbench.report.analysis.summary import RANKING, readable, readable_board, reading, summary
from bilevelbench.report.contents import Report

default_file: str | None = None
figure_kinds: tuple[str, ...] = ("svg", "png")


def document(report: Report, command: str = "") -> str:
    return booktabs.document(list(tables(report).values()))


def files(report: Report, command: str = "") -> dict[str, str]:
    found = tables(report)
    return {"report.tex": booktabs.document([f"\\input{{{name}}}\n" for name in found]), **found}


def tables(report: Report) -> dict[str, str]:
    """By file name."""
    out = {}
    if not report.results.runs.empty:
        table = summary(report.results)
        for n, problem in enumerate(dict.fromkeys(table["problem"]), 1):
            people = readable(table[table["problem"] == problem], spread=True).drop(columns="problem")
            caption = f"Results on {problem}: {reading(table[table['problem'] == problem])}"
            out[f"problem-{n}.tex"] = booktabs.table(people, caption)
    board = report.ranking()
    if board is not None:
        out["ranking.tex"] = booktabs.table(readable_board(board), RANKING)
    lost = failures.failures(report.results.runs)
    if len(lost):
        people = failures.readable(lost).drop(columns="what happened")
        out["failures.tex"] = booktabs.table(people, "Failures", failures.sentences(report.results.runs))
    if report.tuning is not None:
        out["tuning.tex"] = booktabs.table(tuning.readable(report.tuning), "Tuning", tuning.remarks(report.tuning))
    for outcome in report.experiments:
        claims = verdicts.frame([outcome]).drop(columns=["figure", "by"])
        said = [f"{v.claim}: {v.sentence}" for v in outcome.verdicts]
        out[f"experiment-{outcome.figure.name}.tex"] = booktabs.table(claims, outcome.figure.title, said)
    for n, one in enumerate(report.rates, 1):
        out[f"rates-{n}.tex"] = booktabs.table(rates.readable(one.rows), one.title, rates.notes(one.rows))
    return out
