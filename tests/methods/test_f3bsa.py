"""F3BSA: its SGD, its levels, the mean and the cost of its estimate."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from bilevelbench_methods.penalty import f3bsa
from bilevelbench_methods.penalty.f3bsa import F3BSA, geometric
from bilevelbench_methods.penalty.sgd_sc import epoch, sgd_avg, sgd_sc
from helpers import alone, assert_same, iterates, packed, trial
from plain import Noise, Point
from plain_problems import Plain, of_quadratic
from torch import Tensor

from bilevelbench import Additive, Constants, Instance, InvalidInput, MissingConstant, Oracle
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.setup import pack_algorithm
from bilevelbench.model.queries import ROW
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.oracle.draws import Draws
from bilevelbench.plan.trial import Schedule


def built(name: str, **params: Any) -> Instance:
    with default_dtype(torch.float64):
        return make(registry().problem(name), params).build()


# ---- SGD-SC


def lower_sgd(K: int, lanes: int, sigma: float) -> tuple[np.ndarray, Oracle, dict[str, float]]:
    """|y - y*|^2 of each lane after N = 4 base epochs and K more on a quadratic of condition number 10."""
    instance = built("quadratic", dim_x=2, dim_y=3, kappa=10, sigma_f=1.0, sigma_g=sigma)
    oracle = Oracle(instance, frozenset({"grad_g_y"}), range(lanes))
    oracle.begin_step(1)
    x, y0 = instance.x0.expand(lanes, -1), instance.y0.expand(lanes, -1)
    alpha, beta = (torch.full((lanes, 1), instance.constants[name], dtype=torch.float64) for name in ("mu", "L_gy"))

    def average(y: Tensor, k: int) -> Tensor:
        return sgd_avg(oracle, lambda y: oracle.grad_g_y(x, y, oracle.sample_g(1)), y, *epoch(k, alpha, beta))

    y = sgd_sc(oracle, average, y0, 4, K)
    y_star = instance.reference.y_star(x)
    start = float((y0 - y_star).square().sum(-1)[0])
    oracle.meter.flush()
    return (y - y_star).square().sum(-1).numpy(), oracle, {"start": start, "alpha": 0.1, "beta": 1.0}


@pytest.mark.parametrize(("K", "samples"), [(0, 160), (1, 240), (3, 720), (5, 2640)])
def test_9_13_sgd_sc_takes_the_samples_that_it_should_and_errs_less_than_its_bound(K, samples):
    sigma, N = 2.0, 4
    errors, oracle, c = lower_sgd(K, 400, sigma)
    assert samples == 4 * 10 * (N + 2 ** (K + 1) - 2)
    assert (oracle.meter.samples[ROW["grad_g_y"]] == samples).all()
    assert oracle.counts_agree
    bound = c["start"] / 2 ** (N + 2 * K) + sigma**2 / (2 ** (K - 2) * c["alpha"] * c["beta"])
    assert errors.mean() + 3 * errors.std() / 20 < bound
    assert errors.mean() > 1e-3 * bound, "the noise is what is left"


def test_sgd_sc_halves_its_error_with_each_level():
    means = [lower_sgd(K, 400, 2.0)[0].mean() for K in (1, 2, 3, 4)]
    for above, below in itertools.pairwise(means):
        assert 0.35 < below / above < 0.65


def test_the_mean_of_sgd_avg_is_over_new_points_only():
    instance = built("quadratic", dim_x=2, dim_y=3)
    oracle = Oracle(instance, frozenset({"grad_g_y"}), [0, 1])
    oracle.begin_step(1)
    y = torch.tensor([[8.0], [16.0]], dtype=torch.float64)
    n = torch.tensor([[1], [3]])
    got = sgd_avg(oracle, lambda y: y, y, 0.5, n)
    torch.testing.assert_close(got, torch.tensor([[4.0], [(8 + 4 + 2) / 3]], dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("n", [0, torch.tensor([[3], [0]])])
def test_a_mean_of_no_points_is_refused(n):
    oracle = Oracle(built("quadratic", dim_x=2, dim_y=3), frozenset({"grad_g_y"}), [0, 1])
    with pytest.raises(InvalidInput, match="the mean of 0 points; make at least one step"):
        sgd_avg(oracle, lambda y: y, torch.ones(2, 3), 0.1, n)


def test_lengths_are_rounded_up_but_rounding_adds_no_step():
    for alpha, beta, expected in ((0.1, 1.0, 40), (0.3, 0.9, 12), (1.0, 1.01, 5), (7 * 0.1, 7 * 1.0, 40)):
        for dtype in (torch.float64, torch.float32):
            eta, n = epoch(0, torch.tensor(alpha, dtype=dtype), torch.tensor(beta, dtype=dtype))
            assert n.item() == expected
            assert eta.item() == pytest.approx(1 / (2 * beta), rel=1e-6)
    assert [epoch(k, torch.tensor(0.1), torch.tensor(1.0))[1].item() for k in (1, 2, 5)] == [80, 160, 1280]
    assert [1 / epoch(k, torch.tensor(0.1), torch.tensor(1.0))[0].item() for k in (0, 1, 2, 5)] == [2, 2, 4, 32]


# ---- the levels


def test_levels_start_at_one_and_halve():
    u = torch.tensor(
        [1 - 2.0**-53, 0.75, 0.5 + 2.0**-53, 0.5, 0.5 - 2.0**-54, 0.25, 0.1, 2.0**-7, 2.0**-53], dtype=torch.float64
    )
    assert geometric(u).tolist() == [1, 1, 1, 1, 2, 2, 4, 7, 53]
    drawn = geometric(torch.from_numpy(Draws(range(100_000)).uniform("method", (1,), (1,), 1, 1)))
    for j in range(1, 7):
        assert abs((drawn == j).double().mean().item() - 2.0**-j) < 4 * math.sqrt(2.0**-j / 1e5)
    assert drawn.min() == 1


# ---- the same steps in numpy


def plain_f3bsa(
    p: Plain, noise: Noise, lam: float, M: int, N: int, S: int, eta_x: float, a: dict[str, float], nested: bool
) -> Iterator[Point]:
    """One lane, by the paper's text; the loops' numbers and indices are only there to find the same normals."""
    x, y, z, t = p.x0, p.y0, p.y0, 0
    dx, dy = len(p.x0), len(p.y0)
    n_y, n_z = a["beta_y"] / a["alpha_y"], a["beta_z"] / a["alpha_z"]

    def average(x, y, z, k, place, indices, c, r):
        """Run r of c: the first steps have one call for y and z of all runs, the rest of y and of z follow alone."""
        L_y, L_z = math.ceil(2 ** (k + 2) * n_y), math.ceil(2 ** (k + 2) * n_z)
        e_y, e_z = 1 / (2 ** max(k, 1) * a["beta_y"]), 1 / (2 ** max(k, 1) * a["beta_z"])
        both, Y, Z = min(L_y, L_z), [], []
        for i in range(L_y):
            loop, at = (1, i) if i < both else (2, i - both)
            g = noise.vector("g_y", (*place, loop, 1), (*indices, at), (2 * c if i < both else c, dy), 1)[r]
            f = noise.vector("f_y", (*place, loop, 2), (*indices, at), (c, dy), 1)[r]
            y = y - e_y * (p.f_y(x, y) + f + lam * (p.g_y(x, y) + g))
            Y.append(y)
        for i in range(L_z):
            loop, at = (1, i) if i < both else (3, i - both)
            g = noise.vector("g_y", (*place, loop, 1), (*indices, at), (2 * c if i < both else c, dy), 1)[
                c + r if i < both else r
            ]
            z = z - e_z * lam * (p.g_y(x, z) + g)
            Z.append(z)
        return sum(Y) / L_y, sum(Z) / L_z

    def G(x, here, e, r, w, B, first):
        (y, z), (place, indices) = w, here
        f = noise.vector("f_x", (*place, first), indices, (e, dx), B)[r]
        g = noise.vector("g_x", (*place, first + 1), indices, (2 * e, dx), B)
        return p.f_x(x, y) + f + lam * (p.g_x(x, y) + g[r] - p.g_x(x, z) - g[e + r])

    def runs(x, y0, z0, depth, loop, read, every_base):
        """Runs of these depths, deepest first; the sum of what is read at their ends."""
        total, W = np.zeros_like(x), [(y0, z0)] * len(depth)
        first = None
        for k in range(max(depth, default=-1) + 1):
            c = sum(d >= k for d in depth)
            place, indices = (loop, 1, 1), (t, k, c - 1, 0)
            old = list(W)
            for r in range(c):
                if k:
                    W[r] = average(x, *W[r], k, place, indices, c, r)
                else:
                    for n in range(N):
                        W[r] = average(x, *W[r], 0, (*place, 1), (*indices, n), c, r)
            first = W[0] if k == 0 else first
            e = c if k == 0 and every_base else sum(d == k for d in depth)
            here = (*place, 4 if k else 3, 1), (*indices, e - 1, 0)
            for r in range(e):
                total = total + read(k, old[c - e + r], W[c - e + r], functools.partial(G, x, here, e, r))
        return total, first

    while True:
        yield x, y
        t += 1
        u = noise.uniform((1,), (t,), M)
        J = sorted((math.ceil(-math.log2(v)) for v in u), reverse=True)
        J = sorted((j if j <= S else 0 for j in J), reverse=True)
        if nested:
            total, first = runs(
                x, y, z, J, 2,
                lambda k, old, new, g: 2**k * (g(new, 2**k, 1) - g(old, 2 ** (k - 1), 3)) if k else g(new, 1, 1), True,
            )  # fmt: skip
        else:
            total, first = runs(x, y, z, [0] * M, 2, lambda k, old, new, g: g(new, 1, 1), False)
            high = [j for j in J if j > 0]
            total = total + runs(x, y, z, high, 3, lambda k, old, new, g: 2**k * g(new, 2**k, 1), False)[0]
            low = [j - 1 for j in high]
            total = total - runs(x, y, z, low, 4, lambda k, old, new, g: 2 ** (k + 1) * g(new, 2**k, 1), False)[0]
        x, (y, z) = x - eta_x * total / M, first


CONSTANTS = {"alpha_y": 2.0, "beta_y": 5.3, "alpha_z": 4.0, "beta_z": 4.9}
LONG_Z = {"alpha_y": 4.0, "beta_y": 4.5, "alpha_z": 2.0, "beta_z": 4.7}  # z has more steps than y


@pytest.mark.parametrize("a", [CONSTANTS, LONG_Z], ids=["long_y", "long_z"])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.quick_cases(2)
def test_steps_are_those_of_numpy(nested, a):
    sizes = {"lam": 4.0, "M": 3, "N": 2, "S": 2, "eta_x": 0.02}
    instance = built("quadratic", dim_x=2, dim_y=3, kappa=1.3, sigma_f=0.3, sigma_g=0.2)
    steps = 20 if nested else 8
    got = iterates(F3BSA(**sizes, **a, nested=nested), instance, steps)
    p = of_quadratic(instance)
    expected = list(itertools.islice(plain_f3bsa(p, Noise(0.3, 0.2), **sizes, a=a, nested=nested), steps + 1))
    assert np.linalg.norm(got[-1][0] - got[0][0]) > 1e-2
    for mine, theirs in zip(got, expected, strict=True):
        for u, v in zip(mine, theirs, strict=True):
            assert np.linalg.norm(u - v) <= 1e-10 * (1 + np.linalg.norm(v))


# ---- the mean and the cost of the estimate

LAM, C, X0, Y0 = 4.0, 2.0, 0.5, -1.0


def line(sigma_f: float = 0.1, sigma_g: float = 0.05) -> Instance:
    """g = (y - x)²/2, f = (y - 2)²/2 + x²/2 on the line: beta/alpha is 5/2 for y and 1 for z if lam = 4."""
    number = torch.tensor([[1.0]], dtype=torch.float64)
    return Instance(
        f=lambda x, y: 0.5 * (y - C) ** 2 + 0.5 * x**2,
        g=lambda x, y: 0.5 * (y - x) ** 2,
        grad_f_x=lambda x, y: x + 0 * y,
        grad_f_y=lambda x, y: y - C + 0 * x,
        grad_g_x=lambda x, y: x - y,
        grad_g_y=lambda x, y: y - x,
        x0=X0 * number,
        y0=Y0 * number,
        constants={"mu": 1.0, "L_gy": 1.0, "L_g": 2.0, "L_f": 1.0},
        noise=Additive(sigma_f, sigma_g),
        points="stack",
    )


def grad_penalty() -> float:
    """f_x + lam (g_x(x, y_lam) - g_x(x, y*)) at x0, with y* = x and y_lam = (c + lam x)/(1 + lam)."""
    return X0 + LAM * (X0 - (C + LAM * X0) / (1 + LAM))


def one_step(lanes: int, instance: Instance | None = None, **params: Any) -> tuple[np.ndarray, Oracle, np.ndarray]:
    """The estimate of each lane, the oracle that was asked, and the levels J that the lanes drew."""
    instance = instance or line()
    method = F3BSA(lam=LAM, eta_x=1.0, **{"M": 1, "N": 1, "S": 5, **params}).resolve(instance.constants)
    method = pack_algorithm([method] * lanes, torch.float64)
    oracle = Oracle(instance, method.uses, range(lanes))
    oracle.begin_step(1)
    x, y = (start.expand(lanes, 1).clone() for start in (instance.x0, instance.y0))
    with torch.no_grad():
        after = method.step(method.init(x, y, oracle), oracle)
    oracle.meter.flush()
    u = Draws(range(lanes)).uniform("method", (1,), (1,), 1, 1)[0]
    return (x - after.x).numpy()[:, 0], oracle, np.ceil(-np.log2(u)).astype(int)


def errors_in_standard_errors(estimates: np.ndarray) -> float:
    return float((estimates.mean() - grad_penalty()) / (estimates.std() / math.sqrt(len(estimates))))


def from_zero(u: Tensor) -> Tensor:
    """The other geometric law, with support {0, 1, ...}."""
    return geometric(u) - 1


LANES = [pytest.param(10_000, id="quick"), pytest.param(100_000, id="full", marks=pytest.mark.slow)]


@functools.cache
def estimates(lanes: int, nested: bool) -> tuple[np.ndarray, Oracle]:
    return one_step(lanes, nested=nested)[:2]


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.quick_cases(1)
def test_the_mean_of_the_estimate_is_the_gradient_of_the_penalty_function(lanes, nested):
    assert abs(errors_in_standard_errors(estimates(lanes, nested)[0])) < 3


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.quick_cases(1)
def test_9_11_levels_that_start_at_zero_leave_half_of_the_bias_of_the_base(lanes, nested, monkeypatch):
    monkeypatch.setattr(f3bsa, "geometric", from_zero)
    wrong, _, _ = one_step(lanes, nested=nested)
    assert abs(errors_in_standard_errors(wrong)) > 20
    y, z = line_after(0, N=1)
    left = (line_gradient(y, z) - grad_penalty()) / 2
    assert wrong.mean() - grad_penalty() == pytest.approx(left, abs=3 * wrong.std() / math.sqrt(lanes))


@pytest.mark.parametrize("lanes", LANES)
def test_nested_and_independent_levels_have_the_same_mean(lanes):
    one, three = (estimates(lanes, nested)[0] for nested in (True, False))
    assert abs(one.mean() - three.mean()) < 3 * math.sqrt((one.var() + three.var()) / lanes)
    assert not np.array_equal(one, three)


def line_after(k: int, N: int) -> Point:
    """y and z without noise after N base epochs and epochs 1..k: both functions have curvature beta on the line."""
    errors = []
    for ratio, start in ((2.5, Y0 - (C + LAM * X0) / (1 + LAM)), (1.0, Y0 - X0)):
        for epoch_number in [0] * N + list(range(1, k + 1)):
            n = math.ceil(2 ** (epoch_number + 2) * ratio)
            rest = 1 - 0.5 ** max(epoch_number, 1)
            start *= sum(rest**i for i in range(1, n + 1)) / n
        errors.append(start)
    return (C + LAM * X0) / (1 + LAM) + errors[0], X0 + errors[1]


def line_gradient(y: float, z: float) -> float:
    return X0 + LAM * ((X0 - y) - (X0 - z))


@pytest.mark.parametrize("nested", [True, False])
def test_without_noise_only_the_level_is_random(nested):
    got, _, J = one_step(200, line(0.0, 0.0), nested=nested, N=2, S=4)
    level = [line_gradient(*line_after(k, N=2)) for k in range(5)]
    expected = [level[0] + (2**j * (level[j] - level[j - 1]) if j <= 4 else 0) for j in J]
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert {1, 2, 3, 4, 5} <= set(J)
    noisy, _, _ = one_step(200, nested=nested, N=2, S=4)
    assert len(set(noisy)) == 200
    assert len(set(got)) == 5


def samples_at(depth: int, N: int, nested: bool) -> dict[str, float]:
    """Samples of one estimate whose J is `depth`, 0 if it is above S."""
    epochs = N + 2 ** (depth + 1) - 2
    if not nested and depth:
        epochs = N + (N + 2 ** (depth + 1) - 2) + (N + 2**depth - 2)
    reads = 1 + (2**depth + 2 ** (depth - 1) if depth else 0)
    return {"grad_f_y": 10 * epochs, "grad_g_y": 14 * epochs, "grad_f_x": reads, "grad_g_x": 2 * reads}


def expected_samples(M: int, N: int, S: int, nested: bool) -> dict[str, float]:
    """The paper's method, in expectation: the formulas of the docstring."""
    rare = 1 - 2.0**-S
    E = N + 2 * S - 2 * rare if nested else N + 2 * N * rare + 3 * S - 4 * rare
    reads = M * (1 + 1.5 * S)
    return {"grad_f_y": 4 * M * 2.5 * E, "grad_g_y": 4 * M * 3.5 * E, "grad_f_x": reads, "grad_g_x": 2 * reads}


@pytest.mark.parametrize("nested", [True, False])
def test_each_estimate_costs_what_its_level_does(nested):
    N, S = 3, 4
    _, oracle, J = one_step(200, nested=nested, N=N, S=S)
    assert {1, 2, 3, 4, 5} <= set(J)
    for query, row in ROW.items():
        expected = [samples_at(j if j <= S else 0, N, nested).get(query, 0) for j in J]
        np.testing.assert_array_equal(oracle.meter.samples[row], expected)
    for query, mean in expected_samples(1, N, S, nested).items():
        of_levels = sum(2.0**-j * samples_at(j, N, nested)[query] for j in range(1, S + 1))
        assert of_levels + 2.0**-S * samples_at(0, N, nested)[query] == pytest.approx(mean, rel=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("nested", [True, False])
def test_the_mean_cost_is_the_expected_one(nested):
    """Of 100,000 estimates; the quick form is the exact test above."""
    _, oracle = estimates(100_000, nested)
    for query, mean in expected_samples(1, 1, 5, nested).items():
        assert oracle.meter.samples[ROW[query]].mean() == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.quick_cases(1)
def test_several_estimates_are_averaged(nested):
    """M of them in one lane are as good as M lanes: variance over M, M times the samples."""
    one, oracle_1, _ = one_step(2000, nested=nested, S=3)
    five, oracle_5, _ = one_step(2000, nested=nested, S=3, M=5)
    assert one.var() / five.var() == pytest.approx(5, rel=0.25)
    assert oracle_5.meter.samples.sum() / oracle_1.meter.samples.sum() == pytest.approx(5, rel=0.1)
    assert abs(errors_in_standard_errors(five - bias(3))) < 3


def bias(S: int) -> float:
    """The mean of the estimate is that of its highest level."""
    return line_gradient(*line_after(S, N=1)) - grad_penalty()


# ---- packs

VARIANTS = {
    "nested": "f3bsa[M={M},N={N},S={S},lam={lam},eta_x={eta}]",
    "independent": "f3bsa[M={M},N={N},S={S},lam={lam},eta_x={eta},nested=false]",
    "accuracy": "f3bsa[accuracy={accuracy},lam={lam},eta_x={eta}]",
}
PROBLEMS = {
    "quadratic": "quadratic[dim_x=3,dim_y=5,kappa=1.2,sigma_f=0.1,sigma_g=0.02]",
    "tail_anchor": "tail_anchor[tails=2,L=1.2,sigma_f=0.1,sigma_g=0.02,data_seed={data}]",
}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.quick_cases(2)
def test_packed_equals_alone(variant, problem):
    long = variant == "accuracy"
    trials = [
        trial(
            VARIANTS[variant].format(
                M=[1, 3, 2, 5][i % 4], N=1 + i % 2, S=1 + i % 3, lam=[2, 5.5, 3][i % 3], eta=[0.02, 0.1][i % 2],
                accuracy=[30, 50, 80][i % 3],
            ),
            PROBLEMS[problem].format(data=i % 3),
            cost=[None, 900, None, 1500.5, None][i % 5] if not long else [None, 20_000][i % 2],
            steps=[3, 5, 2, 4, 3][i % 5] if not long else 2,
            seed=i % 4,
            schedule=Schedule(ratio=1.4),
        )
        for i in range(6)
    ]  # fmt: skip
    together, apart = packed(trials), alone(trials)
    assert_same(together, apart)
    assert set(together.runs.status) == {"budget"}
    assert together.runs.last_grad_phi.nunique() == 6


# ---- parameters


@pytest.mark.parametrize("field", ["M", "N", "S", "lam", "eta_x", "accuracy", "alpha_y", "beta_z"])
def test_what_has_to_be_positive_is_named(field):
    with pytest.raises(InvalidInput, match=f"f3bsa.*{field}.*greater than 0"):
        make(registry().algorithm("f3bsa"), {field: 0})


def test_more_convex_than_smooth_is_refused():
    method = F3BSA(lam=10, eta_x=0.1, alpha_z=100.0)
    with pytest.raises(InvalidInput, match=r"alpha_z = 100 is larger than beta_z = 10"):
        method.resolve(line().constants)


def test_a_batch_of_nothing_and_a_negative_noise_are_refused():
    oracle = Oracle(line(), F3BSA.uses, [0])
    with pytest.raises(InvalidInput, match="a batch of 0 of g"):
        oracle.sample_g(0, points=2)
    with pytest.raises(InvalidInput, match=r"sigma_g = -0\.1"):
        line(0.1, -0.1)
    for preset in (F3BSA.from_rate, F3BSA.from_theory):
        with pytest.raises(InvalidInput, match="f3bsa: sigma_f = -1: a noise level"):
            preset(Constants({**constants().given, "sigma_f": -1.0}), 0.1)


def constants(**more: float) -> Constants:
    known = {"mu": 1.0, "L_gy": 1.2, "L_g": 2.4, "L_f": 1.0, "rho_f": 1.05, "rho_g": 0.0, "C_f": 1.5, "L_phi": 1.0}
    return Constants({**known, "sigma_f": 0.1, "sigma_g": 0.0, **more}, "some problem")


def test_the_scaled_functions_have_scaled_constants():
    method = F3BSA(lam=10).resolve(constants())
    assert (method.alpha_y, method.beta_y, method.alpha_z, method.beta_z) == (5, 13, 10, 12)


def test_the_rate_preset_follows_the_noise():
    partial = F3BSA.from_rate(constants(), 0.16)
    assert (partial.lam, partial.M, partial.N, partial.S) == (12.5, 4, 6, 6)
    assert partial.eta_x == pytest.approx(0.02 * 0.16**2 / 0.01)
    full = F3BSA.from_rate(constants(sigma_f=0.02, sigma_g=0.05), 0.25)
    assert (full.lam, full.N, full.S) == (8, 4, 4)
    assert full.eta_x == pytest.approx(0.12 * 0.0625 / (0.0004 + 64 * 0.0025))
    with pytest.raises(InvalidInput, match="no rate preset where sigma_f = sigma_g = 0"):
        F3BSA.from_rate(constants(sigma_f=0.0), 0.1)
    without = Constants({k: v for k, v in constants().given.items() if k != "sigma_f"}, "a finite sum")
    with pytest.raises(MissingConstant, match="sigma_f"):
        F3BSA.from_rate(without, 0.1)


def test_the_theory_preset_takes_lam_from_f2ba_and_its_step_from_the_noise():
    c = constants(sigma_g=0.1)
    method = F3BSA.from_theory(c, 0.1)
    lam = max(2 * 1.0, 2 * (1 + 2.4) * 1.5 / 0.1)
    assert method.lam == pytest.approx(lam)
    assert method.accuracy == 0.1
    assert method.eta_x == pytest.approx(0.01 / (0.01 + lam**2 * 0.01) / (2 * c.L_star))
    assert F3BSA.from_theory(constants(sigma_f=0.0), 0.1).eta_x == pytest.approx(1 / (2 * c.L_star))


def test_counts_follow_the_recursion_of_delta():
    """M, N and S of each step against the formulas, on a problem whose condition number is 1.5."""
    eps, lam, eta_x, steps = 100.0, 3.0, 0.3, 3
    known = {"mu": 1.0, "L_gy": 1.2, "L_g": 1.3, "L_f": 1.0, "rho_f": 0.0, "rho_g": 0.0, "C_f": 1.5, "nu_g": 0.0}
    base = built("quadratic", dim_x=2, dim_y=3, kappa=1.2, L=1.2)
    instance = Instance(
        **{q: base._raw[q] for q in ("grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y")},
        f=base.value_f, g=base.value_g, x0=10 * base.x0, y0=-40 * base.y0, constants=known, noise=Additive(0.5, 0.2),
        points="stack",
    )  # fmt: skip
    method = F3BSA(accuracy=eps, lam=lam, eta_x=eta_x).resolve(instance.constants)
    method = pack_algorithm([method] * 4, torch.float64)
    oracle = Oracle(instance, method.uses, range(4))
    v = 0.5**2 + lam**2 * 0.2**2
    x, y = (start.expand(4, -1).clone() for start in (instance.x0, instance.y0))
    with torch.no_grad():
        oracle.begin_step(0)
        state = method.init(x, y, oracle)
        oracle.begin_step(0)
        g_y = oracle.grad_g_y(x, y, oracle.sample_g(1))
        delta = (3 * g_y.square().sum(-1) + 2 * (1.5 / lam) ** 2).numpy()
        seen = []
        for step in range(1, steps + 1):
            oracle.meter.flush()
            before = oracle.meter.samples[ROW["grad_f_x"]].copy()
            oracle.begin_step(step)
            new = method.step(state, oracle)
            oracle.meter.flush()
            N = np.maximum(2, np.ceil(np.log2(np.maximum((lam * 1.5) ** 2 * delta, 1.5 * v) / eps**2)))
            M = np.ceil(1.5 * N).astype(int)
            np.testing.assert_array_equal(method.extras(new)["levels"].numpy()[:, 0], N)
            used = [lane_reads(lane, step, int(M[lane]), int(N[lane])) for lane in range(4)]
            np.testing.assert_array_equal(oracle.meter.samples[ROW["grad_f_x"]] - before, used)
            moved = (new.x - state.x).square().sum(-1).numpy()
            delta = delta / 2 + 34 * 1.3**2 * moved + 24 * v / (lam * (1 + lam * 1.2))
            np.testing.assert_allclose(method.extras(new)["delta"].numpy()[:, 0], delta, rtol=1e-12)
            state = new
            seen.append(N)
    assert len(np.unique(seen)) > 2


def lane_reads(seed: int, step: int, M: int, S: int) -> int:
    u = Draws([seed]).uniform("method", (1,), (step,), M, 1)[:, 0]
    J = np.ceil(-np.log2(u)).astype(int)
    return M + sum(2**j + 2 ** (j - 1) for j in J if j <= S)


def test_claims_are_those_of_the_appendix():
    assert [(c.table, c.setting, c.eps_exp, c.kappa_exp, c.extra) for c in F3BSA.claims] == [
        (2, "partial", 4, 5, "ell"),
        (2, "full", 6, 11, "ell^3"),
    ]
    assert F3BSA.first_order()
    assert F3BSA.reports == "random"
