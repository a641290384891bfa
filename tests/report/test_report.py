"""Reports from synthetic tables: their numbers, and that nothing in a table can break out of its cell."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from helpers import Reader

from bilevelbench.cli.progress import print_table
from bilevelbench.errors import StoreError
from bilevelbench.report.analysis.summary import cost_to, readable, summary, variant
from bilevelbench.report.contents import Report
from bilevelbench.report.figures.curves import convergence
from bilevelbench.report.figures.style import looks
from bilevelbench.report.formats.html import document
from bilevelbench.report.formats.md import summary_table
from bilevelbench.report.text import number, printable
from bilevelbench.report.write import write_report
from bilevelbench.results.schema import Results, curve_frame, runs_frame
from bilevelbench.results.status import Status
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

NASTY = [
    "<script>alert(1)</script>",
    "$\\frac{$ & \"quotes\" 'n' `ticks`",
    "_hidden|bar|",
    "two\nlines\r\nand \x1b[31mred\x00",
    '"><img src=http://evil.example/x>',
    "emoji \N{GRINNING FACE} \u4e2d\u6587",
    'id="x" #010203 href="#y" --> ]]>',
]


def results(*trials):
    """Each trial: a dict of run columns, with `curve` as a list of (cost, grad_phi)."""
    runs, curve = [], []
    for n, trial in enumerate(trials):
        given = dict(trial)
        points = given.pop("curve", [(1, 2.0), (10, 0.5), (100, 0.05)])
        row = {
            "trial_id": f"t{n:03}", "algorithm": "gd", "problem": "quadratic", "problem_params": "{}", "seed": n,
            "status": "budget", "best_grad_phi": min((g for _, g in points if g == g), default=None), "phi": 1.0 + n,
            "first_order": 10 * n, "grad_g": 10 * n, "second_order": n, "cost": 100.0, "steps": len(points),
        }  # fmt: skip
        runs.append(row | given)
        exact = {"trial_id": f"t{n:03}", "phi": 1.0, "grad_phi_error": 0.0}
        curve += [exact | {"step": s, "cost": c, "grad_phi": g} for s, (c, g) in enumerate(points)]
    return Results(runs_frame(runs), curve_frame(curve), [])


def page(tmp_path, data, command=""):
    text = document(Report(data), command)
    return text, Reader(text)


# ---- the summary


def test_medians_and_costs_are_those_of_the_trials():
    data = results(
        {"label": "a", "curve": [(1, 1.0), (10, 0.1), (50, 0.2), (90, 0.01)]},
        {"label": "a", "curve": [(1, 1.0), (30, 0.05)]},
        {"label": "a", "curve": [(1, 1.0), (70, 0.5)], "status": "diverged"},
        {"label": "b", "curve": [(1, 0.001)]},
    )
    table = summary(data)
    assert list(table["method"]) == ["b", "a"]  # the smaller gradient first
    a = table.iloc[1]
    assert (a["trials"], a["failed"], a["first_order"], a["second_order"]) == (3, 1, 10.0, 1.0)
    assert a["best_grad_phi"] == 0.05
    assert (a["cost_to_0.1"], a["reached_0.1"]) == (30.0, 2)  # 10, 30, never
    assert (a["cost_to_0.01"], a["reached_0.01"]) == (np.inf, 1)
    assert a["statuses"] == "2 budget, 1 diverged"
    people = readable(table)
    assert list(people["cost to 0.01"]) == ["1", "1 of 3"]
    assert list(people["cost to 0.001"]) == ["1", "never"]


def test_quartiles_count_failures_as_infinite():
    hits = [(10, 0.01), (20, 0.01), (40, 0.01), (99, 1.0)]
    table = summary(results(*({"label": "a", "curve": [(0, 1.0), (cost, g)]} for cost, g in hits)))
    a = table.iloc[0]
    assert (a["low_cost_to_0.1"], a["cost_to_0.1"], a["high_cost_to_0.1"]) == (17.5, 30.0, np.inf)
    assert (a["low_best_grad_phi"], a["high_best_grad_phi"]) == (0.01, 0.01 + 0.25 * 0.99)
    assert readable(table, spread=True)["cost to 0.1"][0] == "30 [18, ∞]"
    assert readable(table)["cost to 0.1"][0] == "30"


def test_a_trial_whose_counts_disagree_reached_nothing():
    assert summary(results({"status": "invalid", "curve": [(1, 0.0)]}))["reached_0.1"][0] == 0


@pytest.mark.parametrize(("table", "column"), [("runs", "label"), ("curve", "cost")])
def test_a_missing_column_is_a_sentence(tmp_path, table, column):
    data = results({})
    del getattr(data, table)[column]
    for make in (summary, lambda data: document(Report(data))):
        with pytest.raises(StoreError, match=f"the table `{table}` has no column '{column}'"):
            make(data)


def test_a_cost_counts_only_with_its_error_bound():
    data = results({"curve": [(0, 1.0), (1, 0.09), (2, 0.08)]})
    data.curve["grad_phi_error"] = [0.05, 0.05, 0.01]
    assert cost_to(data).loc["t000", "cost_to_0.1"] == 2.0


def test_problems_with_different_parameters_are_kept_apart_but_data_sets_are_not():
    data = results(
        {"problem_params": '{"dim_x": 5}'},
        {"problem_params": '{"dim_x": 9, "data_seed": 1}'},
        {"problem_params": '{"dim_x": 9, "data_seed": 2}'},
    )
    assert list(summary(data)["problem"]) == ["quadratic[dim_x=5]", "quadratic[dim_x=9]"]
    assert list(summary(data)["trials"]) == [1, 2]
    assert variant("not json") == "[not json]"
    assert variant("[1]") == "[[1]]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (5.0, "5"), (0.2, "0.20"), (0.0123, "0.012"), (9.96, "10"), (9.55, "9.6"), (600, "600"),
        (1749, "1,700"), (9_999_999, "10,000,000"), (1e7, "1.0e7"), (4.74e-7, "4.7e-7"), (-3.25, "-3.2"),
        (np.nan, "–"), (np.inf, "–"), (-np.inf, "–"),
    ],
)  # fmt: skip
def test_numbers_have_two_digits(value, text):
    assert number(value) == text


def test_no_results_are_a_sentence():
    with pytest.raises(StoreError, match="no results to report; run something first"):
        summary(results())


# ---- markdown and csv


def test_markdown_shows_the_summary_and_escapes_cells():
    data = results(*({"label": label, "message": label} for label in NASTY))
    text = summary_table(summary(data))
    lines = text.splitlines()
    assert len(lines) == 2 + len(NASTY)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {11}
    assert "<" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "_hidden\\|bar\\|" in text
    assert "\x1b" not in text
    numbers = readable(summary(data), spread=True)
    for line, row in zip(lines[2:], numbers.itertuples(index=False), strict=True):
        assert f"| {row[2]} | {row[3]} |" in line


def test_csv_has_the_numbers_in_full():
    table = summary(results({"label": 'a,"b"', "curve": [(1, 1 / 3)]}))
    (row,) = csv.DictReader(io.StringIO(table.to_csv(index=False)))
    assert row["method"] == 'a,"b"'
    assert float(row["best_grad_phi"]) == 1 / 3
    assert float(row["cost_to_0.1"]) == np.inf


# ---- the page


def test_the_page_shows_the_numbers_of_the_summary(tmp_path):
    data = results({"label": "a"}, {"label": "b", "curve": [(1, 0.0123)]}, {"label": "c", "problem": "ridge"})
    text, html = page(tmp_path, data, "bilevelbench run -a 'a<b'")
    for row in readable(summary(data), spread=True).drop(columns="problem").itertuples(index=False):
        for cell in row:
            assert str(cell) in html.cells
    assert ("td", "title", "0.0123") in html.attributes  # the exact value on hover
    assert "bilevelbench run -a 'a<b'" in " ".join(html.text)
    assert text.count("<svg") == 3  # the profile and a figure for each problem
    for status in Status:
        assert status in html.text
        assert status.sentence in html.text


@pytest.mark.parametrize("label", NASTY)
@pytest.mark.quick_cases(3)
def test_what_a_plugin_says_is_escaped_everywhere(tmp_path, label):
    trial = {"label": label, "problem": label, "problem_params": json.dumps({"k": label}), "message": label}
    text, html = page(tmp_path, results(trial, trial | {"status": "error"}), command=label)
    _, harmless = page(tmp_path, results({"label": "a"}, {"label": "a", "status": "error"}), command="b")
    assert "script" not in html.tags
    assert "img" not in html.tags
    kinds = {(tag, name) for tag, name, _ in html.attributes}
    assert kinds <= {(tag, name) for tag, name, _ in harmless.attributes}
    everything = "".join(html.text)
    assert everything.count(printable(label)) >= 4  # table, figure, failures, command
    assert "\x1b" not in text
    assert "\x00" not in text


def test_the_page_asks_the_network_for_nothing(tmp_path):
    text, html = page(tmp_path, results({"label": NASTY[4]}, {"label": "b", "problem": "ridge"}))
    for tag, name, value in html.attributes:
        if name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            assert value.startswith("#"), (tag, name, value)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(html.tags)
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []


def test_ids_are_unique_and_references_lead_somewhere(tmp_path):
    _, html = page(tmp_path, results({"label": "a"}, {"label": "a", "problem": "ridge"}))
    ids = [value for _, name, value in html.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    references = {value[1:] for _, name, value in html.attributes if name in ("href", "xlink:href")}
    references |= {m for _, _, value in html.attributes for m in re.findall(r"url\(#([^)]+)\)", value)}
    assert references
    assert references <= set(ids)


@pytest.mark.parametrize(
    "trials",
    [
        pytest.param([{"label": "only"}], id="one method"),
        pytest.param([{"status": s, "message": f"why {s}", "curve": []} for s in Status], id="every status"),
        pytest.param([{"status": "error", "curve": []}] * 300, id="all failed"),
        pytest.param(
            [{"curve": [(1, np.nan), (2, np.inf)], "phi": p, "cost": p, "best_grad_phi": p} for p in (np.nan, np.inf)],
            id="nan and inf",
        ),
        pytest.param([{"label": f"method {n}"} for n in range(60)], id="many methods"),
        pytest.param([{"curve": [(0, 1.0), (1, 0.0), (2, -1.0)]}], id="nothing for a log axis"),
        pytest.param([{"curve": [(5, 1.0)]}], id="one point"),
    ],
)
@pytest.mark.quick_cases(3)
def test_pages_of_odd_results(tmp_path, trials):
    data = results(*trials)
    _, html = page(tmp_path, data)
    words = {cell.lower() for cell in html.cells}
    assert not words & {"nan", "inf", "-inf"}
    summary_table(summary(data))
    from rich.console import Console

    console = Console(width=80, file=io.StringIO())
    print_table(console, data)
    assert max(map(len, console.file.getvalue().splitlines())) <= 80


def test_failures_that_are_alike_share_a_row(tmp_path):
    alike = {"label": "a", "status": "error", "message": "boom"}
    _, html = page(tmp_path, results(*[alike] * 5, alike | {"message": "bang"}))
    assert html.cells.count("boom") == html.cells.count("bang") == 1
    assert "6 of them failed" in " ".join(html.text)


def test_a_page_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write .*file/index.html: Not a directory"):
        write_report(Report(results({})), "html", tmp_path, tmp_path / "file" / "index.html")


# ---- figures


def test_figures_are_well_formed_and_take_the_colours_of_the_page():
    data = results(*({"label": label} for label in NASTY))
    svg = convergence(data, "quadratic", prefix="f7-")
    root = ET.fromstring(svg)  # raises if it is not XML
    texts = {"".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")}
    assert printable(NASTY[0]) in texts
    assert printable(NASTY[-1]) in texts  # names are not rewritten like colours and ids are
    assert "currentColor" in svg
    assert "<metadata" not in svg
    assert all(e.get("id", "f7-").startswith("f7-") for e in root.iter())


def test_the_same_results_give_the_same_figure():
    data = results({"label": "a"}, {"label": "b"})
    assert convergence(data, "quadratic") == convergence(data, "quadratic")
    assert convergence(data, "nowhere") == ""


def test_a_method_looks_the_same_everywhere_and_unlike_the_others():
    names = [f"m{n}" for n in range(30)]
    style = looks(names)
    assert style == looks(list(reversed(names)))
    assert len({tuple(look.values()) for look in style.values()}) == len(names)


# ---- without torch


@pytest.mark.whole
def test_reports_never_import_torch(tmp_path):
    data = results({"label": "a"}, {"label": "b"})
    Store(tmp_path / "store").add(data.runs, data.curve, {})
    code = (
        "import sys, pathlib\n"
        "from bilevelbench.results.tables import load_results\n"
        "from bilevelbench.report.analysis import summary as tables\n"
        "from bilevelbench.report.contents import Report\n"
        "from bilevelbench.report.formats import md, html\n"
        "from bilevelbench.report.figures import curves as figures\n"
        "results = load_results(sys.argv[1])\n"
        "print(md.summary_table(tables.summary(results)))\n"
        "html.document(Report(results))\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "store")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == summary_table(summary(load_results(tmp_path / "store"))).strip()
