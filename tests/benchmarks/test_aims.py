"""The table of aims: made-up numbers, no time is taken here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bilevelbench.discovery.loose_files import load_file

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def aims(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return load_file(FOLDER / "aims.py")


@pytest.mark.parametrize(
    ("bound", "values", "expected"),
    [
        ({"most": 1.0}, {"a": 1.0, "b": 0.5}, "yes"),
        ({"most": 1.0}, {"a": 1.01, "b": 0.5}, "1 of 2"),
        ({"most": 1.0}, {"a": 1.01, "b": 2.0}, "no"),
        ({"least": 10.0}, {"a": 9.9, "b": 9.8}, "no"),
        ({"least": 10.0}, {"a": 10.0, "b": 11.0}, "yes"),
        ({"most": 1.0}, {"a": 0.5}, "1 of 1, the rest not measured"),
        ({"most": 1.0}, {"a": float("nan"), "b": 0.5}, "1 of 2"),
        ({"most": 1.0}, {}, "not measured"),
    ],
)
def test_whether_an_aim_is_met(aims, bound, values, expected):
    assert aims.Aim("some", ("a", "b"), **bound).is_met(values) == expected


def test_the_table_has_every_aim_with_what_was_measured(aims):
    lines = aims.table({"benchopt_ratio": 0.4}, {"benchopt_ratio": 0.61}).splitlines()
    assert len(lines) == 2 + len(aims.AIMS)
    assert "| 12 trials x 20,480 steps over `benchopt run` | <= 0.5 | 0.61 | 0.4 | yes |" in lines


def test_every_number_of_an_aim_is_written_by_a_benchmark(aims):
    """By what its name begins with: the rest is made of the cases."""
    written = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("test_*.py"))
    kinds = {name.split("_")[0] for aim in aims.AIMS for name in aim.names}
    assert {kind for kind in kinds if f'"{kind}_' not in written and f'f"{kind}_' not in written} == set()
