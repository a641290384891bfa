"""Compiled steps against interpreted ones: whole runs of one trial, and what is left in memory after 100,000 steps.

Processor time of steps alone, so without evaluations and without compiling, ratios of minima, taken in turns within one run.
Nothing is asserted about time here: the numbers go to summary.json.
"""

from __future__ import annotations

import time

import psutil
import pytest

from bilevelbench.discovery.registry import registry
from bilevelbench.engine.loop import run_pack
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Budget, Compile, Schedule, Trial
from bilevelbench.plan.trials import make_trial

METHODS = {
    "soba": "soba[b=1e-3]",
    "stocbio": "stocbio[eta_x=1e-3]",
    "f2sa": "f2sa[batch=64]",
    "f2ba": "f2ba[eta_x=1e-3,a_y=0.1,a_z=0.1]",
    "aid": "aid[solver=richardson,eta_x=1e-3]",
}
PROBLEMS = {"quadratic_sum": "quadratic_sum[dim_x=20,dim_y=10,n=256,m=256]", "logreg_digits": "logreg_digits"}


def planned(method: str, problem: str, steps: int, how: Compile) -> Trial:
    (a,), (p,) = parse_spec(METHODS[method]), parse_spec(PROBLEMS[problem])
    seldom = Schedule(ratio=1e3, phi=False)
    return make_trial(registry(), a, p, budget=Budget(steps=steps), schedule=seldom, compile=how)


def seconds(method: str, problem: str, how: Compile, steps: int) -> float:
    """Of the steps of one trial."""
    (row,) = run_pack([planned(method, problem, steps, how)], registry()).runs
    assert how == "never" or "compiled steps" in row["message"], row["message"]
    return row["seconds"]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
def test_compiled_steps(summary, method, problem):
    least = dict.fromkeys(("never", "always"), float("inf"))
    for _ in range(3):  # what is compiled once is in torch's cache
        for how in least:
            least[how] = min(least[how], seconds(method, problem, how, 1_000))
    summary[f"compiled_{problem}_{method}_speedup"] = least["never"] / least["always"]


@pytest.mark.parametrize("how", ["never", "always"])
def test_memory_does_not_grow(summary, how):
    process, seen = psutil.Process(), []
    for steps in (2_000, 20_000, 100_000):
        start = time.perf_counter()
        seconds("soba", "quadratic_sum", how, steps)
        seen.append(process.memory_info().rss / 2**20)
        print(f"{how}: {steps:,} steps, {seen[-1]:.0f} MiB resident, {time.perf_counter() - start:.0f} s")
    summary[f"memory_of_100000_steps_{how}_growth"] = seen[-1] / seen[0] - 1
