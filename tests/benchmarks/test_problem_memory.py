"""The memory of the largest problems: what is measured and how it is told, on a small one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.loose_files import load_file
from bilevelbench.discovery.registry import registry
from bilevelbench.plan.spec_text import parse_spec

FILE = Path(__file__).parents[2] / "benchmarks" / "problem_memory.py"


@pytest.fixture(scope="module")
def program():
    return load_file(FILE)


@pytest.mark.whole
@pytest.mark.slow  # the table and its sentences are made from given numbers always
def test_a_process_for_each_problem_that_evaluates_phi_where_it_is_defined(program):
    convex = program.Peak.of("quadratic[dim_x=2,dim_y=2]")
    network = program.Peak.of("cleaning_cnn_digits[n_train=30,n_val=20,n_test=20]")
    assert (convex.why, network.why) == ("", "")
    assert (convex.phi, network.phi) == (True, False)
    for peak in (convex, network):
        assert 0.1 < peak.gigabytes < 2  # torch alone is more than 0.1
        assert peak.is_fine


@pytest.mark.whole
@pytest.mark.slow  # the table and its sentences are made from given numbers always
def test_a_large_matrix_is_seen(program):
    small, large = (program.Peak.of(f"quadratic[dim_x=2,dim_y={dim}]") for dim in (2, 2000))
    assert large.gigabytes - small.gigabytes > 2000**2 * 8 / 1e9


@pytest.mark.whole
def test_a_problem_that_cannot_be_built_says_why(program, monkeypatch, tmp_path):
    monkeypatch.setenv("BILEVELBENCH_DATA", str(tmp_path))
    monkeypatch.setenv("BILEVELBENCH_CACHE", str(tmp_path))
    peak = program.Peak.of("representation_omniglot")
    assert "omniglot" in peak.why
    assert not peak.is_fine


def test_the_table_and_what_is_too_much(program):
    peaks = [program.Peak("a", 1.234, True), program.Peak("b", 2.5, False), program.Peak("c", 0.0, False, "no data")]
    assert [peak.is_fine for peak in peaks] == [True, False, False]
    assert program.table(peaks).splitlines()[2:] == [
        "| `a` | 1.23 | yes |", "| `b` | 2.50 | no |", "| `c` | no data | – |"
    ]  # fmt: skip


def test_every_problem_exists(program):
    for text in program.FULL:
        (spec,) = parse_spec(text)
        make(registry().problem(spec.key), spec.params)
    assert {spec.name for text in program.FULL for spec in parse_spec(text)} >= {
        name for name, entry in registry().problems.items()
        if entry.value.data_files and not name.endswith("_agents") and name not in ("gpt2_cleaning", "ridge_abalone")
    }  # fmt: skip


def test_the_docs_have_its_table(program):
    docs = (FILE.parents[1] / "docs" / "problems.md").read_text(encoding="utf-8")
    for text in program.FULL:
        assert f"| `{text}` |" in docs
