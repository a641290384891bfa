"""How trials end, what is written about them, and that a trial's company changes nothing."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers import Bowl, Point, Shrink, alone, assert_same, of, packed, plugins, trial
from pydantic import ValidationError
from scipy.stats import chisquare
from torch import Tensor

import bilevelbench
from bilevelbench import Algorithm, Instance, Oracle, PerLane, Problem, Reference, dot
from bilevelbench.engine import loop, record
from bilevelbench.errors import InvalidInput
from bilevelbench.plan.packs import plan
from bilevelbench.plan.trial import Schedule, Trial
from bilevelbench.results.schema import Results

SEEN: dict[str, object] = {}  # what the loose methods and problems below want to tell a test


class RaisesInStep(Shrink):
    """Raises in the step after `fuse` of them, where the fuse is not negative."""

    name = "raises"
    fuse: float = -1.0

    def step(self, s: Point, oracle: Oracle) -> Point:
        if bool((torch.as_tensor(self.fuse) == s.k).any()):
            raise ValueError("the fuse\nis burnt")
        return super().step(s, oracle)


class RaisesInInit(Shrink):
    name = "raises_in_init"

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> Point:
        raise RuntimeError("no start")


class Smuggler(Shrink):
    """Holds the instance itself and asks it for a gradient that nobody counts."""

    name = "smuggler"

    def step(self, s: Point, oracle: Oracle) -> Point:
        instance = SEEN["instance"]
        assert isinstance(instance, Instance)
        instance.grad_f(s.x, s.y)
        return super().step(s, oracle)


class Undeclared(Shrink):
    name = "undeclared"

    def step(self, s: Point, oracle: Oracle) -> Point:
        oracle.hvp_g_yy(s.x, s.y, s.y)
        return super().step(s, oracle)


class UndeclaredConstant(Shrink):
    name = "undeclared_constant"

    def step(self, s: Point, oracle: Oracle) -> Point:
        oracle.constant("mu")
        return super().step(s, oracle)


class NeedsConstant(Shrink):
    name = "needs_constant"
    eta: float | None = None

    def resolve(self, constants):
        return self.fill(constants, eta=lambda c: c.nu_g)


class Breaks(Shrink):
    """An iterate is `value` (NaN or infinity) after step `at` and later."""

    name = "breaks"
    at: PerLane[int] = 5
    value: float = math.nan
    where: str = "x"

    def step(self, s: Point, oracle: Oracle) -> Point:
        new = super().step(s, oracle)
        broken = torch.as_tensor(self.at <= new.k)
        bad = {self.where: torch.where(broken, self.value, getattr(new, self.where))}
        return Point(**{"x": new.x, "y": new.y, "k": new.k} | bad)


class StopsItself(Shrink):
    name = "stops"
    last: PerLane[int] = 3

    def stopped(self, s: Point) -> Tensor:
        return torch.as_tensor(self.last) <= s.k


class PaysForInit(Shrink):
    """`init` makes five calls."""

    name = "pays_for_init"

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> Point:
        for _ in range(5):
            oracle.grad_g_x(x0, y0)
        return Point(x0, y0, 0)


class Uneven(Shrink):
    """`inner` calls a step, a number of its own in each lane."""

    name = "uneven"
    inner: PerLane[int] = 3

    def step(self, s: Point, oracle: Oracle) -> Point:
        for _ in oracle.repeat(self.inner):
            oracle.grad_g_x(s.x, s.y)
        return super().step(s, oracle)


class TellsMore(Shrink):
    name = "tells_more"

    def extras(self, s: Point) -> dict[str, Tensor]:
        return {"ten_k": torch.full_like(s.x[..., :1], 10.0 * s.k), "rate_seen": self.rate + 0 * s.x[..., :1]}


class Counter(Algorithm):
    """x is the number of the step."""

    name = "counter"
    uses = frozenset({"grad_g_x"})
    reports = "last"

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> Point:
        return Point(0 * x0, y0, 0)

    def step(self, s: Point, oracle: Oracle) -> Point:
        oracle.grad_g_x(s.x, s.y)
        return Point(s.x + 1, s.x + 1, s.k + 1)


class RandomCounter(Counter):
    name = "random_counter"
    reports = "random"


@dataclass(frozen=True)
class Remembering:
    x: Tensor
    y: Tensor
    k: int
    chosen: Tensor


class OwnCounter(Counter):
    """Answers with the point of step `choice`, and has no answer before."""

    name = "own_counter"
    reports = "own"
    choice: PerLane[int] = 2

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> Remembering:
        return Remembering(0 * x0, y0, 0, torch.full_like(x0, torch.nan))

    def step(self, s: Remembering, oracle: Oracle) -> Remembering:
        oracle.grad_g_x(s.x, s.y)
        x = s.x + 1
        return Remembering(x, x, s.k + 1, torch.where(torch.as_tensor(self.choice) == s.k + 1, x, s.chosen))

    def answer(self, s: Remembering) -> tuple[Tensor, Tensor]:
        return s.chosen, s.chosen


class Line(Problem):
    """phi(x) = x and grad phi = x in one dimension; g_y = y - 2x."""

    name = "line"

    def build(self) -> Instance:
        return Instance(
            f=lambda x, y: x + 0 * y,
            g=lambda x, y: 0.5 * dot(y - 2 * x, y - 2 * x),
            x0=torch.zeros(1, 1),
            y0=torch.zeros(1, 1),
            reference=Reference(y_star=lambda x: 2 * x, phi=lambda x: x, grad_phi=lambda x: x),
        )


class OpenBowl(Bowl):
    """A bowl whose instance a test can get hold of."""

    name = "open_bowl"

    def build(self) -> Instance:
        SEEN["instance"] = super().build()
        SEEN["dtype"] = SEEN["instance"].x0.dtype
        return SEEN["instance"]


class BrokenBowl(Bowl):
    name = "broken_bowl"

    def build(self) -> Instance:
        raise OSError("the data are gone")


class Clock:
    """A clock that moves only when told to."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class SlowToLookAt(Bowl):
    """Each evaluation takes a thousand seconds."""

    name = "slow_to_look_at"

    def build(self) -> Instance:
        instance = super().build()
        metric = instance.metrics["first"]

        def slow(x: Tensor, y: Tensor) -> Tensor:
            Clock.now += 1000
            return metric(x, y)

        instance.metrics["first"] = slow
        return instance


class OneSecondSteps(Shrink):
    name = "one_second_steps"

    def step(self, s: Point, oracle: Oracle) -> Point:
        Clock.now += 1
        return super().step(s, oracle)


HERE = plugins(
    Bowl, OpenBowl, BrokenBowl, SlowToLookAt, Line, Shrink, RaisesInStep, RaisesInInit, Smuggler, Undeclared,
    UndeclaredConstant, NeedsConstant, Breaks, StopsItself, PaysForInit, Uneven, TellsMore, OneSecondSteps, Counter,
    RandomCounter, OwnCounter,
)  # fmt: skip


def one(algorithm: str, problem: str = "bowl", **rest) -> Trial:
    return trial(algorithm, problem, among=HERE, **rest)


def run(*some: Trial) -> Results:
    return packed(some, HERE)


def row(*arguments, **rest):
    return run(one(*arguments, **rest)).runs.iloc[0]


def assert_company_changes_nothing(some: list[Trial]) -> Results:
    together = packed(some, HERE)
    assert_same(together, alone(some, HERE))
    return together


# ---- how a trial ends, and the sentence about it


def test_target_is_met():
    got = row("shrink[rate=0.25]", steps=100, targets=(1e-3,))
    assert got.status == "target"
    assert got.steps == 11  # 2 * 2^-11 <= 1e-3
    assert got.message == "|grad phi| <= 0.001 at step 11"


def test_all_targets_have_to_be_met():
    got = row("shrink[rate=0.25]", steps=100, targets=(1e-3, 0.3))
    assert (got.status, got.steps) == ("target", 11)


def test_target_met_at_the_start_costs_nothing():
    got = row("shrink", steps=100, targets=(5.0,))
    assert (got.status, got.steps, got.cost) == ("target", 0, 0)


def test_target_met_only_by_the_last_evaluation_counts():
    got = row("shrink[rate=0.25]", steps=11, targets=(1e-3,), schedule=Schedule(ratio=1000))
    assert (got.status, got.steps) == ("target", 11)


def test_budget_in_calls_is_spent():
    got = row("shrink", cost=10)
    assert (got.status, got.steps, got.cost) == ("budget", 10, 10)
    assert got.message == "spent 10 of 10; the next call did not fit"


def test_budget_in_steps_is_spent():
    got = row("shrink", steps=7)
    assert (got.status, got.steps) == ("budget", 7)
    assert got.message == "made its 7 steps"


def test_budget_too_small_for_init():
    got = row("pays_for_init", cost=3)
    assert (got.status, got.steps, got.cost) == ("budget", 0, 3)
    assert "does not cover `init`" in got.message


def test_time_is_up():
    got = row("shrink", steps=10**9, seconds=1e-9)
    assert got.status == "timeout"
    assert got.message.startswith("ran for ")
    assert "of 1e-09 seconds" in got.message


def test_divergence_names_the_step_and_the_settings():
    got = row("breaks[at=5]", steps=100)
    assert got.status == "diverged"
    assert f"x or y is not finite at step {got.steps}" in got.message
    assert "|x| >" not in got.message
    far = row("shrink[rate=1e100]", steps=100)
    assert far.status == "diverged"
    assert f"|x| > 2.41421e+06, that is 1e+06 (1 + |x0|), at step {far.steps}" in far.message
    assert "rate=1e+100" in far.message
    assert "finite" not in far.message


def test_exception_in_a_step_is_an_error_with_its_place():
    got = row("raises[fuse=2]", steps=9)
    assert (got.status, got.steps, got.cost) == ("error", 2, 2)
    assert re.fullmatch(r"in step 3: ValueError: the fuse is burnt \(test_loop\.py:\d+\)", got.message)


def test_exception_in_init_is_an_error():
    got = row("raises_in_init", steps=9)
    assert (got.status, got.steps) == ("error", 0)
    assert re.fullmatch(r"in `init`: RuntimeError: no start \(test_loop\.py:\d+\)", got.message)


def test_curve_up_to_an_error_is_kept():
    assert run(one("raises[fuse=2]", steps=9)).curve.step.tolist() == [0, 2]


def test_problem_that_cannot_be_built_is_an_error_row():
    got = row("shrink", "broken_bowl", steps=9)
    assert got.status == "error"
    assert "could not be set up" in got.message
    assert "the data are gone" in got.message


def test_missing_constant_is_an_error_row_that_names_it():
    got = row("needs_constant", steps=9)
    assert got.status == "error"
    assert "'bowl' declares no constant 'nu_g'" in got.message
    assert "needs_constant's default eta" in got.message


def test_calls_past_the_oracle_make_a_trial_invalid():
    got = row("smuggler", "open_bowl", steps=9)
    assert got.status == "invalid"
    assert "grad_f: 0 at the door, 1 below it" in got.message
    assert "past the oracle" in got.message


def test_undeclared_query_is_an_error_that_names_it():
    got = row("undeclared", steps=9)
    assert got.status == "error"
    assert "asked for 'hvp_g_yy'" in got.message
    assert "(declared: grad_g_x)" in got.message


def test_undeclared_constant_is_an_error_that_names_it():
    got = row("undeclared_constant", steps=9)
    assert got.status == "error"
    assert "asked for 'mu'" in got.message


def test_method_comes_to_its_own_end():
    got = row("stops[last=4]", steps=100)
    assert (got.status, got.steps) == ("stopped", 4)
    assert got.message == "the method came to its own end after 4 steps"


def test_methods_that_stop_at_different_times_leave_one_by_one():
    some = [one(f"stops[last={n}]", steps=9) for n in (5, 1, 3, 99, 2)]
    runs = assert_company_changes_nothing(some).runs
    assert runs.steps.tolist() == [5, 1, 3, 9, 2]
    assert runs.status.tolist() == ["stopped", "stopped", "stopped", "budget", "stopped"]


# ---- what is not finite


@pytest.mark.parametrize("where", ["x", "y"])
@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_iterate_that_is_not_finite_ends_as_diverged(value, where):
    got = row(f"breaks[at=5,value={value},where={where}]", steps=100)
    assert got.status == "diverged"


@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_diverged_row_is_the_same_packed_and_alone(value):
    some = [one(f"breaks[at={at},value={value}]", steps=60, seed=at) for at in (1, 5, 16, 17, 23, 40, 1000)]
    runs = assert_company_changes_nothing(some).runs
    assert runs.status.tolist() == ["diverged"] * 6 + ["budget"]


def test_divergence_is_found_within_16_steps():
    got = row("breaks[at=33]", steps=100, schedule=Schedule(ratio=1000))
    assert (got.status, got.steps) == ("diverged", 48)


@pytest.mark.parametrize("budget", [{"steps": 10}, {"cost": 10}])
def test_trial_that_is_not_finite_at_its_end_is_diverged_whatever_ended_it(budget):
    got = row("breaks[at=9]", **budget, schedule=Schedule(ratio=1000))
    assert (got.status, got.steps) == ("diverged", 10)


def test_a_diverged_trial_has_no_best_value_and_its_curve_shows_what_it_went_through():
    results = run(one("breaks[at=5]", steps=100))
    assert np.isnan(results.runs.best_grad_phi.item())
    assert results.curve.grad_phi.min() == pytest.approx(2 / 2**4)


def test_diverged_trial_with_eigenvalues_in_its_schedule_disturbs_nobody():
    schedule = Schedule(second_order=True)
    problem = "tail_anchor[tails=4,anchors=3]"
    some = [trial(f"f2ba[eta_x={eta}]", problem, steps=30, schedule=schedule) for eta in (1.7e308, 0.1)]
    together = packed(some)
    assert together.runs.status.tolist() == ["diverged", "budget"]
    assert_same(together, alone(some))


# ---- one lane fails


def test_exception_in_one_lane_hits_only_that_trial():
    some = [one(f"raises[fuse={3 if i == 2 else -1},rate={0.1 + i / 50}]", steps=8) for i in range(6)]
    runs = assert_company_changes_nothing(some).runs
    assert runs.status.tolist() == ["budget"] * 2 + ["error"] + ["budget"] * 3


def test_every_trial_of_a_failing_pack_has_exactly_one_row():
    some = [one(f"raises[fuse={i}]", steps=8) for i in range(7)]
    assert run(*some).runs.trial_id.tolist() == [t.id for t in some]


def test_lanes_that_ended_before_another_failed_have_one_row_and_one_curve():
    some = [one("raises", steps=2), one("raises[fuse=6]", steps=8), one("raises", steps=4)]
    assert not assert_company_changes_nothing(some).curve.duplicated(["trial_id", "step"]).any()


# ---- budgets


@pytest.mark.parametrize("budget", [9, 10, 11, 12])
def test_refused_step_is_undone_and_its_calls_before_the_refusal_stay_counted(budget):
    results = run(one("shrink[rate=0.25,calls_a_step=3]", cost=budget))
    got = results.runs.iloc[0]
    steps = budget // 3
    assert (got.steps, got.cost, got.grad_g_x) == (steps, budget, budget)
    assert got.last_grad_phi == pytest.approx(2 / 2**steps)
    assert results.curve.step.iloc[-1] == steps


def test_budget_that_is_no_whole_number_of_calls():
    got = row("shrink", cost=10.5)
    assert (got.steps, got.cost) == (10, 10)


def test_lanes_with_different_budgets_end_as_they_do_alone():
    some = [one("shrink[calls_a_step=3]", cost=cost) for cost in (1, 2, 3, 7, 9, 10, 11, 30, 31)]
    runs = assert_company_changes_nothing(some).runs
    assert runs.cost.tolist() == [1, 2, 3, 7, 9, 10, 11, 30, 31]
    assert runs.steps.tolist() == [0, 0, 1, 2, 3, 3, 3, 10, 10]


def test_lanes_with_different_inner_loops_and_budgets_end_as_they_do_alone():
    some = [one(f"uneven[inner={n}]", cost=c) for n, c in itertools.product((1, 2, 5), (4, 9, 23))]
    assert_company_changes_nothing(some)


def test_budget_of_init_is_refused_in_one_lane_as_alone():
    some = [one("pays_for_init", cost=cost) for cost in (3, 4, 5, 8)]
    runs = assert_company_changes_nothing(some).runs
    assert runs.cost.tolist() == [3, 4, 5, 8]
    assert runs.message.str.contains("init").tolist() == [True, True, False, False]


def test_lanes_leave_one_by_one():
    some = [
        one("shrink[rate=0.1]", steps=20),
        one("shrink[rate=0.2]", cost=7),
        one("shrink[rate=0.3]", steps=40, targets=(1e-2,)),
        one("shrink[rate=3]", steps=40),
        one("shrink[rate=0.4]", steps=3, seed=5),
        one("shrink[rate=0.45]", cost=12, targets=(1e-30,)),
    ]
    runs = assert_company_changes_nothing(some).runs
    assert runs.status.tolist() == ["budget", "budget", "target", "diverged", "budget", "budget"]
    assert runs.steps.tolist()[:3] == [20, 7, 6]
    assert runs.pack_lanes[4] == 6  # nobody left before it
    assert 1 < runs.pack_lanes[0] < 6


def test_single_trial_has_the_width_one():
    assert row("shrink", steps=3).pack_lanes == 1


# ---- which point is reported


def test_last_point_is_reported():
    got = row("counter", "line", steps=6)
    assert (got.phi, got.last_phi) == (6, 6)


def test_own_answer_is_reported_beside_the_last_point():
    got = row("own_counter[choice=2]", "line", steps=6)
    assert (got.phi, got.grad_phi, got.last_phi, got.last_grad_phi) == (2, 2, 6, 6)


def test_own_answer_that_does_not_exist_yet_is_replaced_by_the_last_point():
    runs = run(*(one(f"own_counter[choice={c}]", "line", steps=6) for c in (2, 99, 5))).runs
    assert runs.phi.tolist() == [2, 6, 5]


def random_answers(points: int, count: int, **budget) -> np.ndarray:
    some = [one("random_counter", "line", seed=seed, **budget) for seed in range(count)]
    packs = plan(some, HERE)
    got = [row for pack in packs for row in loop.run_pack(pack, HERE).runs]
    assert all(row["g_y"] == row["phi"] or row["phi"] == 0 for row in got)  # y = x is reported with its x
    return np.bincount([int(row["phi"]) for row in got], minlength=points)


@pytest.mark.parametrize("budget", [{"steps": 8}, {"cost": 8}])
def test_random_answer_is_uniform_over_the_points_at_which_steps_were_made(budget):
    counts = random_answers(8, 2048, **budget)
    assert len(counts) == 8
    assert chisquare(counts).pvalue > 1e-3


def test_random_answer_does_not_depend_on_the_pack():
    some = [one("random_counter", "line", seed=s, steps=3 + s % 7, schedule=Schedule(ratio=5)) for s in range(11)]
    assert_company_changes_nothing(some)


def test_random_answer_of_a_trial_without_steps_is_the_start():
    assert row("random_counter", "line", cost=0.5).phi == 0


# ---- what is looked at, and when


def test_extras_of_the_method_are_columns_of_the_curve():
    curve = run(one("tells_more[rate=0.1]", steps=5), one("tells_more[rate=0.2]", steps=5)).curve
    assert (curve.ten_k == 10 * curve.step).all()
    assert set(curve.rate_seen) == {0.1, 0.2}


def test_metrics_of_the_problem_are_columns_of_the_curve():
    curve = run(one("shrink[rate=0.25]", steps=4)).curve
    np.testing.assert_allclose(curve["first"], 2**0.5 / 2.0**curve.step)


def test_looks_are_where_the_cost_passes_a_power_of_the_ratio_and_at_the_ends():
    curve = run(one("shrink", steps=100, schedule=Schedule(ratio=2))).curve
    assert curve.cost.tolist() == [0, 2, 4, 8, 16, 32, 64, 100]
    assert curve.step.tolist() == curve.cost.tolist()


@pytest.mark.parametrize("ratio", [1.1, 1.3, 3])
def test_each_look_is_at_the_first_step_past_a_power_of_the_ratio(ratio):
    curve = run(one("shrink[calls_a_step=7]", steps=60, schedule=Schedule(ratio=ratio))).curve
    powers = float(ratio) ** np.arange(1, 200)
    passed = {0, 60} | {math.ceil(p / 7) for p in powers if p <= 60 * 7}
    assert curve.step.tolist() == sorted(passed)


def test_curve_is_the_exact_one():
    curve = run(one("shrink[rate=0.25]", steps=6)).curve
    np.testing.assert_allclose(curve.grad_phi, 2.0 / 2.0**curve.step, rtol=1e-15)
    np.testing.assert_allclose(curve.phi, 2.0 / 4.0**curve.step, rtol=1e-15)


def test_targets_on_what_is_not_looked_at_are_refused():
    with pytest.raises(InvalidInput, match=r"schedule\.phi = false leaves out; name a metric"):
        trial("f2ba", "logcosh", steps=2, targets=(0.1,), schedule=Schedule(phi=False))
    with pytest.raises(ValidationError, match=r"leave schedule\.phi true"):
        Schedule(phi=False, mean=True)


def test_mean_column_is_the_mean_over_the_points_before():
    curve = run(one("shrink[rate=0.25]", steps=12, schedule=Schedule(mean=True))).curve
    sizes = 2.0 / 2.0 ** np.arange(13)
    expected = [math.inf if k == 0 else sizes[:k].mean() for k in curve.step]
    np.testing.assert_allclose(curve.mean_grad_phi, expected)


def test_mean_in_the_last_row_leaves_out_the_point_of_the_refused_step():
    some = one("shrink[rate=0.25,calls_a_step=2]", cost=11, schedule=Schedule(mean=True, ratio=1000))
    curve = run(some).curve
    assert curve.step.tolist() == [0, 5]
    assert curve.mean_grad_phi.iloc[-1] == pytest.approx((2.0 / 2.0 ** np.arange(5)).mean())


def test_mean_is_the_same_packed_and_alone():
    schedule = Schedule(mean=True, ratio=1.5)
    assert_company_changes_nothing(
        [one(f"shrink[rate={0.05 * i},calls_a_step=2]", cost=9 + 4 * i, schedule=schedule) for i in range(1, 8)]
    )


def test_targets_are_held_against_the_mean_if_there_is_one():
    by_point, by_mean = (
        row("shrink[rate=0.25]", steps=500, targets=(0.1,), schedule=Schedule(mean=mean)) for mean in (False, True)
    )
    assert (by_point.status, by_point.steps) == ("target", 5)
    assert by_mean.status == "target"
    assert by_mean.steps >= 40  # the sizes sum to 4


def test_eigenvalue_column():
    curve = run(one("shrink", steps=3, schedule=Schedule(second_order=True))).curve
    assert (curve.min_eigenvalue == 1).all()


def test_second_order_target_on_a_problem_that_does_not_know_rho_phi_names_what_lacks():
    got = run(one("shrink", steps=3, schedule=Schedule(second_order=True), targets=(0.1,))).runs.iloc[0]
    assert got.status == "error"
    assert "declares no constant" in got.message
    assert "rho_phi of a second-order target" in got.message


def test_second_order_target_is_not_met_at_a_saddle_where_the_gradient_is_small():
    problem = "tail_anchor[saddle=true,L=1.5]"
    some = [
        trial("f2ba[lam=100,K=4]", problem, steps=400, targets=(0.1,), schedule=Schedule(second_order=both))
        for both in (False, True)
    ]
    first, both = (run(t).runs.iloc[0] for t in some)
    assert first.status == "target"
    assert both.status == "budget"
    assert both.best_grad_phi < 0.1


def test_seconds_leave_out_evaluations(monkeypatch):
    monkeypatch.setattr(record, "time", Clock())
    monkeypatch.setattr(Clock, "now", 0.0)
    results = run(one("one_second_steps", "slow_to_look_at", steps=9))
    assert Clock.now > 1000
    assert results.runs.seconds.tolist() == [9]
    assert results.curve.seconds.tolist() == results.curve.step.tolist()


def test_time_limit_leaves_out_evaluations(monkeypatch):
    monkeypatch.setattr(record, "time", Clock())
    monkeypatch.setattr(Clock, "now", 0.0)
    got = row("one_second_steps", "slow_to_look_at", seconds=7)
    assert (got.status, got.steps, got.message) == ("timeout", 7, "ran for 7 of 7 seconds")


# ---- the rest of the row


def test_float32_trial_runs_in_float32():
    got = row("shrink[rate=0.3]", "open_bowl", steps=20, dtype="float32")
    assert SEEN["dtype"] == torch.float32
    assert got["dtype"] == "float32"
    exact = 2 * 0.4**20
    assert got.grad_phi == pytest.approx(exact, rel=1e-5)
    assert abs(got.grad_phi / exact - 1) > 1e-9


def test_float32_leaves_the_default_dtype_alone():
    before = torch.get_default_dtype()
    row("shrink", "open_bowl", steps=2, dtype="float32")
    row("shrink", "broken_bowl", steps=2, dtype="float64")
    assert torch.get_default_dtype() == before


def test_parameters_are_written_after_defaults_were_filled():
    got = run(trial("f2ba[K=3]", "quadratic", steps=1)).runs.iloc[0]
    assert '"K": 3' in got.algorithm_params
    assert "null" not in got.algorithm_params


def test_row_says_who_ran():
    got = row("shrink", steps=1, label="mine", seed=4)
    assert (got.algorithm, got.problem, got.label, got.seed) == ("shrink", "bowl", "mine", 4)
    assert (got.plugin, got.plugin_version, got.problem_plugin) == ("tests", "1", "tests")
    assert got.certificate == "closed form"


def test_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    row("random_counter", "line", steps=5)
    assert torch.equal(before, torch.get_rng_state())


def test_results_of_single_trials_are_found_in_tables_of_many():
    some = [one("shrink", steps=n) for n in (2, 3)]
    assert_same(of(run(*some), some[:1]), run(some[0]))


def test_x_that_runs_off_to_where_phi_is_flat_has_diverged():
    """A huge x-step throws x to exp(x) = 0, where |phi'| is far below the target: that is no success."""
    results = bilevelbench.run("f2ba[eta_x=10]", "ridge_abalone", steps=50, targets=[1e-3])
    runs = results.runs
    assert runs["status"].tolist() == ["diverged"]
    assert np.isnan(runs["best_grad_phi"].item())
    assert results.curve["grad_phi"].min() > 1
    assert "|x| > 8, where phi is flat" in runs["message"].item()


def test_every_problem_has_a_limit_that_is_relative_to_its_start():
    zeros = Instance(f=dot, g=dot, x0=torch.zeros(2), y0=torch.zeros(2))
    assert zeros.x_limit.tolist() == [1e6]
    points = torch.tensor([[1e6, -1e6], [0.0, -1.1e6], [math.nan, 0.0], [math.inf, 0.0]])
    assert zeros.away(points).flatten().tolist() == [False, True, True, True]
    far = Instance(f=dot, g=dot, x0=torch.tensor([[0.0, -9.0], [1.0, 0.0]]), y0=torch.zeros(2))
    assert far.x_limit.tolist() == [[1e7], [2e6]]  # each lane has its own
    given = Instance(f=dot, g=dot, x0=torch.zeros(2), y0=torch.zeros(2), x_limit=8.0)
    assert given.away(torch.tensor([[8.0, 0.0], [8.1, 0.0]])).flatten().tolist() == [False, True]


def test_who_runs_away_does_not_depend_on_the_starts_of_others():
    some = [trial("f2ba[eta_x=1e7]", f"saddle[data_seed={n}]", steps=60) for n in range(5)]
    together = packed(some)
    assert set(together.runs.status) == {"diverged"}
    limits = together.runs.message.str.extract(r"\|x\| > ([^,]+), that is 1e\+06 \(1 \+ \|x0\|\)")[0]
    assert limits.nunique() > 1
    assert_same(together, alone(some))
