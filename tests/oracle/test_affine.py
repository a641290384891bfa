"""Affine noise: a sample is one function, of which every answer is a derivative; its law, its price and its addresses."""

from __future__ import annotations

import pytest
import torch
from bilevelbench_problems.logcosh import LogCosh
from bilevelbench_problems.quadratic import Quadratic
from bilevelbench_problems.tail_anchor import TailAnchor
from pydantic import ValidationError

import bilevelbench
from bilevelbench import Additive, Affine, Exact, InvalidInput, dot, norm
from bilevelbench.model.noise import is_exact, levels
from bilevelbench.model.torch_state import default_dtype

SIGMA = {"f": 0.7, "g": 0.4, "h": 1.3}
NOISE = Affine(SIGMA["f"], SIGMA["g"], SIGMA["h"])
DX, DY = 3, 5
D = DX + DY
MANY = 20_000
STEP = 0.5  # differences of a quadratic noise are exact, whatever the step


def noise_of(oracle, query, at, xi):
    """What the sample adds to the answer, block by block."""
    noisy, exact = (getattr(oracle, query)(*at, *more) for more in ((xi,), ()))
    pairs = zip(noisy, exact, strict=True) if isinstance(noisy, tuple) else [(noisy, exact)]
    return [a - b for a, b in pairs]


def one(oracle, query, at, xi):
    (noise,) = noise_of(oracle, query, at, xi)
    return noise


def sample(oracle, level, B=1):
    return oracle.sample_f(B) if level == "f" else oracle.sample_g(B)


@pytest.fixture
def here(bowl, door, normal):
    """An oracle of four lanes, and a point and two vectors away from the start."""
    return door(bowl(noise=NOISE)), normal(4, DX), normal(4, DY), normal(4, DX), normal(4, DY)


@pytest.fixture
def crowd(bowl, door, normal):
    """One point for many seeds, with its distance z from the start."""
    instance = bowl(noise=NOISE)
    x, y, v = (normal(1, d) for d in (DX, DY, DY))
    z = x - instance.x0, y - instance.y0
    return door(instance, lanes=MANY), *(t.expand(MANY, -1) for t in (x, y, v)), z


def has_mean_square(values, expected):
    """By the central limit theorem for the squares: |z| < 5."""
    squares = values.square().sum(-1)
    return abs(float(squares.mean()) - expected) < 5 * float(squares.std()) / len(squares) ** 0.5


def has_mean_zero(values):
    return bool((values.mean(0).abs() < 5 * values.std(0) / len(values) ** 0.5 + 1e-15).all())


def test_it_is_a_public_name():
    assert bilevelbench.Affine is Affine
    assert levels(NOISE) == {"sigma_f": 0.7, "sigma_g": 0.4, "sigma_h": 1.3}


# ---------------------------------------------------------------------------------------------- one function


@pytest.mark.parametrize("level", ["f", "g"])
def test_the_gradient_is_that_of_the_sampled_value(here, level):
    oracle, x, y, a, b = here
    xi = sample(oracle, level)
    high, low = (one(oracle, f"value_{level}", (x + s * a, y + s * b), xi) for s in (STEP, -STEP))
    n_x, n_y = noise_of(oracle, f"grad_{level}", (x, y), xi)
    torch.testing.assert_close(dot(n_x, a) + dot(n_y, b), (high - low) / (2 * STEP), rtol=1e-9, atol=1e-11)


def test_the_joint_gradient_and_its_blocks_are_one(here):
    oracle, x, y, *_ = here
    xi = oracle.sample_g(3)
    n_x, n_y = noise_of(oracle, "grad_g", (x, y), xi)
    torch.testing.assert_close(one(oracle, "grad_g_x", (x, y), xi), n_x, rtol=0, atol=1e-13)
    torch.testing.assert_close(one(oracle, "grad_g_y", (x, y), xi), n_y, rtol=0, atol=1e-13)


def test_products_are_the_change_of_the_sampled_gradient(here):
    """H v is the derivative of g_y along v; J is the transpose of the change of g_y with x."""
    oracle, x, y, a, v = here
    xi = oracle.sample_g(1)
    along_y = (one(oracle, "grad_g_y", (x, y + STEP * v), xi) - one(oracle, "grad_g_y", (x, y - STEP * v), xi)) / (
        2 * STEP
    )
    torch.testing.assert_close(one(oracle, "hvp_g_yy", (x, y, v), xi), along_y, rtol=1e-9, atol=1e-12)
    along_x = (one(oracle, "grad_g_y", (x + STEP * a, y), xi) - one(oracle, "grad_g_y", (x - STEP * a, y), xi)) / (
        2 * STEP
    )
    torch.testing.assert_close(dot(one(oracle, "jvp_g_xy", (x, y, v), xi), a), dot(along_x, v), rtol=1e-9, atol=1e-12)


def test_the_hessian_of_a_sample_is_symmetric_and_both_products_are_one_query(here, normal):
    oracle, x, y, _, v = here
    xi, w = oracle.sample_g(1), normal(4, DY)
    Hv, Hw = (one(oracle, "hvp_g_yy", (x, y, u), xi) for u in (v, w))
    torch.testing.assert_close(dot(Hv, w), dot(v, Hw), rtol=1e-11, atol=1e-13)
    joint_x, joint_y = noise_of(oracle, "vp_g", (x, y, v), xi)
    torch.testing.assert_close(joint_y, Hv, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(joint_x, one(oracle, "jvp_g_xy", (x, y, v), xi), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("level", ["f", "g"])
def test_differences_at_two_points_are_lipschitz_and_not_zero(bowl, door, normal, level):
    """Under additive noise they are exact, which makes recursive methods look better than they are."""
    x, y, a, b = normal(4, DX), normal(4, DY), normal(4, DX), normal(4, DY)
    for noise, exact in ((Additive(1.0, 1.0, 1.0), True), (Affine(1.0, 1.0, 1.0), False)):
        oracle = door(bowl(noise=noise))
        xi = sample(oracle, level)
        moves = []
        for t in (1.0, 2.0):
            there = noise_of(oracle, f"grad_{level}", (x + t * a, y + t * b), xi)
            before = noise_of(oracle, f"grad_{level}", (x, y), xi)
            moves.append(torch.cat([p - q for p, q in zip(there, before, strict=True)], -1))
        assert (float(moves[0].abs().max()) < 1e-12) == exact
        torch.testing.assert_close(moves[1], 2 * moves[0], rtol=1e-8, atol=1e-12)  # S (z' - z)
        s = oracle._sampler._curvature(xi, oracle._sample_draws)[0] if not exact else torch.zeros(4, 1)
        assert bool((norm(moves[0]) <= s.abs() * (dot(a, a) + dot(b, b)).sqrt() + 1e-12).all())


# ---------------------------------------------------------------------------------------------- its law


@pytest.mark.parametrize("B", [1, 8])
@pytest.mark.parametrize("level", ["f", "g"])
def test_gradients_are_unbiased_and_their_variance_grows_with_the_distance(crowd, level, B):
    """E|noise_x|² = (sigma² + sigma_h² (dx |z|² + 2 |z_x|²)/(d(d+2)))/B, since u is uniform on the sphere; y alike."""
    oracle, x, y, _, z = crowd
    size = sum(float(dot(part, part)) for part in z)
    blocks = noise_of(oracle, f"grad_{level}", (x, y), sample(oracle, level, B))
    for noise, part in zip(blocks, z, strict=True):
        width = part.shape[-1]
        curved = SIGMA["h"] ** 2 * (width * size + 2 * float(dot(part, part))) / (D * (D + 2))
        assert has_mean_zero(noise)
        assert has_mean_square(noise, (SIGMA[level] ** 2 + curved) / B)
        assert not has_mean_square(noise, SIGMA[level] ** 2 / B)


@pytest.mark.parametrize("level", ["f", "g"])
def test_at_the_start_it_is_that_of_additive_noise(bowl, door, level):
    instance = bowl(noise=NOISE)
    twin = bowl(noise=Additive(SIGMA["f"], SIGMA["g"], SIGMA["h"]))
    at = instance.x0.expand(4, -1), instance.y0.expand(4, -1)
    ours, theirs = (door(i) for i in (instance, twin))
    for a, b in zip(
        noise_of(ours, f"grad_{level}", at, sample(ours, level)),
        noise_of(theirs, f"grad_{level}", at, sample(theirs, level)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("B", [1, 8])
def test_the_second_derivatives_are_unbiased_with_norm_sigma_h(crowd, B):
    """E|S_yy v|² = sigma_h² (dy + 2)/(d(d+2)) |v|²/B and E|S_xy v|² = sigma_h² dx/(d(d+2)) |v|²/B; E|S|² = sigma_h²/B."""
    oracle, x, y, v, _ = crowd
    xi = oracle.sample_g(B)
    Jv, Hv = noise_of(oracle, "vp_g", (x, y, v), xi)
    unit = SIGMA["h"] ** 2 * float(dot(v[:1], v[:1])) / (D * (D + 2)) / B
    for noise, expected in ((Hv, (DY + 2) * unit), (Jv, DX * unit)):
        assert has_mean_zero(noise)
        assert has_mean_square(noise, expected)
        assert not has_mean_square(noise, 1.2 * expected)
    s, u = oracle._sampler._curvature(xi, oracle._sample_draws)
    assert has_mean_square(s, SIGMA["h"] ** 2 / B)
    torch.testing.assert_close(dot(u["x"], u["x"]) + dot(u["y"], u["y"]), torch.ones(MANY, 1, dtype=torch.float64))


def test_values_are_unbiased(crowd):
    oracle, x, y, *_ = crowd
    assert has_mean_zero(one(oracle, "value_g", (x, y), oracle.sample_g(1)))


# ---------------------------------------------------------------------------------------------- draws and price


def test_a_lane_has_the_bits_that_it_has_alone_and_after_others_leave(bowl, door, normal):
    x, y, v = normal(1, DX), normal(1, DY), normal(1, DY)
    at = tuple(t.expand(4, -1) for t in (x, y, v))
    answers = []
    for seeds in ([0, 1, 2, 3], [2, 2, 2, 2]):
        oracle = door(bowl(noise=NOISE), seeds=seeds)
        xi = oracle.sample_g(2)
        answers.append((oracle.grad_g_y(*at[:2], xi), oracle.vp_g(*at, xi)[0]))
    for a, b in zip(*answers, strict=True):
        assert torch.equal(a[2], b[0])
        assert not torch.equal(a[1], b[0])
    oracle = door(bowl(noise=NOISE))
    oracle.take([2, 3, 2, 2], [True] * 4)
    assert torch.equal(oracle.grad_g_y(*at[:2], oracle.sample_g(2))[0], answers[0][0][2])


def test_points_have_samples_of_their_own_or_share_one(here):
    oracle, x, y, *_ = here
    X, Y = torch.stack([x, x]), torch.stack([y, y])
    apart = one(oracle, "grad_g_y", (X, Y), oracle.sample_g(1, points=2))
    assert not torch.allclose(apart[0], apart[1])
    shared = one(oracle, "grad_g_y", (X, Y), oracle.sample_g(1))
    torch.testing.assert_close(shared[0], shared[1], rtol=0, atol=1e-13)


def test_batches_of_their_own_size_in_each_lane(here):
    oracle, x, y, *_ = here
    sizes = torch.tensor([[1], [4], [9], [100]])
    wide = one(oracle, "grad_g_y", (x, y), oracle.sample_g(sizes))
    oracle.begin_step(1)
    alone = one(oracle, "grad_g_y", (x, y), oracle.sample_g(1))
    torch.testing.assert_close(wide * sizes**0.5, alone, rtol=1e-9, atol=1e-12)


def test_it_costs_what_additive_noise_costs(bowl, door, normal):
    x, y, v = normal(4, DX), normal(4, DY), normal(4, DY)
    paid = []
    for kind in (Additive, Affine):
        oracle = door(bowl(noise=kind(1.0, 1.0, 1.0)))
        xi, zeta = oracle.sample_g(7), oracle.sample_f(5)
        oracle.grad_g_y(x, y, xi), oracle.vp_g(x, y, v, xi), oracle.grad_f(x, y, zeta), oracle.grad_g_y(x, y)
        paid.append(oracle.meter.columns()["cost"].tolist())
    assert paid[0] == paid[1] == [7 + 7 + 5 + 1] * 4


@pytest.mark.parametrize(
    ("noise", "f", "g"),
    [
        (Affine(), True, True),
        (Affine(sigma_f=1.0), False, True),
        (Affine(sigma_g=1.0), True, False),
        (Affine(sigma_h=1.0), False, False),  # a sample of f is curved, too
    ],
)
def test_a_level_without_noise_is_exact(noise, f, g):
    assert (is_exact(noise, "f"), is_exact(noise, "g")) == (f, g)


def test_a_level_of_noise_is_a_number_that_is_not_negative():
    with pytest.raises(InvalidInput, match=r"sigma_h = -1: a noise level is a finite number, zero or more"):
        Affine(sigma_h=-1)


# ---------------------------------------------------------------------------------------------- problems


@pytest.mark.parametrize("cls", [Quadratic, LogCosh, TailAnchor])
def test_a_problem_offers_it(cls):
    levels = {"sigma_f": 0.1, "sigma_g": 0.2, "sigma_h": 0.3}
    assert cls(**levels, noise="affine").build().noise == Affine(0.1, 0.2, 0.3)
    assert cls(**levels).build().noise == Additive(0.1, 0.2, 0.3)
    assert cls(noise="affine").build().noise == Exact()
    with pytest.raises(ValidationError, match="'additive' or 'affine'"):
        cls(noise="afine")


def test_stacked_data_grow_their_noise_around_their_own_starts(door):
    """tail_anchor has a start for each lane, also once lanes have left."""
    with default_dtype(torch.float64):
        instance = TailAnchor(sigma_g=0.1, sigma_h=1.0, noise="affine").build_lanes([0, 1, 2, 3])
    oracle = door(instance, seeds=[5, 5, 5, 5])
    for lanes in ([0, 1, 2, 3], [3, 1, 1, 1]):
        oracle.begin_step(1)
        at = instance.x0[lanes], instance.y0[lanes]
        noise = one(oracle, "grad_g_y", at, oracle.sample_g(1))
        torch.testing.assert_close(noise, noise[:1].expand_as(noise), rtol=0, atol=1e-13)  # <u, z> = 0
        oracle.take([3, 1, 1, 1], [True] * 4)
