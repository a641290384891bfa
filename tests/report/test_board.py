"""Costs, ranks, intervals, profiles and running times against numbers worked out by hand or in plain Python."""

from __future__ import annotations

import itertools
import random
import statistics as plain

import made
import numpy as np
import pandas as pd
import pytest

from bilevelbench.errors import StoreError
from bilevelbench.report.analysis import ranking
from bilevelbench.report.analysis.intervals import apart, bands, letters, rank_intervals
from bilevelbench.report.analysis.ranking import (
    board,
    by_problem,
    counted,
    ecdf,
    expected_running_time,
    performance_profile,
    uncounted_words,
    wins,
)
from bilevelbench.report.analysis.summary import TARGETS, start_notes

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
    data = made.results(
        {"curve": [(0, 0, 1.0), (1, 0, 0.09), (2, 0, 0.08)]}, {"status": "invalid", "curve": [(0, 0, 1.0), (1, 0, 0.0)]}
    )
    data.curve["grad_phi_error"] = [0.05, 0.05, 0.01, 0.0, 0.0]
    assert list(ranking.costs(data, [0.1])["cost"]) == [2.0, INF]


def test_samples_are_split_like_the_calls_unless_they_are_known():
    data = made.results({"curve": [(0, 0, 1.0), (3, 1, 0.01)]})
    data.curve["cost"] = [0.0, 100.0]
    assert listed(ranking.costs(data, [0.1]), "first_order", "second_order", "cost") == [(75, 25, 100)]
    data.curve["second_order_samples"] = [0.0, 40.0]
    assert listed(ranking.costs(data, [0.1]), "first_order", "second_order") == [(60, 40)]


def test_samples_of_a_noisy_trial_leave_the_products_of_an_exact_one_alone():
    curve = [(0, 0, 1.0), (3, 1, 0.01)]
    data = made.results({"curve": curve}, {"problem": "noisy", "curve": curve})
    data.curve["second_order_samples"] = [float("nan"), float("nan"), 0.0, 4.0]
    data.curve["cost"] = [0.0, 4.0, 0.0, 40.0]
    assert listed(ranking.costs(data, [0.1]), "first_order", "second_order") == [(3, 1), (36, 4)]


def test_trials_that_agree_in_all_seeds_are_numbered():
    same = {"seed": 1, "label": "a"}
    assert list(ranking.costs(made.results(same, same, same | {"label": "b"}), [0.1])["repeat"]) == [0, 1, 0]


def test_a_missing_column_is_a_sentence():
    data = made.results({})
    del data.curve["grad_phi_error"]
    with pytest.raises(StoreError, match="table `curve` has no column 'grad_phi_error'"):
        ranking.costs(data, [0.1])


# ---- accuracies are shares of the start


def test_there_are_twelve_half_a_power_of_ten_apart():
    assert len(TARGETS) == 12
    assert [np.log10(target) for target in TARGETS] == pytest.approx([-0.5 * n for n in range(1, 13)])


def test_an_accuracy_is_a_share_of_the_gradient_at_the_start_of_its_data_set():
    data = made.results(
        {"curve": [(0, 0, 50.0), (4, 0, 5.0), (9, 0, 0.1)], "problem_params": '{"data_seed": 1}'},
        {"curve": [(0, 0, 0.2), (4, 0, 0.1), (9, 0, 0.02)], "problem_params": '{"data_seed": 2}'},
    )
    assert listed(ranking.costs(data, [0.1]), "problem", "cost", "absolute") == [
        ("quadratic", 4, 5), ("quadratic", 9, pytest.approx(0.02)),
    ]  # fmt: skip


def test_where_starts_disagree_the_first_certified_one_counts_and_that_is_said():
    def trial(start, **more):
        return {"curve": [(0, 0, start), (5, 0, 0.4)]} | more

    data = made.results(trial(9.0), trial(5.0), trial(4.0), trial(4.0, problem="ridge"))
    assert list(ranking.costs(data, [0.1])["absolute"]) == pytest.approx([0.9, 0.9, 0.9, 0.4])
    data.curve.loc[0, "grad_phi_error"] = np.nan
    assert list(ranking.costs(data, [0.1])["absolute"]) == pytest.approx([0.5, 0.5, 0.5, 0.4])
    assert start_notes(data) == [
        "Trials on quadratic disagree about |grad phi| at the start; the first certified one counts."
    ]
    assert start_notes(made.results(trial(9.0), trial(9.0 * (1 + 1e-9)))) == []


def test_without_a_start_nothing_is_reached():
    assert list(ranking.costs(made.results({"curve": []}, {"curve": [(0, 0, np.nan)]}), [0.1])["cost"]) == [INF, INF]


# ---- cells that tell nobody apart


def at_targets(cells):
    """Costs from {(problem, target): {method: cost of each trial}}."""
    parts = [
        made.costs({(problem, method): values for method, values in methods.items()}).assign(target=target)
        for (problem, target), methods in cells.items()
    ]
    return pd.concat(parts, ignore_index=True)


CELLS = {
    ("A", 0.1): {"a": [0, 0, 0], "b": [0, 0, 9]},
    ("A", 0.01): {"a": [5, 5, 5], "b": [4, 4, 4]},
    ("A", 0.001): {"a": [INF] * 3, "b": [7, INF, INF]},
    ("A", 1e-4): {"a": [INF] * 3, "b": [INF] * 3},
    ("A", 1e-5): {"a": [INF] * 3, "b": [INF] * 3},
    ("B", 0.1): {"a": [3, 3, 3], "b": [6, 6, 6]},
    ("B", 0.01): {"a": [0, 0, 0], "b": [1, 1, 1]},
    ("B", 0.001): {"a": [INF] * 3, "b": [INF] * 3},
    ("B", 1e-4): {"a": [INF] * 3, "b": [INF] * 3},
    ("B", 1e-5): {"a": [INF] * 3, "b": [INF] * 3},
}


def test_what_nobody_reached_or_everyone_met_at_no_cost_counts_for_nothing():
    table = at_targets(CELLS)
    kept = counted(table)
    assert sorted(set(zip(kept["problem"], kept["target"], strict=True))) == [
        ("A", 0.001), ("A", 0.01), ("B", 0.01), ("B", 0.1),
    ]  # fmt: skip
    assert listed(board(table), "method", "mean_rank", "relative", "reached") == [
        ("a", (1.5 + 2 + 1 + 1) / 4, 1, 9 / 12), ("b", (1.5 + 1 + 2 + 2) / 4, 2, 10 / 12),
    ]  # fmt: skip
    assert board(table).equals(board(kept))
    assert rank_intervals(table).equals(rank_intervals(kept))
    assert performance_profile(table).equals(performance_profile(kept))


def test_what_is_not_counted_is_named():
    assert uncounted_words(at_targets(CELLS)) == (
        "Not counted: 10^-3 and finer on B; 10^-4 and finer on A, which nobody reached; 10^-1 on A, which everyone met at no "
        "cost."
    )
    some = {cell: CELLS[cell] for cell in (("A", 0.01), ("B", 0.1))}
    assert uncounted_words(at_targets(some)) == ""
    assert uncounted_words(at_targets({("C", 0.1): {"a": [INF]}, **some})) == (
        "Not counted: 10^-1 on C, which nobody reached."
    )


# ---- problem by problem, pair by pair


def test_costs_over_the_best_by_problem():
    found = by_problem(at_targets(CELLS))
    assert found.to_dict() == {"A": {"a": 1.25, "b": 1.0}, "B": {"a": 1.0, "b": INF}}
    only = by_problem(at_targets({("A", 0.1): {"a": [1]}, ("B", 0.1): {"a": [INF]}}))
    assert only.loc["a", "A"] == 1
    assert np.isnan(only.loc["a", "B"])


def test_who_beats_whom():
    """Of four cells a is cheaper in two and b in one; in the fourth neither median is finite."""
    assert wins(at_targets(CELLS)).to_dict("index") == {"a": {"a": 0, "b": 0.5}, "b": {"a": 0.25, "b": 0}}
    assert wins(made.costs(TIES)).loc["a", ["b", "c"]].tolist() == [0.5, 1.0]


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
    assert listed(rank_intervals(table), "rank", "low", "high", "bands") == [(2, 2, 2, "a")] * 3


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
    assert listed(rank_intervals(made.costs({("A", "a"): [1, 2]})), "rank", "low", "high", "bands") == [(1, 1, 1, "a")]


def test_trials_are_resampled_in_pairs():
    """b costs a tenth more in every trial. Scales differ by 1000, so draws of their own would mix them up."""
    scales = [1, 10, 100, 1000]
    table = made.costs({("A", "a"): scales, ("A", "b"): [1.1 * s for s in scales]})
    assert listed(rank_intervals(table), "method", "low", "high", "bands") == [("a", 1, 1, "a"), ("b", 2, 2, "b")]


@pytest.mark.parametrize(("seeds", "told"), [(3, False), (10, True)])
def test_one_bad_trial(seeds, told):
    """a loses a draw if its bad trial is half of it: 7/27 with 3 trials, P(Binomial(10, 0.1) >= 5) = 0.0016 with 10."""
    table = made.costs({("A", "a"): [9] + [1] * (seeds - 1), ("A", "b"): [5] * seeds})
    expected = [("a", 1, 1, "a"), ("b", 2, 2, "b")] if told else [("a", 1, 2, "a"), ("b", 1, 2, "a")]
    assert listed(rank_intervals(table), "method", "low", "high", "bands") == expected


def test_problems_are_resampled():
    """Each wins one of two problems: a quarter of the draws takes the first twice, a quarter the second."""
    table = made.costs({("A", "a"): [1] * 3, ("A", "b"): [2] * 3, ("B", "a"): [2] * 3, ("B", "b"): [1] * 3})
    assert listed(rank_intervals(table), "rank", "low", "high", "bands") == [(1.5, 1, 2, "a")] * 2


def test_ties_are_those_of_pairs():
    """a and b swap places by trial, c is always behind them."""
    table = made.costs({("A", "a"): [1, 4, 1, 4], ("A", "b"): [2, 2, 2, 2], ("A", "c"): [8, 8, 8, 8]})
    found = rank_intervals(table).set_index("method")
    assert list(found.loc[["a", "b", "c"], "bands"]) == ["a", "a", "b"]
    assert tuple(found.loc["c", ["low", "high"]]) == (3, 3)


def test_a_tie_need_not_be_transitive():
    """b cannot be told from a or from c, which differ: it stands in two bands."""
    far = np.array([[False, False, True], [False, False, False], [True, False, False]])
    assert letters(bands(far)) == ["a", "a b", "b"]
    assert letters(bands(~np.eye(3, dtype=bool))) == ["a", "b", "c"]
    assert letters(bands(np.zeros((3, 3), dtype=bool))) == ["a", "a", "a"]
    assert letters([[25, 26, 51, 52]]) == ["z aa az ba"]


def test_bands_are_shared_by_those_that_are_not_apart_and_by_nobody_else():
    draw = np.random.default_rng(1)
    for _ in range(50):
        far = np.triu(draw.random((9, 9)) < 0.5, 1)
        far |= far.T
        found = [set(its) for its in bands(far)]
        assert all(found)
        for i, j in itertools.combinations(range(9), 2):
            assert bool(found[i] & found[j]) != far[i, j]


@pytest.mark.parametrize(("lost", "told"), [(24, True), (25, False)])
def test_two_are_apart_if_the_interval_of_their_difference_leaves_out_zero(lost, told):
    """Of 1,000 draws a is not ahead in `lost`: 2.5% are too many."""
    drawn = np.ones((1000, 2))
    drawn[lost:, 1] = 2.0
    assert list(apart(drawn)[0]) == [False, told]
    assert (apart(drawn) == apart(drawn).T).all()


def test_one_trial_on_one_problem_leaves_every_rank_open():
    found = rank_intervals(made.costs({("A", "a"): [1], ("A", "b"): [2], ("A", "c"): [3]}))
    assert listed(found, "rank", "low", "high", "bands") == [(1, 1, 3, "a"), (2, 1, 3, "a"), (3, 1, 3, "a")]


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
    start = (0, 0, 1.0)
    data = made.results(
        {"label": "a", "curve": [start, (8, 2, 0.1)]},
        {"label": "a", "curve": [start, (20, 10, 0.1)]},
        {"label": "a", "curve": [start, (60, 40, 0.5)], "status": "diverged"},
        {"label": "b", "curve": [start, (60, 40, 0.5)]},
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
