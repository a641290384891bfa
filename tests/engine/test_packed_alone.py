"""A trial's numbers do not depend on its pack: packed and alone, the same counts and the same curve, bit for bit."""

from __future__ import annotations

import functools

import pandas as pd
import pytest
import torch
from helpers import alone, assert_same, of, packed, plugins, trial

from bilevelbench import Instance, Problem, dot
from bilevelbench.plan.trial import Schedule, Trial
from bilevelbench.results.schema import Results

METHODS = {
    "f2ba": "f2ba[lam={lam},K={n},eta_x={eta_x}]",
    "f2sa": "f2sa[lam={lam},T_in={n},xi={xi}]",
    "aid_cg": "aid[solver=cg,D={n},N={m},eta_x={eta_x},tol={tol}]",
    "aid_richardson": "aid[solver=richardson,D={n},N={m},eta_x={eta_x}]",
    "itd": "itd[D=5,eta_x={eta_x}]",
}
#: with an x-step and a value of |grad phi| that some of the lanes below reach
PROBLEMS = {
    "quadratic": ("quadratic", 0.15, 14.0),
    "tail_anchor": ("tail_anchor[tails=2,anchors=2,c=0.5,saddle=true,data_seed={data}]", 0.5, 1.7),
    "ridge_abalone": ("ridge_abalone", 1e-3, 15.56),
}
DTYPES = ["float64", "float32"]


@functools.cache
def trials(method: str, problem: str, dtype: str) -> tuple[Trial, ...]:
    """36 trials that differ in everything that may differ in one pack; they leave it at different times."""
    text, eta_x, target = PROBLEMS[problem]
    return tuple(
        trial(
            METHODS[method].format(
                lam=[10, 50.5, 1e3, 1e4][i % 4],
                n=1 + i % 7,
                m=1 + i % 5,
                eta_x=eta_x * [1, 0.3, 0.1, 0.031, 1e30 if i > 20 else 2][i % 5],
                xi=[1, 3.3, 10][i % 3],
                tol=[0.0, 1e-2, 1e-5][i % 3],
            ),
            text.format(data=i % 3),
            cost=[None, 97, 333, 200.5][i % 4],
            steps=[25, 19, 22, 9, 28][i % 5],
            targets=[(), (target,), (0.9 * target, target)][i % 3],
            seed=i,
            dtype=dtype,
            schedule=Schedule(ratio=1.4),
        )
        for i in range(36)
    )


@functools.cache
def all_in_one_pack(method: str, problem: str, dtype: str) -> Results:
    return packed(trials(method, problem, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.quick_cases(10)
def test_packed_equals_alone(method, problem, dtype):
    for one in trials(method, problem, dtype)[3::8]:
        assert_same(alone([one]), of(all_in_one_pack(method, problem, dtype), [one]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.quick_cases(10)
def test_packs_of_every_width_agree(method, problem, dtype):
    for start, width in ((2, 3), (7, 6), (12, 17)):
        chosen = trials(method, problem, dtype)[start : start + width]
        assert_same(packed(chosen), of(all_in_one_pack(method, problem, dtype), chosen))


@pytest.mark.parametrize("method", METHODS)
def test_order_of_the_lanes_does_not_matter(method):
    chosen = trials(method, "tail_anchor", "float64")[:9]
    backwards = packed(chosen[::-1])
    for one in chosen:
        assert_same(of(backwards, [one]), of(all_in_one_pack(method, "tail_anchor", "float64"), [one]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("problem", ["quadratic[dim_x=5,dim_y=9]", "tail_anchor[tails=3,anchors=2,c=0.5]"])
@pytest.mark.parametrize("method", ["f2ba[lam={}]", "aid[tol=1e-{}]"])
def test_packed_equals_alone_in_odd_dimensions(method, problem, dtype):
    """Where MKL and vector units have remainders."""
    some = [trial(method.format(i), problem, steps=10, dtype=dtype) for i in range(2, 15)]
    assert_same(alone(some[::3]), of(packed(some), some[::3]))


@pytest.mark.parametrize("problem", ["quadratic", "tail_anchor[c=0.5]"])
@pytest.mark.parametrize("method", ["f2ba[lam={},eta_x=0.15]", "aid[eta_x=0.15,tol=1e-{}]"])
@pytest.mark.quick_cases(2)
def test_packed_equals_alone_after_hundreds_of_steps(method, problem):
    some = [trial(method.format(i), problem, steps=200, schedule=Schedule(ratio=2)) for i in range(2, 13)]
    assert_same(alone(some[7:8]), of(packed(some), some[7:8]))


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
def test_lanes_of_these_packs_leave_one_by_one(method, problem):
    runs = all_in_one_pack(method, problem, "float64").runs
    assert {"budget", "target"} <= set(runs.status)
    assert runs.steps.nunique() > 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_some_lanes_of_these_packs_diverge(dtype):
    assert "diverged" in set(all_in_one_pack("f2ba", "quadratic", dtype).runs.status)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_pack_twice_gives_identical_tables(method):
    assert_same(packed(trials(method, "quadratic", "float64")), all_in_one_pack(method, "quadratic", "float64"))


class Sigmoids(Problem):
    """f = Σ softplus(y_i - x_i);  g = 1/2 ‖y‖² + Σ σ(x_i) y_i²."""

    name = "sigmoids"
    dim: int = 5

    def build(self) -> Instance:
        start = torch.linspace(-1, 1, self.dim + 1)[None, 1:]
        return Instance(
            f=lambda x, y: torch.nn.functional.softplus(y - x).sum(-1, keepdim=True),
            g=lambda x, y: 0.5 * dot(y, y) + dot(x.sigmoid(), y * y),
            x0=start,
            y0=start + 1,
            constants={"L_phi": 4.0, "L_gy": 3.0},
        )


def sigmoids(dim: int, dtype: str) -> tuple[Results, Results]:
    """Two trials out of a pack of twelve, and alone."""
    here = plugins(Sigmoids)
    texts, rest = [f"f2ba[K=3,lam={1.5 + i}]" for i in range(12)], {"dtype": dtype, "schedule": Schedule(ratio=1e3)}
    some = [trial(text, f"sigmoids[dim={dim}]", steps=25, among=here, **rest) for text in texts]
    chosen = [some[3], some[11]]
    return of(packed(some, here), chosen), alone(chosen, here)


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_vector_units_agree_where_four_lanes_fill_whole_vectors(dtype):
    assert_same(*sigmoids(8, dtype))


@pytest.mark.parametrize(("dim", "dtype", "digits"), [(1, "float64", 12), (5, "float32", 4)])
def test_functions_of_vector_units_agree_to_many_digits_in_odd_dimensions(dim, dtype, digits):
    """torch computes the last elements of a tensor, which fill no pair of vectors, by other code: sigmoid, softplus, cosh,
    sinh, pow and logaddexp differ there in the last bit. The problem decides, so what is promised is a tolerance."""
    together, by_itself = sigmoids(dim, dtype)
    columns = ["phi", "grad_phi", "g_y"]
    pd.testing.assert_frame_equal(together.curve[columns], by_itself.curve[columns], rtol=10.0**-digits)
