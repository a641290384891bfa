"""A trial's numbers do not depend on how it was run: here, in workers, on a cluster, with one thread or with two."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from helpers import assert_same

from bilevelbench.discovery.registry import registry
from bilevelbench.results.schema import Results
from bilevelbench.results.tables import load_results

pytestmark = pytest.mark.whole

METHODS = ("f2ba", "aid", "f2sa[batch=4]", "pzobo[Q=2]")  # penalty, implicit, stochastic, zeroth order
WAYS = {
    "here, two threads": ("2", ()),
    "one worker": ("2", ("--jobs", "1")),
    "two workers": ("1", ("--jobs", "2")),
    "dask": ("2", ("--jobs", "2", "--executor", "dask")),
}
QUICK = ("quadratic", "logreg_breast_cancer")  # an exact problem and a finite sum


def embedded() -> list[str]:
    return sorted(name for name, entry in registry().problems.items() if entry.value.embedded)


def run(folder, threads: str, *options: str, problems: Sequence[str] | None = None) -> Results:
    problems = embedded() if problems is None else problems
    chosen = [part for m in METHODS for part in ("-a", m)] + [part for p in problems for part in ("-p", p)]
    command = [sys.executable, "-m", "bilevelbench", "run", *chosen, "--steps", "4", "-o", str(folder), *options]
    env = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return load_results(folder)


def in_order(results: Results) -> Results:
    runs = results.runs.sort_values("trial_id", ignore_index=True)
    return Results(runs, results.curve.sort_values(["trial_id", "step"], ignore_index=True), [])


@pytest.fixture(scope="module")
def here_with_one_thread(tmp_path_factory) -> Results:
    return in_order(run(tmp_path_factory.mktemp("here"), "1", "--jobs", "0"))


@pytest.mark.slow  # tests/oracle/test_noise_statistics.py compares numbers of workers too
def test_two_workers_give_the_tables_of_one_process_with_two_threads(tmp_path):
    """The quick form of what follows."""
    ways = {name: WAYS[name] for name in ("here, two threads", "two workers")}
    here, workers = (
        in_order(run(tmp_path / name, threads, *(options or ("--jobs", "0")), problems=QUICK))
        for name, (threads, options) in ways.items()
    )
    assert set(here.runs.status) == {"budget"}
    assert_same(here, workers)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_running_gives_the_same_tables(here_with_one_thread, way, tmp_path):
    threads, options = WAYS[way]
    assert_same(in_order(run(tmp_path, threads, *(options or ("--jobs", "0")))), here_with_one_thread)


@pytest.mark.slow
def test_these_trials_take_steps_on_every_embedded_problem(here_with_one_thread):
    runs = here_with_one_thread.runs
    assert set(runs.problem) == set(embedded())
    assert len(runs) == len(METHODS) * len(embedded())
    away = (runs.algorithm == "aid") & (runs.problem == "convex_toy")  # it divides by the lower level's curvature, zero
    assert set(runs.status[~away]) <= {"budget"}, runs[["algorithm", "problem", "status", "message"]].to_string()
