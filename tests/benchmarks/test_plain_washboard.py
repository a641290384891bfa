"""The plain program for the condition number takes as many steps as the methods themselves do."""

from __future__ import annotations

from pathlib import Path

import pytest

from bilevelbench.discovery.loose_files import load_file
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.loop import run_pack
from bilevelbench.studies.rates.plan import plan_row
from bilevelbench.studies.rates.suite import RateSuite

FILE = Path(__file__).parents[2] / "benchmarks" / "washboard.py"
SUITE = RateSuite.load(registry().suite("rates_kappa"))


@pytest.fixture(scope="module")
def program():
    return load_file(FILE)


@pytest.fixture(scope="module")
def library(program, tmp_path_factory):
    return program.compiled(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    ("label", "eps", "times"),
    [
        ("aid (richardson), tuned", 0.9, {}),
        ("f2ba_plus, tuned", 0.9, {"K": 0.5}),
        ("f2ba, tuned", 0.9, {"K": 0.1}),
        ("acc_f2ba, tuned, no restarts", 0.7, {}),
    ],
)
def test_plain_program_takes_the_steps_of_the_method(program, library, label, eps, times):
    row = next(row for row in SUITE.row if row.label == label).model_copy(update={"at_eps": eps, "times": times})
    trials = [p.trial for p in plan_row(row, SUITE, registry(), grid=[8.0], factor=row.tuned_from)]
    found = [run["steps"] for run in run_pack(trials, registry()).runs]
    assert min(found) > 9
    plain = [program.plain(library, trial, eps)(trial.algorithm.params["eta_x"], 1000) for trial in trials]
    assert plain == found


def test_program_finds_the_longest_step_that_works(program):
    """Steps of one over the x-step, up to an x-step of 0.3."""

    def run(eta: float, most: int) -> int:
        steps = round(1000 / eta)
        return steps if eta <= 0.3 and steps <= most else 0

    eta, steps = program.best([run, run], 0.1, 10**6)
    assert 0.3 / 1.03 < eta <= 0.3
    assert steps == pytest.approx(1000 / eta, rel=1e-3)
