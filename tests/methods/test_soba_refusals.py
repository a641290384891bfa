"""What SOBA and its relatives refuse, in sentences."""

from __future__ import annotations

import pytest
import torch
from bilevelbench_methods.implicit.saba import SABA
from helpers import alone, plugins, trial
from plain_problems import Wavy

from bilevelbench import Algorithm, FiniteSum, Instance, InvalidInput, Problem, dot
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.plan.spec_text import parse_spec


def method(text: str) -> Algorithm:
    (spec,) = parse_spec(text)
    return make(registry().algorithm(spec.name), spec.params)


def message(text, problem, among=None):
    (row,) = alone([trial(text, problem, steps=1, among=among or registry())], among).runs.to_dict("records")
    assert row["status"] == "error"
    return row["message"]


@pytest.mark.parametrize("name", ["saba", "srba"])
@pytest.mark.parametrize("problem", ["quadratic", "quadratic[sigma_g=0.1]"])
def test_no_finite_sum_is_a_sentence(name, problem):
    assert (
        f"{name} needs a finite sum, and problem 'quadratic' is none (its noise is no FiniteSum); take a method that asks for "
        "samples alone, such as soba or spaba" in message(name, problem)
    )


class OnePerDatum(Problem):
    """x has a weight for each of the n data: g = mean_i 1/2 (1 + x_i²) (y - c_i)²."""

    name = "one_per_datum"
    n: int = 2100

    def build(self) -> Instance:
        c = torch.arange(self.n) / self.n

        def g(x, y, rows=None):
            if rows is None:
                return (0.5 * (1 + x * x) * (y - c).square()).mean(-1, keepdim=True)
            return (rows.weight * 0.5 * (1 + x.gather(-1, rows.index) ** 2) * (y - c[rows.index]).square()).sum(
                -1, keepdim=True
            )

        def f(x, y, rows=None):
            weight = 1.0 if rows is None else rows.weight.sum(-1, keepdim=True)
            return weight * 0.5 * (dot(y, y) + dot(x, x) / self.n)

        constants = {"mu": 1.0, "L_gy": 2.0, "L_phi": 1.0}
        zero = torch.zeros(1, self.n), torch.zeros(1, 1)
        return Instance(f=f, g=g, x0=zero[0], y0=zero[1], constants=constants, noise=FiniteSum(3, self.n))


def test_tables_of_a_weight_for_each_datum_are_a_sentence_and_larger_blocks_a_way_out():
    among = plugins(OnePerDatum)
    said = message("saba[batch=1]", "one_per_datum", among)
    assert said.startswith("in `init`: a table of 2,100 blocks times 2,100 numbers would keep 4,410,000 of them")
    assert "draw larger batches" in said
    found = alone([trial("saba[batch=64]", "one_per_datum", steps=1, among=among)], among)
    assert found.runs.status.iloc[0] == "budget"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("srba[period=0]", "period = 0: input should be greater than 0"),
        ("srba[radius=0]", "radius = 0: input should be greater than 0"),
        ("spaba[p=0]", "p = 0: input should be greater than 0"),
        ("spaba[p=1.5]", "p = 1.5: input should be less than or equal to 1"),
        ("saba[batch=0]", "batch = 0: input should be greater than 0"),
        ("saba[start=half]", "start = 'half': input should be 'zero' or 'full'"),
        ("srba[sampling=epoch]", "sampling = 'epoch': input should be 'replacement' or 'block'"),
        ("ma_soba[w=-1]", "w = -1: input should be greater than 0"),
    ],
)
def test_parameters_out_of_range_are_a_sentence(text, said):
    with pytest.raises(InvalidInput, match=said.replace("(", r"\(")):
        method(text)


def test_saba_without_a_finite_sum_is_refused_before_any_call():
    with pytest.raises(InvalidInput, match="needs a finite sum"):
        SABA().resolve(Wavy().build().constants)
