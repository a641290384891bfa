"""SOBA, MA-SOBA, SABA, SRBA, SPABA and SRMBA: iterates against plain numpy, bills, packs, convergence, and bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from bilevelbench_methods.implicit.spaba import SPABA
from bilevelbench_methods.implicit.srba import SRBA
from helpers import alone, assert_same, of, packed, plugins, prepared, states_of, trial
from plain_problems import Wavy, of_quadratic
from twins_soba import SIGMA, Sums, TinySum, agree, method, recursive, saba, soba, srmba, tiny, wavy
from twins_soba import Affine as AffineWorld

import bilevelbench
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.trial import Schedule

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


@pytest.mark.whole
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
            steps=[7, 6, 9, 4, 8][i],
            cost=[None, 80, None, 71, 110][i],
            seed=i,
            among=plugins(TinySum),
            schedule=Schedule(ratio=3),
        )
        for i in range(5)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["soba", "soba_block", "soba_epoch", "ma_soba", "srmba", "saba", "saba_full", "srba", "srba_block", "spaba"],
)
@pytest.mark.quick_cases(3)
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


@pytest.mark.whole
@pytest.mark.parametrize(
    ("text", "steps"),
    [("saba[a=0.25,b=0.1,batch=4]", 800), ("srba[a=0.4,b=0.4,batch=4]", 250), ("spaba[a=0.4,b=0.4,batch=4]", 250)],
)
@pytest.mark.quick_cases(1)
def test_variance_reduction_goes_to_rounding(text, steps):
    assert final_gradient(text, steps) < 1e-12


@pytest.mark.parametrize("text", ["soba[a=0.25,b=0.1,batch=4,power=0]", "ma_soba[a=0.25,b=0.1,batch=4,power=0,w=0.5]"])
@pytest.mark.quick_cases(1)
def test_sampling_alone_stops_at_its_noise(text):
    assert 1e-4 < final_gradient(text, 800) < 1


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.quick_cases(2)
def test_the_defaults_make_progress_on_problems_that_they_have_not_seen(name):
    """On logreg_breast_cancer y follows slowly, so x does, and even more so with steps that decay."""
    among = plugins(TinySum)
    slow = {"srba": 0.5, "spaba": 0.5, "saba": 0.85}.get(name, 0.95)
    problems = {"tiny_sum[n_g=200,n_f=150]": 0.5, "logreg_breast_cancer": slow}
    if name not in ("saba", "srba"):
        problems["quadratic[dim_x=5,dim_y=10,kappa=2,sigma_f=0.1,sigma_g=0.1,sigma_h=0.1,noise=affine]"] = 0.1
    for problem, share in problems.items():
        found = alone([trial(name, problem, steps=250, among=among, schedule=Schedule(ratio=1.5))], among)
        start, best = found.curve.grad_phi.iloc[0], found.runs.best_grad_phi.iloc[0]
        assert found.runs.status.iloc[0] == "budget"
        assert best < share * start, f"{problem}: {start:.3g} to {best:.3g}"
        assert found.runs.last_grad_phi.iloc[0] < 2 * best


@pytest.mark.parametrize("kappa", [1, 5, 50])
def test_y_and_v_can_follow_the_default_x_step(kappa):
    """The matrix of the exact iteration, z <- z - (a, b) D(z), has no eigenvalue outside of the unit circle.

    With the x-step 1/(2 L_phi) of methods that solve for y and v it has, where these take more than a few steps to follow.
    """
    with default_dtype(torch.float64):
        instance = make(registry().problem("quadratic"), {"kappa": kappa}).build()
    c, p = instance.constants, of_quadratic(instance)
    H, J, zero = p.H(p.x0, p.y0), p.J(p.x0, p.y0), np.zeros((instance.dx, instance.dy))
    directions = np.block(
        [
            [np.eye(instance.dx), zero, -J],  # reg = 1
            [J.T, H, np.zeros_like(H)],
            [zero.T, -np.eye(instance.dy), H],
        ]
    )

    def radius(a, b):
        steps = np.repeat([b, a, a], [instance.dx, instance.dy, instance.dy])
        return np.abs(np.linalg.eigvals(np.eye(len(steps)) - steps[:, None] * directions)).max()

    default = method("soba").resolve(c)
    assert radius(default.a, default.b) < 1
    assert (radius(default.a, 1 / (2 * c.L_phi)) < 1) == (kappa == 1)
    given = method("soba[a=0.3]").resolve(c)
    assert radius(given.a, given.b) < 1


# ---------------------------------------------------------------------------------------------- presets


def test_presets_have_the_powers_of_their_theorems():
    c = {n: tiny(n_g=n, n_f=n).constants for n in (50, 400)}
    for cls, step, batch in (("saba", 2 / 3, 0), ("srba", 1 / 2, 0), ("spaba", 0, 1 / 2)):
        small, large = (registry().algorithm(cls).value.from_rate(c[n], 0.1) for n in (50, 400))
        assert large.a * c[400].L_gy == pytest.approx(small.a * c[50].L_gy * 8**-step)
        assert large.b == pytest.approx(large.a * c[400].mu / c[400].L_phi)
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
