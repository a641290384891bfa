"""The kit on plugins that keep the rules, its known exceptions, and its two faces: pytest and a list."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
import torch
from helpers import Bowl, Shrink

from bilevelbench import InvalidInput, KnownFailure
from bilevelbench.cli.check import as_text, check_plugin, counted
from bilevelbench.discovery.registry import registry
from bilevelbench.testing import Outcome, checks_for, parametrize_with_checks, run_checks
from bilevelbench.testing.checks.constants import _lanczos
from bilevelbench.testing.stepper import EXACT, NOISY, SUM, toys
from bilevelbench.testing.toys import Toy, ToySum


def made(name, **params):
    tables = registry().algorithms | registry().problems
    return tables[name].value(**params)


@parametrize_with_checks([made("aid", solver="richardson"), made("tail_anchor", c=0.5)])
def test_as_tests_of_pytest(plugin, check):
    check(plugin)


@parametrize_with_checks([Toy(), Toy(sigma=0.3), ToySum()])
def test_toys(plugin, check):
    """What methods are tried on keeps the rules itself, with every constant as declared."""
    check(plugin)


def status(plugin, name):
    return {o.check: o for o in run_checks(plugin)}[name]


class Steep(Bowl):
    """f(x, y) = 1/2 ‖y‖² is not Lipschitz in y."""

    name = "steep"

    known_exceptions: ClassVar = {"constants": KnownFailure(reason="for this test", says="known names of constants")}

    def build(self):
        instance = super().build()
        instance.constants.given["mu_g"] = instance.constants.given["mu"]
        return instance


class Innocent(Bowl):
    """Nothing is wrong with it."""

    name = "innocent"
    known_exceptions: ClassVar = {"constants": KnownFailure(reason="there was one", says="known names")}


class Misspelt(Bowl):
    """There is no such check."""

    name = "misspelt"
    known_exceptions: ClassVar = {"constant": KnownFailure(reason="for this test", says="known names")}


class Worse(Steep):
    """It fails the same check for another reason."""

    name = "worse"
    known_exceptions: ClassVar = {"constants": KnownFailure(reason="for this test", says="mu of another kind")}


class Crashes(Steep):
    """The check does not come to its verdict."""

    name = "crashes"

    def build(self):
        raise ZeroDivisionError("too early")


def test_known_exceptions():
    known = status(Steep, "constants")
    assert known.status == "known"
    assert known.message.startswith("for this test (expected known names of constants; saw 'mu_g'")
    other = status(Worse, "constants")
    assert other.status == "failed"
    assert other.message.startswith("expected known names of constants; saw 'mu_g'")
    assert other.message.endswith("; it is not the known failure, which says 'mu of another kind'")
    (crashed,) = (check(Crashes()) for check in checks_for(Crashes()) if check.name == "constants")
    assert crashed.status == "failed"
    assert "ZeroDivisionError: too early" in crashed.message
    stale = status(Innocent, "constants")
    assert stale.status == "failed"
    assert "take it off the list" in stale.message
    wrong = status(Misspelt, "name")
    assert wrong.status == "failed"
    assert "'constant'; correct it; did you mean 'constants'?" in wrong.message


@pytest.mark.parametrize(
    "failure", ["a reason alone", KnownFailure(reason="", says="mu_g"), KnownFailure(reason="so", says=" ")], ids=repr
)
def test_known_exception_without_a_reason_or_without_words_is_refused(failure):
    class Vague(Steep):
        """It says too little."""

        name = "vague"
        known_exceptions: ClassVar = {"constants": failure}

    (got,) = (check(Vague()) for check in checks_for(Vague()) if check.name == "name")
    assert got.status == "failed"
    assert got.message.startswith(
        "expected a KnownFailure with a reason and words of the failure for the known exception"
    )


def test_every_check_has_a_name_and_a_sentence():
    for plugin in (Shrink(), Bowl()):
        checks = checks_for(plugin)
        assert len({check.name for check in checks}) == len(checks)
        assert all(check.what.rstrip().endswith(".") for check in checks)


def test_lanczos_finds_the_ends():
    """On 80 dimensions, 30 steps come close to both ends and never pass them."""
    eigenvalues = torch.cat([torch.tensor([0.1]), torch.linspace(1, 2, 78), torch.tensor([5.0])]).double()
    start = torch.randn(2, 80, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = torch.linalg.eigvalsh(_lanczos(lambda v: v * eigenvalues, start, 30))
    assert found.min() >= eigenvalues.min() - 1e-12
    assert found.max() <= eigenvalues.max() + 1e-12
    torch.testing.assert_close(found[:, 0], torch.full((2,), 0.1, dtype=torch.float64), atol=1e-3, rtol=0)
    torch.testing.assert_close(found[:, -1], torch.full((2,), 5.0, dtype=torch.float64), atol=1e-6, rtol=0)


def test_lanczos_stops_when_there_is_nothing_more():
    start = torch.ones(1, 4, dtype=torch.float64)
    assert torch.linalg.eigvalsh(_lanczos(lambda v: 3 * v, start, 10)).tolist() == [[pytest.approx(3)]]


@pytest.mark.whole
def test_check_by_name_in_a_worker():
    found = check_plugin("quadratic[dim_x=2,dim_y=3,sigma_g=0.5]")
    assert {o.plugin for o in found} == {"quadratic[dim_x=2,dim_y=3,sigma_g=0.5]"}
    assert {o.check for o in found} == {check.name for check in checks_for(made("quadratic"))}
    assert not [o.message for o in found if o.status == "failed"]
    assert json.loads(json.dumps([o.as_dict() for o in found]))[0]["check"] == "name"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nowhere.py", {}, "file 'nowhere.py' does not exist"),
        ("f2ba[K=1,2]", {}, "names 2 sets of parameters"),
        ("f2ba", {"seconds": 0}, "--seconds 0: a limit is a number above 0"),
        ("f2ba", {"memory": float("nan")}, "--memory nan: a limit is a number above 0"),
    ],
)
def test_mistakes_of_the_caller(name, options, words):
    with pytest.raises(InvalidInput, match=words.replace("[", r"\[")):
        check_plugin(name, **options)


@pytest.mark.whole
def test_an_unknown_name_has_a_suggestion():
    with pytest.raises(InvalidInput, match="unknown method or problem 'f2baa'; did you mean 'f2ba'"):
        check_plugin("f2baa")


def test_text():
    outcomes = [
        Outcome("m", "method", "name", "passed"),
        Outcome("m", "method", "runs", "failed", "expected this; saw that; fix it"),
        Outcome("m", "method", "calls", "skipped", "None"),
    ]
    assert as_text(outcomes).splitlines() == [
        "m (method)",
        "  ok     name",
        "  FAIL   runs: expected this; saw that; fix it",
        "  skip   calls: None",
    ]
    assert counted(outcomes) == "1 passed, 1 failed, 1 skipped"


class Large(Bowl):
    """Too large to be checked as it is."""

    name = "large"
    checked_with: ClassVar = {"data_seed": 3}


def test_a_class_is_checked_with_the_parameters_that_it_names_and_an_object_as_it_is():
    assert {o.plugin for o in run_checks(Large)} == {"large[data_seed=3]"}
    assert {o.plugin for o in run_checks(Large())} == {"large"}


class Blocks(Shrink):
    """x <- x - rate (x + g_x) over a block of the rows of g: there have to be rows."""

    name = "blocks"
    uses = frozenset({"grad_g_x"})

    def step(self, s, oracle):
        g_x = oracle.grad_g_x(s.x, s.y, oracle.sample_g(32, order="block"))
        return type(s)(s.x - self.rate * (s.x + g_x), s.y, s.k + 1)

    def calls(self, step):
        return {"grad_g_x": 1}


def test_a_method_for_finite_sums_gets_one():
    assert toys(Blocks()) == (SUM, SUM)
    assert toys(Shrink()) == (EXACT, NOISY)
    found = {outcome.check: outcome for outcome in run_checks(Blocks)}
    assert not [o.message for o in found.values() if o.status == "failed" and o.check != "documented"]
    assert found["lanes"].status == found["calls"].status == "passed"
