"""AmIGO, FSLA, MRBO, SUSTAIN, VRBO, SLIP and AdamBO: iterates against plain numpy, bills, packs, progress, and bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from helpers import alone, assert_same, iterates, of, packed, plugins, prepared, trial
from plain_problems import Wavy
from twins_series import adambo, amigo, fsla, mrbo, slip, vrbo
from twins_soba import SIGMA, Sums, TinySum, agree, method, tiny, wavy
from twins_soba import Affine as AffineWorld

from bilevelbench import Algorithm, Instance, InvalidInput
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.plan.trial import Schedule

FAMILY = ["amigo", "fsla", "mrbo", "sustain", "vrbo", "slip", "adambo"]


def cls(name: str) -> type[Algorithm]:
    return registry().algorithm(name).value


# ---------------------------------------------------------------------------------------------- iterates

STEP = {"a": 0.3, "b": 0.2}
SERIES = {**STEP, "eta_v": 0.4}

#: The same run from the specification, on both worlds.
TWINS = {
    "amigo[a=0.3,b=0.2,batch=4]": lambda w: amigo(w, **STEP, K=10, N=10, B=4),
    "amigo[a=0.3,b=0.2,batch=3,K=3,N=2,power=0.5]": lambda w: amigo(w, **STEP, K=3, N=2, B=3, power=0.5),
    "fsla[a=0.3,b=0.2,batch=4]": lambda w: fsla(w, **STEP, w=1.0, B=4),
    "fsla[a=0.3,b=0.2,batch=2,w=0.3,power=0]": lambda w: fsla(w, **STEP, w=0.3, B=2, power=0),
    "mrbo[a=0.3,b=0.2,eta_v=0.4,batch=4]": lambda w: mrbo(w, **SERIES, w=1.0, Q=10, B=4),
    "mrbo[a=0.3,b=0.2,eta_v=0.4,batch=2,w=0.5,Q=3,power=0]": lambda w: mrbo(w, **SERIES, w=0.5, Q=3, B=2, power=0),
    "sustain[a=0.3,b=0.1,eta_v=0.4,batch=4,Q=4]": lambda w: mrbo(
        w, a=0.3, b=0.1, eta_v=0.4, w=1.0, Q=4, B=4, random=True
    ),
    "sustain[a=0.3,b=0.1,eta_v=0.4,batch=2,Q=1,power=0.5]": lambda w: mrbo(
        w, a=0.3, b=0.1, eta_v=0.4, w=1.0, Q=1, B=2, power=0.5, random=True
    ),
    "vrbo[a=0.2,b=0.1,eta_v=0.4,batch=4,Q=3,D=2,period=6,big=9]": lambda w: vrbo(
        w, a=0.2, b=0.1, eta_v=0.4, Q=3, M=2, B=4, period=6, big=9
    ),
    "vrbo[a=0.2,b=0.1,eta_v=0.4,batch=2,Q=1,D=1,period=1,big=5]": lambda w: vrbo(
        w, a=0.2, b=0.1, eta_v=0.4, Q=1, M=1, B=2, period=1, big=5
    ),
    "slip[a=0.3,b=0.2,batch=4]": lambda w: slip(w, **STEP, w=4.0, T0=10, B=4),
    "slip[a=0.3,b=0.05,batch=2,w=0.1,T0=3,power=0]": lambda w: slip(w, a=0.3, b=0.05, w=0.1, T0=3, B=2, power=0),
    "adambo[a=0.3,b=0.2,eta_v=0.4,batch=4]": lambda w: adambo(w, **SERIES, Q=10, T0=10, B=4),
    "adambo[a=0.3,b=0.2,eta_v=0.4,batch=2,Q=2,T0=0,power=0,beta1=0.5,beta2=0.7,floor=0.3]": lambda w: adambo(
        w, **SERIES, Q=2, T0=0, B=2, power=0, beta1=0.5, beta2=0.7, floor=0.3
    ),
}  # fmt: skip

#: Whole sums, and the default period, are of the finite sum alone.
ON_THE_SUM = {
    "vrbo[a=0.2,b=0.1,eta_v=0.4,batch=4,Q=5,D=3,period=7]": lambda w: vrbo(
        w, a=0.2, b=0.1, eta_v=0.4, Q=5, M=3, B=4, period=7
    ),
    "vrbo[a=0.2,b=0.1,eta_v=0.4,batch=3,Q=2]": lambda w: vrbo(
        w, a=0.2, b=0.1, eta_v=0.4, Q=2, M=3, B=3, period=math.ceil(22 / 6)
    ),
}


@pytest.mark.parametrize("text", [*TWINS, *ON_THE_SUM])
@pytest.mark.quick_cases(6)
def test_iterates_are_those_of_the_specification_on_a_finite_sum(text):
    agree(text, tiny(), {**TWINS, **ON_THE_SUM}[text](Sums(TinySum())))


@pytest.mark.parametrize("text", TWINS)
@pytest.mark.quick_cases(5)
def test_iterates_are_those_of_the_specification_with_affine_noise(text):
    agree(text, wavy(), TWINS[text](AffineWorld(Wavy().plain(), SIGMA)))


# ---------------------------------------------------------------------------------------------- bills


def series(points: int, Q: int) -> dict[str, int]:
    """FX 1, FY 1 joint, GY 1, HV Q, JV 1 at each point."""
    return {"grad_f": points, "grad_g_y": points, "hvp_g_yy": points * Q, "jvp_g_xy": points}


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("amigo[K=3,N=5]", lambda step: {"grad_f": 1, "grad_g_y": 3, "hvp_g_yy": 5, "jvp_g_xy": 1}),
        (
            "fsla",
            lambda step: {
                "grad_f_x": 1 + (step > 1), "grad_f_y": 1, "grad_g_y": 1, "hvp_g_yy": 1, "jvp_g_xy": 1 + (step > 1),
            },
        ),
        ("mrbo[Q=4]", lambda step: series(1 + (step > 1), 4)),
        ("vrbo[Q=4,D=2,period=3]", lambda step: series(2 * 3 + (step in (1, 4)), 4)),
        ("slip", lambda step: {"grad_f": 1, "grad_g_y": 1, "vp_g": 1}),
        ("adambo[Q=4]", lambda step: series(1, 4)),
    ],
)  # fmt: skip
def test_a_step_makes_the_calls_of_the_specification(text, calls):
    instance = tiny()
    pack, resolved = prepared(method(text), instance), method(text).resolve(instance.constants)
    meter, state = pack.oracle.meter, pack.init()
    for step in (1, 2, 3, 4):
        before = meter.columns()
        state = pack.step(step, state)
        made = {name: int((count - before[name])[0]) for name, count in meter.columns().items()}
        said = calls(step)
        assert resolved.calls(step) == said
        joint, products = said.get("grad_f", 0), said.get("vp_g", 0)
        assert made["grad_f_x"] == joint + said.get("grad_f_x", 0)
        assert made["grad_f_y"] == joint + said.get("grad_f_y", 0)
        assert made["grad_g_y"] == made["grad_g"] == said["grad_g_y"]
        assert made["hvp"] == products + said.get("hvp_g_yy", 0)
        assert made["jvp"] == products + said.get("jvp_g_xy", 0)
        assert (made["grad_g_x"], made["value"]) == (0, 0)


def test_sustain_pays_for_the_products_that_it_makes():
    """2p products in a step, p uniform in 0..Q-1 and the same at both points; everything else as MRBO."""
    pack = prepared(method("sustain[a=1e-3,b=1e-3,Q=5,batch=2]"), tiny())
    columns, state = [], pack.init()
    for step in range(1, 122):
        state = pack.step(step, state)
        columns.append({name: count[0] for name, count in pack.oracle.meter.columns().items()})
    products = np.diff([row["hvp"] for row in columns])
    assert columns[0]["hvp"] in range(5)
    assert set(products) == {0, 2, 4, 6, 8}
    assert abs(products.mean() - 4) < 4 * math.sqrt(8 / len(products))
    for name in ("jvp", "grad_g_y", "grad_f"):
        assert (columns[0][name], set(np.diff([row[name] for row in columns]))) == (1, {2})
    assert method("sustain").calls(1) is None


@pytest.mark.parametrize(
    ("text", "init", "first", "later"),
    [
        ("amigo[batch=4,K=3,N=5]", 0, 4 * 10, 4 * 10),
        ("fsla[batch=4]", 0, 4 * 5, 4 * 7),
        ("mrbo[batch=4,Q=2]", 0, 4 * 5, 8 * 5),
        ("vrbo[batch=4,Q=2,D=1,period=9]", 0, 9 + 4 * 13 + 16 * 5, 16 * 5),
        ("vrbo[batch=4,Q=2,D=1,period=9,big=6]", 0, 6 * 5 + 16 * 5, 16 * 5),
        ("slip[batch=4,T0=3]", 3 * 12, 12, 12),
        ("adambo[batch=4,Q=2,T0=3]", 3 * 4, 4 * 5, 4 * 5),
    ],
)
def test_a_step_costs_the_samples_of_the_specification(text, init, first, later):
    pack = prepared(method(text), tiny())
    bill, state = [0.0], pack.init()
    bill.append(float(pack.oracle.meter.columns()["cost"][0]))
    for step in (1, 2, 3):
        state = pack.step(step, state)
        bill.append(float(pack.oracle.meter.columns()["cost"][0]))
    assert np.diff(bill).tolist() == [init, first, later, later]


# ---------------------------------------------------------------------------------------------- packs

PACKS = {
    "amigo": "amigo[a={a},b={b},batch=4,K=3,N=2,power={power}]",
    "amigo_epoch": "amigo[a={a},b={b},batch=4,K=3,N=2,sampling=epoch]",
    "fsla": "fsla[a={a},b={b},batch=4,w={w}]",
    "mrbo": "mrbo[a={a},b={b},batch=4,Q=3,w={w},eta_v={b}]",
    "mrbo_epoch": "mrbo[a={a},b={b},batch=4,Q=2,sampling=epoch]",
    "sustain": "sustain[a={a},b={b},batch=4,Q=4,w={w}]",
    "sustain_block": "sustain[a={a},b={b},batch=4,Q=4,sampling=block]",
    "vrbo": "vrbo[a={a},b={b},batch=3,Q=2,D=1,period={n}]",
    "vrbo_big": "vrbo[a={a},b={b},batch=3,Q=2,D=1,period={n},big=5,sampling=block]",
    "slip": "slip[a={a},b={b},batch=4,T0=2,w={w},power={power}]",
    "adambo": "adambo[a={a},b={b},batch=4,Q=2,T0=2,beta1={power},floor={w}]",
}


def lanes_of(name):
    """Trials that differ in all that may differ between lanes."""
    return [
        trial(
            PACKS[name].format(a=0.3 - 0.02 * i, b=0.2 - 0.01 * i, power=0.5 - 0.05 * i, w=0.5 + 0.3 * i, n=2 + i),
            "tiny_sum",
            steps=[12, 9, 15, 6, 14][i],
            cost=[None, 250, None, 371, 600][i],
            seed=i,
            among=plugins(TinySum),
            schedule=Schedule(ratio=2),
        )
        for i in range(5)
    ]


@pytest.mark.whole
@pytest.mark.parametrize("name", PACKS)
@pytest.mark.quick_cases(2)
def test_packed_equals_alone_also_when_steps_are_refused(name):
    trials, among = lanes_of(name), plugins(TinySum)
    together, apart = packed(trials, among), alone(trials, among)
    assert_same(of(together, trials), of(apart, trials))
    assert set(together.runs.status) == {"budget"}
    assert together.runs.pack_lanes.iloc[0] > 1


# ---------------------------------------------------------------------------------------------- what they reach


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.quick_cases(2)
def test_the_defaults_make_progress_on_problems_that_they_have_not_seen(name):
    among = plugins(TinySum)
    noisy = "quadratic[dim_x=5,dim_y=10,kappa=2,sigma_f=0.1,sigma_g=0.1,sigma_h=0.1,noise=affine]"
    for problem in ("tiny_sum[n_g=200,n_f=150]", noisy):
        steps = 30 if name in ("amigo", "vrbo") else 120  # of these one costs as much as several of the others
        found = alone([trial(name, problem, steps=steps, among=among, schedule=Schedule(ratio=2))], among)
        start, best = found.curve.grad_phi.iloc[0], found.runs.best_grad_phi.iloc[0]
        assert found.runs.status.iloc[0] == "budget"
        assert best < 0.65 * start, f"{problem}: {start:.3g} to {best:.3g}"


def in_other_units(factor: float) -> Instance:
    """The finite sum with f times a factor."""
    base = tiny()
    f, g = (base.functions[f"value_{level}"] for level in "fg")
    constants = {**base.constants, "L_phi": factor * base.constants.L_phi}
    return Instance(
        f=lambda *at: factor * f(*at), g=g, x0=base.x0, y0=base.y0, constants=constants, noise=base.noise
    )  # fmt: skip


@pytest.mark.parametrize("factor", [1e-3, 1e3])
@pytest.mark.parametrize("name", ["slip", "adambo"])
def test_default_steps_that_are_normalised_do_not_depend_on_the_unit_of_f(name, factor):
    one, other = (iterates(method(f"{name}[batch=4]"), in_other_units(unit), 5)[-1][0] for unit in (1.0, factor))
    np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("name", ["slip", "adambo"])
def test_a_normalised_step_where_there_is_no_gradient_goes_nowhere(name):
    for x, _ in iterates(method(f"{name}[a=0.3,b=0.2,batch=4,T0=2]"), in_other_units(0.0), 2):
        assert (x == tiny().x0.numpy()).all()


def final_gradient(instance, x, y):
    with torch.no_grad():
        at = (torch.from_numpy(np.asarray(t, dtype=float)).reshape(1, -1) for t in (x, y))
        return float(Evaluator(instance)(*at).grad_phi[0, 0])


@pytest.mark.whole
def test_vrbo_stays_on_its_way_through_a_long_period_where_differences_at_the_new_x_do_not():
    """One refresh at the start, and then recursive differences alone; frequent refreshes hide the drift."""
    given = {"a": 0.2, "b": 0.1, "eta_v": 0.3, "Q": 8, "M": 2, "B": 4}
    instance, world, steps = tiny(), Sums(TinySum()), 60

    def ours(period):
        text = f"vrbo[a=0.2,b=0.1,eta_v=0.3,Q=8,D=2,batch=4,period={period}]"
        return final_gradient(instance, *iterates(method(text), instance, steps)[-1])

    def theirs(period):
        twin = vrbo(world, **given, period=period, at_the_new_x=True)
        return final_gradient(instance, *next(itertools.islice(twin, steps, None)))

    first = final_gradient(instance, world.x0, world.y0)
    assert theirs(5) < first / 5
    assert ours(steps) < first / 5
    assert theirs(steps) > 2 * first


# ---------------------------------------------------------------------------------------------- claims and presets

#: (method, setting): exponents of 1/eps and of kappa; whether there is a tilde, and whether samples have to be Lipschitz on
#: average.
CLAIMED = {
    ("amigo", "deterministic"): (2, 4, False, False),
    ("amigo", "full"): (4, None, False, False),
    ("fsla", "full"): (4, None, False, True),
    ("mrbo", "full"): (3, None, True, True),
    ("sustain", "full"): (3, None, True, True),
    ("vrbo", "full"): (3, None, True, True),
    ("slip", "full"): (4, None, True, False),
    ("adambo", "full"): (4, None, True, False),
}


def test_claims_are_those_of_the_papers_and_there_are_no_others():
    said = {
        (name, c.setting): (c.eps_exp, c.kappa_exp, c.tilde, c.mean_squared_smooth)
        for name in FAMILY
        for c in cls(name).claims
    }
    assert said == CLAIMED
    for claim in (c for name in FAMILY for c in cls(name).claims):
        assert (claim.table, claim.oracle, claim.source, claim.n_exp) == (None, "HVP", "other paper", None)
        assert claim.reference
        assert claim.kappa_exp is None or claim.kappa_source == "other paper"


def noisy_constants():
    return make(registry().problem("quadratic"), {"sigma_f": 1.0, "sigma_g": 0.5}).build().constants


@pytest.mark.parametrize(
    ("name", "powers"),
    [
        ("fsla", {"a": 1 / 2, "b": 1 / 2, "w": 1 / 2}),
        ("mrbo", {"a": 1 / 3, "b": 1 / 3, "w": 2 / 3}),
        ("sustain", {"a": 1 / 3, "b": 1 / 3, "w": 2 / 3}),
        ("slip", {"a": 1 / 2, "b": 3 / 4, "w": 1 / 2}),
        ("adambo", {"a": 1 / 2, "b": 1 / 2}),
    ],
)
def test_presets_for_a_horizon_have_the_powers_of_their_theorems(name, powers):
    short, long = (cls(name).from_horizon(noisy_constants(), T) for T in (2**15, 2**18))
    for field, power in powers.items():
        assert getattr(long, field) == pytest.approx(getattr(short, field) * 8**-power), field
    assert (long.power, long.batch) == (0, 1)
    assert type(long).model_validate(long.given()) == long
    if name == "adambo":
        assert 1 - long.beta1 == pytest.approx((1 - short.beta1) * 8**-0.5)
    if name in ("mrbo", "sustain", "adambo"):
        assert long.Q > short.Q


def test_presets_for_an_accuracy_have_the_powers_of_their_theorems():
    coarse, fine = (cls("vrbo").from_rate(noisy_constants(), eps) for eps in (0.1, 0.01))
    assert (coarse.big, coarse.batch, coarse.period) == (100, 10, 10)
    assert (fine.big, fine.batch, fine.period) == (10_000, 100, 100)
    assert (fine.a, fine.b) == (coarse.a, coarse.b)
    assert fine.Q > coarse.Q
    whole = cls("vrbo").from_rate(tiny(n_g=60, n_f=40).constants, 0.1)
    assert (whole.big, whole.batch, whole.period) == (None, 10, 10)
    coarse, fine = (cls("amigo").from_rate(noisy_constants(), eps) for eps in (0.1, 0.01))
    assert (coarse.batch, fine.batch) == (100, 10_000)
    assert (fine.a, fine.b, fine.K, fine.N) == (coarse.a, coarse.b, coarse.K, coarse.N)


@pytest.mark.parametrize("name", FAMILY)
def test_steps_are_tuned_and_defaults_come_from_the_constants(name):
    assert cls(name).tuned == {"b": "upper_step", "a": "lower_step", "batch": "batch"}
    resolved, c = method(name).resolve(tiny().constants), tiny().constants
    assert (resolved.a, resolved.b) == (1 / c.L_gy, (1 if name == "slip" else 0.5) / c.L_phi)
    assert getattr(resolved, "eta_v", 1 / c.L_gy) == 1 / c.L_gy


def test_the_default_refresh_of_vrbo_is_the_whole_of_a_finite_sum_and_a_square_elsewhere():
    on_sum, on_noise = (method("vrbo").resolve(c) for c in (tiny(n_g=200, n_f=150).constants, noisy_constants()))
    assert (on_sum.big, on_sum.period) == (None, 11)
    assert (on_noise.big, on_noise.period) == (256, 16)


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vrbo[period=0]", "period = 0: input should be greater than 0"),
        ("vrbo[D=0]", "D = 0: input should be greater than 0"),
        ("vrbo[big=0]", "big = 0: input should be greater than 0"),
        ("mrbo[Q=0]", "Q = 0: input should be greater than 0"),
        ("sustain[Q=0]", "Q = 0: input should be greater than 0"),
        ("adambo[Q=0]", "Q = 0: input should be greater than 0"),
        ("vrbo[Q=0]", "Q = 0: input should be greater than 0"),
        ("adambo[beta1=1]", "beta1 = 1: input should be less than 1"),
        ("adambo[floor=0]", "floor = 0: input should be greater than 0"),
        ("amigo[K=0]", "K = 0: input should be greater than 0"),
        ("amigo[N=0]", "N = 0: input should be greater than 0"),
        ("slip[T0=0]", "T0 = 0: input should be greater than 0"),
        ("fsla[w=0]", "w = 0: input should be greater than 0"),
        ("sustain[sampling=epoch]", "sampling = 'epoch': input should be 'replacement' or 'block'"),
        ("mrbo[sampling=pass]", "sampling = 'pass': input should be 'replacement', 'epoch' or 'block'"),
    ],
)
def test_parameters_out_of_range_are_a_sentence(text, said):
    with pytest.raises(InvalidInput) as caught:
        method(text)
    assert said in str(caught.value)
