"""`check --deep`: torch counts what is computed with a problem's tensors past the oracle, and in its queries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers import cli
from torch import Tensor

from bilevelbench import Algorithm, Instance, Problem
from bilevelbench.cli.check import check_plugin
from bilevelbench.discovery.registry import registry
from bilevelbench.testing import run_checks
from bilevelbench.testing.checks.third_count import _count, check_third_count, tensors_within
from bilevelbench.testing.outcome import Failure
from bilevelbench.testing.stepper import toys

GALLERY = Path(__file__).parent / "gallery"
PAST = "nothing to be computed with the tensors of the problem past the oracle; saw"

#: file -> a part of what is said
SLY = {
    "keeps_two_books": rf"{PAST} 300 operations on them up to step 3 on 'toy' \(mm 120",
    "asks_uncounted": rf"{PAST} .* step 3 on 'toy' \(mm 6",
    "opens_closure": rf"{PAST} .* step 3 on 'toy' \(mm 6",
    "asks_in_thread": rf"{PAST} .* step 3 on 'toy' \(mm 6",
    "copies_functions": rf"{PAST} 6 operations on them up to step 3 on 'toy' \(clone 6\)",
    "leaves_torch": rf"{PAST} 6 operations on them up to step 3 on 'toy' \(numpy 6\)",
    "uses_kept_graph": PAST,
    "works_in_query": "at most 0 products of matrices in a call of grad_f; saw 120 in 3 calls up to step 3 on 'toy'",
}


@pytest.mark.parametrize("name", SLY)
def test_whoever_computes_past_the_oracle_is_named(name):
    method = registry().algorithm(str(GALLERY / f"{name}.py")).value()
    with pytest.raises(Failure, match=SLY[name]):
        check_third_count(method)


@pytest.mark.parametrize("name", registry().algorithms)
def test_honest_methods_pass_on_toys(name):
    method = registry().algorithms[name].value()
    for problem in toys(method):
        _count(method, problem)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry().algorithms)
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


def test_deep_is_asked_for(monkeypatch):
    assert "third_count" not in {outcome.check for outcome in run_checks(Multiplies())}


@pytest.mark.whole
def test_the_command(tmp_path):
    file = GALLERY / "asks_uncounted.py"
    assert "third_count" not in {outcome.check for outcome in check_plugin(str(file))}
    code, out, _ = cli("check", file, "--deep")
    assert code == 1
    assert "FAIL   third_count: expected nothing to be computed with the tensors of the problem past the oracle" in out
