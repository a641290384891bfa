"""Every method and every problem that is installed keeps the rules of the kit, one test each.

A problem that is too large for the kit is checked with the parameters that its class names.
"""

from __future__ import annotations

import pytest
from helpers import assert_conforms

from bilevelbench.discovery.registry import registry

#: Problems that take minutes, for their size or because they read real data. The quick form of each is the other one.
QUICK_FORM = {
    "newsgroups": "newsgroups_synthetic",
    "label_cleaning_digits_agents": "label_cleaning_iris_agents",
    "logreg_digits_agents": "logreg_wine_agents",
}


#: Methods whose single steps make thousands of calls; tests/methods looks at each of these always.
LABORIOUS = ("f3bsa",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LABORIOUS else ()) for name in registry().algorithms]
)
def test_method(name: str) -> None:
    assert_conforms(registry().algorithms[name].value)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in QUICK_FORM else ()) for name in registry().problems],
)
def test_problem(name: str) -> None:
    problem = registry().problems[name].value
    if name in QUICK_FORM and problem.data_files and problem.data_files[0].locate() is None:
        pytest.skip(f"{problem.data_files[0].path} is not at hand: BILEVELBENCH_DATA names no folder that holds it")
    if name == "gpt2_cleaning":
        pytest.importorskip("transformers", reason="transformers is not installed (extra `llm`)")
    assert_conforms(problem)


def test_quick_forms_are_checked() -> None:
    assert {*QUICK_FORM, *QUICK_FORM.values()} <= registry().problems.keys()
    assert not QUICK_FORM.keys() & QUICK_FORM.values()
