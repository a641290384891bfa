"""The report command: what each format holds, where it goes, and what odd folders give."""

from __future__ import annotations

import json
import subprocess
import sys

import made
import numpy as np
import pandas as pd
import pytest

from bilevelbench.errors import StoreError
from bilevelbench.report import booktabs
from bilevelbench.report.analysis import rates
from bilevelbench.report.analysis.summary import summary
from bilevelbench.report.contents import read_report
from bilevelbench.report.figures.save import save_figures
from bilevelbench.report.formats import FORMATS
from bilevelbench.report.formats.md import summary_table
from bilevelbench.report.write import write_report
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results


def stored(folder, *trials):
    data = made.results(*trials)
    Store(folder).add(data.runs, data.curve, {})
    return folder


@pytest.fixture
def folder(tmp_path):
    curves = {"a": [(1, 0, 2.0), (100, 0, 0.05)], "b": [(1, 0, 2.0), (90, 0, 0.05)]}
    trials = ({"label": m, "seed": s, "curve": curve} for m, curve in curves.items() for s in range(2))
    store = stored(tmp_path / "store", *trials)
    for table in (3, 1):
        place = store / f"rates_table{table}"
        place.mkdir()
        text = json.dumps({"title": f"Table {table}", "rows": [made.rate_row(table=table)]})
        (place / "rates.json").write_text(text)
    return store


def test_markdown_has_results_ranking_and_the_tables_of_the_paper(folder):
    text = write_report(read_report(folder), "md", folder, None)
    assert text.startswith(summary_table(summary(load_results(folder))))
    order = [text.index(part) for part in ("### Ranking", "### Table 1", "### Table 3")]
    assert order == sorted(order)
    assert "| HVP | aid | Õ(ε⁻²) | 1.95 | – | – | 2.00 [1.90, 2.10] |" in text
    assert "| 300 at ε 0.1 | 100 | matches |" in text


@pytest.mark.parametrize(
    ("format_", "files"),
    [
        ("md", {"report.md"}),
        ("csv", {"results.csv", "running_time.csv", "ranking.csv", "rates.csv"}),
        ("latex", {"report.tex", "problem-1.tex", "ranking.tex", "rates-1.tex", "rates-2.tex"}),
        ("html", {"index.html"}),
        ("paper", {"main.tex", "problem-1.tex", "ranking.tex", "rates-1.tex", "rates-2.tex", "references.bib"}),
    ],
)
def test_a_folder_takes_tables_and_figures(folder, tmp_path, format_, files, monkeypatch):
    monkeypatch.setattr("bilevelbench.report.figures.save.save_figures", lambda report, place, kinds: place.mkdir())
    said = write_report(read_report(folder), format_, folder, tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == files | {"figures"}
    assert "figures: " in said


@pytest.mark.whole
@pytest.mark.slow  # test_report_figures.py draws each kind always
def test_figures_of_everything(folder, tmp_path):
    made_paths = save_figures(read_report(folder), tmp_path)
    axes = ("first_order", "weighted", "step", "seconds")
    names = {*(f"convergence-1-{x}" for x in axes), "profile", "ecdf", "rates-1", "claims-1", "rates-2", "claims-2"}
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} == {
        f"{n}.{kind}" for n in names for kind in ("svg", "png")
    }
    assert len(made_paths) == 2 * len(names)


@pytest.mark.whole
def test_a_file_takes_one_text(folder, tmp_path):
    report = read_report(folder)
    for format_ in ("md", "csv", "latex"):
        assert write_report(report, format_, folder, tmp_path / "t.x") == f"written: {tmp_path / 't.x'}\n"
        assert (tmp_path / "t.x").read_text() == write_report(report, format_, folder, None)
    assert booktabs.faults((tmp_path / "t.x").read_text()) == []
    assert write_report(report, "html", folder, tmp_path / "p.html") == f"written: {tmp_path / 'p.html'}\n"
    assert "Table 3" in (tmp_path / "p.html").read_text()


def test_the_cost_of_second_derivatives_moves_the_ranking(tmp_path):
    trials = [
        {"label": "a", "curve": [(0, 0, 1.0), (10, 0, 0.01)]},
        {"label": "b", "curve": [(0, 0, 1.0), (4, 4, 0.01)]},
    ]
    store = stored(tmp_path / "store", *trials)
    for weight, first in ((1.0, "b"), (2.0, "a")):
        report = read_report(store, weight)
        assert report.ranking()["method"][0] == first
        text = write_report(report, "md", store, None)
        assert f"| 1 | 1 to 2 | {first} |" in text
        page = tmp_path / "p.html"
        write_report(report, "html", store, page)
        assert f"counts as {weight:g} gradient" in page.read_text()


def test_rates_alone_are_enough(folder, tmp_path):
    only = read_report(folder / "rates_table1")
    assert only.results.runs.empty
    for format_ in FORMATS:
        write_report(only, format_, folder, tmp_path / f"x.{format_}")
        assert "aid" in (tmp_path / f"x.{format_}").read_text()
    assert list(pd.read_csv(tmp_path / "x.csv")["verdict"]) == ["matches"]
    save_figures(only, tmp_path / "figures")
    assert len(list((tmp_path / "figures").iterdir())) == 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not a file of measured rates"),
        ("[]", "is not a file of measured rates"),
        ('{"title": "t", "rows": [{"table": 1}]}', "has a row that has no 'method'"),
    ],
)
def test_rates_that_cannot_be_read_are_a_sentence(folder, text, sentence):
    (folder / "rates_table1" / "rates.json").write_text(text)
    report = read_report(folder)
    assert [t.title for t in report.rates] == ["Table 3"]
    assert sentence in report.warnings[0]
    assert "measure again" in report.warnings[0]


def test_the_reference_is_what_every_row_reached():
    short = made.rate_row(label="b", points=[{"eps": e, "cost": 1 / e} for e in (0.8, 0.3)], oracle="gradient")
    late = made.rate_row(label="c", points=[{"eps": 0.05, "cost": 7.0}])
    empty = made.rate_row(label="d", points=[])
    rows = [made.rate_row(), short, late, empty]
    table = rates.frame(rows)
    assert list(table["reference"]) == [0.3] * 4
    assert table["calls_at_reference"][0] == pytest.approx(3 * 0.3**-2)  # a power law is a line in logarithms
    assert table["hvps_at_reference"][0] == pytest.approx(0.3**-2)
    assert table["calls_at_reference"][1] == pytest.approx(1 / 0.3)
    assert list(np.isnan(table["calls_at_reference"])) == [False, False, True, True]
    assert list(rates.readable(rows)["calls at"])[2:] == ["–", "–"]
    assert list(rates.readable(rows)["HVPs"]) == ["11", "0", "–", "–"]


@pytest.mark.whole
@pytest.mark.parametrize(
    "trials",
    [
        pytest.param([{"label": "only"}], id="one method"),
        pytest.param([{"label": m, "status": "error", "curve": []} for m in "ab"], id="all failed"),
        pytest.param([{"label": m, "curve": [(1, 0, np.nan)]} for m in "ab"], id="nan"),
    ],
)
@pytest.mark.quick_cases(1)
def test_odd_results_make_a_report(tmp_path, trials):
    report = read_report(stored(tmp_path / "store", *trials))
    for format_ in FORMATS:
        write_report(report, format_, tmp_path, tmp_path / f"x.{format_}")
        assert "method" in (tmp_path / f"x.{format_}").read_text()
    assert booktabs.faults((tmp_path / "x.latex").read_text()) == []
    save_figures(report, tmp_path / "figures")
    assert (tmp_path / "figures" / "profile.svg").exists()


def test_empty_and_newer_and_damaged_results_are_sentences(tmp_path):
    with pytest.raises(StoreError, match="does not exist; run"):
        read_report(tmp_path / "gone")
    data = made.results({})
    (tmp_path / "new").mkdir()
    data.curve.to_parquet(tmp_path / "new" / "curve.parquet")
    data.runs.assign(schema_version=99).to_parquet(tmp_path / "new" / "runs.parquet")
    with pytest.raises(StoreError, match="written by a newer bilevelbench"):
        read_report(tmp_path / "new")
    data.runs.to_parquet(tmp_path / "new" / "runs.parquet")
    data.curve.drop(columns="cost").to_parquet(tmp_path / "new" / "curve.parquet")
    for format_ in FORMATS:
        with pytest.raises(StoreError, match="`curve` has no column 'cost'"):
            write_report(read_report(tmp_path / "new"), format_, tmp_path, None)
    data.runs.head(0).to_parquet(tmp_path / "new" / "runs.parquet")
    data.curve.head(0).to_parquet(tmp_path / "new" / "curve.parquet")
    with pytest.raises(StoreError, match="no results to report"):
        read_report(tmp_path / "new")


@pytest.mark.parametrize("format_", FORMATS)
def test_what_cannot_be_written_is_a_sentence(folder, tmp_path, format_):
    (tmp_path / "file").touch()
    for name in ("x", "x.txt"):
        with pytest.raises(StoreError, match=r"cannot write .*choose another file with -o"):
            write_report(read_report(folder), format_, folder, tmp_path / "file" / name)


@pytest.mark.whole
@pytest.mark.slow  # test_report.py makes a page without torch always
def test_without_torch(folder, tmp_path):
    code = (
        "import sys, pathlib\n"
        "from bilevelbench.report.contents import read_report\n"
        "from bilevelbench.report.write import write_report\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "for name in ('md', 'csv', 'latex', 'html'):\n"
        "    write_report(read_report(folder), name, folder, pathlib.Path(sys.argv[2]) / ('x.' + name))\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(folder), str(tmp_path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
