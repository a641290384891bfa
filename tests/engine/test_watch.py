"""The clock of a run that someone waits for: what evaluations may take, and when there is no time for a step."""

from __future__ import annotations

import math

import pytest
import torch

from bilevelbench import InvalidInput, Schedule
from bilevelbench.engine import watch as module
from bilevelbench.engine.watch import FLOOR, SHARE, CallbackFailed, Watch, pace_of
from bilevelbench.plan.trial import Budget


class Clock:
    now = 0.0

    @classmethod
    def perf_counter(cls) -> float:
        return cls.now


@pytest.fixture
def clock(monkeypatch) -> type[Clock]:
    monkeypatch.setattr(module, "time", Clock)
    monkeypatch.setattr(Clock, "now", 1000.0)
    return Clock


def watching(pace, **limits) -> Watch:
    return Watch(Budget(**(limits or {"steps": 100})), pace)


@pytest.mark.parametrize("takes", [0.001, 0.2, 3.0, 50.0])
def test_auto_spends_at_most_its_share_whatever_an_evaluation_takes(clock, takes):
    """Steps of a second, a look after each of them; an evaluation is cut at its time and goes on from there."""
    watch, last_left = watching("auto"), takes
    solved = 0
    for _ in range(2000):
        clock.now += 1.0
        until = watch.until(last=False)
        if until:
            took = min(until - clock.now, last_left)
            clock.now += took
            last_left = takes if took == last_left else last_left - took
            watch.evaluated(took, solved=last_left == takes)
            solved += last_left == takes
        assert watch.spent <= max(FLOOR, SHARE * watch.elapsed) + 1e-9
    assert solved >= min(100, 1000 * SHARE / takes / 8)  # it does evaluate, as often as a fair part of its share allows
    assert watch.until(last=True) - clock.now >= 0.4 * (SHARE * watch.elapsed - watch.spent)


def test_auto_leaves_time_for_the_last_one(clock):
    watch = watching("auto")
    took = watch.until(last=False) - clock.now
    assert took == pytest.approx(FLOOR / 2)
    clock.now += took
    watch.evaluated(took, solved=False)
    assert watch.until(last=False) == 0.0  # not again before there is twice the time
    assert watch.until(last=True) == pytest.approx(clock.now + FLOOR)


def test_other_paces(clock):
    clock.now += 5
    assert watching("never").until(last=True) == 0.0
    assert watching("end").until(last=False) == 0.0
    assert watching("end").until(last=True) == math.inf
    assert watching("always").until(last=False) == math.inf
    assert watching("always", seconds=2.0).until(last=False) == clock.now + 2


def test_no_step_is_begun_that_does_not_fit(clock):
    watch = watching("never", seconds=10.0)
    clock.now += 6
    assert not watch.is_over(3.0)
    assert watch.is_over(4.5)


def test_time_is_left_for_the_last_evaluation(clock):
    watch = watching("end", seconds=10.0)
    clock.now += 8.9
    assert not watch.is_over(0.0)
    clock.now += 0.2  # less than a tenth is left
    assert watch.is_over(0.0)
    watch.evaluated(0.01, solved=True)  # now it is known to be quick
    assert not watch.is_over(0.0)
    assert not watching("end").is_over(1e9)


@pytest.mark.parametrize(
    ("pace", "limits", "later", "said"),
    [
        ("never", {}, 0, 'evaluate="never"'),
        ("auto", {}, 0, 'not solved within 10% of the time; evaluate="end"'),
        ("end", {"seconds": 3.0}, 4, "the time was up"),
    ],
)
def test_why_there_is_no_phi(clock, pace, limits, later, said):
    watch = watching(pace, **limits)
    clock.now += later
    assert said in watch.why_unsolved()


def test_a_callback_sees_copies_and_ends_the_run_by_true_alone(clock):
    x, seen = torch.zeros(1, 2), []

    def callback(info):
        info.x.add_(1)
        seen.append(info)
        return len(seen) >= 2 or None

    watch = Watch(Budget(steps=5), callback=callback, shape=lambda x, y: (x.reshape(2), y))
    assert not watch.stepped(1, 10.0, None, None, (x, x))
    assert watch.stepped(2, 20.0, 0.5, 0.1, (x, x))
    assert (x == 0).all()
    assert seen[0].x.shape == (2,)
    assert (seen[1].step, seen[1].cost, seen[1].phi, seen[1].grad_phi) == (2, 20.0, 0.5, 0.1)


def test_what_a_callback_raises_is_not_an_error_of_the_method():
    watch = Watch(Budget(steps=5), callback=lambda info: 1 / 0)
    with pytest.raises(CallbackFailed) as caught:
        watch.stepped(1, 1.0, None, None, (torch.zeros(1, 1), torch.zeros(1, 1)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_bar_is_told_of_the_limit_that_is_nearest(clock):
    told = []
    watch = Watch(Budget(steps=100, cost=1000.0), tell=lambda share, now: told.append((share, now)))
    watch.stepped(10, 900.0, 0.25, 0.125, (torch.zeros(1, 1),) * 2)
    assert told == [(0.9, "step 10, phi = 0.25, |grad phi| = 1.2e-01 at step 10")]
    watch.stepped(11, 950.0, None, None, (torch.zeros(1, 1),) * 2)
    assert len(told) == 1  # nobody sees a hundred changes a second


def test_pace_of_what_solve_is_told():
    assert pace_of("auto") == (Schedule(), "auto")
    assert pace_of("never") == (Schedule(phi=False), "never")
    assert pace_of(Schedule(ratio=2.0)) == (Schedule(ratio=2.0), "always")
    assert pace_of(Schedule(phi=False))[1] == "never"
    with pytest.raises(InvalidInput, match="evaluate='ende'; did you mean 'end'"):
        pace_of("ende")
