"""Long packs are cut where workers would have nothing to do: which trials there are, and their numbers, stay the same."""

from __future__ import annotations

import pytest
from helpers import assert_same, trial

from bilevelbench.discovery.registry import registry
from bilevelbench.execute.executor import Execution, packs_of
from bilevelbench.execute.run import run_trials
from bilevelbench.model.lanes import PAD
from bilevelbench.plan.packs import plan, spread
from bilevelbench.plan.trial import CALLS_OF_A_STEP, SHORT
from bilevelbench.results.store import Store

LONG = SHORT // CALLS_OF_A_STEP + 1  # steps


SMALL, LARGE = "quadratic_sum[dim_x=3,dim_y=2,n=16,m=16]", "logreg_digits"  # blocks of 16 and of 4 lanes


def seeds(count, method="soba", problem=SMALL, steps=LONG, **rest):
    return [trial(method, problem, steps=steps, seed=seed, **rest) for seed in range(count)]


def widths(trials, workers):
    return [len(pack) for pack in spread(plan(trials, registry()), workers, registry())]


@pytest.mark.parametrize(
    ("problem", "lanes", "workers", "expected"),
    [
        (LARGE, 12, 1, [12]),
        (LARGE, 12, 2, [4, 8]),
        (LARGE, 12, 3, [4, 4, 4]),
        (LARGE, 12, 9, [4, 4, 4]),
        (LARGE, 6, 2, [4, 2]),
        (LARGE, 4, 2, [4]),
        (LARGE, 1, 2, [1]),
        (LARGE, 37, 4, [8, 12, 8, 9]),
        (SMALL, 12, 2, [12]),
        (SMALL, 36, 2, [16, 20]),
        (SMALL, 300, 4, [80, 80, 96, 44]),  # at most 256, so that there are two at first
        ("logreg_covtype", 3, 9, [1, 1, 1]),
    ],
)
def test_a_long_pack_is_cut_between_blocks_of_lanes(problem, lanes, workers, expected):
    assert widths(seeds(lanes, problem=problem), workers) == expected


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("lanes", [1, 5, 12, 31, 64])
def test_every_trial_is_there_once_in_its_place_and_no_lane_is_added(lanes, workers):
    trials = seeds(lanes, problem=LARGE)
    whole, cut = plan(trials, registry()), spread(plan(trials, registry()), workers, registry())
    assert [t.id for pack in cut for t in pack] == [t.id for pack in whole for t in pack]
    assert sum(-(-len(pack) // PAD) for pack in cut) == sum(-(-len(pack) // PAD) for pack in whole)
    assert len(cut) == max(len(whole), min(workers, -(-lanes // PAD)))


def test_as_many_packs_as_workers_stay_whole():
    trials = seeds(12, problem=LARGE) + seeds(8, "aid", LARGE)
    assert widths(trials, 2) == [12, 8]
    assert widths(trials, 3) == [4, 8, 8]
    assert widths([], 2) == []


def test_short_packs_and_packs_that_may_be_compiled_stay_whole():
    assert widths(seeds(12, problem=LARGE, steps=LONG - 1), 2) == [12]
    assert widths(seeds(12, problem=LARGE, compile="auto"), 2) == [12]
    assert widths(seeds(12, problem=LARGE, compile="always"), 2) == [12]


def test_nothing_is_cut_for_one_worker_or_a_clock():
    trials = seeds(12, problem=LARGE)
    for options, packs in (
        ({"jobs": 0}, [12]),
        ({"jobs": 1}, [12]),
        ({"jobs": 2}, [4, 8]),
        ({"jobs": 2, "timed": True}, [1] * 12),
        ({"executor": "dask", "jobs": 2}, [4, 8]),
        ({"executor": "dask", "scheduler": "tcp://here:1"}, [12]),
    ):
        assert [len(pack) for pack in packs_of(trials, Execution(**options).open(registry()))] == packs


@pytest.mark.whole
def test_a_cut_pack_gives_the_tables_of_a_whole_one_and_is_resumed_as_any(tmp_path):
    trials, known = seeds(32), registry()
    whole = run_trials(trials, Store(tmp_path / "whole"), known, Execution(jobs=0))
    assert set(whole.runs.pack_lanes) == {32.0}
    run_trials(trials[:5], Store(tmp_path / "cut"), known, Execution(jobs=0))
    cut = run_trials(trials, Store(tmp_path / "cut"), known, Execution(jobs=2))
    assert sorted(set(cut.runs.pack_lanes)) == [5.0, 11.0, 16.0]  # the 27 that were missing, in two packs
    assert_same(cut, whole)
