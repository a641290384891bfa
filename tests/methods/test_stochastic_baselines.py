"""BSA, TTSA, StocBiO and PZOBO-S: their iterates against plain numpy with the same draws, their estimators, their bills."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import plain
import pytest
import torch
from bilevelbench_methods.implicit.neumann import neumann_random
from helpers import alone, assert_same, iterates, of, packed, prepared, states_of, trial
from plain import Noise, Point
from plain_problems import Plain, Vector, quadratic, wavy

import bilevelbench
from bilevelbench import Additive, Algorithm, Constants, Instance, InvalidInput, MissingConstant, Oracle
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Budget, Schedule, Spec, Trial
from bilevelbench.plan.trials import make_trial
from bilevelbench.results.schema import Results

STEPS = 20
METHODS = ["bsa", "ttsa", "stocbio", "pzobo_s"]
SIGMAS = {"sigma_f": 0.6, "sigma_g": 0.4, "sigma_h": 0.3}


def method(text: str) -> Algorithm:
    (spec,) = parse_spec(text)
    return make(registry().algorithm(spec.name), spec.params)


def cls(name: str) -> type[Algorithm]:
    return registry().algorithm(name).value


def built(text: str) -> Instance:
    (spec,) = parse_spec(text)
    with default_dtype(torch.float64):
        instance = make(registry().problem(spec.name), spec.params).build()
    instance.constants.problem = spec.name
    return instance


EXACT_QUADRATIC = "quadratic[dim_x=4,dim_y=6]"
NOISY_QUADRATIC = "quadratic[dim_x=4,dim_y=6,sigma_f=0.6,sigma_g=0.4,sigma_h=0.3]"


def noisy_quadratic() -> tuple[Plain, Instance]:
    return quadratic(**SIGMAS)


def noisy_wavy() -> tuple[Plain, Instance]:
    p, instance = wavy()
    instance.noise = Additive(**SIGMAS)
    return p, instance


PROBLEMS = {"quadratic": noisy_quadratic, "wavy": noisy_wavy}


# ---- the methods once more, in numpy, for one lane


def gradients_of_f(
    p: Plain, x: Vector, y: Vector, data: Noise, place: tuple[int, ...], k: int, B: int
) -> tuple[Vector, Vector]:
    fx = p.f_x(x, y) + data.vector("f_x", place, (k,), (len(x),), B)
    return fx, p.f_y(x, y) + data.vector("f_y", place, (k,), (len(y),), B)


def mixed(p: Plain, x: Vector, y: Vector, v: Vector, data: Noise, place: tuple[int, ...], k: int, B: int) -> Vector:
    return (p.J(x, y) + data.scalar("jvp", place, (k,), B) * np.eye(len(x), len(y))) @ v


def one_term(
    p: Plain, x: Vector, y: Vector, b: Vector, Q: int, a: float, data: Noise, first: int, k: int, B: int
) -> Vector:
    index = min(math.floor(Q * data.uniform((first,), (k,))[0]), Q - 1)
    identity = np.eye(len(y))
    for q in range(index):
        H = p.H(x, y) + data.scalar("hvp", (first + 1, 1), (k, q), B) * identity
        b = (identity - a * H) @ b
    return Q * a * b


def bsa(
    p: Plain, *, n0: int, grow: bool, warm: bool, Q: int, B: int, eta: float, power: float, b: float, b_power: float,
    c: float, eta_v: float,
) -> Iterator[Point]:  # fmt: skip
    x, y, data = p.x0, p.y0, Noise(**SIGMAS)
    for k in itertools.count(1):
        yield x, y
        y = y if warm else p.y0
        for t in range(n0 * (math.ceil(math.sqrt(k)) if grow else 1)):
            step = min(b * k**-b_power, c / (t + 2))
            y = y - step * (p.g_y(x, y) + data.vector("g_y", (1, 1), (k, t), y.shape, B))
        fx, fy = gradients_of_f(p, x, y, data, (2,), k, B)
        v = one_term(p, x, y, fy, Q, eta_v, data, 3, k, B)
        x = x - eta * k**-power * (fx - mixed(p, x, y, v, data, (5,), k, B))


def ttsa(
    p: Plain, *, Q: int, B: int, eta: float, power: float, b: float, b_power: float, eta_v: float
) -> Iterator[Point]:  # fmt: skip
    x, y, data = p.x0, p.y0, Noise(**SIGMAS)
    for k in itertools.count(1):
        yield x, y
        y = y - b * k**-b_power * (p.g_y(x, y) + data.vector("g_y", (1,), (k,), y.shape, B))
        fx, fy = gradients_of_f(p, x, y, data, (2,), k, B)
        v = one_term(p, x, y, fy, Q, eta_v, data, 3, k, B)
        x = x - eta * k**-power * (fx - mixed(p, x, y, v, data, (5,), k, B))


def stocbio(
    p: Plain, *, D: int, S: int, D_f: int, D_g: int, sizes: Sequence[int], eta: float, a: float, eta_v: float
) -> Iterator[Point]:  # fmt: skip
    x, y, data = p.x0, p.y0, Noise(**SIGMAS)
    for k in itertools.count(1):
        yield x, y
        for t in range(D):
            y = y - a * (p.g_y(x, y) + data.vector("g_y", (1, 1), (k, t), y.shape, S))
        fx, fy = gradients_of_f(p, x, y, data, (2,), k, D_f)
        terms = [fy]
        for q, n in enumerate(sizes):
            H = p.H(x, y) + data.scalar("hvp", (3, 1), (k, q), n) * np.eye(len(y))
            terms.append(terms[-1] - eta_v * H @ terms[-1])
        v = eta_v * sum(terms)
        x = x - eta * (fx - mixed(p, x, y, v, data, (4,), k, D_g))


def pzobo_s(
    p: Plain, *, Q: int, D: int, h: float, S: int, D_f: int, eta: float, a: float, warm: bool = True, common: bool = True
) -> Iterator[Point]:  # fmt: skip
    x, y, data = p.x0, p.y0, Noise(**SIGMAS)
    for k in itertools.count(1):
        yield x, y
        shape = (1, len(y)) if common else (Q + 1, len(y))
        W = [data.vector("g_y", (2, 1), (k, t), shape, S) for t in range(D)]
        s = y if warm else p.y0

        def run(at: Vector, number: int, s: Vector = s, W: list[np.ndarray] = W) -> Vector:
            for noise in W:
                s = s - a * (p.g_y(at, s) + noise[number if len(noise) > 1 else 0])
            return s

        y = run(x, 0)
        d, fy = gradients_of_f(p, x, y, data, (3,), k, D_f)
        for j, u in enumerate(plain.directions(0, k, Q, len(x)), start=1):
            d = d + (1 / Q) * ((run(x + h * u, j) - y) / h @ fy) * u
        x = x - eta * d


def decreasing(B: int, Q: int, factor: float) -> list[int]:
    return [math.ceil(B * Q * factor ** (q - 1)) for q in range(1, Q + 1)]


#: the plugin's parameters, and the same run from the pseudo-code
RUNS: dict[str, Callable[[Plain], Iterator[Point]]] = {
    "bsa[n0=1,grow=true,Q=6,batch=3,eta_x=0.05,eta_power=0,b=0.4,c=1.3,eta_v=0.3]": lambda p: bsa(
        p, n0=1, grow=True, warm=False, Q=6, B=3, eta=0.05, power=0, b=0.4, b_power=0, c=1.3, eta_v=0.3),
    "bsa[n0=3,warm_start=true,Q=4,batch=5,eta_x=0.1,eta_power=0.5,b=0.4,b_power=0.5,c=9,eta_v=0.3]": lambda p: bsa(
        p, n0=3, grow=False, warm=True, Q=4, B=5, eta=0.1, power=0.5, b=0.4, b_power=0.5, c=9, eta_v=0.3),
    "bsa[n0=2,grow=true,warm_start=true,Q=1,batch=1,eta_x=0.05,eta_power=0.3,b=0.4,c=0.9,eta_v=0.3]": lambda p: bsa(
        p, n0=2, grow=True, warm=True, Q=1, B=1, eta=0.05, power=0.3, b=0.4, b_power=0, c=0.9, eta_v=0.3),
    "ttsa[Q=5,batch=1,eta_x=0.03,eta_power=0,b=0.1,b_power=0,eta_v=0.3]": lambda p: ttsa(
        p, Q=5, B=1, eta=0.03, power=0, b=0.1, b_power=0, eta_v=0.3),
    "ttsa[Q=8,batch=7,eta_x=0.1,b=0.4,eta_v=0.3]": lambda p: ttsa(
        p, Q=8, B=7, eta=0.1, power=0.6, b=0.4, b_power=0.4, eta_v=0.3),
    "stocbio[D=3,Q=4,batch_g=5,batch_f=6,batch_j=7,batch_h=8,eta_x=0.05,a=0.3,eta_v=0.25]": lambda p: stocbio(
        p, D=3, S=5, D_f=6, D_g=7, sizes=[8, 8, 8, 8], eta=0.05, a=0.3, eta_v=0.25),
    "stocbio[D=2,Q=5,batch_g=2,batch_f=3,batch_j=4,batch_h=35,shrink=0.875,eta_x=0.05,a=0.3,eta_v=0.25]": (
        lambda p: stocbio(p, D=2, S=2, D_f=3, D_g=4, sizes=decreasing(7, 5, 0.875), eta=0.05, a=0.3, eta_v=0.25)),
    "stocbio[D=1,Q=3,batch_g=1,batch_f=1,batch_j=1,batch_h=9,shrink=0,eta_x=0.05,a=0.3,eta_v=0.25]": lambda p: stocbio(
        p, D=1, S=1, D_f=1, D_g=1, sizes=[9, 1, 1], eta=0.05, a=0.3, eta_v=0.25),
    "pzobo_s[Q=3,D=5,h=0.01,batch_g=4,batch_f=6,eta_x=0.02,a=0.3]": lambda p: pzobo_s(
        p, Q=3, D=5, h=0.01, S=4, D_f=6, eta=0.02, a=0.3),
    "pzobo_s[Q=2,D=4,h=0.5,batch_g=1,batch_f=1,eta_x=0.02,a=0.3,warm_start=false]": lambda p: pzobo_s(
        p, Q=2, D=4, h=0.5, S=1, D_f=1, eta=0.02, a=0.3, warm=False),
    "pzobo_s[Q=2,D=3,h=0.5,batch_g=9,batch_f=2,eta_x=0.02,a=0.3,common_batches=false]": lambda p: pzobo_s(
        p, Q=2, D=3, h=0.5, S=9, D_f=2, eta=0.02, a=0.3, common=False),
}  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("text", RUNS)
def test_iterates_are_those_of_the_pseudo_code_with_the_same_draws(text, problem):
    p, instance = PROBLEMS[problem]()
    got = iterates(method(text), instance, STEPS)
    expected = list(itertools.islice(RUNS[text](p), STEPS + 1))
    assert np.linalg.norm(got[-1][0] - got[0][0]) > 1e-2, "a run that stands still shows nothing"
    for mine, theirs in zip(got, expected, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert np.linalg.norm(a - b) <= 1e-10 * (1 + np.linalg.norm(b))


@pytest.mark.parametrize("text", RUNS)
def test_noise_moves_those_iterates(text):
    """Without it the comparison above would say nothing about samples."""
    noisy = iterates(method(text), built(NOISY_QUADRATIC), STEPS)
    exact = iterates(method(text), built(EXACT_QUADRATIC), STEPS)
    assert np.linalg.norm(noisy[-1][0] - exact[-1][0]) > 1e-3


# ---- many lanes at one point


def crowd(text: str, problem: str, lanes: int, steps: int = 1) -> tuple[list[torch.Tensor], Oracle]:
    """x before and after each step in so many lanes, with the seeds 0, 1, 2, ..., and the oracle with its books."""
    pack = prepared(method(text), built(problem), range(lanes))
    X = [state.x for state in states_of(pack, steps)]
    pack.check_counts()
    return X, pack.oracle


def errors_away(values: torch.Tensor, expected: torch.Tensor) -> float:
    """How many standard errors the mean over lanes is from `expected`, in the worst coordinate."""
    error = values.std(0) / len(values) ** 0.5
    return float(((values.mean(0) - expected).abs() / error).max())


LANES = 20_000


@pytest.mark.parametrize("Q", [1, 2, 3, 6])
def test_mean_of_the_random_term_is_the_truncated_series(bowl, door, normal, Q):
    """Against the formula by powers. One term more, or the products made with one and the same sample, is noticed."""
    a, b, sigma = 0.15, normal(1, 5), 2.5
    oracle = door(bowl(noise=Additive(sigma_h=sigma)), lanes=LANES)
    x, y = normal(1, 3).expand(LANES, -1), normal(1, 5).expand(LANES, -1)
    with torch.no_grad():
        v = neumann_random(oracle, x, y, b.expand(LANES, -1), torch.full((LANES, 1), Q), a, 1)
        exact = door(bowl(), lanes=5)
        H = exact.hvp_g_yy(x[:5], y[:5], torch.eye(5, dtype=torch.float64))
    step = torch.eye(5, dtype=torch.float64) - a * H
    terms = [b[0] @ torch.linalg.matrix_power(step, q) for q in range(Q + 1)]
    if Q == 1:
        assert torch.allclose(v, (a * b).expand(LANES, -1), rtol=1e-14)
        return
    assert errors_away(v, a * sum(terms[:Q])) < 4.5
    assert errors_away(v, a * sum(terms)) > 10
    if Q == 3:  # E (I - aH - a sigma s)^2 is (I - aH)^2 + a^2 sigma^2 I
        assert errors_away(v, a * (sum(terms[:Q]) + (a * sigma) ** 2 * b[0])) > 10


def test_random_index_is_uniform_and_each_lane_pays_for_its_own_products(bowl, door, normal):
    Q, lanes = 7, 7000
    oracle = door(bowl(noise=Additive(sigma_h=0.1)), lanes=lanes)
    with torch.no_grad():
        zero = torch.zeros(lanes, 3, dtype=torch.float64), torch.zeros(lanes, 5, dtype=torch.float64)
        neumann_random(oracle, *zero, normal(lanes, 5), torch.full((lanes, 1), Q), 0.3, 11)
    calls, samples = oracle.meter.columns()["hvp"], oracle.meter.columns()["cost"]
    np.testing.assert_array_equal(samples, 11 * calls)
    found = np.bincount(calls.astype(int), minlength=Q)
    assert len(found) == Q
    assert ((found - lanes / Q) ** 2 / (lanes / Q)).sum() < 22.5  # chi square with 6 degrees: one in a thousand


def test_number_of_terms_may_differ_between_lanes(bowl, door, normal):
    Q = torch.tensor([[1], [4], [9], [2]])
    oracle = door(bowl())
    with torch.no_grad():
        for step in range(1, 200):
            oracle.begin_step(step)
            neumann_random(oracle, normal(4, 3), normal(4, 5), normal(4, 5), Q, 0.3, 1)
    means = oracle.meter.columns()["hvp"] / 199
    spread = np.sqrt((Q.numpy()[:, 0] ** 2 - 1) / 12 / 199)
    assert (abs(means - (Q.numpy()[:, 0] - 1) / 2) <= 4 * spread).all()


def test_series_of_stocbio_is_the_formula_and_not_the_one_of_its_authors_program():
    """Which multiplies only the last term by the step and leaves the first one out."""
    p, instance = wavy()
    Q, a, eta_v = 6, 0.3, 0.25
    (x0, _), (x, y) = iterates(method(f"stocbio[D=1,Q={Q},a={a},eta_v={eta_v},eta_x=1]"), instance, 1)
    np.testing.assert_allclose(y, p.y0 - a * p.g_y(p.x0, p.y0), rtol=1e-13)
    step, b = np.eye(len(y)) - eta_v * p.H(x0, y), p.f_y(x0, y)
    terms = [np.linalg.matrix_power(step, q) @ b for q in range(Q + 1)]
    formula, program = eta_v * sum(terms), sum(terms[1:-1]) + eta_v * terms[-1]
    np.testing.assert_allclose(x0 - x, p.f_x(x0, y) - p.J(x0, y) @ formula, rtol=1e-12)
    assert np.linalg.norm(p.J(x0, y) @ (formula - program)) > 0.3 * np.linalg.norm(p.J(x0, y) @ formula)


def test_estimates_of_all_methods_have_the_same_noise_free_mean_as_they_should():
    """One step from y0 with noise, averaged over lanes, is that of the exact method, where nothing in it is nonlinear."""
    for text in ("stocbio[D=1,Q=4,eta_x=1,batch_g=2,batch_f=2,batch_j=2,batch_h=2]", "pzobo_s[D=2,Q=1,h=0.1,eta_x=1]"):
        X, _ = crowd(text, NOISY_QUADRATIC, LANES)
        Z, _ = crowd(text, EXACT_QUADRATIC, LANES)
        assert errors_away(X[1] - X[0], (Z[1] - Z[0]).mean(0)) < 4.5 * 2**0.5


# ---- common batches of PZOBO-S


def test_common_batches_have_far_smaller_variance_than_independent_ones():
    """What the samples add to a step, lane by lane with the same directions. Noise over h: sigma_g = 0.4, h = 0.01."""
    text = "pzobo_s[Q=2,D=5,h=0.01,eta_x=1,batch_g=4,batch_f=4,common_batches={}]"
    (exact, _), (common, _), (independent, _) = (
        crowd(text.format(c), problem, 4000)
        for c, problem in (("true", EXACT_QUADRATIC), ("true", NOISY_QUADRATIC), ("false", NOISY_QUADRATIC))
    )
    variance = [float((x[1] - exact[1]).var(0).sum()) for x in (common, independent)]
    assert variance[1] > 1000 * variance[0]
    assert variance[0] < 0.5 * float(exact[1].var(0).sum()), "less than the directions themselves"


def test_runs_of_a_step_differ_only_by_their_directions():
    """Additive noise at a common sample cancels in w - y: a tiny h does no harm, as it does with batches of their own."""
    sizes = {}
    for common in ("true", "false"):
        X, _ = crowd(f"pzobo_s[Q=2,D=5,h=1e-6,eta_x=1,common_batches={common}]", NOISY_QUADRATIC, 50)
        sizes[common] = float((X[1] - X[0]).norm(dim=-1).max())
    assert sizes["true"] < 100
    assert sizes["false"] > 1000


# ---- counts and samples


def bill(text: str, problem: str = NOISY_QUADRATIC, steps: int = 3) -> dict[str, int]:
    _, oracle = crowd(text, problem, 2, steps)
    columns = {**oracle.meter.columns(), **oracle.meter.sample_columns()}
    return {name: int(column[0]) for name, column in columns.items()}


@pytest.mark.parametrize(
    ("problem", "price"),
    [("quadratic[dim_x=4,dim_y=6]", 1), ("tail_anchor[sigma_f=0.1,sigma_g=0.1,sigma_h=0.1]", 3)],
)
@pytest.mark.parametrize(
    ("text", "lower"),
    [
        ("bsa[n0=4,batch=3,Q=1]", 3 * 4),
        ("bsa[n0=2,grow=true,batch=3,Q=1]", 2 * (1 + 2 + 2)),
        ("bsa[n0=1,grow=true,warm_start=true,batch=3,Q=1]", 1 + 2 + 2),
        ("ttsa[batch=3,Q=1]", 3),
    ],
)
def test_bill_of_the_methods_with_a_random_term(text, lower, problem, price):
    got = bill(text, problem)
    assert (got["grad_f"], got["grad_f_x"], got["grad_f_y"]) == (3, 3, 3)  # joint
    assert (got["grad_g"], got["grad_g_x"], got["grad_g_y"]) == (lower, 0, lower)
    assert (got["hvp"], got["jvp"], got["value"]) == (0, 3, 0)  # Q = 1: the only term needs no product
    assert got["cost"] == price * (3 + lower + 3)


def test_lower_steps_of_bsa_grow_as_the_root_of_k():
    steps = [bill("bsa[n0=1,grow=true,Q=1,batch=1]", steps=n)["grad_g_y"] for n in range(18)]
    assert list(np.diff(steps)) == [math.ceil(math.sqrt(k + 1)) for k in range(17)]


@pytest.mark.parametrize("text", ["bsa[n0=1,batch=5,Q={}]", "ttsa[batch=5,Q={}]"])
@pytest.mark.parametrize("Q", [2, 5, 10])
def test_hessian_products_are_half_of_Q_minus_1_in_the_mean(text, Q):
    lanes, steps = 400, 10
    _, oracle = crowd(text.format(Q), NOISY_QUADRATIC, lanes, steps)
    calls = oracle.meter.columns()["hvp"]
    error = math.sqrt((Q**2 - 1) / 12 / (lanes * steps))
    assert abs(calls.mean() / steps - (Q - 1) / 2) < 4 * error
    np.testing.assert_array_equal(oracle.meter.sample_columns()["hvp_samples"], 5 * calls)
    assert method(text.format(Q)).calls(1) is None  # a matter of chance


@pytest.mark.parametrize("shrink", [1.0, 0.9, 0.5, 0.0])
def test_bill_of_stocbio(shrink):
    text = f"stocbio[D=4,Q=5,batch_g=3,batch_f=7,batch_j=11,batch_h=100,shrink={shrink}]"
    got, steps = bill(text), 3
    sizes = [max(1, math.ceil(round(100 * shrink ** (q - 1), 9))) for q in range(1, 6)]
    assert sizes[0] == 100 >= sizes[1] >= sizes[4] >= 1
    assert (got["grad_f"], got["grad_g"], got["grad_g_x"], got["hvp"], got["jvp"]) == (3, 12, 0, 15, 3)
    assert (got["grad_f_x"], got["grad_f_y"]) == (3, 3)  # joint
    assert got["grad_f_samples"] == 7 * steps
    assert got["grad_g_samples"] == 3 * 4 * steps
    assert got["hvp_samples"] == sum(sizes) * steps
    assert got["jvp_samples"] == 11 * steps
    assert got["cost"] == steps * (7 + 12 + sum(sizes) + 11)
    assert method(text).calls(1) == {"grad_f": 1, "grad_g_y": 4, "hvp_g_yy": 5, "jvp_g_xy": 1}


@pytest.mark.parametrize("common", ["true", "false"])
def test_bill_of_pzobo_s(common):
    text = f"pzobo_s[Q=3,D=4,batch_g=5,batch_f=7,common_batches={common}]"
    got = bill(text)
    assert (got["grad_f"], got["grad_f_x"], got["grad_f_y"]) == (3, 3, 3)
    assert (got["grad_g_y"], got["grad_g_x"], got["hvp"], got["jvp"], got["value"]) == (3 * 16, 0, 0, 0, 0)
    assert got["cost"] == 3 * (7 + 5 * 16)
    assert method(text).calls(1) == {"grad_f": 1, "grad_g_y": 16}


@pytest.mark.parametrize("name", METHODS)
def test_every_call_costs_one_where_there_is_no_noise(name):
    got = bill(name, EXACT_QUADRATIC)
    assert got["cost"] == got["first_order"] + got["second_order"]


def test_only_pzobo_s_is_first_order():
    assert [name for name in METHODS if cls(name).first_order()] == ["pzobo_s"]


# ---- runs


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("bsa", 0.3), ("bsa[warm_start=true,b_power=0.5]", 0.3), ("bsa[n0=1,grow=true]", 0.3), ("ttsa", 0.3),
        ("stocbio", 0.05), ("stocbio[shrink=0.8]", 0.05), ("pzobo_s", 0.2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("noise", ["", "[sigma_f=0.5,sigma_g=0.5,sigma_h=0.1]"])
@pytest.mark.quick_cases(5)
def test_defaults_descend_with_and_without_noise(text, factor, noise):
    some = [trial(text, f"quadratic{noise}", steps=300, seed=seed, schedule=Schedule(ratio=3)) for seed in range(4)]
    found = packed(some)
    first = found.curve.groupby("trial_id").first().grad_phi
    assert (found.runs.last_grad_phi < factor * first.min()).all()


def test_bsa_from_y0_with_a_lower_step_that_shrinks_does_not_descend():
    """Why the default is no decay of b: y comes to rest ever nearer to y0. Warm, the same steps do."""
    last = {}
    for warm in ("true", "false"):
        text = f"bsa[warm_start={warm},b_power=0.5]"
        last[warm] = packed([trial(text, "quadratic", steps=300, schedule=Schedule(ratio=9))]).runs.last_grad_phi[0]
    assert last["false"] > 3 * last["true"]


@pytest.mark.parametrize("name", METHODS)
def test_answer_is_a_random_iterate(name):
    runs = packed([trial(name, "quadratic", steps=20, seed=seed) for seed in range(8)]).runs
    assert (runs.grad_phi != runs.last_grad_phi).sum() >= 6
    assert runs.grad_phi.nunique() >= 4


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "problem", ["logreg_breast_cancer", "ridge_abalone", "logcosh", "tail_anchor[c=0.5]", "power_tail"]
)
def test_defaults_run_on_the_built_in_problems(name, problem):
    (run,) = packed([trial(name, problem, steps=12, schedule=Schedule(ratio=9))]).runs.itertuples()
    assert run.status == "budget"
    assert math.isfinite(run.last_grad_phi)


# ---- packed equals alone

#: what is per lane differs between the trials
PACKS = {
    "bsa": "bsa[n0={n},Q={m},batch={B},eta_x={eta},eta_power={power},b={a},b_power={decay},c={c},eta_v={a}]",
    "bsa_grow": "bsa[n0={n},grow=true,warm_start=true,Q={m},batch={B},eta_x={eta},b={a},c={c},eta_v={a}]",
    "ttsa": "ttsa[Q={m},batch={B},eta_x={eta},eta_power={power},b={a},b_power={decay},eta_v={a}]",
    "stocbio": "stocbio[D={n},Q={m},batch_g={B},batch_f={B},batch_j={B},batch_h={B},shrink={s},eta_x={eta},a={a},eta_v={a}]",
    "pzobo_s": "pzobo_s[Q=3,D={n},h={h},batch_g={B},batch_f={B},eta_x={eta},a={a}]",
    "pzobo_s_independent": "pzobo_s[Q=17,D={n},h=0.5,batch_g={B},batch_f={B},eta_x=0.01,a={a},common_batches=false]",
}  # fmt: skip
ADDITIVE = {
    "quadratic": "quadratic[dim_x=5,dim_y=9,sigma_f=0.3,sigma_g=0.2,sigma_h=0.1]",
    "tail_anchor": "tail_anchor[tails=3,anchors=2,c=0.5,sigma_f=0.3,sigma_g=0.2,sigma_h=0.1,data_seed={data}]",
}
FINITE_SUM = "logreg_breast_cancer"


@functools.cache
def trials(pack: str, problem: str) -> tuple[Trial, ...]:
    finite = problem == FINITE_SUM  # there batches that differ between lanes round differently, and n_q is a batch
    return tuple(
        trial(
            PACKS[pack].format(
                n=1 + i % 4,
                m=1 + i % 5,
                B=6 if finite else [1, 5, 64][i % 3],
                s=0.9 if finite else [1, 0.9, 0.0, 0.55][i % 4],
                eta=[0.1, 0.03, 0.2, 0.011][i % 4],
                a=[0.3, 0.2, 0.11][i % 3],
                c=[0.7, 9][i % 2],
                h=[1e-2, 1e-4, 0.3][i % 3],
                power=[0, 0.5, 0.6][i % 3],
                decay=[0, 0.4][i % 2],
            ),
            (FINITE_SUM if finite else ADDITIVE[problem]).format(data=i % 3),
            cost=None if finite else [None, 1500, 400, 4000.5, None][i % 5],
            steps=[12, 9, 15, 6, 14][i % 5],
            seed=i % 5,
            schedule=Schedule(ratio=2),
        )
        for i in range(10)
    )


@functools.cache
def each_alone(pack: str, problem: str) -> Results:
    return alone(trials(pack, problem))


@pytest.mark.parametrize("width", [5, 10])
@pytest.mark.parametrize("problem", [*ADDITIVE, FINITE_SUM])
@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.quick_cases(12)
def test_packed_equals_alone(pack, problem, width):
    chosen = trials(pack, problem)[-width:]
    assert_same(packed(chosen), of(each_alone(pack, problem), chosen))
    runs = each_alone(pack, problem).runs
    assert set(runs.status) == {"budget"}
    assert runs.steps.nunique() >= 4
    assert runs.cost.nunique() >= 4


# ---- claims and presets


def test_claims_are_those_of_table_2():
    needs = "needs unbiased, bounded-variance stochastic second derivatives, hence not directly comparable"
    for name, oracle, exponent, tilde, extra in (
        ("bsa", "HVP", 6, False, ""), ("ttsa", "HVP", 5, False, ""), ("stocbio", "HVP", 4, True, ""),
        ("pzobo_s", "gradient", 8, True, "dx^2"),
    ):  # fmt: skip
        claims = cls(name).claims
        assert [(c.table, c.setting) for c in claims] == [(2, "partial"), (2, "full")]
        assert {(c.oracle, c.eps_exp, c.tilde, c.log_power, c.extra) for c in claims} == {
            (oracle, exponent, tilde, int(tilde), extra)
        }
        assert all(c.footnote.startswith(needs) == (oracle == "HVP") for c in claims)


NOISY = "tail_anchor[mu=1,L=2,sigma_f=1,sigma_g=0.5,sigma_h=0.3]"


def test_horizon_presets_are_the_powers_of_the_theorems():
    c = built(NOISY).constants
    for T in (100, 6400):
        bsa, ttsa, pzobo = (cls(name).from_horizon(c, T) for name in ("bsa", "ttsa", "pzobo_s"))
        assert (bsa.n0, bsa.grow, bsa.warm_start, bsa.Q, bsa.batch, bsa.eta_power) == (1, True, False, 6, 1, 0)
        assert bsa.eta_x == pytest.approx(2 / math.sqrt(T))
        assert (bsa.b, bsa.b_power, bsa.c) == (0.5, 0, 2)
        assert (ttsa.Q, ttsa.batch, ttsa.eta_power, ttsa.b_power) == (5, 1, 0, 0)
        assert (ttsa.eta_x, ttsa.b) == pytest.approx((T ** (-3 / 5), T ** (-2 / 5)))
        assert (pzobo.Q, pzobo.D, pzobo.h, pzobo.batch_f, pzobo.batch_g) == (1, 10, 1e-4, T, T)
        assert pzobo.eta_x == pytest.approx(2 / (2 * math.sqrt(T)))
        for name, one in (("bsa", bsa), ("ttsa", ttsa), ("pzobo_s", pzobo)):
            assert cls(name).from_horizon(c, T, 0.5).eta_x == pytest.approx(one.eta_x / 2)


@pytest.mark.parametrize("name", ["bsa", "ttsa"])
def test_horizon_preset_keeps_its_steps_stable_on_a_steep_problem_and_for_few_steps(name):
    c = built("quadratic").constants
    short = cls(name).from_horizon(c, 1)
    assert short.eta_x == pytest.approx(1 / c.L_phi)
    assert short.b == pytest.approx(1 / c.L_gy)
    run = packed([trial_of(short, "quadratic", 100)]).runs.iloc[0]
    assert run.status == "budget"


def trial_of(chosen: Algorithm, problem: str, steps: int) -> Trial:
    (p,) = parse_spec(problem)
    params = {name: value for name, value in chosen.given().items() if value is not None}
    spec = Spec(name=chosen.name, params=params)
    budget = Budget(steps=steps)
    return make_trial(registry(), spec, p, budget=budget, schedule=Schedule(ratio=4))


def test_rate_preset_of_stocbio_has_batches_of_sigma_squared_over_eps_squared():
    c = built(NOISY).constants
    for eps in (0.2, 0.05):
        m = cls("stocbio").from_rate(c, eps)
        assert (8, math.ceil(2 * math.log(8 / eps))) == (m.D, m.Q)
        assert m.batch_f == math.ceil(1 / eps**2)
        assert m.batch_g == pytest.approx(0.25 / eps**2, abs=1)
        assert m.batch_j == m.batch_h == pytest.approx(0.09 / eps**2, abs=1)
        assert m.shrink == 1
        twice = cls("stocbio").from_rate(c, eps, 2.0)
        assert twice.batch_f == pytest.approx(2 * m.batch_f, abs=1)
    quiet = cls("stocbio").from_rate(built("tail_anchor").constants, 0.01)
    assert (quiet.batch_f, quiet.batch_g, quiet.batch_j, quiet.batch_h) == (1, 1, 1, 1)


def test_theory_preset_of_stocbio():
    c = Constants({"mu": 0.5, "L_gy": 2, "L_phi": 3, "kappa": 5, "sigma_f": 1, "sigma_g": 2, "sigma_h": 0.1})
    m = cls("stocbio").from_theory(c, 0.1)
    assert (math.ceil(4 * math.log(32)), math.ceil(4 * math.log(320))) == (m.D, m.Q)
    assert (m.a, m.eta_v, m.eta_x) == pytest.approx((2 / 2.5, 0.5, 1 / 12))
    assert (m.batch_f, m.batch_g, m.batch_j) == (2500, 10000, 25)
    assert m.batch_h == m.Q * m.batch_j
    assert m.shrink == pytest.approx(1 - 0.5 * 0.5)


@pytest.mark.parametrize(("preset", "eps"), [("from_rate", 0.3), ("from_theory", 0.5)])
def test_presets_of_stocbio_reach_their_eps_in_the_mean_over_the_iterates(preset, eps):
    m = getattr(cls("stocbio"), preset)(built(NOISY).constants, eps)
    runs = bilevelbench.run(m, NOISY, steps=3000, targets=(eps,), seeds=3, schedule=Schedule(ratio=1.2, mean=True)).runs
    assert set(runs.status) == {"target"}


@pytest.mark.parametrize("preset", ["from_rate", "from_theory"])
def test_presets_of_stocbio_need_the_noise_of_one_sample_and_say_so(preset):
    """A finite sum declares none: its noise depends on the point."""
    with pytest.raises(MissingConstant, match=r"'logreg_breast_cancer' declares no constant 'sigma_g'"):
        getattr(cls("stocbio"), preset)(built("logreg_breast_cancer").constants, 0.1)


@pytest.mark.parametrize("name", METHODS)
def test_presets_that_a_method_does_not_have_are_refused_in_words(name):
    has = {"from_theory": ["stocbio"], "from_rate": ["stocbio"], "from_horizon": ["bsa", "ttsa", "pzobo_s"]}
    for preset, names in has.items():
        if name in names:
            with pytest.raises(MissingConstant, match="problem 'bare' declares no constant"):
                getattr(cls(name), preset)(Constants({}, "bare"), 10)
        else:
            with pytest.raises(InvalidInput, match=f"{name} has no .*preset"):
                getattr(cls(name), preset)(built("quadratic").constants, 10)


# ---- bad input


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *((f"{name}[batch={B}]", f"{name}: batch = {B}: input should be greater than 0")
          for name in ("bsa", "ttsa") for B in (0, -3)),
        *((f"stocbio[{field}={B}]", f"stocbio: {field} = {B}: input should be greater than 0")
          for field in ("batch_g", "batch_f", "batch_j", "batch_h") for B in (0, -3)),
        *((f"pzobo_s[{field}={B}]", f"pzobo_s: {field} = {B}: input should be greater than 0")
          for field in ("batch_g", "batch_f") for B in (0, -3)),
        *((f"{name}[Q=0]", f"{name}: Q = 0: input should be greater than 0") for name in METHODS),
        *((f"{name}[D=0]", f"{name}: D = 0: input should be greater than 0") for name in ("stocbio", "pzobo_s")),
        ("bsa[n0=0]", "bsa: n0 = 0: input should be greater than 0"),
        ("bsa[batch=2.5]", "bsa: batch = 2.5: input should be a valid integer"),
        ("bsa[c=0]", "bsa: c = 0: input should be greater than 0"),
        ("ttsa[eta_power=-0.1]", "ttsa: eta_power = -0.1: input should be greater than or equal to 0"),
        ("ttsa[eta_x=nan]", "ttsa: eta_x = nan: input should be greater than 0"),
        ("ttsa[D=3]", "ttsa has no parameter 'D'"),
        ("stocbio[shrink=1.1]", "stocbio: shrink = 1.1: input should be less than or equal to 1"),
        ("stocbio[shrink=-0.1]", "stocbio: shrink = -0.1: input should be greater than or equal to 0"),
        ("pzobo_s[h=0]", "pzobo_s: h = 0: input should be greater than 0"),
    ],
)  # fmt: skip
def test_bad_parameter_is_refused_in_words_before_the_run(text, sentence):
    with pytest.raises(InvalidInput) as caught:
        bilevelbench.run(text, "quadratic", steps=3)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["bsa[batch=200]", "ttsa[batch=200]", "stocbio[batch_f=200]", "pzobo_s[batch_f=200]"])
def test_batch_larger_than_the_data_is_cut_and_the_row_says_so(text):
    (run,) = bilevelbench.run(text, "logreg_breast_cancer", steps=3).runs.itertuples()
    assert (run.status, run.steps) == ("budget", 3)
    assert run.message == "made its 3 steps; a batch of 200 of f was cut to its 142 data"  # g has 285


def test_pzobo_s_with_a_radius_below_rounding_says_so():
    (run,) = bilevelbench.run("pzobo_s[h=1e-20]", "quadratic", steps=3).runs.itertuples()
    assert run.status == "error"
    assert run.message.startswith("in step 1: h = 1e-20 is below rounding at |x| = ")


@pytest.mark.parametrize("text", ["bsa[eta_x=1e30]", "ttsa[b=1e30]", "stocbio[eta_v=1e30]", "pzobo_s[eta_x=1e30]"])
def test_run_that_diverges_ends_as_diverged(text):
    (run,) = bilevelbench.run(
        text, "quadratic[dim_x=5,dim_y=9]", steps=200, schedule=Schedule(ratio=2)
    ).runs.itertuples()
    assert run.status == "diverged"
