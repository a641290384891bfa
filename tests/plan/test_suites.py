"""The suites that come with the package: every name in them is known, options win over them, and the smallest one runs."""

from __future__ import annotations

import pytest
from helpers import alone

from bilevelbench.cli.options import override, suites_of, without_phi
from bilevelbench.discovery.registry import registry
from bilevelbench.plan.suite import ProblemEntry, Suite, load_suites
from bilevelbench.plan.trial import Budget, Trial

NOTHING = dict.fromkeys(("seeds", "budget", "steps", "seconds", "target", "dtype"))


def trials(name: str) -> list[Trial]:
    return [trial for suite in load_suites(registry().suite(name), registry()) for trial in suite.trials(registry())]


def problems(name: str) -> set[str]:
    return {trial.problem.name for trial in trials(name)}


EMBEDDED = {name for name, entry in registry().problems.items() if entry.value.embedded}


def test_run_all_is_every_method_on_every_embedded_problem_once() -> None:
    pairs = [(trial.algorithm.name, trial.problem.name) for trial in trials("quick")]
    assert len(pairs) == len(set(pairs))
    assert {problem for _, problem in pairs} == EMBEDDED
    shared = {trial.algorithm.name for trial in trials("quick")}
    assert {name for name in registry().algorithms if not name.startswith("dist_")} == shared


def test_each_suite_holds_the_one_before() -> None:
    standard = problems("standard")
    assert problems("smoke") <= EMBEDDED
    assert standard > EMBEDDED | {"logreg_digits", "label_cleaning_digits", "cleaning_cnn_digits"}
    assert problems("full") > standard | {"cleaning_mnist", "logreg_covtype", "newsgroups"}
    for name in standard:
        assert all(file.bundled for file in registry().problem(name).value.data_files), f"{name} needs a download"


def test_smoke_runs() -> None:
    """Its quick form: two steps each."""
    (plan,) = suites_of(registry(), [], [], False, "smoke")
    short = override(plan, **NOTHING | {"steps": 2}).trials(registry())
    runs = alone(short).runs
    assert len(runs) == 24
    assert set(runs["status"]) == {"budget"}
    assert (runs["steps"] == 2).all()


def test_a_plugin_is_tried_on_the_problems_of_smoke() -> None:
    (plan,) = suites_of(registry(), ["ttsa"], [], False, "smoke")
    assert {trial.algorithm.name for trial in plan.trials(registry())} == {"ttsa"}
    assert len(plan.trials(registry())) == 4


ALL = Suite(
    budget=Budget(cost=10),
    override=(ProblemEntry(name="quadratic", budget=Budget(cost=20), targets=(0.5,)),),
    also=(ProblemEntry(name="saddle_chain", budget=Budget(cost=30), targets=(0.25,)),),
)


def test_also_stands_beside_all() -> None:
    found = {spec.name: entry for spec, entry in ALL.problems(registry())}
    assert found.keys() == EMBEDDED | {"saddle_chain"}
    assert found["saddle_chain"].budget == Budget(cost=30)
    assert found["quadratic"].budget == Budget(cost=20)
    assert found["logcosh"].budget is None


@pytest.mark.parametrize("given", [{"steps": 3}, {"budget": 7.0}, {"seconds": 1.0}], ids=str)
def test_a_limit_wins_over_what_a_suite_says_of_single_problems(given) -> None:
    budgets = {str(entry.budget) for _, entry in override(ALL, **NOTHING | given).problems(registry())}
    assert budgets == {"None"}


def test_a_target_wins_over_what_a_suite_says_of_single_problems() -> None:
    plan = override(ALL, **NOTHING | {"target": [0.125]})
    assert plan.targets == (0.125,)
    assert {entry.targets for _, entry in plan.problems(registry())} == {None}
    assert {entry.targets for _, entry in without_phi(ALL, []).problems(registry())} == {None}
