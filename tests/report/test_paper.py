"""What a paper gets: a document that compiles, the numbers of the report, sentences that are true, works that are cited."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from test_latex import NASTY, report, rows

from bilevelbench.report import booktabs
from bilevelbench.report.formats import latex, paper
from bilevelbench.report.write import write_report

AID = 'Ji, Yang and Liang, "Bilevel optimization: convergence & 100 %", ICML 2021'


def cited(methods):
    return {name: [AID] for name in methods}


def with_records(**budget):
    made = report()
    trials = [{"id": trial_id, "budget": budget} for trial_id in made.results.runs["trial_id"]]
    record = {"trials": trials, "environment": {"cpu": "made_up", "cores": 3, "packages": {"torch": "9.9"}}}
    return replace(made, cite=cited, results=replace(made.results, records=[record]))


def test_the_tables_are_those_of_the_latex_report():
    made = with_records(steps=7)
    files = paper.files(made, "bilevelbench report x_y --format paper")
    assert {name: rows(text) for name, text in files.items() if name not in ("main.tex", "references.bib")} == {
        name: rows(text) for name, text in latex.tables(made).items()
    }
    assert all(rf"\input{{{name}}}" in files["main.tex"] for name in latex.tables(made))
    assert r"report x\_y -{}-format paper" in files["main.tex"]


def test_the_protocol_says_what_was_done():
    text = paper.protocol(with_records(cost=5000.0, steps=None))
    assert text.startswith("48 trials: 8 methods on 2 problems, 3 seeds of noise and 1 data set each at most.")
    assert "after this cost: 5,000." in text
    assert "number of steps" not in text
    assert "from $10^{-0.5}$ to $10^{-6}$ in the ranking" in text
    assert "second derivatives costs 2.5 in the ranking" in paper.protocol(replace(with_records(), weight=2.5))
    assert "after this number of steps: 7." in paper.protocol(with_records(steps=7))


def test_the_environment_is_that_of_the_records():
    assert paper.environment(with_records()) == r"Run on: made\_up, 3 cores; torch 9.9."
    assert paper.environment(report()) == "Published tables do not tell where they were made."


def test_a_work_is_cited_once_and_nothing_is_made_up():
    text = paper.bibliography({"b": [AID], "a": [AID, "hearsay"], NASTY[1]: ["hearsay"]})
    entries = re.findall(r"@misc\{(\S+),\n(.*?)\n\}", text, re.DOTALL)
    assert [key for key, _ in entries] == ["scriptalert1script", "a"]
    assert text.count("author = {Ji and Yang and Liang}") == 1
    assert r"title = {Bilevel optimization: convergence \& 100 \%}" in text
    assert "howpublished = {ICML}" in text
    assert "year = {2021}" in text
    assert "note = {for a, b}" in text
    assert "title = {hearsay}" in text
    assert paper.bibliography({}) == ""


def test_without_citations_there_is_no_bibliography():
    assert r"\bibliography" not in paper.document(report())


@pytest.mark.whole
@pytest.mark.slow  # its text is held to what LaTeX takes always
def test_the_document_compiles_with_figures_and_references(tmp_path):
    write_report(
        with_records(steps=7), "paper", tmp_path, tmp_path / "paper", f"bilevelbench report {'a/long/path/' * 9} -o x"
    )
    folder = tmp_path / "paper"
    assert {p.suffix for p in (folder / "figures").iterdir()} == {".pdf"}
    included = set(re.findall(r"\\resultsfigure\{([\w-]+)\}", (folder / "main.tex").read_text()))
    assert {"profile", "convergence-1-weighted", "convergence-2-weighted", "rates-1", "claims-1"} == included
    assert included <= {p.stem for p in (folder / "figures").iterdir()}
    assert booktabs.faults(paper.document(with_records())) == []
    if shutil.which("pdflatex") is None or shutil.which("bibtex") is None:
        print("no pdflatex here: checked environments, braces, columns and letters only")
        return
    for command in ("pdflatex", "bibtex", "pdflatex", "pdflatex"):
        flags = ["-interaction=nonstopmode", "-halt-on-error"] if command == "pdflatex" else []
        done = subprocess.run([command, *flags, "main"], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:]
    assert "Warning--" not in done.stdout
    assert not re.findall(r"Overfull .hbox .*in paragraph.*", (folder / "main.log").read_text(errors="replace"))
    assert (folder / "main.pdf").stat().st_size > 20_000
