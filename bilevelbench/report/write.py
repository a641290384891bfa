"""`bilevelbench report`: everything that is found in a folder of results, in one of four formats."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from bilevelbench.errors import StoreError
from bilevelbench.report.analysis import failures, rates, tuning, verdicts
from bilevelbench.report.analysis.ranking import costs, expected_running_time, ranking, sensitivity
from bilevelbench.report.analysis.summary import ACCURACIES, RANKING, readable, readable_board, reading, summary
from bilevelbench.report.figures import curves, style
from bilevelbench.report.figures import rates as rates_figures
from bilevelbench.report.figures import tuning as tuning_figures
from bilevelbench.report.figures.experiment import experiment_figure
from bilevelbench.report.formats import latex
from bilevelbench.report.formats.markdown import markdown, pipe_table
from bilevelbench.report.formats.page import write_page
from bilevelbench.results.schema import Results, curve_frame, runs_frame
from bilevelbench.results.tables import load_results

FORMATS = ("md", "csv", "latex", "html")


@dataclass(frozen=True)
class Report:
    """What a folder holds. `weight` is the cost of one product with second derivatives in gradients."""

    results: Results
    rates: list[rates.RateTable]
    warnings: list[str]
    weight: float = 1.0
    experiments: list[verdicts.ExperimentOutcome] = field(default_factory=list)
    tuning: tuning.Tuning | None = None

    def ranking(self) -> pd.DataFrame | None:
        """None where there is nothing to compare."""
        if self.results.runs.empty:
            return None
        table = ranking(self.results, ACCURACIES, self.weight)
        return table if len(table) > 1 else None

    def markdown(self, pictures: bool = False) -> str:
        """With `pictures`, links to the figures of experiments as `figures` writes them."""
        parts = [] if self.tuning is None else [tuning.markdown(self.tuning)]
        parts += [] if self.results.runs.empty else [markdown(summary(self.results))]
        board = self.ranking()
        if board is not None:
            parts.append(f"### {RANKING}\n\n{pipe_table(readable_board(board))}")
        lost = failures.failures(self.results.runs)
        if len(lost):
            parts.append(f"### Failures\n\n{pipe_table(failures.readable(lost))}")
        for outcome in self.experiments:
            picture = f"figures/experiment-{outcome.figure.name}.svg" if pictures else ""
            parts.append(verdicts.markdown(outcome, picture))
        parts += [rates.markdown(t.title, t.rows) for t in self.rates]
        return "\n".join(parts)

    def csv(self) -> dict[str, str]:
        """By file name, numbers in full."""
        out = {}
        if not self.results.runs.empty:
            out["results.csv"] = failures.with_sentences(summary(self.results), self.results.runs)
            out["running_time.csv"] = expected_running_time(
                costs(self.results, ACCURACIES), self.results.runs, self.weight
            )
        board = self.ranking()
        if board is not None:
            out["ranking.csv"] = board
        if self.tuning is not None:
            out["tuning.csv"] = tuning.table(self.tuning)
        if self.experiments:
            out["experiments.csv"] = verdicts.frame(self.experiments)
        if self.rates:
            out["rates.csv"] = pd.concat([rates.frame(t.rows) for t in self.rates], ignore_index=True)
        return {name: table.to_csv(index=False) for name, table in out.items()}

    def latex(self) -> dict[str, str]:
        """By file name: one table each."""
        out = {}
        if not self.results.runs.empty:
            table = summary(self.results)
            for n, problem in enumerate(dict.fromkeys(table["problem"]), 1):
                people = readable(table[table["problem"] == problem], spread=True).drop(columns="problem")
                caption = f"Results on {problem}: {reading(table[table['problem'] == problem])}"
                out[f"problem-{n}.tex"] = latex.table(people, caption)
        board = self.ranking()
        if board is not None:
            out["ranking.tex"] = latex.table(readable_board(board), RANKING)
        lost = failures.failures(self.results.runs)
        if len(lost):
            people = failures.readable(lost).drop(columns="what happened")
            out["failures.tex"] = latex.table(people, "Failures", failures.sentences(self.results.runs))
        if self.tuning is not None:
            out["tuning.tex"] = latex.table(tuning.readable(self.tuning), "Tuning", tuning.remarks(self.tuning))
        for outcome in self.experiments:
            claims = verdicts.frame([outcome]).drop(columns=["figure", "by"])
            said = [f"{v.claim}: {v.sentence}" for v in outcome.verdicts]
            out[f"experiment-{outcome.figure.name}.tex"] = latex.table(claims, outcome.figure.title, said)
        for n, one in enumerate(self.rates, 1):
            out[f"rates-{n}.tex"] = latex.table(rates.readable(one.rows), one.title, rates.notes(one.rows))
        return out

    def figures(self, folder: Path) -> list[Path]:
        """All figures as SVG and PNG."""
        made: list[Path] = []

        def add(name: str, figure: Figure | None) -> None:
            if figure is not None:
                made.extend(style.save(figure, folder / name))

        if not self.results.runs.empty:
            known, table = curves.families(self.results), costs(self.results, ACCURACIES)
            varied = sensitivity(self.results)[["problem", "algorithm"]].drop_duplicates()
            for n, title in enumerate(dict.fromkeys(summary(self.results)["problem"]), 1):
                for axis in ("first_order", "weighted", "seconds", "step"):
                    figure = curves.convergence_figure(self.results, title, axis, self.weight)
                    add(f"convergence-{n}-{axis}", figure)
                for algorithm in varied.loc[varied["problem"] == title, "algorithm"]:
                    name = re.sub(r"[^\w.-]", "_", algorithm)
                    add(f"tuning-{n}-{name}", curves.sensitivity_figure(self.results, title, algorithm))
            add("profile", curves.profile_figure(table, self.weight, known))
            add("ecdf", curves.ecdf_figure(table, self.weight, known))
        if self.tuning is not None:
            for n, problem in enumerate(self.tuning.problems, 1):
                add(f"sensitivity-{n}", tuning_figures.tuning_figure(self.tuning, problem))
        for outcome in self.experiments:
            add(f"experiment-{outcome.figure.name}", experiment_figure(outcome))
        for n, one in enumerate(self.rates, 1):
            add(f"rates-{n}", rates_figures.rate_figure(one.title, one.rows))
            add(f"claims-{n}", rates_figures.claim_figure(one.title, one.rows))
        return made


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
    if found is not None:  # the trials of a search are not results to compare
        results = results.only(tuning.tuned_trials(results))
    if results.runs.empty and not tables and found is None:
        summary(results)  # says so
    outcomes, unusable = verdicts.find_outcomes(folder, results)
    return Report(results, tables, [*results.warnings, *warnings, *unusable], weight, outcomes, found)


def write_report(report: Report, format_: str, folder: Path, out: Path | None, command: str = "") -> str:
    """Write to `out`, or return what is to be printed. An `out` without a suffix is a folder: it takes figures too."""
    single = out is None or (out.suffix != "" and not out.is_dir())
    if format_ == "html" and single:
        path = _page(report, out or folder / "index.html", command)
        return f"page: {path.resolve()}\n"
    if out is None or single:
        text = _single(report, format_)
        if out is None:
            return text
        _write(out, text)
        return ""
    made = _FOLDERS[format_](report, out, command)
    report.figures(out / "figures")
    return "".join(f"{name}: {(out / name).resolve()}\n" for name in (*made, "figures"))


def _single(report: Report, format_: str) -> str:
    if format_ == "latex":
        return latex.document(list(report.latex().values()))
    if format_ == "csv":  # the first table; the others have other columns and need files of their own
        return next(iter(report.csv().values()))
    return report.markdown()


def _markdown_folder(report: Report, out: Path, command: str) -> list[str]:
    _write(out / "report.md", report.markdown(pictures=True))
    return ["report.md"]


def _csv_folder(report: Report, out: Path, command: str) -> list[str]:
    for name, text in report.csv().items():
        _write(out / name, text)
    return list(report.csv())


def _latex_folder(report: Report, out: Path, command: str) -> list[str]:
    tables = report.latex()
    for name, text in tables.items():
        _write(out / name, text)
    _write(out / "report.tex", latex.document([f"\\input{{{name}}}\n" for name in tables]))
    return ["report.tex"]


def _page_folder(report: Report, out: Path, command: str) -> list[str]:
    _make(out)
    _page(report, out / "index.html", command)
    return ["index.html"]


def _page(report: Report, path: Path, command: str) -> Path:
    return write_page(report.results, path, command, report.rates, report.weight, report.experiments, report.tuning)


_FOLDERS: dict[str, Callable[[Report, Path, str], list[str]]] = {
    "md": _markdown_folder,
    "csv": _csv_folder,
    "latex": _latex_folder,
    "html": _page_folder,
}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror}; choose another file with -o") from None


def _write(path: Path, text: str) -> None:
    _make(path.parent)
    try:
        path.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; choose another file with -o") from None
