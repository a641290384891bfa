"""The search of `solve`: whom it tries, how it judges, what it costs, and what it goes on with."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from helpers import breaking
from torch import Tensor

from bilevelbench import Box, InvalidInput, solve
from bilevelbench.model.noise import Exact, FiniteSum
from bilevelbench.model.own_functions import estimate_curvature, own_problem
from bilevelbench.studies.auto.contenders import portfolio
from bilevelbench.studies.auto.judge import Judge
from bilevelbench.studies.auto.search import SHARE

F64 = torch.float64
A = torch.diag(torch.tensor([1.0, 2.0, 8.0], dtype=F64))
ZERO = torch.zeros(3, dtype=F64)


def f(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (y - 1).square().sum() + 0.05 * x.square().sum()


def g(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * y @ A @ y - x @ y


#: phi = 1/2 |x/a - 1|² + 1/20 |x|²: x (1/a² + 1/10) = 1/a
DIAGONAL = A.diagonal()
BEST = (1 / DIAGONAL) / (1 / DIAGONAL**2 + 0.1)

quietly = functools.partial(solve, f, g, ZERO, ZERO, evaluate="never")


def instance_of(lower=g):
    own = own_problem(f, lower, ZERO, ZERO)
    estimate_curvature(own.instance)
    return own.instance


# ---- what is found


def test_nothing_but_functions_and_starts():
    got = solve(f, g, ZERO, ZERO, steps=300, evaluate="end")
    np.testing.assert_allclose(got.x, BEST, rtol=1e-3)
    assert got.algorithm in ("aid_adgd", "f2ba")
    assert got.params["eta_x"] > 0
    assert got.f == pytest.approx(float(f(got.x, got.y)))
    assert got.g == pytest.approx(float(g(got.x, got.y)))


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_x_step_follows_the_scale_of_f(scale):
    """phi times `scale` needs a step over `scale`."""
    got = solve(lambda x, y: scale * f(x, y), g, ZERO, ZERO, steps=100, evaluate="never")
    np.testing.assert_allclose(got.x, BEST, rtol=1e-2)


def test_same_call_same_bits():
    first, again = quietly(steps=20), quietly(steps=20)
    assert torch.equal(first.x, again.x)
    assert first.search.equals(again.search)


def test_it_goes_on_from_where_the_best_setting_is():
    """The winner's own steps are part of the run."""
    got = quietly(steps=40)
    last = got.search.iloc[-1]["round"]
    (row,) = got.search[(got.search["round"] == last) & got.search["goes_on"]].to_dict("records")
    assert row["score"] == got.search.loc[got.search["round"] == last, "score"].min()
    assert 0 < row["steps"] <= SHARE * 40
    assert got.steps == 40
    assert row["setting"].startswith(got.algorithm)
    assert f"eta_x={got.params['eta_x']:g}" in row["setting"]
    assert got.message.startswith("made its 40 steps")
    assert f"{row['setting']} was the best of 5 settings" in got.message


@pytest.mark.parametrize(("method", "tried", "kept"), [("auto", 5, 2), ("itd", 6, 2)])
def test_halving_keeps_the_best_third_and_two_at_least(method, tried, kept):
    table = quietly(method, steps=100).search
    second, third = (table[table["round"] == number] for number in (2, 3))
    assert len(second) == tried
    assert len(third) == second["goes_on"].sum() == kept
    assert set(third["setting"]) == set(second.nsmallest(kept, "score")["setting"])


# ---- what it costs


def test_the_search_is_counted_and_shown():
    got = quietly(steps=20)
    alone = quietly("aid", eta_x=0.1, D=3, N=3, steps=20)
    searched = got.search["cost"].sum()
    assert searched > 0
    assert got.curve["cost"].iloc[0] == pytest.approx(searched)
    total = sum(got.counts[name] for name in ("first_order", "second_order", "value"))
    assert total == got.curve["cost"].iloc[-1]
    assert alone.search.empty


@pytest.mark.parametrize("budget", [10, 300, 4000])
def test_a_budget_covers_the_search(budget):
    got = quietly(budget=budget)
    assert got.curve["cost"].iloc[-1] <= budget
    assert got.search["cost"].sum() <= SHARE * budget


@pytest.mark.whole
def test_too_little_for_a_search_is_said():
    assert "there was room for no search" in quietly(budget=60).message
    assert "no search" not in quietly(budget=6000).message


# ---- what is given


def test_given_parameters_stay_and_choose_the_methods():
    got = quietly(lam=50.0, steps=20)
    assert (got.algorithm, got.params["lam"]) == ("f2ba", 50.0)
    tried = got.search[got.search["round"] > 1]["setting"]
    assert tried.str.startswith("f2ba").all()
    assert tried.str.contains("lam=50.0").all()


def test_all_parameters_leave_nothing_to_search():
    got = quietly(lam=50.0, eta_x=0.1, K=4, steps=5)
    assert got.search.empty
    assert got.counts == quietly("f2ba", lam=50.0, eta_x=0.1, K=4, steps=5).counts


@pytest.mark.parametrize("method", ["f2ba", "aid", "itd", "pbgd"])
@pytest.mark.quick_cases(1)
def test_a_method_without_an_x_step_gets_one(method):
    got = quietly(method, steps=60)
    assert got.algorithm == method
    assert float(f(got.x, got.x / DIAGONAL)) < 0.9 * float(f(ZERO, ZERO))
    assert got.search[got.search["round"] > 1]["setting"].str.startswith(method).all()


def test_unknown_parameters_are_a_sentence():
    with pytest.raises(InvalidInput, match="none of its methods has 'lamda'; did you mean 'lam'"):
        quietly(lamda=3.0)
    with pytest.raises(InvalidInput, match="none of its methods has lam, N together"):
        quietly(lam=3.0, N=4)


def test_a_set_is_kept_to():
    got = quietly(steps=40, project=Box(high=0.5))
    assert got.x.max() <= 0.5
    assert got.x[0] == pytest.approx(0.5, abs=1e-3)  # its best is 0.91


def test_an_optimiser_needs_no_search():
    got = quietly(steps=5, outer_optimizer=functools.partial(torch.optim.Adam, lr=0.05))
    assert got.search.empty
    assert got.algorithm == "aid"


def test_who_is_tried_depends_on_the_data():
    names = {
        (batch, n): {one.cls.name for one in portfolio({}, batch, noise)}
        for batch, n, noise in (
            (None, 1, Exact()),
            (None, 100, FiniteSum(40, 60)),
            (10, 100, FiniteSum(40, 60)),
            (None, 10_000, FiniteSum(10, 9_990)),
        )
    }
    assert names[None, 1] == names[None, 100] == {"aid_adgd", "f2ba"}
    assert names[10, 100] == {"aid_adgd", "f2ba", "stocbio", "soba", "f2bsa"}
    assert names[None, 10_000] == {"stocbio", "soba", "f2bsa"}


# ---- when things go wrong


def slope(x: Tensor, y: Tensor) -> Tensor:
    """A long way down a gentle slope, which the search likes to take in large steps, there is a wall."""
    return -0.01 * y.sum() + 1e3 * (y - 500).clamp(min=0).pow(4).sum()


down_the_slope = functools.partial(
    solve, slope, lambda x, y: 0.5 * (y - x).square().sum(), ZERO, ZERO, steps=400, evaluate="never"
)


def test_a_step_that_adapts_meets_a_wall():
    got = down_the_slope()
    assert (got.algorithm, got.status) == ("aid_adgd", "budget")
    assert "diverged" not in got.message
    assert got.f < -1


@pytest.mark.whole
def test_a_run_that_diverges_is_run_again_with_a_smaller_step():
    got = down_the_slope("aid")
    assert "it diverged from there, and was run again with eta_x=" in got.message
    assert got.status == "budget"
    assert got.f < -0.01
    assert got.counts["first_order"] > quietly("aid", eta_x=0.1, steps=400).counts["first_order"] / 2


def test_a_step_that_is_given_may_diverge():
    assert quietly(eta_x=1e100, steps=100).status == "diverged"


def test_what_a_function_raises_in_the_search_is_raised():
    with pytest.raises(ArithmeticError, match="nobody knows this point") as caught:
        solve(f, breaking(g, 60), ZERO, ZERO, steps=50)
    assert "in the search" in caught.value.__notes__[0]
    got = solve(f, breaking(g, 60), ZERO, ZERO, steps=50, errors="return")
    assert got.status == "error"
    assert torch.equal(got.x, ZERO)


@pytest.mark.parametrize("after", [100, 200])
def test_ctrl_c_in_the_search_gives_what_there_is(after):
    calls = 0

    def interrupted(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == after:
            raise KeyboardInterrupt
        return g(x, y)

    got = solve(f, interrupted, ZERO, ZERO, steps=50)
    assert got.status == "interrupted"
    assert got.steps < 50
    assert got.f <= float(f(ZERO, ZERO))


def test_a_function_that_vmap_cannot_is_looped_over():
    def branching(x: Tensor, y: Tensor) -> Tensor:
        return g(x, y) if y.detach().sum() < 100 else g(x, y) + 1

    with pytest.warns(UserWarning, match="g cannot be run over several lanes at once"):
        got = solve(f, branching, ZERO, ZERO, steps=8, evaluate="never")
    torch.testing.assert_close(got.x, quietly(steps=8).x, rtol=1e-9, atol=1e-9)


# ---- the judge


def test_the_judge_orders_points_as_phi_does():
    points = torch.stack([0.0 * BEST, 0.5 * BEST, 0.9 * BEST, BEST])
    seen = Judge(instance_of(), 0, 1024)(points, torch.zeros_like(points), 20)
    assert seen.scores == sorted(seen.scores, reverse=True)
    assert 3 < seen.cost <= Judge(instance_of(), 0, 1024).price(20)
    phi = [float(f(x, x / DIAGONAL)) for x in points]
    np.testing.assert_allclose(seen.scores, phi, rtol=0.02)


def test_a_y_that_only_looks_good_is_seen_through():
    """f is zero at (0, 1), which is far from y*(0) = 0; few steps lead from there."""
    points = torch.stack([ZERO, BEST])
    starts = torch.stack([torch.ones_like(ZERO), BEST / DIAGONAL])
    flattering, honest = Judge(instance_of(), 0, 1024)(points, starts, 10).scores
    assert float(f(ZERO, starts[0])) == 0
    assert honest < flattering


def test_points_that_are_lost_are_worth_nothing():
    points = torch.stack([torch.full_like(ZERO, math.nan), torch.full_like(ZERO, 1e9), ZERO])
    scores = Judge(instance_of(), 0, 1024)(points, torch.zeros_like(points), 4).scores
    assert scores[:2] == [math.inf, math.inf]
    assert math.isfinite(scores[2])


def test_the_judge_copes_with_a_curvature_that_grows():
    """At the points it is five times what it was at the start: the step 1/L_gy is too long there."""
    instance = instance_of(lambda x, y: 0.5 * (1 + x.square().sum()) * (y @ A @ y) - x @ y)
    points = torch.full((1, 3), (4 / 3) ** 0.5, dtype=F64)
    seen = Judge(instance, 0, 1024)(points, torch.ones_like(points), 60)
    torch.testing.assert_close(seen.y, points / DIAGONAL / 5, rtol=1e-2, atol=1e-2)


def test_a_start_far_from_the_lower_solution_is_solved_for_first():
    """At y0 f is far above phi(x0), where it cannot be compared with other points."""
    bend = torch.logspace(-3, 0, 3, dtype=F64)
    target = torch.full_like(ZERO, 30.0)

    def far(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (bend * (y - target - x).square()).sum()

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (y - target).square().sum() + 0.5 * x.square().sum()  # x0 = 0 is best

    got = solve(upper, far, ZERO, ZERO, steps=40, evaluate="never")
    start = got.search.iloc[0]
    assert start["score"] < 1e-3 * float(upper(ZERO, ZERO))


def test_a_singular_lower_level_has_a_hypergradient_of_moderate_length():
    """f_y has a part along which g is flat: no v solves H v = f_y."""
    flat = torch.diag(torch.tensor([1.0, 0.3, 0.0], dtype=F64))
    instance = instance_of(lambda x, y: 0.5 * y @ flat @ y - x @ y)
    d = Judge(instance, 0, 1024).hypergradient(ZERO[None], ZERO[None])
    assert torch.isfinite(d).all()
    assert d.norm() < 100
