"""`check --deep`: torch counts what is computed with a problem's tensors past the oracle, and in its queries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers import cli
from torch import Tensor

from bilevelbench import Algorithm, Instance, Problem
from bilevelbench.discovery.registry import registry
from bilevelbench.testing.checks.third_count import _count, check_third_count, tensors_within
from bilevelbench.testing.kit import checks_for
from bilevelbench.testing.outcome import Failure
from bilevelbench.testing.stepper import EXACT, toys
from bilevelbench.testing.toys import ToyByAutograd

pytestmark = pytest.mark.whole

GALLERY = Path(__file__).parent / "gallery"
PAST = "nothing to be computed with the tensors of the problem past the oracle; saw"

#: file -> a part of what is said
SLY = {
    "keeps_two_books": rf"{PAST} .* on 'toy' \(mm \d+\)",
    "asks_uncounted": rf"{PAST} .* on 'toy' \(mm \d+\)",
    "opens_closure": rf"{PAST} .* on 'toy' \(mm \d+",
    "asks_in_thread": rf"{PAST} .* on 'toy' \(mm \d+",
    "copies_functions": rf"{PAST} .* on 'toy' \(clone \d+\)",
    "leaves_torch": rf"{PAST} .* on 'toy' \(.*numpy \d+",
    "uses_kept_graph": rf"{PAST} .* on 'toy_by_autograd' \(mm \d+",
    "works_in_query": r"at most 0 products of matrices in a call of grad_f; saw \d+ in \d calls up to step \d on 'toy'",
}


@pytest.mark.parametrize("name", SLY)
def test_whoever_computes_past_the_oracle_is_named(name):
    method = registry().algorithm(str(GALLERY / f"{name}.py")).value()
    with pytest.raises(Failure, match=SLY[name]):
        check_third_count(method)


@pytest.mark.parametrize("name", ["f2ba", "aid_lbfgs", "lancbio", "saba"])
def test_honest_methods_pass_on_toys(name):
    """One of first order, two with linear algebra of their own, one that asks for single data."""
    method = registry().algorithms[name].value()
    for problem in (*toys(method), *([ToyByAutograd()] if toys(method)[0] is EXACT else [])):
        _count(method, problem)


#: One or two of each family: all of them take many minutes.
SOME = ("acc_f2ba", "aid", "f2ba", "f2bsa", "hoag", "itd", "mrbo", "pzobo", "saba", "soba", "tpe")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SOME else pytest.mark.long)
        for name in registry().algorithms
    ],
)
def test_honest_methods_pass_on_every_problem(name):
    check_third_count(registry().algorithms[name].value())


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class Multiplies(Algorithm):
    """Linear algebra of its own, with answers that are the problem's own tensor, and with views of them."""

    name = "multiplies"
    uses = frozenset({"grad_f_y", "grad_g_y"})
    further: bool = False

    def init(self, x0, y0, oracle):
        return State(x0, y0)

    def step(self, s, oracle):
        f_y = oracle.grad_f_y(s.x, s.y)
        if self.further:  # the rest of the storage that the answer is a part of
            f_y = torch.as_strided(f_y, f_y.shape, f_y.stride(), f_y.storage_offset() + f_y.shape[-1])
        rank_one = f_y.unsqueeze(-1) @ f_y[..., :2].unsqueeze(-2)
        return State(s.x, s.y - 0.1 * oracle.grad_g_y(s.x, s.y) + 0 * rank_one.sum())


class Constant(Problem):
    """f is linear, and its gradient is a row of the data."""

    name = "constant"

    def build(self) -> Instance:
        rows = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
        return Instance(
            f=lambda x, y: (y * rows[0]).sum(-1, keepdim=True),
            g=lambda x, y: 0.5 * ((y - x) ** 2).sum(-1, keepdim=True),
            grad_f_y=lambda x, y: rows[0].expand_as(y),
            x0=torch.ones(1, 3, dtype=torch.float64),
            y0=torch.ones(1, 3, dtype=torch.float64),
        )


def test_an_answer_is_the_methods_even_if_it_is_a_part_of_the_problem():
    _count(Multiplies(), Constant())
    with pytest.raises(Failure, match="past the oracle; saw"):
        _count(Multiplies(further=True), Constant())


def test_tensors_are_found_behind_closures_and_not_behind_modules():
    instance = Constant().build()
    found = list(tensors_within(instance))
    assert any(tensor.shape == (4, 3) for tensor in found)
    assert not any(tensor is EVERYBODYS for tensor in found)


EVERYBODYS = torch.ones(2)


def test_it_is_a_check_if_it_is_asked_for():
    assert "third_count" not in {check.name for check in checks_for(Multiplies())}
    assert [check.name for check in checks_for(Multiplies(), deep=True)][-1] == "third_count"


@pytest.mark.slow  # a process, and all the other checks
def test_the_command():
    code, out, _ = cli("check", GALLERY / "asks_uncounted.py", "--deep")
    assert code == 1
    assert "FAIL   third_count: expected nothing to be computed with the tensors of the problem past the oracle" in out
