"""The answer of a board: each sentence with numbers for which it holds and numbers for which another one does."""

from __future__ import annotations

import pandas as pd
import pytest

from bilevelbench.report.analysis.answer import answer

SAME = {0.5: ["a", "b", "c"], 10.0: ["a", "b", "c"]}


def rows(*given):
    columns = ["method", "rank", "bands", "relative", "reached", "any_hvp"]
    return pd.DataFrame(list(given), columns=columns)


A, B, C = ("a", 1.0, "a", 1.0, 0.85, True), ("b", 2.0, "b", 3.0, 0.6, True), ("c", 3.0, "b c", 6.04, 0.5, False)


def test_the_whole_answer():
    assert answer(rows(A, B, C), SAME) == (
        "Fewest calls: a, 85% reached. Best without second derivatives: c, rank 3, 6.0 times the least cost. "
        "The first 3 stand in the same order at every price tried of a product, 0.5 to 10 gradients."
    )


@pytest.mark.parametrize(
    ("paid", "first", "times"),
    [
        ("calls", "Fewest calls", "6.0 times the least cost"),
        ("samples", "Fewest samples", "6.0 times the least cost"),
        ("seconds", "Least time", "6.0 times the least time"),
    ],
)
def test_a_cost_is_called_what_it_counts(paid, first, times):
    assert answer(rows(A, B, C), {}, paid) == (
        f"{first}: a, 85% reached. Best without second derivatives: c, rank 3, {times}."
    )


def test_what_cannot_be_told_apart_is_said():
    alike = ("b", 2.0, "a b", 3.0, 0.6, True)  # tied with both, which are not tied with each other
    assert answer(rows(A, alike, C), {}).startswith("Fewest calls: a, 85% reached; b cannot be told apart from it.")
    many = [(f"m{n}", 2.0 + n, "a", 3.0, 0.6, True) for n in range(5)]
    assert "; m0, m1, m2 and 2 others cannot be told apart from it." in answer(rows(A, *many), {})


def test_ties_are_called_ties():
    two = ("a", 1.5, "a", 1.0, 0.85, True), ("b", 1.5, "a", 1.0, 0.8, False)
    assert answer(rows(*two, ("c", 3.0, "b", 2.0, 0.5, True)), {}) == "Fewest calls: a and b, tied."
    assert answer(rows(*two), SAME) == "All 2 methods are tied."
    seldom = [(*one[:3], float("inf"), 0.2, True) for one in two]
    assert answer(rows(*seldom), SAME) == "All 2 methods are tied: none reached an accuracy in half of its trials."


def test_the_first_one_may_do_without_second_derivatives():
    assert (
        answer(rows(("a", 1.0, "a", 1.0, 0.85, False), B), {})
        == "Fewest calls: a, 85% reached. It needs no second derivatives."
    )


@pytest.mark.parametrize("any_hvp", [True, False])
def test_nothing_is_said_about_second_derivatives_where_all_are_alike(any_hvp):
    assert "derivatives" not in answer(rows((*A[:5], any_hvp), (*B[:5], any_hvp)), {})


def test_a_cost_that_is_never_paid_is_no_number():
    said = answer(rows(A, ("c", 2.0, "b", float("inf"), 0.1, False)), {})
    assert "c, rank 2, which misses half of the accuracies or more." in said


def test_a_price_may_change_the_order_or_the_first():
    swapped = {0.5: ["a", "b", "c"], 10.0: ["a", "c", "b"]}
    assert answer(rows(A, B, C), swapped).endswith(
        "Who stands first is the same at every price tried of a product, 0.5 to 10 gradients."
    )
    other = {0.5: ["a", "c"], 1.0: ["a", "c"], 10.0: ["c", "a"]}
    assert answer(rows(A, B, C), other).endswith(
        "Who is first depends on what a product costs: of the prices tried, in gradients, a at 0.5 to 1 and c at 10."
    )


def test_nobody_and_one():
    assert answer(rows(), {}) == ""
    assert answer(rows((*A[:4], 0.0, True), (*B[:4], 0.0, True)), SAME) == "No method reached any of the accuracies."
    assert answer(rows(A), {}) == "a alone was run here; it reached 85%."
