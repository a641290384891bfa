"""`make bench` fails where a ratio got worse than the stored one: made-up numbers, no time is taken here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bilevelbench.discovery.loose_files import load_file


@pytest.fixture(scope="module")
def regressions():
    return load_file(Path(__file__).parents[2] / "benchmarks" / "regressions.py")


def verdict(regressions, name, stored, now):
    (row,) = regressions.compare({name: now}, {name: stored})
    return row.verdict


@pytest.mark.parametrize(
    ("name", "stored", "now", "expected"),
    [
        ("lanes36_soba", 2.0, 2.29, "as before"),
        ("lanes36_soba", 2.0, 2.31, "worse"),
        ("lanes36_soba", 2.0, 1.71, "as before"),
        ("lanes36_soba", 2.0, 1.69, "better"),
        ("dask_two_workers_speedup", 1.8, 1.5, "worse"),  # a speed-up is better when it is larger
        ("dask_two_workers_speedup", 1.8, 2.3, "better"),
        ("runner_share", 0.001, 0.1, "as before"),  # of a step that took 1.001, now 1.1
        ("runner_share", 0.001, 0.2, "worse"),
        ("ten_thousand_trials_memory_growth", 0.0, 0.05, "as before"),
        ("command_list_seconds", 0.5, 5.0, "not compared"),  # perhaps on another machine
        ("lanes36_soba", 2.0, float("nan"), "worse"),
        ("news_step_speedup", 8.0, 0.0, "worse"),
    ],
)
def test_a_ratio_is_worse_when_it_costs_fifteen_percent_more(regressions, name, stored, now, expected):
    assert verdict(regressions, name, stored, now) == expected


def test_a_ratio_without_its_like_fails_nothing(regressions):
    rows = regressions.compare({"a": 1.0, "new": 3.0}, {"a": 1.0, "gone": 2.0})
    assert {row.name: row.verdict for row in rows} == {"a": "as before", "gone": "not measured", "new": "new"}


def test_the_command_fails_and_names_what_got_worse(regressions, tmp_path, capsys):
    summary, kept = tmp_path / "summary.json", tmp_path / "stored.json"

    def run(*arguments):
        return regressions.main(list(arguments), summary, kept), capsys.readouterr()

    code, said = run()
    assert code == 1
    assert "has no ratios; measure them first: make bench" in said.err
    summary.write_text(json.dumps({"good": 1.0, "bad": 1.0}))
    assert run()[0] == 0  # nothing is stored yet
    assert run("--store")[0] == 0
    assert json.loads(kept.read_text()) == {"bad": 1.0, "good": 1.0}
    summary.write_text(json.dumps({"good": 1.1, "bad": 1.2}))
    code, said = run()
    assert code == 1
    assert "worse by more than 15%: bad;" in said.err
    assert "+10% as before" in said.out
    assert "+20% worse" in said.out
    assert run("--store")[0] == 0  # accepted
    assert run()[0] == 0


def test_what_was_not_measured_stays_stored(regressions, tmp_path):
    summary, kept = tmp_path / "summary.json", tmp_path / "stored.json"
    summary.write_text(json.dumps({"a": 2.0}))
    kept.write_text(json.dumps({"a": 1.0, "b": 5.0}))
    regressions.main(["--store"], summary, kept)
    assert json.loads(kept.read_text()) == {"a": 2.0, "b": 5.0}
