"""`--format paper`: what a paper needs of a report: `main.tex`, tables, figures as PDF, protocol, environment, BibTeX."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bilevelbench.report import booktabs
from bilevelbench.report.analysis.ranking import power
from bilevelbench.report.analysis.summary import ACCURACIES, TARGETS, certificates, data_seeds, summary
from bilevelbench.report.booktabs import escape
from bilevelbench.report.contents import Report
from bilevelbench.report.formats import latex
from bilevelbench.results.reached import held_to_both
from bilevelbench.results.schema import Results

default_file: str | None = None
figure_kinds: tuple[str, ...] = ("pdf",)

HEAD = (
    booktabs.PREAMBLE
    + r"""\usepackage[margin=2.5cm]{geometry}
% A figure that these results do not have is left out.
\newcommand{\resultsfigure}[2]{\IfFileExists{figures/#1.pdf}{%
\begin{figure}[htbp]\centering\includegraphics[width=\linewidth]{figures/#1.pdf}\caption{#2}\end{figure}}{}}
\begin{document}
"""
)

#: What `ranking.power` writes, escaped.
_POWER = re.compile(r"\b10\\textasciicircum\{\}(-?\d+(?:\.\d+)?)")
_CITATION = re.compile(r'(?P<authors>[^"]+?),? "(?P<title>[^"]+)", (?P<where>.*?) ?(?P<year>\d{4})$')


def document(report: Report, command: str = "") -> str:
    """One file: tables where the folder has their names."""
    return _main(report, command, list(latex.tables(report).values()), references(report))


def files(report: Report, command: str = "") -> dict[str, str]:
    tables = latex.tables(report)
    cited = references(report)
    main = _main(report, command, [f"\\input{{{name}}}\n" for name in tables], cited)
    return {"main.tex": main, **tables, "references.bib": bibliography(cited)}


def _main(report: Report, command: str, tables: list[str], cited: Mapping[str, list[str]]) -> str:
    parts = [HEAD, "\\section*{Protocol}\n", protocol(report), "\n\n", environment(report), "\n\n"]
    if command:
        said = re.sub(r"[/\]\[,]", r"\g<0>\\allowbreak{}", escape(command))  # a path would stand out of the margin
        parts.append(f"{{\\raggedright Tables and figures are made by \\texttt{{{said}}}.\\par}}\n\n")
    parts += ["\\section*{Results}\n", *tables, *_figures(report)]
    if cited:
        parts += ["\\clearpage\n\\nocite{*}\n\\bibliographystyle{plain}\n\\bibliography{references}\n"]
    return "".join(parts) + booktabs.TAIL


def protocol(report: Report) -> str:
    """How the numbers came about, in sentences that hold for these results."""
    runs = report.results.runs
    if runs.empty:
        return "Rates are measured as their tables say."
    methods, problems, seeds = (runs[name].nunique() for name in ("label", "problem", "seed"))
    said = [
        f"{_counted(len(runs), 'trial')}: {_counted(methods, 'method')} on {_counted(problems, 'problem')}, "
        f"{_counted(seeds, 'seed')} of noise and {_counted(len(set(data_seeds(runs))), 'data set')} each at most.",
        *_budgets(report.results.records, set(runs["trial_id"])),
        "A gradient, and on a finite sum the gradient of one datum, costs 1; a product with second derivatives costs "
        f"{report.weight:g} in the ranking.",
        f"An accuracy, {', '.join(f'{eps:g}' for eps in ACCURACIES)} in the tables and {len(TARGETS)} from {power(TARGETS[0])} "
        f"to {power(TARGETS[-1])} in the ranking, is reached where the norm of grad phi, with its error, first falls to that "
        "share of its start. A trial that failed has reached nothing.",
        *_both(report.results),
        certificates(runs),
    ]
    return _POWER.sub(r"$10^{\1}$", escape(" ".join(said)))


def _both(results: Results) -> Iterator[str]:
    """Nothing where no trial was held to second order."""
    runs = results.runs["trial_id"]
    many = int(runs.isin(held_to_both(results)).sum())
    if many:
        where = "In all trials" if many == len(runs) else f"In {many:,} of {len(runs):,} trials"
        yield f"{where} the smallest eps for which both conditions of second-order stationarity hold stands for that norm."


def _budgets(records: list[dict[str, Any]], ids: set[str]) -> Iterator[str]:
    """Each kind of limit with all its values."""
    found: dict[str, set[float]] = {}
    for record in records:
        for trial in record.get("trials", []):
            if trial.get("id") in ids:
                for kind, value in (trial.get("budget") or {}).items():
                    if value is not None:
                        found.setdefault(kind, set()).add(value)
    for kind, values in sorted(found.items()):
        few = sorted(values)
        amounts = ", ".join(f"{v:,g}" for v in few) if len(few) <= 4 else f"{few[0]:,g} to {few[-1]:,g}"
        yield f"A trial ends at the latest after this {'number of steps' if kind == 'steps' else kind}: {amounts}."


def environment(report: Report) -> str:
    """The machines and the versions that the results come from."""
    made = {json.dumps(r.get("environment") or {}, sort_keys=True) for r in report.results.records}
    if not made:
        return "Published tables do not tell where they were made."
    said = []
    for one in sorted(made):
        known = json.loads(one)
        packages = known.get("packages") or {}
        versions = ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
        said.append(f"{known.get('cpu') or 'unknown processor'}, {known.get('cores') or '?'} cores; {versions}.")
    return escape("Run on: " + " ".join(said))


def _figures(report: Report) -> Iterator[str]:
    if not report.results.runs.empty:
        for n, problem in enumerate(dict.fromkeys(summary(report.results)["problem"]), 1):
            yield _figure(f"convergence-{n}-weighted", f"The norm of grad phi on {problem} against weighted cost.")
        yield _figure(
            "profile", "Share of problems and accuracies that are reached within a multiple of the least cost."
        )
    for outcome in report.experiments:
        yield _figure(f"experiment-{outcome.figure.name}", outcome.figure.title)
    for n, one in enumerate(report.rates, 1):
        yield _figure(f"rates-{n}", one.title)
        yield _figure(f"claims-{n}", f"{one.title}: measured and claimed exponents.")


def _figure(name: str, caption: str) -> str:
    return f"\\resultsfigure{{{name}}}{{{escape(caption)}}}\n"


def references(report: Report) -> dict[str, list[str]]:
    """What the methods of trials and rates cite, by method."""
    measured = {row["method"] for table in report.rates for row in table.rows}
    return report.cite(sorted({*report.results.runs["algorithm"], *measured}))


def bibliography(references: Mapping[str, list[str]]) -> str:
    """Each work once, keyed by the first method that cites it."""
    works: dict[str, list[str]] = {}
    for method, cited in sorted(references.items()):
        for work in cited:
            works.setdefault(work, []).append(method)
    entries, used = [], set()
    for work, methods in works.items():
        key = re.sub(r"[^\w-]", "", methods[0]) or "method"
        while key in used:
            key += "a"
        used.add(key)
        fields = {**_fields(work), "note": "for " + ", ".join(methods)}
        lines = "".join(f"  {name} = {{{escape(value)}}},\n" for name, value in fields.items())
        entries.append(f"@misc{{{key},\n{lines}}}\n")
    return "\n".join(entries)


def _fields(work: str) -> dict[str, str]:
    found = _CITATION.match(work)
    if found is None:
        return {"title": work}
    authors = re.split(r",? and |, ", found["authors"])
    return {
        "author": " and ".join(authors), "title": found["title"], "howpublished": found["where"], "year": found["year"],
    }  # fmt: skip


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
