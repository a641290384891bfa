"""Figures: what is drawn, in which colour, and that both files are what their names say."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from importlib import resources

import made
import numpy as np
import pytest

from bilevelbench.errors import StoreError
from bilevelbench.model.family import FAMILIES
from bilevelbench.report.analysis import ranking
from bilevelbench.report.figures import curves, rates
from bilevelbench.report.figures import style as style_figures
from bilevelbench.results.schema import Results

NASTY = "_<b>$x{$ & 'é'"


def lines(figure, n=0):
    """(x, y) of every line."""
    return [(list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))) for line in figure.axes[n].lines]


def test_a_family_has_a_colour_and_its_methods_differ():
    known = {f"m{n:02}": "penalty" for n in range(30)} | {"aid": "implicit", "x": "unheard-of"}
    style = style_figures.looks([*known, "nameless"], known)
    assert {style[f"m{n:02}"]["color"] for n in range(30)} == {style_figures.COLOURS["penalty"]}
    assert style["aid"]["color"] == style_figures.COLOURS["implicit"]
    assert style["x"]["color"] == style["nameless"]["color"] == style_figures.COLOURS["other"]
    assert len({tuple(look.values()) for look in style.values()}) == 33
    assert style == style_figures.looks([*reversed(known), "nameless"], known)


def test_every_family_has_a_colour_in_figures_and_on_the_site():
    assert tuple(style_figures.COLOURS) == FAMILIES
    css = resources.files("bilevelbench.leaderboard").joinpath("static/site.css").read_text(encoding="utf-8")
    for family in FAMILIES:
        assert css.count(f"--{family}: #") == 2, family  # light and dark
        assert f".{family} {{ --c: var(--{family}); }}" in css


def test_families_come_from_the_records():
    data = made.results(
        {"label": "a[lr=1]", "algorithm": "a"}, {"algorithm": "b"}, records=[{"families": {"a": "implicit"}}]
    )
    assert curves.families(data) == {"a[lr=1]": "implicit"}
    assert curves.families(made.results({}, records=[{"families": "odd"}, {}])) == {}
    figure = curves.convergence_figure(data, "quadratic")
    assert figure.axes[0].lines[0].get_color() == style_figures.COLOURS["implicit"]


@pytest.mark.parametrize(
    ("x", "places"),
    [("cost", [5, 12]), ("first_order", [4, 8]), ("weighted", [6, 16]), ("step", [1, 2]), ("seconds", [0.5, 1.0])],
)
def test_convergence_against_each_axis(x, places):
    data = made.results({"curve": [(0, 0, 2.0), (4, 1, 1.0), (8, 4, 0.5)]})
    figure = curves.convergence_figure(data, "quadratic", x, weight=2.0)
    assert lines(figure) == [(places, [1.0, 0.5])]  # a log axis has no place for 0
    assert figure.axes[0].get_xlabel().startswith(curves.AXES[x])


def test_the_weighted_axis_counts_samples_as_the_board_does():
    """A batch of ten gradients and four products is 10 + 4 w, also beside a problem without noise."""
    data = made.results({"curve": [(1, 1, 1.0)], "problem": "noisy"}, {"curve": [(10, 5, 1.0)]})
    curve = data.curve.assign(cost=[14.0, 15.0], second_order_samples=[4.0, np.nan])
    data = Results(data.runs, curve, [])
    for title, at in (("noisy", [10 + 3 * 4]), ("quadratic", [10 + 3 * 5])):
        assert lines(curves.convergence_figure(data, title, "weighted", weight=3.0)) == [(at, [1.0])]
        cost = ranking.costs(data, (2.0,)).set_index("problem").loc[[title]]
        assert ranking.weighted(cost, 3.0).tolist() == at
    assert "samples" in curves.AXES["weighted"]


def test_the_band_is_over_seeds():
    data = made.results(*({"curve": [(1, 0, g), (2, 0, g / 10)]} for g in (1.0, 2.0, 4.0)))
    figure = curves.convergence_figure(data, "quadratic")
    assert lines(figure) == [([1, 2], [2.0, 0.2])]
    (band,) = figure.axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.1, 4.0)


def test_profile_and_ecdf_draw_the_steps():
    table = made.costs({("A", "a"): [10, 40, np.inf], ("A", "b"): [30, 20, np.inf]})
    (a, b) = lines(curves.profile_figure(table))
    assert a == ([1, 2, pytest.approx(3.15)], [pytest.approx(1 / 3), pytest.approx(2 / 3), pytest.approx(2 / 3)])
    assert max(b[1]) == pytest.approx(2 / 3)
    (a, _) = lines(curves.ecdf_figure(table))
    assert a[0] == [10, 40, 42]


def test_sensitivity_joins_the_best_and_crosses_what_failed():
    def trial(lr, K, score, **more):
        return {"algorithm_params": f'{{"lr": {lr}, "K": {K}}}', "curve": [(1, 0, score)]} | more

    data = made.results(
        trial(0.1, 1, 0.5), trial(0.1, 2, 0.3), trial(1.0, 1, 0.2), trial(1.0, 2, 9.0, status="diverged")
    )
    figure = curves.sensitivity_figure(data, "quadratic", "gd")
    assert [axes.get_xlabel() for axes in figure.axes] == ["K", "lr"]
    _, best, lost = lines(figure, 1)
    assert best == ([0.1, 1.0], [0.3, 0.2])
    assert lost[0] == [1.0]
    assert curves.sensitivity_figure(made.results({}), "quadratic", "gd") is None


def test_rate_figure_draws_the_claimed_slope():
    drawn, claim = lines(rates.rate_figure("t", [made.rate_row()]))
    assert drawn[0] == claim[0] == [2.5, 5, 10]
    assert claim[1] == pytest.approx(drawn[1])  # measured exactly as claimed
    (local,) = lines(rates.rate_figure("t", [made.rate_row(local_slopes=[1.9, 2.1])]), 1)
    assert local[0] == pytest.approx([12.5**0.5, 50**0.5])
    assert local[1] == [1.9, 2.1]
    kappa = made.rate_row(over="kappa", claimed=4.0, points=[{"eps": k, "cost": 5.0 * k} for k in (1.0, 2.0)])
    drawn, claim = lines(rates.rate_figure("t", [kappa]))
    assert drawn == ([1, 2], [5, 10])
    assert claim == ([1, 2], [5, 80])


def test_claim_figure_draws_what_the_verdict_is_about():
    """The claim, what it predicts, the interval over seeds, the way to the second half, the slope that decides, the calls."""
    decided = {"log_free": 1.5, "low_free": 1.4, "high_free": 1.6, "second_half": 1.7}
    rows = [made.rate_row(**decided), made.rate_row(label=NASTY, measured=None, low=None, high=None, points=[])]
    figure = rates.claim_figure("t", rows)
    claim, expected, seeds, half, dot, calls, *second = lines(figure)
    assert (claim[0], expected[0], seeds[0]) == ([2, 2], [1.95, 1.95], [1.4, 1.6])
    assert (half[0], dot, calls) == ([1.5, 1.7], ([1.5], [0]), ([2.0], [0]))
    assert [x for x, _ in second] == [[2, 2], [1.95, 1.95]]
    assert NASTY in ET.fromstring(style_figures.svg(figure)).itertext()


def test_row_without_a_claim_has_no_tick_and_no_dashed_line():
    row = made.rate_row(claimed=None, target=None, log_free=1.5, low_free=1.4, high_free=1.6, second_half=1.7)
    assert [x for x, _ in lines(rates.claim_figure("t", [row]))] == [[1.4, 1.6], [1.5, 1.7], [1.5], [2.0]]
    (drawn,) = lines(rates.rate_figure("t", [row]))
    assert drawn[0] == [2.5, 5, 10]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: curves.convergence_figure(made.results({"label": NASTY}), "quadratic"),
        lambda: curves.profile_figure(made.costs({("A", NASTY): [1]})),
        lambda: curves.ecdf_figure(made.costs({("A", NASTY): [np.inf]})),  # all failed: a line at zero
        lambda: rates.rate_figure(NASTY, [made.rate_row(label=NASTY)]),
        lambda: rates.rate_figure(NASTY, []),
    ],
)
@pytest.mark.quick_cases(2)
def test_both_files_are_written(figure, tmp_path):
    vector, pixels = style_figures.save(figure(), tmp_path / "deep" / "a.b")
    assert (vector.name, pixels.name) == ("a.b.svg", "a.b.png")
    assert pixels.read_bytes().startswith(b"\x89PNG")
    ET.parse(vector)


def test_nothing_to_draw_is_none():
    nothing = made.results({"curve": [], "status": "error"})
    assert curves.convergence_figure(nothing, "quadratic") is None
    assert curves.profile_figure(ranking.costs(made.results(), [0.1])) is None


def test_a_figure_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write the figure"):
        style_figures.save(rates.rate_figure("t", []), tmp_path / "file" / "x")
