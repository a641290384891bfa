"""F2BSA, F3SA and the mini-batch modes of F2SA and PBGD: iterates, counts, packs, presets and what is refused."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import plain
import pytest
import torch
from bilevelbench_methods.penalty.pair import penalty_gradient
from helpers import alone, assert_same, iterates, packed, prepared, states_of, trial
from plain import Noise, Noisy, Point
from plain_problems import Plain, Vector, Wavy, of_quadratic, quadratic

import bilevelbench
from bilevelbench import Additive, Constants, Instance, InvalidInput, MissingConstant, Oracle
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.setup import pack_algorithm
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Schedule

STEPS = 20
SIGMA_F, SIGMA_G = 0.7, 0.3
NOISE = Noise(SIGMA_F, SIGMA_G)
QUADRATIC = f"quadratic[dim_x=4,dim_y=6,kappa=1.5,sigma_f={SIGMA_F},sigma_g={SIGMA_G}]"


def method(text: str) -> bilevelbench.Algorithm:
    (spec,) = parse_spec(text)
    return make(registry().algorithm(spec.name), spec.params)


def instance_of(text: str) -> Instance:
    (spec,) = parse_spec(text)
    with default_dtype(torch.float64):
        return make(registry().problem(spec.name), spec.params).build()


# ---- twenty steps against plain numpy, with the same noise


def noisy_quadratic() -> tuple[Plain, Instance]:
    return quadratic(kappa=1.5, sigma_f=SIGMA_F, sigma_g=SIGMA_G)


def noisy_wavy() -> tuple[Plain, Instance]:
    problem = Wavy(mu=1.5)
    exact = problem.build()
    instance = Instance(
        f=exact._raw["value_f"],
        g=exact._raw["value_g"],
        x0=exact.x0,
        y0=exact.y0,
        constants={**problem.constants(), "L_phi": 10.0},
        noise=Additive(SIGMA_F, SIGMA_G),
        points="stack",
    )
    return problem.plain(), instance


PROBLEMS = {"quadratic": noisy_quadratic, "wavy": noisy_wavy}


def lower_steps(c: Constants, lam: float, delta: float, eps: float) -> int:
    """The repaired rule; L_g of y alone in the condition number."""
    ratio = c["L_gy"] / c["mu"]
    inside = max(16 * ratio, 10 * 4 * ratio * (c["L_f"] ** 2 + lam**2 * c["L_g"] ** 2) * delta / eps**2)
    return math.ceil(4 * ratio * math.log(inside))


def f2bsa(
    p: Plain,
    c: Constants,
    lam: float,
    eta: tuple[float, float, float],
    B_in: int,
    B_out: int,
    coupled: bool,
    K: int | None = None,
    eps: float | None = None,
) -> Iterator[Point]:
    """In the paper's form, eta = (eta_x, eta_y, eta_z) with eta_y = a_y/lam; K_t from the recursion if eps is given."""
    ask, (eta_x, eta_y, eta_z), mu = Noisy(p, NOISE, B_in), eta, c["mu"]
    x, y, z, t, delta = p.x0, p.y0, p.y0, 0, math.nan
    if eps is not None:
        start = ask("g_y", x, y, (1,), 0)
        delta = 3 * np.sum(start**2) / mu**2 + 2 * c["C_f"] ** 2 / (lam * mu) ** 2
    while True:
        yield x, y
        t += 1
        for k in range(K if eps is None else lower_steps(c, lam, delta, eps)):
            z = z - eta_z * lam * ask("g_y", x, z, (1, 1), t, k)
            y = y - eta_y * (
                ask("f_y", x, y, (1, 2), t, k) + lam * ask("g_y", x, y, (1, 3), t, k)
            )  # fmt: skip
        g_x = ask("g_x", x, y, (3,), t, B=B_out)
        d = ask("f_x", x, y, (2,), t, B=B_out) + lam * (g_x - ask("g_x", x, z, (3 if coupled else 4,), t, B=B_out))
        x, before = x - eta_x * d, x
        noise = 8 * (SIGMA_F**2 + lam**2 * SIGMA_G**2) / (lam**2 * mu**2) + 2 * SIGMA_G**2 / mu**2
        delta = delta / 2 + 34 * c["L_g"] ** 2 / mu**2 * np.sum((x - before) ** 2) + noise / B_in


def f3sa(p: Plain, B: int, xi: float, eta: Callable[[int], float], **rest: float) -> Iterator[Point]:
    """All iterates are kept and looked up, so that no estimate can be held against the wrong arguments."""
    ask = Noisy(p, NOISE, B)
    xs, ys, zs = [p.x0], [p.y0], [p.y0]
    h: dict[int, Vector] = {}
    for k in itertools.count():
        yield xs[k], ys[k]
        lam, alpha, gam = plain.schedule(k, **rest)

        def follow(number: int, block: str, u: list[Vector], ahead: int, k: int = k) -> Vector:
            now = ask(block, xs[k], u[k + ahead], (number,), k + 1)
            if k == 0:
                h[number] = now
            else:
                before = ask(block, xs[k - 1], u[k - 1 + ahead], (number,), k + 1)
                h[number] = now + (1 - eta(k)) * (h[number] - before)
            return h[number]

        h_z, h_fy, h_gy = follow(1, "g_y", zs, 0), follow(2, "f_y", ys, 0), follow(3, "g_y", ys, 0)
        zs.append(zs[k] - gam * h_z)
        ys.append(ys[k] - alpha * (h_fy + lam * h_gy))
        h_fx, h_gx, h_gxz = follow(4, "f_x", ys, 1), follow(5, "g_x", ys, 1), follow(6, "g_x", zs, 1)
        xs.append(xs[k] - xi * alpha * (h_fx + lam * (h_gx - h_gxz)))


STEP = (0.05, 0.2 / 50, 0.3 / 50)
RUNS: dict[str, Callable[[Plain, Constants], Iterator[Point]]] = {
    "f2bsa[lam=50,K=4,B_in=40,B_out=9,a_y=0.2,a_z=0.3,eta_x=0.05]": lambda p, c: f2bsa(p, c, 50.0, STEP, 40, 9, True, K=4),
    "f2bsa[lam=50,K=4,B_in=40,B_out=900,a_y=0.2,a_z=0.3,eta_x=0.05,coupled_batches=false]": lambda p, c: f2bsa(
        p, c, 50.0, STEP, 40, 900, False, K=4
    ),
    "f2bsa[lam=50,accuracy=0.5,B_in=40,B_out=9,a_y=0.2,a_z=0.3,eta_x=0.05]": lambda p, c: f2bsa(
        p, c, 50.0, STEP, 40, 9, True, eps=0.5
    ),
    "f2sa[lam=7,T_in=3,xi=2,a_y=0.2,a_z=0.3,batch=5]": lambda p, c: plain.f2sa(
        p, 3, 2.0, NOISE, 5, lam=7.0, c_a=0.2 / 7, c_g=0.3, k0=1.0, a=0.0, c=0.0
    ),
    "f2sa[lam=2,T_in=1,a_y=0.2,a_z=0.4,lam_power=0.2,step_power=0.4,k0=5,batch=1]": lambda p, c: plain.f2sa(
        p, 1, 1.0, NOISE, 1, lam=2.0, c_a=0.2 / 2 * 5**0.6, c_g=0.4 * 5**0.4, k0=5.0, a=0.6, c=0.4
    ),
    "f3sa[lam=7,xi=2,a_y=0.2,a_z=0.3,eta=0.3,lam_power=0,step_power=0,eta_power=0,batch=5]": lambda p, c: f3sa(
        p, 5, 2.0, lambda k: 0.3, lam=7.0, c_a=0.2 / 7, c_g=0.3, k0=1.0, a=0.0, c=0.0
    ),
    "f3sa[lam=2,a_y=0.2,a_z=0.4,k0=5,batch=1]": lambda p, c: f3sa(
        p, 1, 1.0, lambda k: (1 + k / 5) ** -0.8, lam=2.0, c_a=0.2 / 2 * 5**0.6, c_g=0.4 * 5**0.4, k0=5.0, a=0.6, c=0.4
    ),
    "f2sa_p[p=2,lam=7,K=3,a=0.2,eta_x=0.05,B_in=5,B_out=3]": lambda p, c: plain.f2sa_p(
        p, 2, 1 / 7, 3, 0.2, 0.05, NOISE, 5, 3
    ),
    "f2sa_p[p=5,lam=7,K=2,a=0.2,eta_x=0.05,B_in=40,B_out=9]": lambda p, c: plain.f2sa_p(
        p, 5, 1 / 7, 2, 0.2, 0.05, NOISE, 40, 9
    ),
    "pbgd[gam=8,K=3,alpha=0.02,b=0.3,batch=5]": lambda p, c: plain.pbgd(p, 8.0, 3, 0.02, 0.3, False, NOISE, 5),
    "pbgd[gam=8,K=3,alpha=0.02,b=0.3,start=warm,batch=5]": lambda p, c: plain.pbgd(p, 8.0, 3, 0.02, 0.3, True, NOISE, 5),
}  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, marks=pytest.mark.slow if "accuracy" in text else ()) for text in RUNS
    ],  # hundreds of lower steps
)
def test_iterates_are_those_of_the_paper_with_the_same_noise(text, problem):
    p, instance = PROBLEMS[problem]()
    got = iterates(method(text), instance, STEPS)
    expected = list(itertools.islice(RUNS[text](p, instance.constants), STEPS + 1))
    assert np.linalg.norm(got[-1][0] - got[0][0]) > 1e-2, "a run that stands still shows nothing"
    for mine, theirs in zip(got, expected, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert np.linalg.norm(a - b) <= 1e-10 * (1 + np.linalg.norm(b))


# ---- without noise


@pytest.mark.parametrize("problem", ["quadratic[dim_x=4,dim_y=6]", "tail_anchor[tails=3,anchors=2,c=0.5]"])
@pytest.mark.parametrize(
    ("sampled", "exact"),
    [
        ("f2bsa[lam=50,K=4,B_in=3,B_out=7]", "f2ba[lam=50,K=4]"),
        ("f2bsa[lam=50,K=4,coupled_batches=false]", "f2ba[lam=50,K=4]"),
        ("f2sa[lam=5,T_in=3,lam_power=0.2,step_power=0.4,batch=6]", "f2sa[lam=5,T_in=3,lam_power=0.2,step_power=0.4]"),
        ("f3sa[lam=5,batch=6]", "f2sa[lam=5,T_in=1,lam_power=0.2,step_power=0.4,k0=100]"),
        ("f3sa[lam=5,batch=None]", "f2sa[lam=5,T_in=1,lam_power=0.2,step_power=0.4,k0=100]"),
        ("pbgd[batch=6]", "pbgd"),
        ("pbgd[batch=6,start=warm]", "pbgd[start=warm]"),
    ],
)
def test_without_noise_they_are_the_exact_methods(sampled, exact, problem):
    """F3SA's corrections are then differences of equal numbers, and it is F2SA with one lower-level step."""
    got, expected = (iterates(method(text), instance_of(problem), STEPS) for text in (sampled, exact))
    for mine, theirs in zip(got, expected, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


# ---- counts of calls and samples


def books(text: str, problem: str, steps: int) -> tuple[dict[str, float], dict[str, float]]:
    """Calls and samples of each column after so many steps of one lane, without what `init` paid."""
    pack = prepared(method(text), instance_of(problem))
    state, paid = pack.init(), _books(pack.oracle)
    for step in range(1, steps + 1):
        state = pack.step(step, state)
    return tuple(
        {k: after[k] - before[k] for k in after} for after, before in zip(_books(pack.oracle), paid, strict=True)
    )


def _books(oracle: Oracle) -> tuple[dict[str, float], dict[str, float]]:
    calls = {name: float(value[0]) for name, value in oracle.meter.columns().items()}
    samples = {name: float(value[0]) for name, value in oracle.meter.sample_columns().items()}
    return calls, samples


BLOCKS = ("grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y")
NOISES = ["tail_anchor[sigma_f=1,sigma_g=0.5]", "logreg_breast_cancer"]


def blocks(book: dict[str, float], suffix: str = "") -> tuple[float, ...]:
    return tuple(book[name + suffix] for name in BLOCKS)


@pytest.mark.parametrize("problem", NOISES)
@pytest.mark.parametrize("coupled", ["true", "false"])
def test_f2bsa_makes_3K_plus_3_calls_with_a_batch_each(problem, coupled):
    K, B_in, B_out, T = 5, 30, 7, 3
    text = f"f2bsa[K={K},B_in={B_in},B_out={B_out},coupled_batches={coupled},eta_x=0.001,a_y=0.1,a_z=0.1]"
    calls, samples = books(text, problem, T)
    assert blocks(calls) == (T, T * K, 2 * T, 2 * T * K)
    assert blocks(samples, "_samples") == (T * B_out, T * K * B_in, 2 * T * B_out, 2 * T * K * B_in)
    assert samples_of_all(calls) == T * (3 * B_out + 3 * K * B_in)


def samples_of_all(calls: dict[str, float]) -> float:
    assert calls["hvp"] == calls["jvp"] == calls["value"] == 0
    return calls["cost"]


@pytest.mark.parametrize("problem", NOISES)
def test_f2sa_has_the_counts_of_its_exact_mode_with_a_batch_each(problem):
    n, B, T = 4, 11, 3
    calls, samples = books(f"f2sa[T_in={n},a_y=0.1,a_z=0.1,batch={B}]", problem, T)
    assert blocks(calls) == (T, T * n, 2 * T, 2 * T * n)
    assert blocks(samples, "_samples") == (T * B, T * n * B, 2 * T * B, 2 * T * n * B)


@pytest.mark.parametrize("problem", NOISES)
def test_f3sa_evaluates_each_estimate_twice_on_one_sample_but_for_the_first_step(problem):
    B = 11
    total = np.zeros(4)
    for T in (1, 2, 3):
        total += np.array([1, 1, 2, 2]) * (1 if T == 1 else 2)
        calls, samples = books(f"f3sa[a_y=0.1,a_z=0.1,batch={B}]", problem, T)
        assert blocks(calls) == tuple(total)
        assert blocks(samples, "_samples") == tuple(B * total)


@pytest.mark.parametrize("problem", NOISES)
def test_pbgd_has_the_counts_of_its_exact_mode_with_a_batch_each(problem):
    """The joint calls of f and of g at (x, y) are one call and one batch for both blocks."""
    K, B, T = 4, 11, 3
    calls, samples = books(f"pbgd[K={K},alpha=0.001,b=0.1,batch={B}]", problem, T)
    assert blocks(calls) == (T, T, 2 * T, T * (K + 1))
    assert (calls["grad_f"], calls["grad_g"]) == (T, T * (K + 2))
    assert samples_of_all(calls) == T * (K + 3) * B
    assert blocks(samples, "_samples") == (T * B, T * B, 2 * T * B, T * (K + 1) * B)


@pytest.mark.parametrize(
    "text", ["f2bsa[K=5]", "f2bsa[K=1,coupled_batches=false]", "f2sa[T_in=3,batch=2]", "f3sa", "pbgd[K=3,batch=2]"]
)
def test_declared_calls_are_what_the_meter_counts_in_each_step(text):
    before = dict.fromkeys(BLOCKS, 0.0)
    for step in (1, 2, 3):
        calls, _ = books(text, NOISES[0], step)
        declared = method(text).calls(step)
        joint = {name: declared.get(name[:6], 0) for name in BLOCKS}
        assert {k: calls[k] - before[k] for k in BLOCKS} == {k: declared.get(k, 0) + joint[k] for k in BLOCKS}
        assert set(declared) <= type(method(text)).uses
        before = calls


def test_f2bsa_with_an_accuracy_declares_no_calls_and_pays_one_batch_in_init():
    assert method("f2bsa[accuracy=0.1]").calls(1) is None
    (run,) = alone([trial("f2bsa[accuracy=0.1,B_in=40,B_out=3]", NOISES[0], cost=39)]).runs.itertuples()
    assert (run.status, run.message) == ("budget", "the budget does not cover `init`")
    (run,) = alone([trial("f2bsa[accuracy=0.1,B_in=40,B_out=3]", NOISES[0], steps=1)]).runs.itertuples()
    (K,) = {(run.grad_f_y - 0), (run.grad_g_y - 1) / 2}
    assert K >= 1
    assert run.cost == 40 + 3 * 3 + 3 * K * 40


# ---- the number of lower-level steps


def test_lower_steps_fall_to_their_floor_and_are_a_column_of_the_curve():
    p, instance = noisy_quadratic()
    c, lam, eps, B = instance.constants, 5.0, 5.0, 10**12
    text = f"f2bsa[lam={lam},accuracy={eps},B_in={B},B_out={B},eta_x=0.2]"
    found = alone([trial(text, QUADRATIC, steps=30, schedule=Schedule(ratio=1.001))]).curve.lower_steps.to_numpy()
    delta = 3 * np.sum(p.g_y(p.x0, p.y0) ** 2) / c["mu"] ** 2 + 2 * (c["C_f"] / (lam * c["mu"])) ** 2
    ratio = c["L_gy"] / c["mu"]
    floor = math.ceil(4 * ratio * math.log(16 * ratio))
    assert found[:2].tolist() == [0, lower_steps(c, lam, delta, eps)]
    assert found[1] > found[-1] == found[1:].min() == floor


@pytest.mark.parametrize("noise", ["", ",sigma_f=0.7,sigma_g=0.3"])
def test_9_7_delta_bounds_the_distance_of_the_lower_level_from_its_solutions(noise):
    """In the mean over 64 seeds, at the start of every step."""
    instance = instance_of(f"quadratic[dim_x=4,dim_y=6,kappa=2{noise}]")
    p, c, lam = of_quadratic(instance), instance.constants, 40.0
    one = method(f"f2bsa[lam={lam},accuracy=0.3,B_in=500,B_out=500]").resolve(c)
    lanes = pack_algorithm([one] * 64, torch.float64)
    oracle = Oracle(instance, one.uses, seeds=range(64))
    with torch.no_grad():
        state = lanes.init(instance.x0.expand(64, -1).clone(), instance.y0.expand(64, -1).clone(), oracle)
        for step in range(1, 9):
            apart = [
                np.sum((y - p.y_star(x, lam, lambda x, y: np.eye(6))) ** 2) + np.sum((z - p.y_star(x)) ** 2)
                for x, y, z in zip(state.x.numpy(), state.y.numpy(), state.z.numpy(), strict=True)
            ]
            assert np.mean(apart) <= state.delta.mean().item()
            oracle.begin_step(step)
            state = lanes.step(state, oracle)


# ---- variance


LANES = 4000
LAM = 30.0


def spread_of(d: torch.Tensor) -> float:
    """E|d - E d|^2 over lanes."""
    return (d - d.mean(-2, keepdim=True)).square().sum(-1).mean().item()


def gradients(instance: Instance, coupled: bool, B: int, apart: float) -> torch.Tensor:
    """The x-gradient of many seeds at one point, with z at a distance from y."""
    oracle = Oracle(instance, frozenset({"grad_f_x", "grad_g_x"}), seeds=range(LANES))
    oracle.begin_step(1)
    x, y = instance.x0.reshape(1, -1).expand(LANES, -1), instance.y0.reshape(1, -1).expand(LANES, -1)
    with torch.no_grad():
        return penalty_gradient(oracle, x, y, y + apart, torch.tensor(LAM), B, coupled)


def test_coupled_batches_take_the_penalty_out_of_the_variance_under_additive_noise():
    _, instance = noisy_quadratic()
    B = 5
    alone_, both = (spread_of(gradients(instance, coupled, B, 0.01)) for coupled in (False, True))
    accuracy = 5 * math.sqrt(2 / (instance.dx * LANES))
    assert alone_ == pytest.approx((SIGMA_F**2 + 2 * LAM**2 * SIGMA_G**2) / B, rel=accuracy)
    assert both == pytest.approx(SIGMA_F**2 / B, rel=accuracy)


def test_coupled_batches_of_a_finite_sum_leave_a_variance_that_falls_with_the_distance(least_squares):
    """Sample gradients are Lipschitz there: the difference at y and z has a spread of order |y - z|."""
    f_alone = spread_of(gradients(least_squares(), True, 3, 0.0))
    alone_, near, nearer = (
        spread_of(gradients(least_squares(), coupled, 3, apart)) - f_alone
        for coupled, apart in ((False, 1e-2), (True, 1e-1), (True, 1e-2))
    )
    assert alone_ > 100 * f_alone
    assert alone_ > 100 * abs(nearer)
    assert abs(nearer) < 0.2 * near


def test_coupled_x_gradient_is_unbiased(least_squares):
    """Its mean over seeds is the exact one, as far as its spread can tell."""
    exact = gradients(least_squares(), True, None, 0.1)[0]
    for coupled in (False, True):
        d = gradients(least_squares(), coupled, 3, 0.1)
        assert bool(((d.mean(0) - exact).abs() <= 4.5 * d.std(0) / LANES**0.5).all())


@pytest.mark.parametrize("eta", [1.0, 0.2])
def test_momentum_of_f3sa_averages_the_noise_of_an_estimate(eta):
    """Under additive noise the error of an estimate is e <- (1 - eta) e + eta n: a variance of sigma^2 eta/(2 - eta)."""
    _, instance = noisy_quadratic()
    one = method(f"f3sa[lam=5,eta={eta},batch=1,lam_power=0,step_power=0,eta_power=0]")
    state = states_of(prepared(one, instance, range(LANES)), 40)[-1]
    with torch.no_grad():
        for h, exact, sigma in (
            (state.h_gx, instance.grad_g_x(state.x_before, state.y), SIGMA_G),
            (state.h_gxz, instance.grad_g_x(state.x_before, state.z), SIGMA_G),
            (state.h_fx, instance.grad_f_x(state.x_before, state.y), SIGMA_F),
            (state.h_z, instance.grad_g_y(state.x_before, state.z_before), SIGMA_G),
            (state.h_gy, instance.grad_g_y(state.x_before, state.y_before), SIGMA_G),
            (state.h_fy, instance.grad_f_y(state.x_before, state.y_before), SIGMA_F),
        ):
            expected = sigma**2 * eta / (2 - eta)
            assert (h - exact).square().sum(-1).mean().item() == pytest.approx(
                expected, rel=5 * math.sqrt(2 / (h.shape[-1] * LANES))
            )


def test_samples_of_one_step_are_all_independent():
    """Six batches of F2SA with T_in = 1; with sigma_f = sigma_g one shared pair would show as a doubled variance."""
    instance = instance_of("quadratic[dim_x=4,dim_y=6,sigma_f=0.5,sigma_g=0.5]")
    one = method("f2sa[lam=3,T_in=1,a_y=0.1,a_z=0.2,batch=2]").resolve(instance.constants)
    lanes = pack_algorithm([one] * LANES, torch.float64)
    oracle = Oracle(instance, one.uses, seeds=range(LANES))
    oracle.begin_step(1)
    x0, y0 = instance.x0.expand(LANES, -1).clone(), instance.y0.expand(LANES, -1).clone()
    with torch.no_grad():
        state = lanes.step(lanes.init(x0, y0, oracle), oracle)
    n_z, n_y = ((t - t.mean(0)) for t in (state.z, state.y))
    variance = 0.5**2 / 2
    accuracy = 5 * math.sqrt(2 / (6 * LANES))
    assert n_z.square().sum(-1).mean().item() == pytest.approx(0.2**2 * variance, rel=accuracy)
    assert n_y.square().sum(-1).mean().item() == pytest.approx(0.1**2 * (1 / 9 + 1) * variance, rel=accuracy)
    correlation = (n_z * n_y).sum() / (n_z.square().sum() * n_y.square().sum()).sqrt()
    assert abs(correlation.item()) < 5 / math.sqrt(6 * LANES)


# ---- packed and alone


METHODS = {
    "f2bsa": "f2bsa[lam={lam},K={n},B_in={B},B_out={b},eta_x={eta}]",
    "f2bsa_independent": "f2bsa[lam={lam},K={n},B_in={B},B_out={b},eta_x={eta},coupled_batches=false]",
    "f2bsa_accuracy": "f2bsa[lam={lam},accuracy={eps},B_in={B},B_out={b},eta_x={eta}]",
    "f2sa": "f2sa[lam={lam},T_in={n},xi={xi},lam_power={power},step_power={decay},k0={k0},batch=6]",
    "f3sa": "f3sa[lam={lam},eta={w},xi={xi},lam_power={power},step_power={decay},eta_power={w},k0={k0},batch=6]",
    "pbgd": "pbgd[gam={lam},K={n},batch=6]",
    "pbgd_warm": "pbgd[gam={lam},K={n},start=warm,batch=6]",
}
PACKS = {
    "quadratic": ("quadratic[dim_x=5,dim_y=9,kappa=1.3,sigma_f=0.4,sigma_g=0.2]", 2.5),
    "tail_anchor": ("tail_anchor[tails=3,anchors=2,L=1.1,c=0.1,sigma_f=0.4,sigma_g=0.2,data_seed={data}]", 1.7),
    "logreg_breast_cancer": ("logreg_breast_cancer", 1e-9),
}


def lane(name: str, problem: str, i: int):
    """Trial number i. On a finite sum batches are equal: the rows of smaller ones are padded, which moves a rounding."""
    text, target = PACKS[problem]
    finite, short = problem.startswith("logreg"), "accuracy" in name
    method_text = METHODS[name].format(
        lam=[10, 50.5, 3, 400][i % 4],
        n=1 + i % 4,
        B=8 if finite else [8, 1, 300, 10**10][i % 4],
        b=5 if finite else [5, 70, 2][i % 3],
        eta=[0.1, 0.03, 0.2, 0.011][i % 4] * (1e-2 if finite else 1),
        eps=[0.5, 0.05, 2.0][i % 3],
        power=[0.2, 1 / 7][i % 2],
        decay=[0.4, 4 / 7, 0.0][i % 3],
        w=[1.0, 0.3, 0.8][i % 3],
        k0=[1, 7.5][i % 2],
        xi=[1, 3.3, 10][i % 3],
    )
    if finite and name.startswith("pbgd"):
        method_text = method_text.replace("]", ",alpha=0.001]")
    return trial(
        method_text,
        text.format(data=i % 3),
        cost=[None, 500, 110_000 if short else 9000, None][i % 4],
        steps=([4, 5, 3, 5, 2] if finite or short else [9, 12, 7, 14, 5])[i % 5],
        targets=[(), (target,)][i % 2],
        seed=i % 5,
        schedule=Schedule(ratio=10.0 if finite else 1.7),
    )


@functools.cache
def lanes_of(name: str, problem: str):
    some = [lane(name, problem, i) for i in range(6 if problem.startswith("logreg") else 9)]
    return some, alone(some)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (name, problem)
        for name in METHODS
        for problem in PACKS
        if (name, problem) != ("f2bsa_accuracy", "logreg_breast_cancer")  # K_t needs a noise that is a constant
    ],
)
@pytest.mark.quick_cases(6)
def test_packed_equals_alone(name, problem):
    some, each = lanes_of(name, problem)
    assert_same(packed(some), each)
    assert set(each.runs.status) <= {"budget", "target"}
    assert each.runs.steps.nunique() >= 3
    assert each.runs.last_grad_phi.nunique() == len(some)


# ---- large batches


@pytest.mark.parametrize("text", ["f2bsa[K=2,B_in={B},B_out={B}]", "f2sa[T_in=2,batch={B}]", "pbgd[K=2,batch={B}]"])
def test_batch_of_a_million_millions_costs_no_memory_and_counts_right(text):
    """A draw is one normal of variance sigma^2/B: the run is that of the exact method up to 1e-6."""
    B, T = 10**12, 5
    problem = "tail_anchor[sigma_f=1,sigma_g=1]"
    (run,) = alone([trial(text.format(B=B), problem, steps=T)]).runs.itertuples()
    calls = 9 if "pbgd" not in text else 5
    assert run.cost == T * calls * B
    small, large = (
        np.concatenate([np.concatenate(point) for point in iterates(method(text.format(B=size)), instance_of(p), T)])
        for size, p in ((1, "tail_anchor"), (B, problem))
    )
    assert 0 < np.abs(small - large).max() < 1e-3


def test_largest_batch_that_can_be_counted_runs_and_the_next_is_refused():
    (run,) = alone([trial(f"f2bsa[K=1,B_in={2**53}]", NOISES[0], steps=2)]).runs.itertuples()
    assert run.status == "budget"
    assert run.cost == 2 * (3 * 2**53 + 3 * 64)
    with pytest.raises(InvalidInput, match=f"B_in = {2**53 + 1}: input should be less than or equal to {2**53}"):
        bilevelbench.run(f"f2bsa[B_in={2**53 + 1}]", "quadratic", steps=1)


# ---- the answer


def test_answer_of_f2bsa_is_a_visited_point_and_not_always_the_last():
    some = [trial("f2bsa[K=2]", NOISES[0], steps=12, seed=seed, schedule=Schedule(ratio=1.001)) for seed in range(8)]
    results = alone(some)
    places = []
    for run in results.runs.itertuples():
        seen = results.curve[results.curve.trial_id == run.trial_id].grad_phi.to_numpy()
        assert len(seen) == 13
        (place,) = np.flatnonzero(seen == run.grad_phi)
        places.append(place)
    assert max(places) < 12
    assert len(set(places)) >= 4


# ---- presets


GIVEN = {"mu": 0.5, "L_f": 2.0, "L_g": 3.0, "L_gy": 1.5, "rho_g": 0.7, "C_f": 1.5, "L_phi": 8.0}


def constants(sigma_f: float = 0.0, sigma_g: float = 0.0) -> Constants:
    return Constants({**GIVEN, "sigma_f": sigma_f, "sigma_g": sigma_g}, "made_up")


def cls(name: str) -> type[bilevelbench.Algorithm]:
    return registry().algorithm(name).value


@pytest.mark.parametrize(
    ("sigma_f", "sigma_g", "B_out"),
    [(1.0, 0.0, 100), (0.5, 0.0, 25), (1.0, 1.0, 40_100), (0.0, 0.5, 10_000), (0.0, 0.0, 1), (0.01, 0.0, 1)],
)
def test_rate_preset_of_f2bsa_is_the_formula_worked_out_by_hand(sigma_f, sigma_g, B_out):
    """eps = 0.1: lam = 20, K = ceil(2 (1.5/0.5) log 20) = 18, B_out = (sigma_f^2 + 400 sigma_g^2)/0.01."""
    made = cls("f2bsa").from_rate(constants(sigma_f, sigma_g), 0.1)
    assert (made.lam, made.K, made.accuracy, made.coupled_batches) == (pytest.approx(20), 18, None, False)
    assert (made.eta_x, made.a_y, made.a_z) == pytest.approx((0.4 / 8, 1 / 3, 1 / 3))
    assert abs(made.B_out - B_out) <= 1
    assert made.B_in == 4 * made.B_out
    assert made.x_step() == made.eta_x


@pytest.mark.parametrize(("noise", "power"), [((1.0, 0.0), 2), ((1.0, 1.0), 4)])
def test_batches_of_f2bsa_grow_as_the_theorems(noise, power):
    few, many = (cls("f2bsa").from_rate(constants(*noise), eps).B_out for eps in (1e-2, 1e-3))
    assert many / few == pytest.approx(10**power, rel=1e-3)


def test_theory_preset_of_f2bsa_is_the_formula_worked_out_by_hand():
    c = constants(0.6, 0.2)
    made, exact = cls("f2bsa").from_theory(c, 10.0), cls("f2ba").from_theory(c, 10.0)
    lam = exact.lam
    B_out = (0.36 + lam**2 * 0.04) / 100
    assert (made.lam, made.eta_x, made.a_y, made.a_z) == (lam, exact.eta_x, exact.a_y, exact.a_z)
    assert (made.accuracy, made.coupled_batches) == (10.0, False)
    assert made.B_out == math.ceil(B_out)
    assert made.B_in == math.ceil((4 + lam**2 * 9) / (lam**2 * 0.25) * B_out)
    assert type(made).model_validate(made.given()) == made


@pytest.mark.parametrize("preset", ["from_rate", "from_theory"])
@pytest.mark.parametrize(("eps", "noise"), [(1e-4, (1.0, 1.0)), (1e-9, (1.0, 0.0)), (1e-99, (1.0, 1.0))])
def test_batch_that_cannot_be_counted_is_refused_in_words(preset, eps, noise):
    with pytest.raises(InvalidInput) as caught:
        getattr(cls("f2bsa"), preset)(constants(*noise), eps)
    said = str(caught.value)
    assert said.startswith(f"f2bsa: eps = {eps:g} asks for a batch of ")
    assert "(lam = " in said
    assert f"sigma_f = {noise[0]:g}, sigma_g = {noise[1]:g}), more than can be counted, 2^53" in said
    assert "choose a larger eps, or set B_in and B_out yourself" in said


@pytest.mark.parametrize(
    ("name", "sigma", "growth", "decay", "forget", "batch"),
    [
        ("f2sa", (0.1, 0.0), 1 / 5, 2 / 5, None, 1),
        ("f2sa", (0.1, 0.02), 1 / 7, 4 / 7, None, 1),
        ("f2sa", (0.0, 0.02), 1 / 7, 4 / 7, None, 1),
        ("f2sa", (0.0, 0.0), 1 / 3, 0, None, None),
        ("f3sa", (0.1, 0.0), 1 / 4, 1 / 4, 1 / 2, 1),
        ("f3sa", (0.1, 0.02), 1 / 5, 2 / 5, 4 / 5, 1),
        ("f3sa", (0.0, 0.0), 1 / 3, 0, 0, None),
    ],
)
def test_horizon_preset_holds_the_powers_of_the_schedule(name, sigma, growth, decay, forget, batch):
    """gam = 0.8/L_gy and lam = 2 at 64 steps, 2 lam alpha = gam; constants of the horizon: no anytime schedule on top."""
    first, later = (cls(name).from_horizon(constants(*sigma), steps) for steps in (64, 64 * 1024))
    assert (first.lam, first.a_z, first.a_y) == pytest.approx((2, 0.8 / 1.5, 0.4 / 1.5))
    assert later.lam / first.lam == pytest.approx(1024**growth)
    assert later.a_z / first.a_z == later.a_y / first.a_y == pytest.approx(1024**-decay)
    assert later.lam_power == later.step_power == 0
    assert later.batch == batch
    if name == "f3sa":
        assert (first.eta, later.eta, later.eta_power) == (1, pytest.approx(1024**-forget), 0)
    else:
        assert later.T_in == (1 if batch else 4)
    assert cls(name).from_horizon(constants(*sigma), 5) == first


@pytest.mark.parametrize("name", ["f2sa", "f3sa"])
@pytest.mark.parametrize("steps", [0, -3, 10.5, math.nan])
def test_horizon_that_is_no_number_of_steps_is_refused(name, steps):
    with pytest.raises(InvalidInput, match=f"{name} has no preset for a horizon of {steps} steps; give a whole number"):
        cls(name).from_horizon(constants(), steps)


@pytest.mark.parametrize(
    ("name", "preset"), [("f2bsa", "from_rate"), ("f2sa", "from_horizon"), ("f3sa", "from_horizon")]
)
def test_preset_on_a_finite_sum_says_that_its_noise_is_not_known(name, preset):
    with pytest.raises(MissingConstant, match=r"declares no constant 'sigma_[fg]'"):
        getattr(cls(name), preset)(Constants(GIVEN, "rows"), 1)


def test_lower_steps_on_a_finite_sum_say_that_its_noise_is_not_known():
    (run,) = bilevelbench.run("f2bsa[accuracy=0.1]", "logreg_breast_cancer", steps=2).runs.itertuples()
    assert run.status == "error"
    assert run.message.startswith("could not be set up: problem 'logreg_breast_cancer' declares no constant 'sigma_f'")
    assert "(needed for f2bsa's lower-level steps from an accuracy)" in run.message


# ---- claims, and what is refused


def test_claims_of_table_2():
    found = {
        (name, claim.setting): (claim.eps_exp, claim.tilde, claim.kappa_exp, claim.extra, claim.oracle)
        for name in ("f2bsa", "f2sa", "f3sa", "pbgd")
        for claim in cls(name).claims
        if claim.table == 2
    }
    assert found == {
        ("f2bsa", "partial"): (4, True, 6, "ell", "gradient"),
        ("f2bsa", "full"): (6, True, 12, "ell^3", "gradient"),
        ("f2sa", "partial"): (5, True, None, "", "gradient"),
        ("f2sa", "full"): (7, True, None, "", "gradient"),
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("f2bsa[B_in=0]", "f2bsa: B_in = 0: input should be greater than 0"),
        ("f2bsa[B_out=-3]", "f2bsa: B_out = -3: input should be greater than 0"),
        ("f2bsa[B_out=1.5]", "B_out = 1.5: input should be a valid integer"),
        ("f2bsa[accuracy=0]", "accuracy = 0: input should be greater than 0"),
        ("f2bsa[K=0]", "K = 0: input should be greater than 0"),
        ("f2bsa[batch=3]", "f2bsa has no parameter 'batch'"),
        ("f2sa[batch=0]", "f2sa: batch = 0: input should be greater than 0"),
        ("f3sa[batch=-1]", "f3sa: batch = -1: input should be greater than 0"),
        ("f3sa[eta=0]", "f3sa: eta = 0: input should be greater than 0"),
        ("f3sa[eta=1.5]", "f3sa: eta = 1.5: input should be less than or equal to 1"),
        ("f3sa[eta_power=-1]", "eta_power = -1: input should be greater than or equal to 0"),
        ("f3sa[T_in=2]", "f3sa has no parameter 'T_in'"),
        ("pbgd[batch=0]", "pbgd: batch = 0: input should be greater than 0"),
    ],
)
def test_bad_parameter_is_refused_in_words_before_the_run(text, sentence):
    with pytest.raises(InvalidInput) as caught:
        bilevelbench.run(text, "quadratic", steps=3)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "text", ["f2bsa[B_out=5000,eta_x=0.001]", "f2sa[batch=5000]", "f3sa[batch=5000]", "pbgd[batch=5000]"]
)
def test_batch_larger_than_a_finite_sum_is_cut_to_it(text):
    (run,) = bilevelbench.run(text, "logreg_breast_cancer", steps=2).runs.itertuples()
    assert (run.status, run.steps) == ("budget", 2)
    cuts = "a batch of 5000 of f was cut to its 142 data; a batch of 5000 of g was cut to its 285 data"
    assert run.message == f"made its 2 steps; {cuts}"


@pytest.mark.parametrize(
    "text", ["f2bsa[eta_x=1e30]", "f2bsa[accuracy=0.1,eta_x=1e99]", "f2sa[xi=1e30,batch=3]", "f3sa[xi=1e30]"]
)
def test_run_that_diverges_ends_as_diverged_with_a_sentence(text):
    (run,) = bilevelbench.run(
        text, "quadratic[dim_x=5,dim_y=9,kappa=1.5,sigma_f=1,sigma_g=1]", steps=200
    ).runs.itertuples()
    assert run.status == "diverged"
    assert run.message.startswith("|x| > 2.16342e+06, that is 1e+06 (1 + |x0|), at step ")
