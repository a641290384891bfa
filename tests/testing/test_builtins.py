"""Every method and every problem that is installed keeps the rules of the kit, one test each.

A problem that is too large for the kit is checked with the parameters that its class names.
"""

from __future__ import annotations

import os

import pytest
from helpers import assert_conforms

from bilevelbench.discovery.registry import registry

#: Problems that read real data: minutes, and only where the data are. The quick form of each is the other one.
QUICK_FORM = {"newsgroups": "newsgroups_synthetic"}


@pytest.mark.parametrize("name", registry().algorithms)
def test_method(name: str) -> None:
    assert_conforms(registry().algorithms[name].value)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in QUICK_FORM else ()) for name in registry().problems],
)
def test_problem(name: str) -> None:
    if name in QUICK_FORM and not os.environ.get("BILEVELBENCH_DATA"):
        pytest.skip(f"BILEVELBENCH_DATA is not set: {name} needs its data")
    assert_conforms(registry().problems[name].value)


def test_quick_forms_are_checked() -> None:
    assert {*QUICK_FORM, *QUICK_FORM.values()} <= registry().problems.keys()
    assert not QUICK_FORM.keys() & QUICK_FORM.values()
