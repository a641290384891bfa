"""Whatever is written as a selection or as a suite, it is planned or refused with a sentence."""

from __future__ import annotations

import pytest
from fuzzing import EXAMPLES, mutated_text, mutated_toml, survives
from hypothesis import strategies as st

from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.suite import load_suites
from bilevelbench.plan.trial import Budget, Spec
from bilevelbench.plan.trials import make_trial

pytestmark = pytest.mark.whole  # many inputs

SELECTIONS = ("f2ba[K=3,lam=10,100]", "quadratic[dim_x=5,data_seed=0,1]", "aid", "f2ba[lam=1e3]", "x.py:Class[a='b']")
SUITE = """
title = "small"
seeds = 2
targets = [0.1, 0.01]
[[algorithm]]
name = "f2ba"
params = { K = [1, 2], lam = 10.0 }
problems = ["quadratic"]
[[problem]]
name = "quadratic"
params = { dim_x = 3 }
budget = { steps = 3 }
[budget]
cost = 300
[schedule]
ratio = 1.5
[tune]
search = "halving"
cost = 1000
[figure]
name = "one"
title = "One"
claim = "It falls."
panel = [{ y = "phi", line = { label = "here", value = 1.0 } }]
check = [{ rule = "falls", claim = "phi falls", columns = ["phi"], factor = 10 }]
"""
COLLECTION = 'include = ["smoke", "./suite.toml"]\n'


def plan(text):
    for spec in parse_spec(text)[:3]:
        for pair in ((spec, Spec(name="quadratic")), (Spec(name="f2ba"), spec)):
            make_trial(registry(), *pair, budget=Budget(steps=1)).id  # noqa: B018


@EXAMPLES
def test_selections(examples):
    anything = st.text() | st.text("f2ba[]=,{}\"' \t\n-+.e0123456789", max_size=60) | mutated_text(*SELECTIONS)
    survives(examples, anything, plan)


@EXAMPLES
def test_suites(examples, tmp_path):
    def load(text):
        (tmp_path / "suite.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
        for suite in load_suites(tmp_path / "suite.toml", registry()):
            if suite.algorithm != "all" and suite.problem != "all":  # the others are many trials of the same kind
                suite.trials(registry())

    survives(examples, mutated_toml(SUITE) | mutated_text(COLLECTION), load)


@pytest.mark.parametrize("spaces", [10, 100_000])
def test_long_white_space_takes_no_longer(spaces):
    assert parse_spec(" " * spaces + "f2ba" + " " * spaces)[0].name == "f2ba"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("data_seeds = 1000000000", "data_seeds = 1000000000: input should be less than or equal to 1000000"),
        ("seeds = [9223372036854775808]", "input should be less than 9223372036854775808"),
        (f'algorithm = [{{ name = "f2ba", label = "{"x" * 201}" }}]', "should have at most 200 characters"),
    ],
    ids=["data sets", "seed", "label"],
)
def test_what_no_table_can_hold_is_refused_before_anything_runs(more, words, tmp_path):
    (tmp_path / "suite.toml").write_text(f"{more}\n[budget]\nsteps = 1\n")
    with pytest.raises(InvalidInput, match=words):
        load_suites(tmp_path / "suite.toml", registry())
