"""What a sweep costs beside its steps, and what a second Dask worker brings.

Nothing is asserted about time here: the numbers go to summary.json.
"""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

from bilevelbench.discovery.registry import registry
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.run import run_trials
from bilevelbench.plan.trial import Budget, Spec
from bilevelbench.plan.trials import make_trial
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

TRIALS, STEPS = 10_000, 1_000


def test_ten_thousand_trials(benchmark, summary, tmp_path):
    """All that is no runner's time (plan, worker process, store, tables at the end) over the time of the steps.

    Memory: what the worker process had at most over what it had after its first pack; and the same of this process, until
    it makes the tables.
    """
    store, own = Store(tmp_path), []

    def sweep() -> float:
        began = time.perf_counter()
        trials = [
            make_trial(registry(), Spec(name="f2ba"), Spec(name="quadratic"), seed=seed, budget=Budget(steps=STEPS))
            for seed in range(TRIALS)
        ]
        run_trials(
            trials, store, registry(), Execution(jobs=1), lambda _: own.append(psutil.Process().memory_info().rss)
        )
        return time.perf_counter() - began

    wall = benchmark.pedantic(sweep, rounds=1)
    results = load_results(tmp_path)
    assert len(results.runs) == TRIALS
    assert set(results.runs["steps"]) == {STEPS}
    steps, runner = (sum(record[name] for record in results.records) for name in ("step_seconds", "total_seconds"))
    summary["ten_thousand_trials_overhead"] = (wall - runner) / steps
    peaks = results.runs["peak_memory"]
    summary["ten_thousand_trials_memory_growth"] = max(float(peaks.max() / peaks.min()), max(own) / own[0]) - 1


def test_dask_two_workers(benchmark, summary, tmp_path):
    """The quick suite, from the command to the page, on one Dask worker over the same on two."""

    def seconds(jobs: int) -> float:
        command = ["run", "--all", "--executor", "dask", "--jobs", str(jobs), "-o", str(tmp_path / str(jobs))]
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "bilevelbench", *command], check=True, capture_output=True)
        return time.perf_counter() - began

    two, one = benchmark.pedantic(lambda: (seconds(2), seconds(1)), rounds=1)
    assert len(load_results(tmp_path / "1").runs) == len(load_results(tmp_path / "2").runs) > 0
    summary["dask_two_workers_speedup"] = one / two
