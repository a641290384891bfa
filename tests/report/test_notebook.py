"""Results and solutions in a notebook: tables, rankings, plots, HTML."""

from __future__ import annotations

import made
import matplotlib
import numpy as np
import pytest
import torch

import bilevelbench
from bilevelbench import InvalidInput, Schedule
from bilevelbench.report.analysis.summary import certificates
from bilevelbench.report.notebook import Results

matplotlib.use("Agg")

TWO = [{"label": name, "curve": [(1, 0, 2.0), (cost, 0, 0.05)]} for name, cost in (("slow", 900), ("quick", 10))]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def results(*rows) -> Results:
    return Results.of(made.results(*rows))


def test_the_table_and_the_ranking_are_those_of_reports():
    mine = results(*TWO)
    assert set(mine.table()["method"]) == {"slow", "quick"}
    assert mine.ranking()["method"].tolist() == ["quick", "slow"]


def test_plot_draws_a_line_for_each_method():
    axes = results(*TWO).plot()
    assert len(axes.get_lines()) == 2
    assert axes.get_yscale() == "log"
    assert sorted(line.get_xdata()[-1] for line in axes.get_lines()) == [10, 900]


def test_plot_on_axes_of_ones_own():
    from matplotlib import pyplot

    mine = pyplot.subplots()[1]
    assert results(*TWO).plot(ax=mine) is mine


def test_plot_wants_one_problem():
    both = results({"problem": "a"}, {"problem": "b"})
    with pytest.raises(InvalidInput, match="plot shows one problem; name one of 'a', 'b'"):
        both.plot()
    with pytest.raises(InvalidInput, match="no results on 'c'"):
        both.plot("c")
    with pytest.raises(InvalidInput, match="did you mean 'cost'"):
        both.plot("a", x="costs")


def test_html_has_the_methods_and_escapes_them():
    html = results({"label": "<b>"}, {"label": "plain"})._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "plain" in html


def test_a_part_of_results_is_still_one_for_notebooks():
    mine = results(*TWO)
    assert type(mine.only(mine.runs["trial_id"][:1])) is Results


def test_run_and_load_give_them(tmp_path):
    ran = bilevelbench.run("f2ba", "quadratic", steps=5, out=tmp_path)
    loaded = bilevelbench.load(tmp_path)
    assert type(ran) is type(loaded) is bilevelbench.Results
    assert ran.table().equals(loaded.table())


def test_run_shows_how_far_it_is(capsys, tmp_path):
    bilevelbench.run(["f2ba", "aid"], "quadratic", steps=2, progress=True)
    assert "2/2 trials" in capsys.readouterr().err
    bilevelbench.run(["f2ba", "aid"], "quadratic", steps=2, progress=True, out=tmp_path)
    assert "2/2 trials" in capsys.readouterr().err
    bilevelbench.run(["f2ba", "aid"], "quadratic", steps=2)
    assert capsys.readouterr().err == ""


def test_public_names_are_listed():
    assert {"run", "solve", "load", "Results", "Solution", "Schedule", "Box", "Simplex", "Ball", "StepInfo"} <= set(
        dir(bilevelbench)
    )
    assert dir(bilevelbench) == sorted(dir(bilevelbench))


def test_captions_say_where_x_is_confined():
    some = made.results({"certificate": "bound; gradient mapping"}, {"certificate": "bound", "label": "free"}).runs
    assert (
        "In 1 of 2 trials x is confined to a set, and |grad phi| is the length of the gradient mapping"
        in certificates(some)
    )
    assert "bound of their error" in certificates(some)
    assert "confined" not in certificates(made.results({"certificate": "bound"}).runs)


# ---- solutions


@pytest.fixture(scope="module")
def solution():
    zero = torch.zeros(2, dtype=torch.float64)
    return bilevelbench.solve(
        lambda x, y: ((y - 1) ** 2).sum(), lambda x, y: ((y - x) ** 2).sum(), zero, zero, "aid", eta_x=0.1, steps=20,
        evaluate=Schedule(),
    )  # fmt: skip


def test_solution_as_html_and_table(solution):
    html = solution._repr_html_()
    assert "made its 20 steps" in html
    assert solution.table()["steps"].tolist() == [20]
    assert solution.table()["certificate"].tolist() == ["not certified"]


def test_solution_plots_its_curve(solution):
    (line,) = solution.plot().get_lines()
    np.testing.assert_array_equal(line.get_ydata(), solution.curve["grad_phi"])
    assert solution.plot("phi", x="step").get_ylabel() == "phi"
    with pytest.raises(InvalidInput, match="no column 'phy'; did you mean 'phi'"):
        solution.plot("phy")


def test_solution_without_phi_says_so():
    zero = torch.zeros(2, dtype=torch.float64)
    got = bilevelbench.solve(
        lambda x, y: ((y - 1) ** 2).sum(), lambda x, y: ((y - x) ** 2).sum(), zero, zero, "aid", eta_x=0.1, steps=2,
        evaluate="never",
    )  # fmt: skip
    assert "unknown" in got._repr_html_()
    with pytest.raises(InvalidInput, match="grad_phi was evaluated nowhere"):
        got.plot()
