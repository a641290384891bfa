"""Failures in every format: last in the ranking, and each with its sentence; and what a caption says is there to be seen."""

from __future__ import annotations

import csv
import io

import made
import numpy as np
import pytest
from helpers import DIVERGES, HEALTHY, Reader, cli, guide_command, guide_problem, uncertified
from rich.console import Console

from bilevelbench import display
from bilevelbench.cli import progress
from bilevelbench.execute.executor import Done
from bilevelbench.report.analysis.failures import failures, sentences
from bilevelbench.report.analysis.summary import certificates, reading, start_words, summary
from bilevelbench.report.contents import Report
from bilevelbench.report.formats import csv as csv_format
from bilevelbench.report.formats import html as html_format
from bilevelbench.report.formats import latex as latex_format
from bilevelbench.report.formats import md
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

pytestmark = pytest.mark.whole  # whole runs and pages

SENTENCE = "|x| > 1e+06, that is 1e+06 (1 + |x0|), at step 1; try smaller steps (lam=10, a_y=10, a_z=10, eta_x=0.001)"


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    """The two trials on the guide's problem: (what the terminal shows, their folder)."""
    folder = tmp_path_factory.mktemp("guide")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "160")  # so that no name is broken into lines
        code, out, err = cli(*guide_command(folder))
    assert (code, err) == (0, "")
    return out, folder / "out"


def in_order(text):
    """The healthy run stands before the other wherever both are."""
    return 0 <= text.index(HEALTHY) < text.index(DIVERGES)


def test_the_terminal_puts_the_healthy_run_first_and_tells_the_failure(guide):
    out, _ = guide
    lines = out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("f2ba[")] == [HEALTHY, DIVERGES]
    board = lines.index(next(line for line in lines if line.startswith("Ranking over all")))
    assert HEALTHY in lines[board + 2]
    assert DIVERGES in lines[board + 3]
    assert lines[-1] == f"failed: 1 trial of {DIVERGES} on ridge_toy ended as diverged: {SENTENCE}"
    assert f"best on ridge_toy: {HEALTHY}" in out


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.quick_cases(1)
def test_every_format_puts_the_healthy_run_first_and_tells_the_failure(guide, tmp_path, bounded):
    results = load_results(guide[1])
    report = Report(results if bounded else uncertified(results), [], [])
    board = report.ranking()
    assert list(board["method"]) == [HEALTHY, DIVERGES]
    if bounded:
        assert list(board["rank"]) == [1.0, 2.0]
        assert list(board["reached"]) == [1.0, 0.0]  # of what anybody reached
    markdown, tables = md.document(report), csv_format.files(report)
    assert all(in_order(part) for part in markdown.split("###")[:2])
    assert SENTENCE.replace("|", "\\|").replace(">", "&gt;") in markdown
    rows = list(csv.DictReader(io.StringIO(tables["results.csv"])))
    assert [row["method"] for row in rows] == [HEALTHY, DIVERGES]
    assert [row["best_grad_phi"] == "inf" for row in rows] == [False, True]
    assert [row["failures"].endswith(SENTENCE) for row in rows] == [False, True]
    assert next(csv.DictReader(io.StringIO(tables["ranking.csv"])))["method"] == HEALTHY
    latex = {name: text.replace("\\_", "_") for name, text in latex_format.tables(report).items()}
    assert in_order(latex["problem-1.tex"])
    assert in_order(latex["ranking.tex"])
    assert "at step 1; try smaller steps" in latex["failures.tex"]
    html = Reader(html_format.document(Report(report.results)))
    names = [cell for cell in html.cells if cell in (HEALTHY, DIVERGES)]
    assert names == [HEALTHY, DIVERGES, HEALTHY, DIVERGES, DIVERGES]  # ranking, table, failures
    assert SENTENCE in html.cells
    assert ("not certified" in html.cells) != bounded


# ---- exit code and sentences


def test_a_run_whose_trials_all_fail_says_why_and_ends_with_1(tmp_path):
    command = ["run", "-a", "f2ba", "-a", "aid", "-p", guide_problem(tmp_path), "--seeds", 2, "--steps", 3]
    code, out, _ = cli(*command, "--jobs", 0, "-o", tmp_path / "out")
    assert code == 1
    for method in ("aid", "f2ba"):
        assert (
            f"failed: 2 trials of {method} on ridge_toy ended as error: could not be set up: problem 'ridge_toy' declares no "
            f"constant 'L_g' (needed for {method}'s default eta_x)"
        ) in out
    code, out, _ = cli(*command, "-a", HEALTHY, "--jobs", 0, "-o", tmp_path / "out")
    assert code == 0  # one of them did not fail
    assert out.count("failed: ") == 2


def test_failures_with_one_sentence_share_it():
    lost = {"status": "error", "message": "boom\nbang"}
    data = made.results({}, *({"label": m, "seed": s} | lost for m in "ab" for s in range(10)))
    assert sentences(data.runs) == ["20 trials of a, b on quadratic ended as error: boom bang"]
    table = failures(data.runs)
    assert table[["method", "trials"]].to_numpy().tolist() == [["a", 10], ["b", 10]]
    assert set(table["seeds"]) == {"0, 1, 2, 3, 4, 5, 6, 7 and 2 more"}
    assert sentences(made.results({}, {"status": "timeout"}).runs) == []
    many = made.results(*({"label": f"m{n}"} | lost for n in range(11)))
    assert sentences(many.runs)[0].startswith("11 trials of m0, m1, m2, m3, m4, m5, m6, m7 and 3 more on quadratic")
    assert sentences(made.results({"status": "diverged"}).runs)[0].endswith("ended as diverged: no message")


def test_the_terminal_names_five_methods_and_counts_the_rest():
    console = Console(width=120, file=io.StringIO())
    data = made.results(*({"label": f"m{n}", "curve": [(1, 0, 2.0), (10 + n, 0, 0.05)]} for n in range(7)))
    progress.print_ranking(console, data)
    out = console.file.getvalue()
    assert [line.split()[4] for line in out.splitlines()[2:7]] == ["m0", "m1", "m2", "m3", "m4"]
    assert "1 to 7" in out
    assert out.splitlines()[-1] == "2 more methods on the page"
    progress.print_ranking(console, made.results({}))
    assert console.file.getvalue() == out  # one method has nobody to be compared with


@pytest.mark.parametrize("reached", [False, True])
def test_without_an_accuracy_that_anybody_reached_there_is_no_ranking(reached):
    console = Console(width=120, file=io.StringIO())
    end = 0.05 if reached else 1.9
    data = made.results(*({"label": m, "curve": [(1, 0, 2.0), (n, 0, end)]} for m, n in (("a", 10), ("b", 20))))
    progress.print_ranking(console, data)
    out = console.file.getvalue()
    assert (out == "No method reached an accuracy that counts, so there is no ranking.\n") is not reached
    assert out.startswith("Ranking over all") is reached


# ---- progress in a pipe


class Clock:
    now = 0.0

    def monotonic(self):
        return Clock.now


def test_in_a_pipe_there_is_a_line_every_ten_seconds(monkeypatch):
    monkeypatch.setattr(display, "time", Clock())
    monkeypatch.setattr(Clock, "now", 0.0)
    console = Console(width=160, file=io.StringIO())
    with progress._reporter(console, 286) as report:
        for n in range(286):
            Clock.now += 0.25
            report(Done(1, ("budget",), {"p": (f"m{n % 5}", 1.0 - n % 5 / 10)}))
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "40/286 trials, 10 s, about 62 s left: 40 budget; best on p: m4, 6.0e-01"
    assert len(lines) == 8
    assert lines[-1] == "286/286 trials, 72 s: 286 budget; best on p: m4, 6.0e-01"


# ---- captions say what is there


def trials(*curves, **columns):
    return [{"label": "a", "curve": [(1, 0, 2.0), *points]} | columns for points in curves]


START = "an accuracy is a share of |grad phi| at the start, 2"


def said(*given):
    """Without what an accuracy is a share of, which is always there."""
    told = reading(summary(made.results(*given))).split("; ")
    told.remove(START)
    return "; ".join(told)


def test_a_caption_tells_the_starts_of_all_data_sets():
    def trial(n, start, problem="quadratic"):
        return {"problem": problem, "problem_params": f'{{"data_seed": {n}}}', "curve": [(1, 0, start), (9, 0, 0.1)]}

    def told(*given):
        return start_words(summary(made.results(*given)))

    some = [trial(1, 18.4), trial(2, 30.0)]
    assert told(*some) == "an accuracy is a share of |grad phi| at the start, 18 to 30"
    assert told(*some, trial(1, 0.5, "ridge")) == (
        "an accuracy is a share of |grad phi| at the start: 18 to 30 on quadratic, 0.50 on ridge"
    )
    assert told({"curve": []}) == ""


def test_a_caption_speaks_of_medians_quartiles_and_failures_only_where_there_are_some():
    fast, slow = [(10, 0, 0.05)], [(30, 0, 0.01)]
    assert said(*trials(fast)) == "one trial each"
    assert said(*trials(fast, fast)) == "medians over trials"  # they agree: no cell has brackets
    assert said(*trials(fast, slow)) == "medians over trials, quartiles in brackets"
    lost, failed = trials(fast, status="diverged"), "a trial that failed counts as infinite"
    assert said(*trials(fast, fast, slow), *lost) == f"medians over trials, quartiles in brackets; {failed}"
    assert said(*trials(fast), *lost) == f"medians over trials; {failed}"  # "1 of 2" has no quartiles
    assert said(*trials(fast, status="timeout")) == "one trial each"
    doubtful = made.results(*trials(fast, certificate="residual"))
    doubtful.curve["grad_phi_error"] = np.nan
    assert '"not certified": the problem does not bound' in reading(summary(doubtful))


def test_a_caption_of_latex_is_that_of_its_problem():
    report = Report(
        made.results(*trials([(9, 0, 0.05)]), *trials([(9, 0, 0.05)], status="error", problem="ridge")), [], []
    )
    tables = latex_format.tables(report)
    start = "an accuracy is a share of \\textbar{}grad phi\\textbar{} at the start, 2"
    assert f"Results on quadratic: one trial each; {start}}}" in tables["problem-1.tex"]
    assert (
        f"Results on ridge: one trial each; {start}; a trial that failed counts as infinite}}"
        in tables["problem-2.tex"]
    )


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        (["closed form"] * 2, "The gradient norms are exact."),
        (["closed form", "bound"], "The gradient norms are exact or come with a bound of their error, which counts."),
        (["residual", "none"], "The gradient norms are not certified, and no accuracy counts as reached."),
        (["residual", "bound"], "The gradient norms of 1 of 2 trials are not certified, and no accuracy counts as reached "
         "there; the others are exact or come with a bound of their error, which counts."),
    ],
)  # fmt: skip
def test_the_page_says_how_sure_its_norms_are(tmp_path, kinds, text):
    data = made.results(*({"certificate": kind} for kind in kinds))
    assert certificates(data.runs) == text
    html = Reader(html_format.document(Report(data)))
    assert text in " ".join(" ".join(html.text).split())


def test_the_page_speaks_of_resampling_only_where_there_is_something_to_draw_from(tmp_path):
    def page(*given):
        text = html_format.document(Report(made.results(*given)))
        return " ".join(" ".join(Reader(text).text).split())

    single = page({"label": "a", "seed": 0}, {"label": "b", "seed": 0})
    assert "so the interval holds every rank" in single
    assert "resampled" not in single
    assert "none of them failed" in single
    assert "brackets" not in single
    several = page(*({"label": m, "seed": s} for m in "ab" for s in range(2)))
    assert "with a 95% interval from resampled problems and trials" in several
    assert "1 of them failed" in page({"label": "a", "status": "error"}, {"label": "b"})


def test_a_stored_table_of_before_ranks_its_failures_last(tmp_path):
    """`best_grad_phi` of a stored failure may hold a number; nobody reads it."""
    data = made.results({"label": "a", "status": "diverged", "best_grad_phi": 0.0}, {"label": "b"})
    Store(tmp_path / "out").add(data.runs, data.curve, {})
    assert list(summary(load_results(tmp_path / "out"))["method"]) == ["b", "a"]
