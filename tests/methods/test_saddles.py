"""From the stable manifold of a saddle: who stays, and who leaves it, in 100 of 100 seeds."""

from __future__ import annotations

import pytest
from helpers import packed, trial

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Schedule

SEEDS = 100
EPS = 0.05
PROBLEMS = ["saddle", "tail_anchor[saddle=true,L=1.5]"]


def hundred(method: str, problem: str, steps: int):
    (spec,) = parse_spec(problem)
    constants = make(registry().problem(spec.name), spec.params).build().constants
    chosen = registry().algorithm(method).value.from_rate(constants, EPS).given()
    params = ",".join(f"{k}={v!r}" for k, v in chosen.items() if v is not None)
    schedule = Schedule(second_order=True, ratio=1.3)
    trials = [
        trial(f"{method}[{params}]", problem, seed=seed, steps=steps, targets=(EPS,), schedule=schedule)
        for seed in range(SEEDS)
    ]
    return packed(trials)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", ["pf2ba", "paid", "acc_f2ba", "prahgd"])
@pytest.mark.quick_cases(3)
def test_perturbed_methods_leave_the_saddle_in_every_seed(method, problem):
    runs = hundred(method, problem, steps=4000).runs
    assert (runs.status == "target").sum() == SEEDS
    assert runs.steps.max() < 4000


@pytest.mark.whole
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", ["f2ba", "aid", "rahgd"])
@pytest.mark.quick_cases(2)
def test_methods_without_kicks_stay_at_the_saddle(method, problem):
    results = hundred(method, problem, steps=600)
    assert (results.runs.status == "budget").all()
    last = results.curve.groupby("trial_id").last()
    assert (last.min_eigenvalue < -0.4).all()
