"""Which methods meet which problems: those that are named together always, others where they can."""

from __future__ import annotations

import pytest

from bilevelbench import FiniteSum
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import UnknownName
from bilevelbench.plan import pairing
from bilevelbench.plan.suite import AlgorithmEntry, ProblemEntry, Suite
from bilevelbench.plan.trial import Budget

SABA, F2BA, TPE = (AlgorithmEntry(name=name) for name in ("saba", "f2ba", "tpe"))
QUADRATIC, SUM = (ProblemEntry(name=name) for name in ("quadratic", "quadratic_sum"))


def pairs(**fields) -> set[tuple[str, str]]:
    suite = Suite(budget=Budget(steps=1), **fields)
    return {(t.algorithm.name, t.problem.name) for t in suite.trials(registry())}


def test_method_for_finite_sums_meets_those_of_all_problems_alone():
    found = {problem for _, problem in pairs(algorithm=(SABA,), problem="all")}
    assert "quadratic_sum" in found
    assert all(registry().problem(name).value.finite_sum for name in found)
    assert ("saba", "quadratic") not in pairs(algorithm="all", problem=(QUADRATIC,))
    assert ("saba", "quadratic_sum") in pairs(algorithm="all", problem=(SUM,))


def test_what_was_named_by_both_names_is_planned_whatever_it_needs(monkeypatch):
    monkeypatch.setattr(pairing, "find_spec", lambda module: None)
    named = Suite(budget=Budget(steps=1), algorithm=(SABA, TPE), problem=(QUADRATIC,))
    assert len(named.trials(registry())) == 2
    assert named.left_out(registry()) == {}


def test_method_whose_extra_is_not_installed_is_left_out_of_all(monkeypatch):
    assert ("tpe", "quadratic") in pairs(algorithm=(TPE,), problem="all")
    monkeypatch.setattr(pairing, "find_spec", lambda module: None)
    assert pairs(algorithm=(TPE,), problem="all") == set()


def test_methods_that_a_suite_leaves_out_of_all_are_told_and_run_where_they_are_named():
    short = Suite(budget=Budget(steps=1), without=("tpe",), problem=(QUADRATIC,))
    assert {t.algorithm.name for t in short.trials(registry())} == {a for a, _ in pairs(problem=(QUADRATIC,))} - {"tpe"}
    assert "tpe (is not in this suite: 1 problem)" in pairing.told(short.left_out(registry()))
    assert len(short.model_copy(update={"algorithm": (TPE,)}).trials(registry())) == 1
    with pytest.raises(UnknownName, match="unknown method 'tpee'; did you mean 'tpe'"):
        Suite(budget=Budget(steps=1), without=("tpee",)).trials(registry())


def test_what_is_left_out_is_said_once_with_its_reason():
    out = Suite(budget=Budget(steps=1), algorithm="all", problem=(QUADRATIC, SUM)).left_out(registry())
    assert out["needs a finite sum"]["saba"] == {"quadratic"}
    assert out["is run by agents"]["dist_f2ba"] == {"quadratic", "quadratic_sum"}
    assert "f2ba" not in set().union(*out.values())
    told = pairing.told(out)
    assert told.startswith("left out: ")
    assert "saba (needs a finite sum: 1 problem)" in told
    assert "dist_f2ba (is run by agents: 2 problems)" in told
    alone = Suite(budget=Budget(steps=1), algorithm=(F2BA,), problem="all")
    assert pairing.told(alone.left_out(registry())) == ""


@pytest.mark.parametrize("name", [name for name, entry in registry().problems.items() if entry.value.embedded])
def test_problem_is_a_finite_sum_if_and_only_if_it_says_so(name):
    cls = registry().problem(name)
    assert isinstance(make(cls, {}).build().noise, FiniteSum) == cls.value.finite_sum
