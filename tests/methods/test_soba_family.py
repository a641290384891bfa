"""SOBA, MA-SOBA, SABA, SRBA, SPABA and SRMBA: iterates against plain numpy, bills, packs, convergence, and bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from bilevelbench_methods.implicit.saba import SABA
from bilevelbench_methods.implicit.spaba import SPABA
from bilevelbench_methods.implicit.srba import SRBA
from helpers import alone, assert_same, of, packed, plugins, prepared, states_of, trial
from plain_problems import Wavy
from twins_soba import SIGMA, Sums, TinySum, agree, method, recursive, saba, soba, srmba, tiny, wavy
from twins_soba import Affine as AffineWorld

import bilevelbench
from bilevelbench import FiniteSum, Instance, InvalidInput, Problem, dot
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.evaluator import Evaluator

FAMILY = ["soba", "ma_soba", "saba", "srba", "spaba", "srmba"]


# ---------------------------------------------------------------------------------------------- iterates

#: The same run from the specification, on the finite sum.
ON_THE_SUM = {
    "soba[a=0.3,b=0.2,batch=4]": lambda w: soba(w, a=0.3, b=0.2, power=0.5, B=4),
    "soba[a=0.3,b=0.2,batch=1,power=0]": lambda w: soba(w, a=0.3, b=0.2, power=0, B=1),
    "ma_soba[a=0.3,b=0.2,batch=4]": lambda w: soba(w, a=0.3, b=0.2, power=0.5, B=4, w=1.0),
    "ma_soba[a=0.3,b=0.2,batch=4,w=0.2,power=0.25]": lambda w: soba(w, a=0.3, b=0.2, power=0.25, B=4, w=0.2),
    "ma_soba[a=0.3,b=0.2,batch=2,w=3,power=0.5]": lambda w: soba(w, a=0.3, b=0.2, power=0.5, B=2, w=3.0),
    "srmba[a=0.3,b=0.2,batch=4]": lambda w: srmba(w, a=0.3, b=0.2, power=1 / 3, B=4, w=1.0),
    "srmba[a=0.2,b=0.1,batch=2,w=0.3,power=0]": lambda w: srmba(w, a=0.2, b=0.1, power=0, B=2, w=0.3),
    "srba[a=0.3,b=0.2,batch=3,period=5]": lambda w: recursive(w, a=0.3, b=0.2, B=3, period=5),
    "srba[a=0.3,b=0.2,batch=3]": lambda w: recursive(w, a=0.3, b=0.2, B=3, period=math.ceil(22 / 6)),
    "srba[a=0.3,b=0.2,batch=2,period=7,radius=0.4]": lambda w: recursive(
        w, a=0.3, b=0.2, B=2, period=7, radius=0.4
    ),
    "srba[a=0.3,b=0.2,batch=2,period=1]": lambda w: recursive(w, a=0.3, b=0.2, B=2, period=1),
    "spaba[a=0.3,b=0.2,batch=3]": lambda w: recursive(w, a=0.3, b=0.2, B=3, p=3 / 25),
    "spaba[a=0.3,b=0.2,batch=2,p=0.4,big=6]": lambda w: recursive(w, a=0.3, b=0.2, B=2, p=0.4, big=6),
    "saba[a=0.3,b=0.2,batch=4]": lambda w: saba(w, a=0.3, b=0.2, B=4),
    "saba[a=0.3,b=0.2,batch=1]": lambda w: saba(w, a=0.3, b=0.2, B=1),
    "saba[a=0.3,b=0.2,batch=5,start=full]": lambda w: saba(w, a=0.3, b=0.2, B=5, full=True),
}  # fmt: skip

#: The same with affine noise on a problem that is not quadratic.
WITH_NOISE = {
    "soba[a=0.2,b=0.1,batch=4]": lambda w: soba(w, a=0.2, b=0.1, power=0.5, B=4),
    "ma_soba[a=0.2,b=0.1,batch=4,w=0.5]": lambda w: soba(w, a=0.2, b=0.1, power=0.5, B=4, w=0.5),
    "srmba[a=0.2,b=0.1,batch=4]": lambda w: srmba(w, a=0.2, b=0.1, power=1 / 3, B=4, w=1.0),
    "spaba[a=0.2,b=0.1,batch=4]": lambda w: recursive(w, a=0.2, b=0.1, B=4, p=4 / 20, big=16),
    "spaba[a=0.2,b=0.1,batch=4,p=0.5,big=9]": lambda w: recursive(w, a=0.2, b=0.1, B=4, p=0.5, big=9),
}


@pytest.mark.parametrize("text", ON_THE_SUM)
def test_iterates_are_those_of_the_specification_on_a_finite_sum(text):
    agree(text, tiny(), ON_THE_SUM[text](Sums(TinySum())))


@pytest.mark.parametrize("text", WITH_NOISE)
def test_iterates_are_those_of_the_specification_with_affine_noise(text):
    agree(text, wavy(), WITH_NOISE[text](AffineWorld(Wavy().plain(), SIGMA)))


def test_the_twin_has_the_derivatives_of_the_sum():
    instance, world = tiny(), Sums(TinySum())
    rng = np.random.default_rng(0)
    x, y, v = rng.standard_normal(3), rng.standard_normal(4), rng.standard_normal(4)
    at = [torch.from_numpy(t).reshape(1, -1) for t in (x, y, v)]
    found = *instance.grad_f(*at[:2]), instance.grad_g_y(*at[:2]), *instance.vp_g(*at)
    for ours, theirs in zip(found, world.five(x, y, v, world.whole("g"), world.whole("f")), strict=True):
        np.testing.assert_allclose(ours[0], theirs, rtol=1e-12, atol=1e-13)


# ---------------------------------------------------------------------------------------------- bills


@pytest.mark.parametrize(
    ("text", "first", "later"),
    [
        ("soba[batch=4]", 1, 1),
        ("ma_soba[batch=4]", 1, 1),
        ("saba[batch=4]", 1, 1),
        ("srmba[batch=4]", 1, 2),
        ("srba[batch=4,period=3]", 1, 2),
    ],
)
def test_a_step_makes_the_calls_of_the_specification(text, first, later):
    """FX 1, FY 1 joint, GY 1, HV 1, JV 1 joint: four columns, three calls; twice that where there is an old point."""
    pack = prepared(method(text), tiny())
    meter, state = pack.oracle.meter, pack.init()
    resolved = method(text).resolve(pack.instance.constants)
    for step in (1, 2, 3, 4):
        before = meter.columns()
        state = pack.step(step, state)
        made = {name: (count - before[name])[0] for name, count in meter.columns().items()}
        refreshed = step == 1 or (text.startswith("srba") and step == 4)
        n = first if refreshed else later
        assert {made[name] for name in ("grad_f", "grad_f_x", "grad_f_y", "grad_g", "grad_g_y", "hvp", "jvp")} == {n}
        assert (made["second_order"], made["first_order"], made["value"]) == (n, 2 * n, 0)
        assert resolved.calls(step) == {"grad_f": n, "grad_g_y": n, "vp_g": n}


@pytest.mark.parametrize(
    ("text", "first", "later"),
    [
        ("soba[batch=4]", 4 * 3, 4 * 3),
        ("srmba[batch=4]", 4 * 3, 8 * 3),
        ("srba[batch=4,period=9]", 9 + 2 * 13, 8 * 3),
        ("spaba[batch=4,p=1e-9]", 9 + 2 * 13, 8 * 3),
        ("spaba[batch=4,p=1]", 9 + 2 * 13, 9 + 2 * 13),
        ("spaba[batch=4,p=1,big=6]", 6 * 3, 6 * 3),
    ],
)
def test_a_step_costs_the_samples_of_the_specification(text, first, later):
    pack = prepared(method(text), tiny())
    costs = [0.0]
    for _ in states_of(pack, 3):
        pass
    costs = np.diff([0, *(bill(text, steps) for steps in (1, 2, 3))])
    assert costs.tolist() == [first, later, later]


def bill(text, steps):
    pack = prepared(method(text), tiny())
    states_of(pack, steps)
    return float(pack.oracle.meter.columns()["cost"][0])


def test_blocks_of_saba_are_charged_their_rows_and_a_full_start_one_pass():
    for text, init in (("saba[batch=13]", 0), ("saba[batch=13,start=full]", 13 + 9)):
        pack = prepared(method(text), tiny())
        state = pack.init()
        assert pack.oracle.meter.columns()["cost"].tolist() == [init]
        pack.step(1, state)
        assert pack.oracle.meter.columns()["cost"].tolist() == [init + 9 + 2 * 13]


def test_the_share_of_refreshes_is_p():
    steps = bilevelbench.run(
        SPABA(a=1e-3, b=1e-3, batch=1, p=0.2, big=100), "quadratic[dim_x=2,dim_y=2,sigma_g=0.1]", steps=2000
    )
    row = steps.runs.iloc[0]
    fresh = 2 * 2000 - row.grad_g_y  # a refresh is one call instead of two
    assert abs(fresh - 400) < 5 * math.sqrt(2000 * 0.2 * 0.8)


# ---------------------------------------------------------------------------------------------- packs


def lanes_of(name):
    """Trials that differ in all that may differ between lanes."""
    text = {
        "soba": "soba[a={a},b={b},batch=4,power={power}]",
        "soba_block": "soba[a={a},b={b},batch=4,sampling=block]",
        "soba_epoch": "soba[a={a},b={b},batch=4,sampling=epoch]",
        "ma_soba": "ma_soba[a={a},b={b},batch=4,w={w}]",
        "srmba": "srmba[a={a},b={b},batch=4,w={w}]",
        "saba": "saba[a={a},b={b},batch=5]",
        "saba_full": "saba[a={a},b={b},batch=5,start=full]",
        "srba": "srba[a={a},b={b},batch=3,period={n},radius={w}]",
        "srba_block": "srba[a={a},b={b},batch=3,period={n},sampling=block]",
        "spaba": "spaba[a={a},b={b},batch=3,p={p}]",
    }[name]
    return [
        trial(
            text.format(a=0.3 - 0.02 * i, b=0.2 - 0.01 * i, power=0.5 - 0.05 * i, w=0.5 + 0.3 * i, n=2 + i, p=0.1 + 0.15 * i),
            "tiny_sum",
            steps=[12, 9, 15, 6, 14][i],
            cost=[None, 150, None, 171, 400][i],
            seed=i,
            among=plugins(TinySum),
        )
        for i in range(5)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["soba", "soba_block", "soba_epoch", "ma_soba", "srmba", "saba", "saba_full", "srba", "srba_block", "spaba"],
)
def test_packed_equals_alone_also_when_steps_are_refused(name):
    trials, among = lanes_of(name), plugins(TinySum)
    together, apart = packed(trials, among), alone(trials, among)
    assert_same(of(together, trials), of(apart, trials))
    assert set(together.runs.status) == {"budget"}
    assert together.runs.pack_lanes.iloc[0] > 1


def test_a_refused_step_leaves_the_tables_as_they_were():
    """The state before it is still whole, although the step had changed rows."""
    text = "saba[a=0.3,b=0.2,batch=5]"
    pack = prepared(method(text), tiny())
    states = states_of(pack, 6)
    before = [table.rows.clone() for table in states[3].memory]
    again = pack.step(4, states[3])
    assert all(torch.equal(table.rows, rows) for table, rows in zip(states[3].memory, before, strict=True))
    assert torch.equal(again.x, states[4].x)
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(again.memory, states[4].memory, strict=True))


# ---------------------------------------------------------------------------------------------- what they reach


def final_gradient(text, steps, **params):
    instance = tiny(**params)
    pack = prepared(method(text), instance)
    state = states_of(pack, steps)[-1]
    with torch.no_grad():
        return float(Evaluator(instance)(state.x, state.y).grad_phi[0, 0])


@pytest.mark.parametrize(
    "text", ["saba[a=0.25,b=0.1,batch=2]", "srba[a=0.25,b=0.1,batch=2]", "spaba[a=0.25,b=0.1,batch=2]"]
)
def test_variance_reduction_goes_to_rounding(text):
    assert final_gradient(text, 2500) < 1e-10


@pytest.mark.parametrize("text", ["soba[a=0.25,b=0.1,batch=2,power=0]", "ma_soba[a=0.25,b=0.1,batch=2,power=0,w=0.5]"])
def test_sampling_alone_stops_at_its_noise(text):
    assert 1e-4 < final_gradient(text, 1500) < 1


@pytest.mark.parametrize("name", FAMILY)
def test_the_defaults_make_progress_on_problems_that_they_have_not_seen(name):
    among = plugins(TinySum)
    problems = ["tiny_sum[n_g=200,n_f=150]", "logreg_breast_cancer"]
    if name not in ("saba", "srba"):
        problems += ["quadratic[dim_x=5,dim_y=10,kappa=2,sigma_f=0.1,sigma_g=0.1,sigma_h=0.1,noise=affine]"]
    for problem in problems:
        found = alone([trial(name, problem, steps=250, among=among)], among)
        start, best = found.curve.grad_phi.iloc[0], found.runs.best_grad_phi.iloc[0]
        assert found.runs.status.iloc[0] == "budget"
        assert best < 0.65 * start, f"{problem}: {start:.3g} to {best:.3g}"


# ---------------------------------------------------------------------------------------------- presets


def test_presets_have_the_powers_of_their_theorems():
    c = {n: tiny(n_g=n, n_f=n).constants for n in (50, 400)}
    for cls, step, batch in (("saba", 2 / 3, 0), ("srba", 1 / 2, 0), ("spaba", 0, 1 / 2)):
        small, large = (registry().algorithm(cls).value.from_rate(c[n], 0.1) for n in (50, 400))
        assert large.a * c[400].L_gy == pytest.approx(small.a * c[50].L_gy * 8**-step)
        assert large.b * c[400].L_phi == pytest.approx(small.b * c[50].L_phi * 8**-step)
        assert large.batch == pytest.approx(small.batch * 8**batch, rel=0.1)
    assert SRBA.from_rate(c[50], 0.1).period == 100
    assert SPABA.from_rate(c[50], 0.1).p == pytest.approx(10 / 110)
    noisy = make(registry().problem("quadratic"), {"sigma_f": 1.0, "sigma_g": 0.5}).build().constants
    coarse, fine = (SPABA.from_rate(noisy, eps) for eps in (0.1, 0.01))
    assert (coarse.big, fine.big) == (100, 10_000)
    assert (coarse.batch, fine.batch) == (10, 100)
    for cls, step, weight in (("soba", 1 / 2, None), ("ma_soba", 1 / 2, 1 / 2), ("srmba", 1 / 3, 2 / 3)):
        short, long = (registry().algorithm(cls).value.from_horizon(noisy, T) for T in (2**12, 2**15))
        assert long.a == pytest.approx(short.a * 8**-step)
        assert long.power == 0
        if weight is not None:
            assert long.w == pytest.approx(short.w * 8**-weight)


# ---------------------------------------------------------------------------------------------- bad input


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

        constants = {"L_gy": 2.0, "L_phi": 1.0}
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
        SABA().resolve(wavy().constants)
