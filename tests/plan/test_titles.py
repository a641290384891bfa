"""A problem is called the same wherever it is named, and the name can be typed again."""

from __future__ import annotations

import json

import pytest

from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.suite import AlgorithmEntry
from bilevelbench.plan.trial import Spec
from bilevelbench.report.analysis.summary import variant

PARAMS = [
    {},
    {"data_seed": 3},
    {"sigma": 1e-5, "dim_x": 5, "data_seed": 1},
    {"tall": True, "file": None, "kind": "hard"},
]


@pytest.mark.parametrize("params", PARAMS)
def test_tables_and_specs_have_one_title(params):
    spec = Spec(name="quadratic", params=params)
    assert (
        str(spec.variant)
        == "quadratic" + variant(json.dumps(params))
        == "quadratic" + variant(json.dumps(params, sort_keys=True))
    )
    assert parse_spec(str(spec.variant)) == [spec.variant]
    assert "data_seed" not in str(spec.variant)


def test_a_spec_as_text_keeps_its_order_and_a_title_has_that_of_the_names():
    spec = Spec(name="f2ba", params={"lam": 10, "K": 3, "fast": True})
    assert str(spec) == "f2ba[lam=10,K=3,fast=true]"
    assert str(spec.variant) == "f2ba[K=3,fast=true,lam=10]"


def test_a_method_runs_on_the_problems_that_it_names_in_any_order():
    entry = AlgorithmEntry(name="f2ba", problems=("a[q=2,p=1]", "b", "c[p=1,2]"))
    runs = {
        str(spec): entry.runs_on(spec)
        for text in ("a[p=1,q=2]", "a[q=2,p=1,data_seed=4]", "a[p=1]", "b[p=9]", "c[p=2]", "c[p=3]", "d")
        for spec in parse_spec(text)
    }
    assert [text for text, does in runs.items() if not does] == ["a[p=1]", "c[p=3]", "d"]
