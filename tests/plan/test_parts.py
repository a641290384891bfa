"""Parts of a plan for several machines: disjoint, together all, and joined by `merge` they are the whole run."""

from __future__ import annotations

import pandas as pd
import pytest
from helpers import cli, trial

from bilevelbench import InvalidInput
from bilevelbench.discovery.registry import registry
from bilevelbench.plan.packs import part_of, plan
from bilevelbench.results.schema import VOLATILE
from bilevelbench.results.tables import load_results

TRIALS = [
    trial(method, problem, steps=2, seed=seed)
    for method in ("f2ba", "aid", "soba")
    for problem in ("quadratic", "logcosh")
    for seed in range(2)
]


@pytest.mark.parametrize("parts", [1, 2, 4, 6])
def test_parts_are_disjoint_and_together_all(parts):
    found = [part_of(TRIALS, registry(), f"{k}/{parts}") for k in range(1, parts + 1)]
    ids = [t.id for part in found for t in part]
    assert sorted(ids) == sorted(t.id for t in TRIALS)
    whole = {frozenset(t.id for t in pack) for pack in plan(TRIALS, registry())}
    assert {frozenset(t.id for t in pack) for part in found for pack in plan(part, registry())} == whole


@pytest.mark.parametrize("part", ["0/3", "4/3", "2", "1/0", "a/b", "-1/3", "1/2/3", ""])
def test_what_is_no_part_is_a_sentence(part):
    with pytest.raises(InvalidInput, match=r"write k/n with k from 1 to n, such as 2/5"):
        part_of(TRIALS, registry(), part)


def test_a_part_without_trials_is_a_sentence():
    with pytest.raises(
        InvalidInput, match=r"part = '7/7' is empty: the trials are 6 packs; take as many parts at most"
    ):
        part_of(TRIALS, registry(), "7/7")


@pytest.mark.whole
def test_merged_parts_are_the_whole_run(tmp_path):
    asked = ["run", "-a", "f2ba", "-a", "aid", "-p", "quadratic", "-p", "logcosh", "--steps", 3, "--jobs", 0]
    for k in (1, 2):
        code, out, err = cli(*asked, "--part", f"{k}/2", "-o", tmp_path / f"part{k}")
        assert code == 0, err
        assert out.startswith("2 trials; 2 to run")
    assert cli(*asked, "-o", tmp_path / "whole")[0] == 0
    assert cli("merge", tmp_path / "part1", tmp_path / "part2", "-o", tmp_path / "joined")[0] == 0
    joined, whole = (
        load_results(tmp_path / name).runs.drop(columns=list(VOLATILE)).sort_values("trial_id", ignore_index=True)
        for name in ("joined", "whole")
    )
    pd.testing.assert_frame_equal(joined, whole)
