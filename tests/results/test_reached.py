"""What counts as reached: failures never do, nor does what is uphill or not certified."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import trial

from bilevelbench.engine.lane import Lane
from bilevelbench.leaderboard.boards import sparklines
from bilevelbench.plan.trial import Schedule
from bilevelbench.report.analysis.ranking import (
    board,
    costs,
    ecdf,
    expected_running_time,
    performance_profile,
    sensitivity,
)
from bilevelbench.report.analysis.summary import readable, summary
from bilevelbench.results import reached
from bilevelbench.results.schema import Results, curve_frame, runs_frame
from bilevelbench.results.status import Status


def one(name, status="budget", points=((1, 1.0, 5.0), (9, 0.0, 4.0)), error=0.0, certificate="bound", seed=0):
    """A trial as (row of runs, rows of the curve) with `points` as (cost, |grad phi|, phi)."""
    run = {
        "trial_id": f"{name}{seed}", "algorithm": name, "label": name, "problem": "p", "problem_params": "{}", "seed": seed,
        "status": status, "message": f"why {name}", "certificate": certificate, "cost": 9.0, "first_order": 9,
        "best_grad_phi": min(g for _, g, _ in points),
    }  # fmt: skip
    always = {"trial_id": f"{name}{seed}", "grad_phi_error": error}
    curve = [
        always | {"step": n, "cost": c, "first_order": c, "grad_phi": g, "phi": phi}
        for n, (c, g, phi) in enumerate(points)
    ]
    return run, curve


def tables(*trials):
    return Results(runs_frame([run for run, _ in trials]), curve_frame([row for _, rows in trials for row in rows]), [])


HEALTHY = one("healthy", points=((1, 1.0, 5.0), (50, 0.05, 4.0)))


@pytest.mark.parametrize("status", Status)
def test_a_failure_has_reached_nothing_anywhere(status):
    data = tables(one("first", status), HEALTHY)
    wins = not status.failed
    best, table = ("first", "healthy") if wins else ("healthy", "first"), costs(data, (0.1,))
    assert tuple(summary(data)["method"]) == tuple(board(table)["method"]) == best
    assert ("first0" in reached.first_met(data, [0.1])[0].index) == wins
    assert np.isfinite(reached.best(data)["first0"]) == wins
    row = summary(data).set_index("method").loc["first"]
    assert (row["reached_0.1"], row["failed"]) == (int(wins), int(not wins))
    assert np.isfinite(row["best_grad_phi"]) == np.isfinite(row["cost_to_0.1"]) == wins
    for steps in (performance_profile(table), ecdf(table)):
        assert steps.loc[steps["method"] == "first", "share"].max() == float(wins)
    times = expected_running_time(table, data.runs).set_index("method")["expected"]
    assert np.isfinite(times["first"]) == wins
    # the gradient of the curve falls to 0, which a logarithm cannot show: 1e-3 instead
    fell = sparklines(tables(one("first", status, points=((1, 1.0, 5.0), (9, 1e-3, 4.0)))), ["p"])["first"]
    assert fell[-1] == (pytest.approx(-3.0) if wins else 0.0)


def test_the_statuses_of_failures_are_told_from_limits():
    assert {status for status in Status if status.failed} == {"diverged", "error", "invalid"}
    assert {status for status in Status if status.broken} == {"error", "invalid"}
    assert {status for status in Status if not status.failed} == {
        "target",
        "budget",
        "timeout",
        "stopped",
        "interrupted",
    }


def test_a_failed_configuration_has_no_score():
    data = tables(one("a", "diverged"), one("a", seed=1))
    data.runs["algorithm_params"] = ['{"eta": 1}', '{"eta": 2}']
    assert sensitivity(data)["score"].tolist() == [np.inf, 0.0]


def test_an_accuracy_counts_only_where_phi_is_not_above_its_start():
    uphill = one("a", points=((1, 1.0, 5.0), (2, 0.01, 5.1), (8, 0.05, 4.9)))
    assert reached.first_met(tables(uphill), [0.1])[0]["cost"].tolist() == [8.0]
    assert reached.best(tables(uphill)).tolist() == [0.05]
    level = one("a", points=((1, 1.0, 5.0), (2, 0.01, 5.0 * (1 + 1e-7))))
    assert reached.first_met(tables(level), [0.1])[0]["cost"].tolist() == [2.0]
    from_zero = one("a", points=((1, 1.0, 0.0), (2, 0.01, 1e-12)))
    assert reached.first_met(tables(from_zero), [0.1])[0]["cost"].tolist() == [2.0]


def test_the_start_is_the_first_step_in_whatever_order_the_rows_are():
    data = tables(one("a", points=((1, 1.0, 5.0), (2, 0.01, 5.1))))
    upside_down = Results(data.runs, data.curve.iloc[::-1], [])
    assert reached.first_met(upside_down, [0.1])[0].empty


def test_a_norm_without_a_bound_reaches_nothing():
    assert reached.first_met(tables(one("a", error=np.nan)), [0.1])[0].empty
    assert reached.first_met(tables(one("a", error=0.2)), [0.1])[0].empty
    assert len(reached.first_met(tables(one("a", error=0.05)), [0.1])[0]) == 1


@pytest.mark.parametrize(
    ("trials", "text"),
    [
        ([one("a", error=np.nan, certificate="residual")], "not certified"),
        ([one("a", error=np.nan, certificate="none")], "not certified"),
        ([one("a", error=0.5, certificate="bound")], "never"),
        ([one("a", "diverged", error=np.nan, certificate="residual")], "never"),  # it failed, bound or no bound
        ([one("a", "diverged", certificate="residual"), one("a", error=np.nan, certificate="residual", seed=1)],
         "not certified"),
        ([one("a", error=np.nan, certificate="residual"), one("a", error=0.5, seed=1)], "never"),
        ([one("a", "diverged"), one("a", seed=1)], "1 of 2"),
    ],
)  # fmt: skip
def test_words_for_what_was_not_reached(trials, text):
    assert readable(summary(tables(*trials)))["cost to 0.1"].tolist() == [text]


# ---- while a trial runs


def look(lane, cost, **columns):
    block = {"step": cost, "cost": float(cost), "phi": 1.0, "grad_phi": 1.0, "grad_phi_error": 0.0} | columns
    lane.look({name: [value] for name, value in block.items()}, 0)


def lane(*targets, **schedule):
    return Lane(trial("f2ba", "quadratic", steps=9, targets=targets, schedule=Schedule(**schedule)), {})


def test_a_trial_ends_at_its_target_by_the_same_rule():
    for column in ("grad_phi", "mean_grad_phi", "second_order_eps"):
        chosen = {"mean": column == "mean_grad_phi", "second_order": column == "second_order_eps"}
        going = lane(0.1, **chosen)
        look(going, 1, **{column: 1.0})
        look(going, 2, phi=1.1, **{column: 0.01})
        assert not going.has_reached_all  # uphill
        if column != "second_order_eps":  # which holds its error already
            look(going, 3, grad_phi_error=math.nan, **{column: 0.01})
            assert not going.has_reached_all  # not certified
            look(going, 4, grad_phi_error=0.2, **{column: 0.01})
            assert not going.has_reached_all
        look(going, 5, **{column: 0.01})
        assert going.has_reached_all


def test_a_notion_of_the_methods_own_needs_no_phi():
    going = lane(0.1, on="g_y_z", phi=False)
    look(going, 1, phi=math.nan, grad_phi=math.nan, grad_phi_error=math.nan, g_y_z=0.05)
    assert going.has_reached_all
    assert going.doubt == ""


def test_the_best_value_is_downhill_and_a_failure_has_none():
    going = lane()
    for cost, grad_phi, phi in ((1, 1.0, 5.0), (2, 0.001, 5.1), (3, 0.5, 4.0)):
        look(going, cost, grad_phi=grad_phi, phi=phi)
    for status in Status:
        value = going.run_row(status, "")["best_grad_phi"]
        assert math.isnan(value) if status.failed else value == 0.5
