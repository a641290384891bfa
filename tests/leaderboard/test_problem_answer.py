"""The sentence of a problem's page, with data for which each of its forms would be false."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
from leaderboard_data import make_results

from bilevelbench.leaderboard.collect import Material
from bilevelbench.leaderboard.problem_page import cheapest_first, chosen_curves, problem_answer, problem_page
from bilevelbench.leaderboard.site import Site
from bilevelbench.report.analysis.summary import summary

KINDS = {
    name: {"title": name.upper(), "oracle": oracle}
    for name, oracle in (("a", "gradient"), ("b", "HVP"), ("c", "gradient"), ("d", "HVP"))
}


def rows(**methods):
    """`method=(cost to 0.1, cost to 0.01, best norm)`."""
    return pd.DataFrame(
        [
            {"method": m, "cost_to_0.1": one, "cost_to_0.01": two, "best_grad_phi": best, "trials": 2, "failed": 0,
             "uncertified": 0}
            for m, (one, two, best) in methods.items()
        ]
    )  # fmt: skip


def test_the_finest_accuracy_that_anybody_reaches_decides():
    table = rows(a=(10.0, 500.0, 1e-3), b=(20.0, 100.0, 1e-3), c=(5.0, math.inf, 0.05))
    assert problem_answer(table, KINDS, "calls") == (
        "Cheapest to relative accuracy 0.01: B, 100 calls; 2 of 3 methods get there in the median. "
        "Cheapest without second derivatives: A, 5 times as many."
    )
    nobody = rows(a=(10.0, math.inf, 0.05), b=(20.0, math.inf, 0.05), c=(math.inf, math.inf, 0.5))
    assert problem_answer(nobody, KINDS, "samples").startswith(
        "Cheapest to relative accuracy 0.1: A, 10 samples; 2 of 3"
    )


def test_a_first_order_winner_is_said_once():
    assert "without" not in problem_answer(rows(a=(1.0, 1.0, 0.0), b=(2.0, 2.0, 0.0)), KINDS, "calls")
    assert "without" not in problem_answer(rows(b=(1.0, 1.0, 0.0), d=(2.0, 2.0, 0.0)), KINDS, "calls")


def test_a_tie_names_both():
    said = problem_answer(rows(a=(1.0, 7.0, 0.0), b=(1.0, 7.0, 0.0), d=(2.0, 9.0, 0.0)), KINDS, "calls")
    assert said == "Cheapest to relative accuracy 0.01: A and B, 7 calls; all of 3 methods get there in the median."


def test_who_is_alone_is_not_the_cheapest():
    alone = problem_answer(rows(a=(1.0, 7.0, 0.0)), KINDS, "calls")
    assert alone == "A alone was run here; it reaches relative accuracy 0.01 after 7 calls."
    one = problem_answer(rows(b=(1.0, 7.0, 0.0), a=(1.0, math.inf, 0.05)), KINDS, "calls")
    assert one == (
        "Cheapest to relative accuracy 0.01: B, 7 calls; no other of 2 methods gets there in the median. "
        "In the median no method without second derivatives gets there."
    )


def test_where_nothing_is_reached_the_smallest_norm_is_told():
    table = rows(a=(math.inf, math.inf, 0.7), b=(math.inf, math.inf, 0.3))
    said = problem_answer(table, KINDS, "calls")
    assert (
        said == "No method reaches relative accuracy 0.1 in half of its trials; the smallest |∇φ|, 0.30, is that of B."
    )
    blind = problem_answer(table.assign(uncertified=2), KINDS, "calls")
    assert blind.startswith("No accuracy counts as reached, since the problem does not bound the error of the norm; ")
    some = problem_answer(table.assign(uncertified=[2, 0]), KINDS, "calls")
    assert some.startswith("No method reaches")


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_where_nothing_counts_nothing_is_told(norm):
    table = rows(a=(math.inf, math.inf, norm))
    assert problem_answer(table, KINDS, "calls") == "No trial has a norm of the hypergradient that counts."


def test_who_is_cheapest_to_the_finest_accuracy_stands_first():
    never = math.inf
    table = rows(
        a=(5.0, never, 0.1), b=(9.0, 30.0, 0.05), c=(2.0, never, 0.2), d=(never, never, 0.4), e=(8.0, 20.0, 0.06)
    )
    assert list(cheapest_first(table)["method"]) == ["e", "b", "c", "a", "d"]
    blind = rows(a=(never, never, 0.1), c=(never, never, 0.2), b=(never, never, 0.3))
    assert list(cheapest_first(blind)["method"]) == ["a", "c", "b"]
    assert cheapest_first(table[["method"]]).equals(table[["method"]])


def test_the_first_row_and_the_first_curve_are_of_the_method_that_the_answer_names():
    """`deep` ends with the smaller norm; `cheap` is there for a fraction of its calls."""
    results = make_results({"deep": (20, 0, 4.0), "cheap": (1, 0, 2.0)}, {"bowl": {}}, seeds=3)
    page = problem_page(Site(Material({"default": results, "tuned": results}), "make page"), "bowl")
    assert list(summary(results)["method"]) == ["deep", "cheap"]
    assert page["chosen"][0] == "cheap"
    assert len(page["tables"]) == 2
    for table in page["tables"]:
        assert table["answer"].startswith("Cheapest to relative accuracy 0.001: cheap, ")
        assert [row["cells"][0][1] for row in table["rows"]] == ["cheap", "deep"]


def test_curves_are_the_best_of_each_family_and_no_twins():
    names = [f"m{n}" for n in range(9)]
    families = dict(zip(names, "ppippizpp", strict=True))
    columns = ("best_grad_phi", "phi", "first_order", "second_order", "cost")
    table = pd.DataFrame({"method": names, **{column: range(9) for column in columns}})
    assert chosen_curves(table, families) == ["m0", "m1", "m2", "m3", "m6"]
    twins = table.copy()
    twins.loc[1, twins.columns[1:]] = 0  # m1 took the way of m0
    assert chosen_curves(twins, families) == ["m0", "m2", "m3", "m4", "m6"]


def test_phi_is_drawn_above_the_best_of_a_sound_trial_on_its_problem():
    """Not of one that diverged, however low it was, nor of another problem; and before digits are rounded away."""
    results = make_results(
        {"gd": (3, 0, 1.0), "slow": (3, 0, 0.3), "lost": (2, 0, -1.0)}, {"bowl": {}, "valley": {}}, seeds=2
    )
    lost = results.runs.loc[results.runs["status"] == "diverged", "trial_id"]
    far = results.curve["phi"].where(~results.curve["trial_id"].isin(lost), -1e9) + 1e6
    shifted = replace(results, curve=results.curve.assign(phi=far))
    drawn = Site(Material({"default": shifted}), "make page").drawn()["default"].curve
    titles = dict(zip(results.runs["trial_id"], results.runs["problem"], strict=True))
    sound = drawn[~drawn["trial_id"].isin(lost)]
    least = sound.groupby(sound["trial_id"].map(titles))["phi"].min()
    assert least.to_dict() == {"bowl": 0.0, "valley": 0.0}
    assert (drawn.loc[drawn["trial_id"].isin(lost), "phi"] < 0).all()
    assert shifted.curve["phi"].min() < -1e8  # the results themselves, and so the files to download, stay as they are
