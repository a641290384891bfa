"""Costs, ranks, intervals, profiles and running times against numbers worked out by hand or in plain Python."""

from __future__ import annotations

import itertools
import random
import statistics as plain

import made
import numpy as np
import pytest

from bilevelbench.errors import StoreError
from bilevelbench.report.analysis import ranking
from bilevelbench.report.analysis.ranking import board, ecdf, expected_running_time, performance_profile, rank_intervals

INF = np.inf

#: a and b tie on A, where c fails in two of three; on B only a arrives.
TIES = {
    ("A", "a"): [10, 20, 30], ("A", "b"): [20, 20, 20], ("A", "c"): [5, INF, INF],
    ("B", "a"): [100] * 3, ("B", "b"): [INF] * 3, ("B", "c"): [INF] * 3,
}  # fmt: skip


def listed(frame, *columns):
    return list(frame[list(columns)].itertuples(index=False, name=None))


# ---- costs


def test_costs_are_those_of_the_first_certified_evaluation():
    data = made.results(
        {"label": "a", "curve": [(1, 0, 1.0), (6, 2, 0.1), (8, 3, 0.5), (30, 9, 0.01)], "seed": 7,
         "problem_params": '{"data_seed": 3, "k": 1}'},
        {"label": "a", "curve": [(1, 0, 1.0)], "seed": 8},
    )  # fmt: skip
    table = ranking.costs(data, (0.1, 0.01))
    columns = ("problem", "method", "algorithm", "seed", "data_seed", "target")
    assert listed(table, *columns) == [
        ("quadratic[k=1]", "a", "gd", 7, "3", 0.1), ("quadratic", "a", "gd", 8, "", 0.1),
        ("quadratic[k=1]", "a", "gd", 7, "3", 0.01), ("quadratic", "a", "gd", 8, "", 0.01),
    ]  # fmt: skip
    assert listed(table, "first_order", "second_order", "cost", "seconds", "steps") == [
        (6, 2, 8, 0.5, 1), (INF,) * 5, (30, 9, 39, 1.5, 3), (INF,) * 5,
    ]  # fmt: skip


def test_an_error_bound_delays_success_and_an_invalid_trial_has_none():
    data = made.results({"curve": [(1, 0, 0.09), (2, 0, 0.08)]}, {"status": "invalid", "curve": [(1, 0, 0.0)]})
    data.curve["grad_phi_error"] = [0.05, 0.01, 0.0]
    assert list(ranking.costs(data, [0.1])["cost"]) == [2.0, INF]


def test_samples_are_split_like_the_calls_unless_they_are_known():
    data = made.results({"curve": [(3, 1, 0.01)]})
    data.curve["cost"] = 100.0
    assert listed(ranking.costs(data, [0.1]), "first_order", "second_order", "cost") == [(75, 25, 100)]
    data.curve["second_order_samples"] = 40.0
    assert listed(ranking.costs(data, [0.1]), "first_order", "second_order") == [(60, 40)]


def test_samples_of_a_noisy_trial_leave_the_products_of_an_exact_one_alone():
    data = made.results({"curve": [(3, 1, 0.01)]}, {"problem": "noisy", "curve": [(3, 1, 0.01)]})
    data.curve["second_order_samples"] = [float("nan"), 4.0]
    data.curve["cost"] = [4.0, 40.0]
    assert listed(ranking.costs(data, [0.1]), "first_order", "second_order") == [(3, 1), (36, 4)]


def test_trials_that_agree_in_all_seeds_are_numbered():
    same = {"seed": 1, "label": "a"}
    assert list(ranking.costs(made.results(same, same, same | {"label": "b"}), [0.1])["repeat"]) == [0, 1, 0]


def test_a_missing_column_is_a_sentence():
    data = made.results({})
    del data.curve["grad_phi_error"]
    with pytest.raises(StoreError, match="table `curve` has no column 'grad_phi_error'"):
        ranking.costs(data, [0.1])


# ---- ranks


def test_board_by_hand():
    table = board(made.costs(TIES))
    assert listed(table, "method", "mean_rank", "rank", "relative", "reached") == [
        ("a", 1.25, 1, 1, 1), ("b", 2.0, 2, INF, 0.5), ("c", 2.75, 3, INF, pytest.approx(1 / 6)),
    ]  # fmt: skip


def test_half_of_the_trials_failing_is_a_failure():
    table = board(made.costs({("A", "a"): [1, 1, INF, INF], ("A", "b"): [9, 9, 9, INF]}))
    assert list(table["method"]) == ["b", "a"]
    assert list(table["relative"]) == [1, INF]


def test_all_failed_tie():
    table = made.costs({("A", m): [INF, INF] for m in "abc"})
    assert listed(board(table), "rank", "relative", "reached") == [(2, INF, 0)] * 3
    assert listed(rank_intervals(table), "rank", "low", "high", "group") == [(2, 2, 2, 1)] * 3


def test_a_method_that_was_not_run_on_a_problem_did_not_solve_it():
    table = board(made.costs({("A", "a"): [5], ("A", "b"): [1], ("B", "a"): [5], ("C", "a"): [5]}))
    assert listed(table, "method", "mean_rank") == [("a", pytest.approx(4 / 3)), ("b", pytest.approx(5 / 3))]


def test_the_weight_of_second_order_calls_changes_the_order():
    table = made.costs({("A", "a"): [(10, 0)], ("A", "b"): [(4, 4)], ("A", "c"): [(INF, INF)]})
    assert list(board(table, 1.0)["method"]) == ["b", "a", "c"]
    assert listed(board(table, 2.0), "method", "relative") == [("a", 1), ("b", 1.2), ("c", INF)]
    assert list(board(table, 0.0)["relative"]) == [1, 2.5, INF]  # 0 times infinity is still no success


def test_a_target_met_at_the_start_costs_nothing():
    assert list(board(made.costs({("A", "a"): [0], ("A", "b"): [0], ("A", "c"): [3]}))["relative"]) == [1, 1, INF]


@pytest.mark.parametrize("weight", [0.5, 1.0, 7.3])
def test_board_agrees_with_plain_python(weight):
    draw = random.Random(5)
    methods, problems = "abcdefg", "PQRS"
    table = {
        (p, m): [(INF, INF) if draw.random() < 0.3 else (draw.randint(1, 6), draw.randint(0, 3)) for _ in range(4)]
        for p, m in itertools.product(problems, methods)
    }
    places = {m: [] for m in methods}
    for p in problems:
        middle = {m: plain.median(a + weight * b for a, b in table[p, m]) for m in methods}
        for m in methods:
            better = sum(middle[o] < middle[m] for o in methods)
            places[m].append(better + (1 + sum(middle[o] == middle[m] for o in methods)) / 2)
    found = board(made.costs(table), weight).set_index("method")["mean_rank"]
    assert {m: found[m] for m in methods} == {m: pytest.approx(plain.mean(places[m])) for m in methods}


def test_no_costs_make_an_empty_board():
    nothing = ranking.costs(made.results(), [0.1])
    assert len(board(nothing)) == len(rank_intervals(nothing)) == 0
    assert performance_profile(nothing).empty
    assert ecdf(nothing).empty


# ---- intervals


def test_one_method_has_rank_one():
    assert listed(rank_intervals(made.costs({("A", "a"): [1, 2]})), "rank", "low", "high", "group") == [(1, 1, 1, 1)]


def test_trials_are_resampled_in_pairs():
    """b costs a tenth more in every trial. Scales differ by 1000, so draws of their own would mix them up."""
    scales = [1, 10, 100, 1000]
    table = made.costs({("A", "a"): scales, ("A", "b"): [1.1 * s for s in scales]})
    assert listed(rank_intervals(table), "method", "low", "high", "group") == [("a", 1, 1, 1), ("b", 2, 2, 2)]


@pytest.mark.parametrize(("seeds", "apart"), [(3, False), (10, True)])
def test_one_bad_trial(seeds, apart):
    """a loses a draw if its bad trial is half of it: 7/27 with 3 trials, P(Binomial(10, 0.1) >= 5) = 0.0016 with 10."""
    table = made.costs({("A", "a"): [9] + [1] * (seeds - 1), ("A", "b"): [5] * seeds})
    expected = [("a", 1, 1, 1), ("b", 2, 2, 2)] if apart else [("a", 1, 2, 1), ("b", 1, 2, 1)]
    assert listed(rank_intervals(table), "method", "low", "high", "group") == expected


def test_problems_are_resampled():
    """Each wins one of two problems: a quarter of the draws takes the first twice, a quarter the second."""
    table = made.costs({("A", "a"): [1] * 3, ("A", "b"): [2] * 3, ("B", "a"): [2] * 3, ("B", "b"): [1] * 3})
    assert listed(rank_intervals(table), "rank", "low", "high", "group") == [(1.5, 1, 2, 1)] * 2


def test_a_group_is_held_against_its_leader():
    """a and b swap places by trial, c is always behind them."""
    table = made.costs({("A", "a"): [1, 4, 1, 4], ("A", "b"): [2, 2, 2, 2], ("A", "c"): [8, 8, 8, 8]})
    found = rank_intervals(table).set_index("method")
    assert list(found.loc[["a", "b", "c"], "group"]) == [1, 1, 2]
    assert tuple(found.loc["c", ["low", "high"]]) == (3, 3)


def test_one_trial_on_one_problem_leaves_every_rank_open():
    found = rank_intervals(made.costs({("A", "a"): [1], ("A", "b"): [2], ("A", "c"): [3]}))
    assert listed(found, "rank", "low", "high", "group") == [(1, 1, 3, 1), (2, 1, 3, 1), (3, 1, 3, 1)]


def test_intervals_are_the_same_for_the_same_seed():
    table = made.costs(TIES)
    assert rank_intervals(table, draws=50).equals(rank_intervals(table, draws=50))


# ---- profiles and running times


def test_profile_by_hand():
    table = made.costs({("A", "a"): [10, 10, 40, INF], ("A", "b"): [30, 10, 20, INF]})
    assert listed(performance_profile(table), "method", "tau", "share") == [
        ("a", 1, 0.5), ("a", 2, 0.75), ("b", 1, 0.5), ("b", 3, 0.75),
    ]  # fmt: skip
    assert listed(ecdf(table), "method", "cost", "share") == [
        ("a", 0, 0), ("a", 10, 0.5), ("a", 40, 0.75), ("b", 0, 0), ("b", 10, 0.25), ("b", 20, 0.5), ("b", 30, 0.75),
    ]  # fmt: skip


@pytest.mark.parametrize("make", [performance_profile, ecdf])
def test_profiles_rise_to_the_share_that_was_solved(make):
    table = made.costs(TIES)
    solved = np.isfinite(table["first_order"]).groupby(table["method"]).mean()
    for method, steps in make(table).groupby("method"):
        assert (steps["share"].diff().dropna() >= 0).all()
        assert steps["share"].iloc[-1] == solved[method]


def test_expected_running_time_by_hand():
    data = made.results(
        {"label": "a", "curve": [(8, 2, 0.1)]},
        {"label": "a", "curve": [(20, 10, 0.1)]},
        {"label": "a", "curve": [(60, 40, 0.5)], "status": "diverged"},
        {"label": "b", "curve": [(60, 40, 0.5)]},
    )
    found = expected_running_time(ranking.costs(data, [0.1]), data.runs)
    assert listed(found, "method", "trials", "successes", "expected") == [("a", 3, 2, 70), ("b", 1, 0, INF)]
    dearer = expected_running_time(ranking.costs(data, [0.1]), data.runs, weight=2.0)
    assert dearer["expected"][0] == (12 + 40 + 140) / 2


def test_sensitivity_by_hand():
    def trial(lr, **more):
        return {"algorithm_params": f'{{"lr": {lr}, "K": 3, "mode": "x"}}'} | more

    data = made.results(
        trial(0.1), trial(0.1, curve=[(1, 0, 0.25)]), trial(0.5, status="diverged"), {"algorithm": "other"}
    )
    found = ranking.sensitivity(data)
    assert listed(found, "algorithm", "parameter", "value", "score", "trials") == [
        ("gd", "lr", 0.1, pytest.approx(0.15), 2), ("gd", "lr", 0.5, INF, 1),
    ]  # fmt: skip
