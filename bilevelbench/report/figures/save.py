"""All figures of a report."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from bilevelbench.report.analysis.ranking import costs, sensitivity
from bilevelbench.report.analysis.summary import TARGETS, summary
from bilevelbench.report.contents import Report
from bilevelbench.report.figures import curves, rates, style, tuning
from bilevelbench.report.figures.experiment import experiment_figure
from bilevelbench.untrusted import slug


def save_figures(report: Report, folder: Path, kinds: tuple[str, ...] = ("svg", "png")) -> list[Path]:
    """A file of each kind."""
    made: list[Path] = []

    def add(name: str, figure: Figure | None) -> None:
        if figure is not None:
            made.extend(style.save(figure, folder / name, kinds))

    if not report.results.runs.empty:
        known, table = curves.families(report.results), costs(report.results, TARGETS)
        varied = sensitivity(report.results)[["problem", "algorithm"]].drop_duplicates()
        for n, title in enumerate(dict.fromkeys(summary(report.results)["problem"]), 1):
            for axis in ("first_order", "weighted", "seconds", "step"):
                figure = curves.convergence_figure(report.results, title, axis, report.weight)
                add(f"convergence-{n}-{axis}", figure)
            for algorithm in varied.loc[varied["problem"] == title, "algorithm"]:
                add(f"tuning-{n}-{slug(algorithm)}", curves.sensitivity_figure(report.results, title, algorithm))
        add("profile", curves.profile_figure(table, report.weight, known))
        add("ecdf", curves.ecdf_figure(table, report.weight, known))
    if report.tuning is not None:
        for n, problem in enumerate(report.tuning.problems, 1):
            add(f"sensitivity-{n}", tuning.tuning_figure(report.tuning, problem))
    for outcome in report.experiments:
        add(f"experiment-{outcome.figure.name}", experiment_figure(outcome))
    for n, one in enumerate(report.rates, 1):
        add(f"rates-{n}", rates.rate_figure(one.title, one.rows))
        add(f"claims-{n}", rates.claim_figure(one.title, one.rows))
    return made
