"""Each noise model has the mean and the variance that it promises, at five standard errors over thousands of seeds.

Lanes are seeds, so one query of one oracle is a sample of the noise. Every test of a variance is also held against
variances ten per cent too small and too large, which it has to refuse: a wrong scale would not go unseen.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from bilevelbench_problems import LabelCleaningDigits, LogRegBreastCancer, Quadratic, TailAnchor
from helpers import alone, assert_same, of
from pydantic import ValidationError
from scipy import stats

import bilevelbench
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput
from bilevelbench.model.lanes import dot
from bilevelbench.model.noise import Additive, Exact, FiniteSum, levels
from bilevelbench.model.queries import QUERIES
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Budget, Schedule
from bilevelbench.plan.trials import make_trial
from bilevelbench.results.schema import Results

pytestmark = pytest.mark.whole  # many draws

SEEDS = 20_000
MORE_SEEDS = 80_000  # single rows have long tails, which make a variance harder to tell
FIVE_SIGMA = stats.norm.sf(5)
SIGMA = {"f": 2.0, "g": 3.0, "h": 0.5}
#: true over assumed variance; the assumption has to be accepted at 1 alone
OFF = [0.9, 1.0, 1.1]
GRADIENTS = ["grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y"]
PRODUCTS = ["hvp_g_yy", "jvp_g_xy"]

off_scale = pytest.mark.parametrize("off", OFF)


@pytest.fixture
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def without_grad():
    """As the runner does."""
    with torch.no_grad():
        yield


def additive(off=1.0):
    root = off**0.5
    return Additive(SIGMA["f"] * root, SIGMA["g"] * root, SIGMA["h"] * root)


def sample(oracle, query, B, **rest):
    return oracle.sample_f(B, **rest) if "_f" in query else oracle.sample_g(B, **rest)


def cost(oracle):
    return oracle.meter.columns()["cost"]


def has_mean(values, expected, variance):
    """Columns of independent numbers with this variance have this mean: |z| < 5."""
    error = (variance / len(values)) ** 0.5
    return bool(((values.mean(0) - expected).abs() < 5 * error).all())


def has_normal_variance(noise, variance):
    """Independent normals of mean zero have this variance: chi-square with as many degrees of freedom."""
    total = float(noise.square().sum()) / variance
    law = stats.chi2(noise.numel())
    return bool(law.ppf(FIVE_SIGMA) < total < law.isf(FIVE_SIGMA))


def has_variance(values, mean, variance):
    """Numbers of any law, by the central limit theorem for their squares, each column for itself: |z| < 5."""
    squares = (values - mean).square()
    error = squares.std(0) / len(squares) ** 0.5
    rounding = 1e-12 * variance  # the squares of two equally likely values are equal
    return bool(((squares.mean(0) - variance).abs() < 5 * error + rounding).all())


# ---------------------------------------------------------------------------------------------- the yardsticks


@pytest.mark.parametrize("seed", range(5))
def test_the_yardsticks_accept_what_is_right_and_refuse_ten_per_cent(seed):
    rng = torch.Generator().manual_seed(seed)
    noise = 3 * torch.randn(SEEDS, 2, generator=rng, dtype=torch.float64)
    assert has_mean(noise, 0.0, 9.0)
    assert not has_mean(noise + 0.3, 0.0, 9.0)  # a bias of a tenth of a standard deviation
    assert [has_normal_variance(noise, 9 * off) for off in OFF] == [False, True, False]
    assert [has_variance(noise, 0.0, 9 * off) for off in OFF] == [False, True, False]
    uniform = torch.rand(SEEDS, 2, generator=rng, dtype=torch.float64)
    assert [has_variance(uniform, 0.5, off / 12) for off in OFF] == [False, True, False]


# ---------------------------------------------------------------------------------------------- exact


@pytest.mark.parametrize("B", [1, 7, 10**12])
@pytest.mark.parametrize("query", QUERIES)
def test_exact_answers_have_no_noise_and_a_sample_of_B_is_charged_as_one(bowl, door, normal, query, B):
    oracle = door(bowl(noise=Exact()), lanes=40)
    arguments = (normal(40, 3), normal(40, 5), *([normal(40, 5)] if QUERIES[query].takes_vector else []))
    noisy, plain = (getattr(oracle, query)(*arguments, xi) for xi in (sample(oracle, query, B), None))
    pairs = zip(noisy, plain, strict=True) if isinstance(noisy, tuple) else [(noisy, plain)]
    assert all(torch.equal(a, b) for a, b in pairs)
    assert cost(oracle).tolist() == [2] * 40
    assert levels(Exact()) == {"sigma_f": 0.0, "sigma_g": 0.0, "sigma_h": 0.0}


def test_noise_that_stands_out_from_nothing_is_seen(bowl, door, normal):
    """The check above is not blind: it refuses noise of one part in 10^6."""
    oracle, x, y = door(bowl(noise=Additive(sigma_g=1e-6))), normal(4, 3), normal(4, 5)
    assert not torch.equal(oracle.grad_g_y(x, y, oracle.sample_g(1)), oracle.grad_g_y(x, y))


# ---------------------------------------------------------------------------------------------- additive


@pytest.fixture
def crowd(bowl, door, normal):
    """An oracle with as many lanes as seeds, all at one point, whose variances are `off` times those of SIGMA."""
    at = [normal(1, d).expand(SEEDS, d) for d in (3, 5, 5)]

    def build(off):
        return door(bowl(noise=additive(off)), lanes=SEEDS), *at

    return build


@off_scale
@pytest.mark.parametrize("B", [1, 10])
@pytest.mark.parametrize("query", GRADIENTS)
def test_gradient_noise_has_variance_sigma_squared_over_B(crowd, query, B, off):
    """E|noise|² = sigma²/B in the block, so sigma²/(B d) in each of its coordinates."""
    oracle, x, y, _ = crowd(off)
    noise = getattr(oracle, query)(x, y, sample(oracle, query, B)) - getattr(oracle, query)(x, y)
    variance = SIGMA[query[5]] ** 2 / B
    assert has_mean(noise, 0.0, variance / noise.shape[-1])
    assert has_normal_variance(noise, variance / noise.shape[-1]) == (off == 1)
    assert has_variance(dot(noise, noise).sqrt(), 0.0, variance) == (off == 1)
    assert (cost(oracle) == B + 1).all()


@off_scale
@pytest.mark.parametrize("level", ["f", "g"])
def test_both_blocks_of_a_joint_gradient_have_that_variance(crowd, level, off):
    oracle, x, y, _ = crowd(off)
    ask = getattr(oracle, f"grad_{level}")
    for noisy, plain in zip(ask(x, y, sample(oracle, f"_{level}", 4)), ask(x, y), strict=True):
        variance = SIGMA[level] ** 2 / 4 / noisy.shape[-1]
        assert has_mean(noisy - plain, 0.0, variance)
        assert has_normal_variance(noisy - plain, variance) == (off == 1)


@off_scale
@pytest.mark.parametrize("B", [1, 10])
@pytest.mark.parametrize("level", ["f", "g"])
def test_value_noise_has_the_variance_of_its_gradient_along_x_and_y(crowd, level, B, off):
    """The noise is <n_x, x> + <n_y, y>: variance sigma²/B (|x|²/dx + |y|²/dy)."""
    oracle, x, y, _ = crowd(off)
    ask = getattr(oracle, f"value_{level}")
    noise = ask(x, y, sample(oracle, f"_{level}", B)) - ask(x, y)
    variance = SIGMA[level] ** 2 / B * float(dot(x, x)[0] / 3 + dot(y, y)[0] / 5)
    assert has_mean(noise, 0.0, variance)
    assert has_normal_variance(noise, variance) == (off == 1)
    assert (cost(oracle) == B + 1).all()


@off_scale
@pytest.mark.parametrize("B", [1, 10])
@pytest.mark.parametrize("query", PRODUCTS)
def test_product_noise_is_a_scalar_of_variance_sigma_h_squared_over_B(crowd, query, B, off):
    oracle, x, y, v = crowd(off)
    ask, along = getattr(oracle, query), v if query == "hvp_g_yy" else v[:, :3]
    noise = ask(x, y, v, oracle.sample_g(B)) - ask(x, y, v)
    s = dot(noise, along) / dot(along, along)
    torch.testing.assert_close(noise, s * along, rtol=1e-9, atol=1e-12)
    assert has_mean(s, 0.0, SIGMA["h"] ** 2 / B)
    assert has_normal_variance(s, SIGMA["h"] ** 2 / B) == (off == 1)
    assert (cost(oracle) == B + 1).all()


@off_scale
@pytest.mark.parametrize("where", ["one step", "steps", "loop", "points"])
def test_mean_of_B_samples_is_one_sample_of_B_in_variance_and_in_price(crowd, where, off):
    """Independence of samples within a step, from step to step, within a loop and from point to point."""
    oracle, x, y, _ = crowd(off)
    B, exact = 8, oracle.grad_g_y(x, y)
    paid = cost(oracle)
    if where == "points":
        single = list(oracle.grad_g_y(x, y, oracle.sample_g(1, points=B)))
    elif where == "loop":
        single = [oracle.grad_g_y(x, y, oracle.sample_g(1)) for _ in oracle.repeat(B)]
    else:
        single = []
        for step in range(B):
            if where == "steps":
                oracle.begin_step(step + 2)
            single.append(oracle.grad_g_y(x, y, oracle.sample_g(1)))
    assert (cost(oracle) - paid == B).all()
    noise = sum(single) / B - exact
    assert has_mean(noise, 0.0, SIGMA["g"] ** 2 / B / 5)
    assert has_normal_variance(noise, SIGMA["g"] ** 2 / B / 5) == (off == 1)
    oracle.begin_step(100)
    paid = cost(oracle)
    noise = oracle.grad_g_y(x, y, oracle.sample_g(B)) - exact
    assert (cost(oracle) - paid == B).all()
    assert has_normal_variance(noise, SIGMA["g"] ** 2 / B / 5) == (off == 1)


def test_a_sample_used_again_is_not_new_data(crowd):
    """The test of independence above can fail: the mean of one sample with itself keeps its variance."""
    oracle, x, y, _ = crowd(1.0)
    xi = oracle.sample_g(1)
    noise = sum(oracle.grad_g_y(x, y, xi) for _ in range(8)) / 8 - oracle.grad_g_y(x, y)
    assert has_normal_variance(noise, SIGMA["g"] ** 2 / 5)
    assert not has_normal_variance(noise, SIGMA["g"] ** 2 / 8 / 5)


def test_neighbouring_seeds_are_independent(crowd):
    """The sum over a lane and the next one has twice the variance; so do seeds 1, 2, 4 and 2^k apart."""
    oracle, x, y, _ = crowd(1.0)
    noise = oracle.grad_g_y(x, y, oracle.sample_g(1)) - oracle.grad_g_y(x, y)
    variance = SIGMA["g"] ** 2 / 5
    for k in range(14):
        pairs = noise[: SEEDS // 2**k * 2**k].reshape(-1, 2, 2**k, 5) if (SEEDS // 2**k) % 2 == 0 else None
        if pairs is not None:
            assert has_normal_variance(pairs.sum(1), 2 * variance)
    assert not has_normal_variance(2 * noise[::2], 2 * variance)  # equal neighbours


def test_the_declared_constants_are_the_levels_of_the_noise(bowl):
    constants = bowl(noise=additive()).constants
    assert [constants[f"sigma_{level}"] for level in "fgh"] == [2.0, 3.0, 0.5]
    assert all(constants.given[f"sigma_{level}"].kind == "exact" for level in "fgh")


@off_scale
@pytest.mark.parametrize("problem", [TailAnchor, Quadratic])
def test_noise_of_the_built_in_problems(float64, problem, door, off):
    """From the parameter of a problem to the answer of a query."""
    sigma = 0.7 * off**0.5
    instance = problem(sigma_g=sigma, sigma_f=2 * sigma).build()
    oracle = door(instance, lanes=4000)
    x, y = (start[:1].expand(4000, -1) for start in (instance.x0, instance.y0))
    for query, scale in (("grad_g_y", 0.7), ("grad_f_x", 1.4)):
        noise = getattr(oracle, query)(x, y, sample(oracle, query, 3)) - getattr(oracle, query)(x, y)
        assert has_mean(noise, 0.0, scale**2 / 3 / noise.shape[-1])
        assert has_normal_variance(noise, scale**2 / 3 / noise.shape[-1]) == (off == 1)


# ---------------------------------------------------------------------------------------------- batches without end


@pytest.mark.parametrize("per_lane", [False, True])
def test_memory_does_not_grow_with_the_batch(bowl, door, normal, per_lane):
    """10^12 samples are one draw: what is kept and what is needed in between is that of a single one."""
    x, y, v = normal(400, 3), normal(400, 5), normal(400, 5)
    peaks, kept, noises = [], [], []
    for B in (1, 10**12):
        oracle = door(bowl(noise=additive()), lanes=400)
        size = torch.full((400, 1), B) if per_lane else B
        tracemalloc.start()
        xi, zeta = oracle.sample_g(size), oracle.sample_f(size)
        noises.append(oracle.grad_g_y(x, y, xi) - oracle._instance.grad_g_y(x, y))
        for query in ("hvp_g_yy", "jvp_g_xy"):
            getattr(oracle, query)(x, y, v, xi)
        oracle.value_g(x, y, xi)
        oracle.grad_f(x, y, zeta)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        kept.append({name: noise.shape for name, noise in {**xi.noise, **zeta.noise}.items()})
        assert cost(oracle).tolist() == [5 * B] * 400
    assert kept[0] == kept[1]
    assert max(shape.numel() for shape in kept[0].values()) == 400 * 5
    assert peaks[1] < peaks[0] + 50_000
    assert peaks[0] > 400 * 5 * 8  # the draws are seen by this count
    torch.testing.assert_close(noises[1] * 1e6, noises[0], rtol=0, atol=1e-8)


# ---------------------------------------------------------------------------------------------- finite sums


def rows_of(oracle, ask, level="g"):
    """What `ask(xi)` is on each single row, (n, d) with the lanes dropped: the population."""
    blocks = oracle.blocks_g(1) if level == "g" else oracle.blocks_f(1)
    return torch.stack([ask(xi)[0] for xi in blocks])


@pytest.fixture
def rows(least_squares, door, normal):
    """A query of a finite sum at one point in every lane, as a function of the sample, and its values by row."""
    instance, at = least_squares(), {d: normal(1, d) for d in (2, 3)}
    v = normal(1, 3)

    def build(query):
        level, small = ("f" if "_f" in query else "g"), door(instance, lanes=1)
        more = (v,) if query in PRODUCTS else ()
        oracle = door(instance, lanes=MORE_SEEDS)

        def asked_by(who):
            arguments = [a.expand(who.L, -1) for a in (at[2], at[3], *more)]
            return lambda xi: getattr(who, query)(*arguments, xi)

        return oracle, asked_by(oracle), rows_of(small, asked_by(small), level)

    return build


SUMS = ["grad_g_x", "grad_g_y", "grad_f_y", "value_f", "value_g", *PRODUCTS]


@pytest.mark.parametrize("B", [1, 6])
@pytest.mark.parametrize("query", SUMS)
def test_rows_with_replacement_are_unbiased_and_have_variance_over_B(rows, query, B):
    oracle, ask, population = rows(query)
    mean, variance = population.mean(0), population.var(0, correction=0) / B
    out = ask(sample(oracle, query, B))
    assert has_mean(out, mean, variance)
    assert [has_variance(out, mean, variance * off) for off in OFF] == [False, True, False]
    assert (cost(oracle) == B).all()


@pytest.mark.parametrize("query", ["grad_g_y", "value_f"])
def test_batch_sizes_of_lanes_give_each_its_variance(rows, query):
    oracle, ask, population = rows(query)
    B = torch.arange(MORE_SEEDS).reshape(-1, 1) % 4 + 1
    out, mean = ask(sample(oracle, query, B)), population.mean(0)
    assert (cost(oracle) == B.flatten().numpy()).all()
    for size in (1, 2, 3, 4):
        mine, variance = out[(size == B).flatten()], population.var(0, correction=0) / size
        assert has_mean(mine, mean, variance)
        assert has_variance(mine, mean, variance)
        assert not has_variance(mine, mean, variance * size / (size + 1))


@pytest.mark.parametrize("query", ["grad_g_y", "value_g", "jvp_g_xy"])
def test_mean_of_B_rows_is_one_batch_of_B(rows, query):
    """Rows drawn one by one: the same variance and the same price."""
    oracle, ask, population = rows(query)
    mean, variance = population.mean(0), population.var(0, correction=0) / 6
    out = sum(ask(sample(oracle, query, 1)) for _ in oracle.repeat(6)) / 6
    assert has_mean(out, mean, variance)
    assert [has_variance(out, mean, variance * off) for off in OFF] == [False, True, False]
    assert (cost(oracle) == 6).all()


@pytest.mark.parametrize("B", [5, 16])
@pytest.mark.parametrize("query", ["grad_g_y", "value_g", "hvp_g_yy"])
@pytest.mark.quick_cases(2)
def test_batches_of_a_shuffled_pass_have_the_variance_without_replacement(rows, query, B):
    """sigma²/b (n - b)/(n - 1) for each batch of b, the short last one too; together they are the whole sum."""
    oracle, ask, population = rows(query)
    mean, n, total, paid = population.mean(0), len(population), 0.0, 0
    for _ in range(-(-n // B)):
        xi = sample(oracle, query, B, order="epoch")
        out = ask(xi)
        variance = population.var(0, correction=0) / xi.size * (n - xi.size) / (n - 1)
        assert has_mean(out, mean, variance)
        assert [has_variance(out, mean, variance * off) for off in OFF] == [False, True, False]
        total, paid = total + xi.size * out, paid + xi.size
    torch.testing.assert_close(total / n, mean.expand_as(out), rtol=1e-10, atol=1e-10)
    assert paid == n
    assert (cost(oracle) == n).all()


def test_a_pass_is_told_from_rows_with_replacement(rows):
    """The variance without replacement is a quarter smaller here: neither is taken for the other."""
    oracle, ask, population = rows("grad_g_y")
    mean, variance = population.mean(0), population.var(0, correction=0) / 5
    assert not has_variance(ask(oracle.sample_g(5, order="epoch")), mean, variance)
    assert not has_variance(ask(oracle.sample_g(5)), mean, variance * 12 / 16)


def test_passes_are_independent(rows):
    """The mean over the first batches of two passes has half their variance."""
    oracle, ask, population = rows("grad_g_y")
    mean, variance = population.mean(0), population.var(0, correction=0) / 5 * 12 / 16
    batches = [oracle.sample_g(5, order="epoch") for _ in range(5)]
    first, second = ask(batches[0]), ask(batches[4])
    assert [has_variance((first + second) / 2, mean, variance / 2 * off) for off in OFF] == [False, True, False]
    assert not has_variance((first + ask(batches[1])) / 2, mean, variance / 2)  # of one pass: anticorrelated


@pytest.mark.parametrize("B", [1, 5, 8])
@pytest.mark.parametrize("query", ["grad_g_y", "grad_f_y", "value_g", "jvp_g_xy"])
def test_drawn_blocks_are_unbiased_and_have_the_variance_over_the_blocks(rows, query, B):
    """Blocks of unequal size are drawn alike and weighted: sum of rows times blocks/n."""
    oracle, ask, population = rows(query)
    n = len(population)
    sums = torch.stack([block.sum(0) for block in population.split(B)])
    weighted = sums * len(sums) / n
    xi = sample(oracle, query, B, order="block")
    out, variance = ask(xi), weighted.var(0, correction=0)
    torch.testing.assert_close(out, weighted[xi.block], rtol=1e-10, atol=1e-10)
    assert has_mean(out, population.mean(0), variance)
    assert [has_variance(out, population.mean(0), variance * off) for off in OFF] == [False, True, False]
    unequal = torch.stack([block.mean(0) for block in population.split(B)])[xi.block]
    if n % B:  # means of the blocks, as a first guess would have it, are biased
        assert not has_mean(unequal, population.mean(0), variance)


def test_draws_of_blocks_are_independent(rows):
    oracle, ask, population = rows("grad_g_y")
    weighted = torch.stack([block.sum(0) for block in population.split(5)]) * 4 / 17
    out = sum(ask(oracle.sample_g(5, order="block")) for _ in range(4)) / 4
    variance = weighted.var(0, correction=0) / 4
    assert has_mean(out, population.mean(0), variance)
    assert [has_variance(out, population.mean(0), variance * off) for off in OFF] == [False, True, False]


@pytest.mark.parametrize("order", ["replacement", "epoch", "block"])
@pytest.mark.parametrize("cls", [LogRegBreastCancer, LabelCleaningDigits])
@pytest.mark.quick_cases(3)
def test_mini_batches_of_real_data(float64, cls, order, door):
    """Along the full gradient and along another direction, where the noise of a batch is a number."""
    instance, lanes, B = cls().build(), 3000, 8
    rng = torch.Generator().manual_seed(3)
    x, y = (torch.randn(1, d, generator=rng) for d in (instance.dx, instance.dy))
    n, full = instance.noise.n_g, instance.grad_g_y(x, y)[0]
    directions = torch.stack([full, torch.randn(len(full), generator=rng)], -1)
    each = bilevelbench.Rows(torch.arange(n).reshape(n, 1, 1), torch.ones(n, 1, 1))
    population = (instance.grad_g_y(x.expand(n, 1, -1), y.expand(n, 1, -1), each) @ directions)[:, 0]
    mean, variance = population.mean(0), population.var(0, correction=0) / B
    if order == "epoch":
        variance = variance * (n - B) / (n - 1)
    if order == "block":
        sums = torch.stack([block.sum(0) for block in population.split(B)])
        variance = (sums * len(sums) / n).var(0, correction=0)
    out = []
    for first in range(0, 10 * lanes, lanes):
        oracle = door(instance, seeds=range(first, first + lanes))
        xi = oracle.sample_g(B, order=order)
        out.append(oracle.grad_g_y(x.expand(lanes, -1), y.expand(lanes, -1), xi) @ directions)
    assert has_mean(torch.cat(out), mean, variance)
    assert [has_variance(torch.cat(out), mean, variance * off) for off in OFF] == [False, True, False]


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(("B", "named"), [(0, "0"), (-5, "-5"), (2.5, "2.5")])
@pytest.mark.parametrize("make", ["exact", "additive", "finite sum"])
def test_a_batch_is_a_whole_number_of_samples(bowl, least_squares, door, make, B, named):
    made = {"exact": bowl, "additive": lambda: bowl(noise=additive()), "finite sum": least_squares}[make]()
    oracle = door(made)
    for level, draw in (("f", oracle.sample_f), ("g", oracle.sample_g)):
        with pytest.raises(InvalidInput, match=rf"a batch of {named} of {level}: ask for a whole number of samples"):
            draw(B)
        with pytest.raises(InvalidInput, match=rf"a batch of {named}.* of {level}: ask for a whole number of samples"):
            draw(torch.tensor([[3], [4], [B], [5]]))


@pytest.mark.parametrize(("level", "n"), [("f", 449), ("g", 899)])
@pytest.mark.parametrize("order", ["replacement", "epoch", "block"])
def test_a_batch_larger_than_the_data_is_all_of_them(door, level, n, order):
    oracle = door(LabelCleaningDigits().build())
    assert sample(oracle, f"_{level}", n, order=order).rows.index.shape == (4, n)
    assert oracle.meter.remarks(0) == []
    assert sample(oracle, f"_{level}", n + 1, order=order).rows.index.shape == (4, n)
    assert oracle.meter.remarks(0) == [f"a batch of {n + 1} of {level} was cut to its {n} data"]


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["sigma_f", "sigma_g", "sigma_h"])
def test_a_noise_level_below_zero_or_without_end_is_named(name, value):
    with pytest.raises(InvalidInput, match=f"{name} = {value}: a noise level is a finite number, zero or more"):
        Additive(**{name: value})
    with pytest.raises((ValidationError, InvalidInput), match=name):
        TailAnchor(**{name: value}).build()


def test_a_variance_of_zero_is_no_noise_at_all(bowl, door, normal):
    oracle, x, y = door(bowl(noise=Additive())), normal(4, 3), normal(4, 5)
    assert torch.equal(oracle.grad_g_y(x, y, oracle.sample_g(3)), oracle.grad_g_y(x, y))
    assert cost(oracle).tolist() == [2] * 4


@pytest.mark.parametrize("sizes", [(0, 3), (3, -1)])
def test_a_finite_sum_without_terms_is_refused(sizes):
    with pytest.raises(InvalidInput, match=f"= {min(sizes)}: a finite sum has at least one term"):
        FiniteSum(*sizes)


# ---------------------------------------------------------------------------------------------- runs

METHOD = '''
"""Two time scales with every kind of draw: batches with replacement or by block, loops whose length is a lane's own."""
from dataclasses import dataclass
from torch import Tensor
from bilevelbench import Algorithm, PerLane, keep

@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    k: int

class Wander(Algorithm):
    name = "wander"
    uses = frozenset({"grad_g_y", "grad_f", "hvp_g_yy", "jvp_g_xy"})
    a: float = 0.1
    eta: float = 0.01
    K: PerLane[int] = 3
    B: PerLane[int] = 4
    blocks: bool = False

    def init(self, x0, y0, oracle):
        return State(x0, y0, 0)

    def step(self, s, oracle):
        x, y = s.x, s.y
        for on in oracle.repeat(self.K):
            blocks = self.blocks and oracle.n_g > 1
            xi = oracle.sample_g(4, order="block") if blocks else oracle.sample_g(self.B)
            y = keep(on, y - self.a * oracle.grad_g_y(x, y, xi), y)
        zeta, xi = oracle.sample_f(self.B), oracle.sample_g(2)
        f_x, f_y = oracle.grad_f(x, y, zeta)
        v = f_y - self.a * oracle.hvp_g_yy(x, y, f_y, xi)
        d = f_x - oracle.jvp_g_xy(x, y, v, xi) + 0.01 * oracle.normal(1)
        return State(x - self.eta * d, y, s.k + 1)
'''


@pytest.fixture(scope="module")
def wander(tmp_path_factory):
    path = tmp_path_factory.mktemp("method") / "wander.py"
    path.write_text(METHOD)
    return str(path)


NOISY = "tail_anchor[sigma_f=0.1,sigma_g=0.2,sigma_h=0.1]"
PROBLEMS = [NOISY.replace("]", ",data_seed=0,1]"), "logreg_breast_cancer"]
GRID = "[K=1,3,eta=0.02,0.01,blocks=false,true]"  # four packs
RUN = {"seeds": 2, "steps": 8, "schedule": Schedule(ratio=3.0)}


def in_order(results):
    runs = results.runs.sort_values("trial_id", ignore_index=True)
    return Results(runs, results.curve.sort_values(["trial_id", "step"], ignore_index=True), [])


@pytest.fixture(scope="module")
def in_packs(wander):
    results = in_order(bilevelbench.run(wander + GRID, PROBLEMS, **RUN))
    assert set(results.runs.status) == {"budget"}
    assert sorted(results.runs.pack_lanes) == [8] * 16 + [16] * 32
    assert results.runs.cost.gt(results.runs.grad_g_y).all()
    stochastic = results.runs[results.runs.problem == "logreg_breast_cancer"]
    assert stochastic.phi.nunique() == len(stochastic)  # so equal numbers are no accident
    return results


@pytest.mark.slow  # always: that they do not depend on their pack, and for exact answers test_local.py
@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_numbers_of_a_stochastic_run_do_not_depend_on_the_number_of_workers(wander, in_packs, tmp_path, jobs):
    assert_same(in_order(bilevelbench.run(wander + GRID, PROBLEMS, **RUN, out=tmp_path, jobs=jobs)), in_packs)


def test_numbers_of_a_stochastic_run_do_not_depend_on_its_pack(wander, in_packs):
    trials = [
        make_trial(registry(), a, p, seed=seed, budget=Budget(steps=8), schedule=RUN["schedule"], label=str(a))
        for problem in PROBLEMS
        for p in parse_spec(problem)
        for a in parse_spec(wander + GRID)
        for seed in (0, 1)
    ][::5]
    assert_same(in_order(alone(trials)), in_order(of(in_packs, trials)))


def test_another_seed_gives_other_numbers(wander):
    first, second = (bilevelbench.run(wander, NOISY, seeds=[seed], steps=5).runs for seed in (0, 1))
    assert not np.isclose(first.phi, second.phi).any()


@pytest.mark.parametrize("B", [400, 285])
def test_a_batch_larger_than_the_data_is_in_the_message_of_its_run(wander, B):
    row = bilevelbench.run(f"{wander}[B={B}]", "logreg_breast_cancer", steps=2).runs.iloc[0]
    assert row.status == "budget"
    assert ("a batch of 400 of g was cut to its 285 data" in row.message) == (B == 400)
