"""LaTeX: names print as they are, numbers are those of the CSV, and the file compiles."""

from __future__ import annotations

import io
import re
import shutil
import subprocess

import made
import numpy as np
import pandas as pd
import pytest

from bilevelbench.report import booktabs
from bilevelbench.report.analysis import rates
from bilevelbench.report.contents import Report
from bilevelbench.report.formats import csv as csv_format
from bilevelbench.report.formats import latex as latex_format
from bilevelbench.report.text import interval_end, number, printable

NASTY = [
    r"_ & % $ # { } ~ ^ \ all",
    "<script>alert(1)</script>",
    r"\input{/etc/passwd} $x$ %",
    "[2pt] row",
    "* star",
    'a--b ,, `ticks\' "q" |bar|',
    "\N{GRINNING FACE} 中文 é ∞ –",
]

UNESCAPE = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textless{}": "<",
    r"\textgreater{}": ">", r"\textbar{}": "|", r"\textquotedbl{}": '"', r"\textquotesingle{}": "'",
    r"\textasciigrave{}": "`", r"\textendash{}": "–", r"$\infty$": "∞", r"\dots{}": "…", "{}": "",
} | {rf"\{c}": c for c in "&%$#_{}"}  # fmt: skip


def shown(text):
    """What a reader sees: the escapes undone, each once."""
    pattern = "|".join(re.escape(k) for k in UNESCAPE) + r"|\\texttt\{U\+([0-9A-F]+)\}"
    return re.sub(pattern, lambda m: chr(int(m[1], 16)) if m[1] else UNESCAPE[m[0]], text)


def rows(text):
    """Cells of every table, header first."""
    tables = re.findall(r"\\toprule\n(.*?)\\bottomrule", text, re.DOTALL)
    lines = [[line for line in t.splitlines() if line.endswith(r" \\")] for t in tables]
    return [[[shown(c) for c in re.split(r" (?<!\\)& ", line[:-3])] for line in table] for table in lines]


def compiled(text, tmp_path):
    """Compile with whatever engine there is; without one, the syntax alone is checked, and that is said."""
    assert booktabs.faults(text) == []
    engine = next((e for e in ("tectonic", "pdflatex", "xelatex", "lualatex") if shutil.which(e)), None)
    if engine is None:
        print("no tectonic, pdflatex, xelatex or lualatex here: checked environments, braces, columns and letters only")
        return
    (tmp_path / "report.tex").write_text(text, encoding="utf-8")
    flags = [] if engine == "tectonic" else ["-interaction=nonstopmode", "-halt-on-error"]
    done = subprocess.run([engine, *flags, "report.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "report.pdf").stat().st_size > 1000


def report():
    trials = [
        {
            "label": label,
            "seed": s,
            "problem": p,
            "curve": [(3 * s + 1, 2, 0.5), (1234 * (s + 1) + n, 40, 0.004 * (s + 1))],
        }
        for p in ("quadratic", NASTY[0])
        for n, label in enumerate(("plain", *NASTY))
        for s in range(3)
    ]
    table = [made.rate_row(), made.rate_row(label=NASTY[0], oracle="gradient", verdict="a_b & c", note=NASTY[2])]
    return Report(made.results(*trials), [rates.RateTable("Table 1: 100% & more", table, None)], [])


@pytest.mark.parametrize("name", NASTY)
def test_a_name_shows_as_it_is(name, tmp_path):
    frame = pd.DataFrame({"method": [name], "x": [name], "claimed": [name]})
    text = booktabs.table(frame, name, [name])
    assert rows(text)[0][1] == [printable(name)] * 3
    compiled(booktabs.document([text]), tmp_path)


def test_ligatures_are_broken_and_a_row_never_starts_with_an_argument():
    assert booktabs.escape("---,,") == "-{}-{}-,{},"
    for start in "[*":
        assert r"{}" + start in booktabs.table(pd.DataFrame({"method": [start + "x"]}), "c")


def test_the_report_compiles(tmp_path):
    text = latex_format.document(report())
    assert text.count(r"\toprule") == 4
    compiled(text, tmp_path)


def test_tables_hold_the_numbers_of_the_csv():
    made_report = report()
    files = {name: pd.read_csv(io.StringIO(text)) for name, text in csv_format.files(made_report).items()}
    tex = {name: rows(text)[0] for name, text in latex_format.tables(made_report).items()}
    for n, (_, part) in enumerate(files["results.csv"].groupby("problem", sort=False), 1):
        header, *lines = tex[f"problem-{n}.tex"]
        assert len(lines) == len(part) == 1 + len(NASTY)
        for line, (_, exact) in zip(lines, part.iterrows(), strict=True):
            cells = dict(zip(header, line, strict=True))
            assert cells["method"] == exact["method"]
            for name, column in (("|grad phi|", "best_grad_phi"), ("cost to 0.1", "cost_to_0.1")):
                low, high = exact[f"low_{column}"], exact[f"high_{column}"]
                assert cells[name] == f"{number(exact[column])} [{interval_end(low)}, {interval_end(high)}]"
            assert cells["cost to 0.001"] == "never"
            assert exact["cost_to_0.001"] == np.inf
            assert cells["HVP + JVP"] == number(exact["second_order"])
    for line, (_, exact) in zip(tex["ranking.tex"][1:], files["ranking.csv"].iterrows(), strict=True):
        assert line[:3] == [f"{exact['rank']:g}", f"{exact['low']:g} to {exact['high']:g}", exact["method"]]
    header, *lines = tex["rates-1.tex"]
    for line, (_, exact) in zip(lines, files["rates.csv"].iterrows(), strict=True):
        cells = dict(zip(header, line, strict=True))
        assert cells["calls exponent"] == f"{exact['measured']:.2f} [{exact['low']:.2f}, {exact['high']:.2f}]"
        assert cells["calls at"] == f"{number(exact['calls_at_reference'])} at eps {exact['reference']:.3g}"
        assert cells["HVPs"] == number(exact["hvps_at_reference"])
        assert cells["verdict"] == exact["verdict"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ((r"\end{tabular}", ""), "without"),
        ((r"\begin{tabular}", r"\begin{tabularx}"), "without its beginning"),
        ((" & ", " "), "1 cells in 2 columns"),
        (("plain", "pl{ain"), "braces do not match"),
        (("plain", "pl$ain"), "a formula is not closed"),
        (("plain", "pl中ain"), "no font has '中'"),
    ],
)
def test_the_syntax_check_finds_faults(change, fault):
    good = booktabs.document([booktabs.table(pd.DataFrame({"method": ["plain"], "x": [1]}), "c")])
    assert booktabs.faults(good) == []
    assert any(fault in found for found in booktabs.faults(good.replace(*change)))
