"""`--format html`: one HTML file with everything inside, for a browser without network."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from markupsafe import Markup

from bilevelbench.report.analysis.coinciding import merged
from bilevelbench.report.analysis.failures import failures
from bilevelbench.report.analysis.intervals import is_single, ranking
from bilevelbench.report.analysis.metrics import with_metrics
from bilevelbench.report.analysis.pictures import pictures
from bilevelbench.report.analysis.ranking import costs, power, uncounted_words
from bilevelbench.report.analysis.rates import RateTable, notes
from bilevelbench.report.analysis.rates import readable as readable_rates
from bilevelbench.report.analysis.summary import (
    RANKING,
    TARGETS,
    certificates,
    exact_rows,
    readable,
    readable_board,
    reading,
    require,
    shares_of,
    start_notes,
    summary,
)
from bilevelbench.report.analysis.tuning import Tuning, remarks
from bilevelbench.report.analysis.tuning import readable as readable_tuning
from bilevelbench.report.analysis.verdicts import ExperimentOutcome
from bilevelbench.report.contents import Report
from bilevelbench.report.figures.curves import convergence, families, profile_figure
from bilevelbench.report.figures.experiment import CAPTION, experiment_figure
from bilevelbench.report.figures.rates import claim_figure, rate_figure
from bilevelbench.report.figures.style import svg
from bilevelbench.report.figures.tuning import tuning_figure
from bilevelbench.report.page_environment import content_policy, page_environment
from bilevelbench.report.text import WORDS, printable, superscripts
from bilevelbench.results import reached
from bilevelbench.results.schema import Results
from bilevelbench.results.status import Status

#: At most this many rows of failures are on the page; the rest is counted.
_FAILURES = 200


default_file: str | None = "index.html"
figure_kinds: tuple[str, ...] = ("svg", "png")


def files(report: Report, command: str = "") -> dict[str, str]:
    return {"index.html": document(report, command)}


def document(report: Report, command: str = "") -> str:
    """Tables and figures of these results; everything that a plugin or a result says is escaped."""
    results, rates, tuning = report.results, report.rates, report.tuning
    environment = page_environment("bilevelbench.report", trim_blocks=True)
    style = environment.get_template("page.css").render()
    require(results)
    titles: list[str] = []
    table = pd.DataFrame({"method": []})
    if not ((rates or tuning) and results.runs.empty):
        table = summary(results)
        titles = list(dict.fromkeys(table["problem"]))
    lost = failures(results.runs)
    return environment.get_template("page.html").render(
        style=Markup(style),
        policy=content_policy(style=f"'sha256-{_digest(style)}'", images="data:"),
        trials=len(results.runs),
        methods=table["method"].nunique(),
        board=_board(results, report.weight) if table["method"].nunique() > 1 else None,
        experiments=[_experiment(one, n) for n, one in enumerate(report.experiments)],
        caption=CAPTION,
        tuning=_tuning(tuning) if tuning is not None else None,
        rates=[_rates(one, n, results) for n, one in enumerate(rates)],
        problems=[_section(results, table, title, n) for n, title in enumerate(titles)],
        words=WORDS,
        failures=lost.head(_FAILURES).to_dict("records"),
        hidden=len(lost) - _FAILURES,
        failed=int(reached.failed(results.runs).sum()),
        reading=reading(table) if titles else "",
        certificates=certificates(results.runs) if titles else "",
        unreadable=results.warnings,
        statuses=list(Status),
        command=printable(command),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _board(results: Results, weight: float) -> dict[str, Any]:
    people = readable_board(ranking(results, TARGETS, weight))
    one = merged(results)
    table = one.one_each(costs(results, TARGETS))
    figure = profile_figure(table, weight, known=families(results))
    return {
        "title": RANKING,
        "is_single": is_single(table),
        "weight": f"{weight:g}",
        "notes": [
            *(one.sentence(method) for method in sorted(one.members)),
            *filter(None, [superscripts(uncounted_words(table))]),
            *start_notes(results),
        ],
        "targets": superscripts(
            f"{len(TARGETS)} accuracies from {power(TARGETS[0])} to {power(TARGETS[-1])} of "
            f"{shares_of(results)} at the start"
        ),
        "columns": list(people.columns),
        "rows": people.to_numpy().tolist(),
        "figure": Markup(svg(figure, "b-")) if figure is not None else "",
    }


def _experiment(one: ExperimentOutcome, n: int) -> dict[str, Any]:
    return {
        "title": printable(one.figure.title),
        "claim": printable(one.figure.claim),
        "rows": one.verdicts,
        "cells": [[row.claim, row.problem, row.ours, row.theirs, row.seeds, row.word] for row in one.verdicts],
        "tuning": one.tuning,
        "made": one.made,
        "figure": Markup(svg(experiment_figure(one), f"e{n}-")),
    }


def _tuning(tuning: Tuning) -> dict[str, Any]:
    people = readable_tuning(tuning)
    drawn = [(problem, tuning_figure(tuning, problem)) for problem in tuning.problems]
    return {
        "columns": list(people.columns),
        "rows": people.to_numpy().tolist(),
        "notes": remarks(tuning),
        "figures": [
            (printable(problem), Markup(svg(figure, f"t{n}-")))
            for n, (problem, figure) in enumerate(drawn)
            if figure is not None
        ],
    }


def _rates(table: RateTable, n: int, results: Results) -> dict[str, Any]:
    people, known = readable_rates(table.rows), families(results)
    return {
        "title": printable(table.title),
        "made": table.made,
        "columns": list(people.columns),
        "rows": people.to_numpy().tolist(),
        "notes": [printable(note) for note in notes(table.rows)],
        "claims": Markup(svg(claim_figure(table.title, table.rows, known), f"c{n}-")),
        "plot": Markup(svg(rate_figure(table.title, table.rows, known), f"r{n}-")),
    }


def _section(results: Results, table: pd.DataFrame, title: str, n: int) -> dict[str, Any]:
    exact = table[table["problem"] == title]
    people = with_metrics(results, exact, readable(exact, spread=True).drop(columns="problem"))
    svg = convergence(results, title, prefix=f"f{n}-")
    return {
        "name": title,
        "id": f"problem-{n}",
        "columns": list(people.columns),
        "rows": exact_rows(exact, people),
        "figure": Markup(svg),  # our own SVG: its texts are escaped by matplotlib
        "pictures": pictures(results, title, list(exact["method"])),
    }
