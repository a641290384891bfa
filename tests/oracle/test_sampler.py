from __future__ import annotations

import pytest
import torch
from scipy import stats

from bilevelbench.errors import InvalidInput
from bilevelbench.model.lanes import dot
from bilevelbench.model.noise import Additive, FiniteSum
from bilevelbench.model.queries import QUERIES, ROW
from bilevelbench.oracle.sample import Table

MANY = 4000  # lanes: as many independent seeds
SIGMA = {"f": 2.0, "g": 3.0, "h": 0.5}
GRADIENTS = ["grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y"]
NOISE = Additive(SIGMA["f"], SIGMA["g"], SIGMA["h"])


@pytest.fixture(autouse=True)
def without_grad():
    """As the runner does."""
    with torch.no_grad():
        yield


def sizes(*numbers):
    return torch.tensor(numbers).reshape(-1, 1)


def cost(oracle):
    return oracle.meter.columns()["cost"].tolist()


def assert_mean(values, expected, sigmas=4.5):
    """The mean over the first axis is `expected`, as far as its own spread can tell."""
    error = values.std(0) / len(values) ** 0.5
    assert bool(((values.mean(0) - expected).abs() <= sigmas * error + 1e-12).all())


# ---------------------------------------------------------------------------------------------- additive noise


@pytest.fixture
def crowd(bowl, door, normal):
    """An oracle with many lanes at one point: the lanes are a sample of the noise."""
    oracle = door(bowl(noise=NOISE), lanes=MANY)
    return oracle, normal(1, 3).expand(MANY, 3), normal(1, 5).expand(MANY, 5)


@pytest.fixture
def few(bowl, door, normal):
    return door(bowl(noise=NOISE)), normal(4, 3), normal(4, 5)


def draw(oracle, query, B, **rest):
    return oracle.sample_f(B, **rest) if "_f" in query else oracle.sample_g(B, **rest)


@pytest.mark.parametrize("B", [1, 16])
@pytest.mark.parametrize("query", GRADIENTS)
def test_noise_has_mean_zero_and_its_variance_is_sigma_squared_over_B_in_each_block(crowd, query, B):
    oracle, x, y = crowd
    noise = getattr(oracle, query)(x, y, draw(oracle, query, B)) - getattr(oracle, query)(x, y)
    assert_mean(noise, 0.0)
    assert_mean(dot(noise, noise), SIGMA[query[5]] ** 2 / B)


def test_noise_is_normal_and_equal_in_every_coordinate(crowd):
    oracle, x, y = crowd
    noise = oracle.grad_g_y(x, y, oracle.sample_g(4)) - oracle.grad_g_y(x, y)
    for j in range(5):
        assert stats.kstest(noise[:, j].numpy() * 2 * 5**0.5 / SIGMA["g"], "norm").pvalue > 1e-3


def test_coordinates_and_blocks_of_the_noise_are_uncorrelated(crowd):
    oracle, x, y = crowd
    noisy, plain = oracle.grad_g(x, y, oracle.sample_g(1)), oracle.grad_g(x, y)
    noise = torch.cat([a - b for a, b in zip(noisy, plain, strict=True)], -1)
    table = torch.corrcoef(noise.T) - torch.eye(8, dtype=noise.dtype)
    assert table.abs().max() < 4.5 / MANY**0.5


def test_two_samples_are_independent(crowd):
    oracle, x, y = crowd
    exact = oracle.grad_g_y(x, y)
    a, b = (oracle.grad_g_y(x, y, oracle.sample_g(1)) - exact for _ in range(2))
    assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 4.5 / a.numel() ** 0.5


def test_samples_of_the_two_levels_are_independent(crowd):
    oracle, x, y = crowd
    a = oracle.grad_g_y(x, y, oracle.sample_g(1)) - oracle.grad_g_y(x, y)
    b = oracle.grad_f_y(x, y, oracle.sample_f(1)) - oracle.grad_f_y(x, y)
    assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 4.5 / a.numel() ** 0.5


@pytest.mark.parametrize("query", GRADIENTS)
def test_the_same_sample_is_the_same_noise_at_another_point(few, normal, query):
    oracle, x, y = few
    xi, ask = draw(oracle, query, 3), getattr(oracle, query)
    x2, y2 = normal(4, 3), normal(4, 5)
    torch.testing.assert_close(ask(x, y, xi) - ask(x, y), ask(x2, y2, xi) - ask(x2, y2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("level", ["f", "g"])
def test_joint_and_single_queries_of_a_sample_share_its_noise(few, level):
    oracle, x, y = few
    xi = draw(oracle, f"_{level}", 3)
    both = getattr(oracle, f"grad_{level}")(x, y, xi)
    assert torch.equal(both[0], getattr(oracle, f"grad_{level}_x")(x, y, xi))
    assert torch.equal(both[1], getattr(oracle, f"grad_{level}_y")(x, y, xi))


def test_a_sample_kept_over_steps_is_the_same_data(few):
    oracle, x, y = few
    xi = oracle.sample_g(3)
    before = oracle.grad_g_y(x, y, xi)
    oracle.begin_step(2)
    oracle.sample_g(3)
    assert torch.equal(oracle.grad_g_y(x, y, xi), before)


def test_a_sample_that_moved_to_a_narrower_pack_is_the_same_data(few):
    oracle, x, y = few
    xi = oracle.sample_g(sizes(1, 2, 3, 4))
    before, stay = oracle.grad_g_y(x, y, xi), [3, 1]
    oracle.take(stay, [True, True])
    after = oracle.grad_g_y(x[stay], y[stay], xi.take(torch.tensor(stay)))
    torch.testing.assert_close(after, before[stay], rtol=1e-14, atol=0)


def test_one_sample_is_shared_by_all_points(few, normal):
    oracle, x, y = few[0], normal(6, 4, 3), normal(6, 4, 5)
    noise = oracle.grad_g_y(x, y, oracle.sample_g(2)) - oracle.grad_g_y(x, y)
    torch.testing.assert_close(noise, noise[:1].expand_as(noise), rtol=1e-12, atol=1e-12)


def test_sample_for_p_points_is_independent_at_each(bowl, door, normal):
    oracle = door(bowl(noise=NOISE), lanes=500)
    x, y = normal(500, 3), normal(500, 5)
    noise = oracle.grad_g_y(x, y, oracle.sample_g(1, points=3)) - oracle.grad_g_y(x, y)
    assert noise.shape == (3, 500, 5)
    table = torch.corrcoef(noise.reshape(3, -1)) - torch.eye(3, dtype=noise.dtype)
    assert table.abs().max() < 4.5 / 2500**0.5
    assert_mean(dot(noise, noise).reshape(-1, 1), SIGMA["g"] ** 2)


def test_sample_for_p_points_is_charged_at_each(few):
    oracle, x, y = few
    oracle.grad_g_y(x, y, oracle.sample_g(10, points=3))
    assert cost(oracle) == [30] * 4
    assert oracle.counts_agree


def product_noise(oracle, query, x, y, v, xi):
    ask = getattr(oracle, query)
    return ask(x, y, v, xi) - ask(x, y, v)


@pytest.mark.parametrize("query", ["hvp_g_yy", "jvp_g_xy"])
def test_noise_of_a_product_is_linear_in_the_vector(few, normal, query):
    oracle, x, y = few
    xi, u, v = oracle.sample_g(2), normal(4, 5), normal(4, 5)
    whole = product_noise(oracle, query, x, y, 2 * u - 3 * v, xi)
    parts = 2 * product_noise(oracle, query, x, y, u, xi) - 3 * product_noise(oracle, query, x, y, v, xi)
    torch.testing.assert_close(whole, parts, rtol=1e-10, atol=1e-10)


def test_noise_of_the_hessian_is_a_multiple_of_the_identity(few, normal):
    oracle, x, y = few
    v = normal(4, 5)
    ratio = product_noise(oracle, "hvp_g_yy", x, y, v, oracle.sample_g(2)) / v
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))


def test_noise_of_the_mixed_derivative_is_a_multiple_of_the_rectangular_identity(few, normal):
    oracle, x, y = few
    v = normal(4, 5)
    ratio = product_noise(oracle, "jvp_g_xy", x, y, v, oracle.sample_g(2)) / v[:, :3]
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))


@pytest.mark.parametrize("B", [1, 25])
@pytest.mark.parametrize("query", ["hvp_g_yy", "jvp_g_xy"])
def test_noise_of_a_product_has_scale_sigma_h_over_root_B(crowd, query, B):
    oracle, x, y = crowd
    v = torch.zeros(MANY, 5, dtype=torch.float64)
    v[:, 0] = 1
    s = product_noise(oracle, query, x, y, v, oracle.sample_g(B))[:, :1]
    assert stats.kstest(s.flatten().numpy() * B**0.5 / SIGMA["h"], "norm").pvalue > 1e-3


def test_noises_of_the_two_second_derivatives_are_independent(crowd):
    oracle, x, y = crowd
    xi, v = oracle.sample_g(1), torch.ones(MANY, 5, dtype=torch.float64)
    pair = [product_noise(oracle, query, x, y, v, xi)[:, 0] for query in ("hvp_g_yy", "jvp_g_xy")]
    assert abs(torch.corrcoef(torch.stack(pair))[0, 1]) < 4.5 / MANY**0.5


@pytest.mark.parametrize("level", ["f", "g"])
def test_noisy_value_is_a_function_whose_gradient_is_the_noisy_gradient(few, normal, level):
    oracle, x, y = few
    xi, h = draw(oracle, f"_{level}", 2), 1e-6
    value, (g_x, g_y) = getattr(oracle, f"value_{level}"), getattr(oracle, f"grad_{level}")(x, y, xi)
    u, v = normal(4, 3), normal(4, 5)
    slope = (value(x + h * u, y + h * v, xi) - value(x - h * u, y - h * v, xi)) / (2 * h)
    torch.testing.assert_close(slope, dot(g_x, u) + dot(g_y, v), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("query", QUERIES)
def test_a_sample_of_B_is_charged_B(few, query):
    oracle, x, y = few
    more = (y,) if QUERIES[query].takes_vector else ()
    getattr(oracle, query)(x, y, *more, draw(oracle, query, 7))
    assert cost(oracle) == [7] * 4
    assert oracle.meter.passes[ROW[query]] == 1


def test_each_lane_has_its_own_batch_size_on_the_bill_and_in_the_noise(few):
    oracle, x, y = few
    exact, B = oracle.grad_g_y(x, y), sizes(1, 4, 100, 10**6)
    noise = oracle.grad_g_y(x, y, oracle.sample_g(B)) - exact
    assert cost(oracle) == [2, 5, 101, 10**6 + 1]
    oracle.begin_step(1)
    unit = oracle.grad_g_y(x, y, oracle.sample_g(1)) - exact
    torch.testing.assert_close(noise, unit / B**0.5, rtol=1e-6, atol=1e-12)


def test_a_batch_of_a_thousand_million_costs_one_draw(few):
    oracle, x, y = few
    noise = oracle.grad_g_y(x, y, oracle.sample_g(10**9)) - oracle.grad_g_y(x, y)
    assert 0 < noise.abs().max() < 1e-3
    assert cost(oracle) == [10**9 + 1] * 4


def test_noise_is_masked_like_its_answer(few):
    oracle, x, y = few
    with oracle.only(torch.tensor([[True], [False], [True], [True]])):
        out = oracle.grad_g_y(x, y, oracle.sample_g(2))
    assert out.isnan().all(-1).tolist() == [False, True, False, False]


def test_noise_is_contiguous_so_that_sums_round_alike(few):
    oracle, x, y = few
    xi = oracle.sample_g(2)
    assert oracle.grad_g_y(x, y, xi).is_contiguous()
    assert xi.noise["g_y"].is_contiguous()


@pytest.mark.parametrize("query", ["value_g", "grad_g_y"])
def test_noise_has_the_same_bits_packed_and_alone(bowl, door, normal, query):
    x, y = normal(36, 3), normal(36, 5)
    pack = door(bowl(noise=NOISE), lanes=36)
    together = getattr(pack, query)(x, y, pack.sample_g(3))
    for lane in (0, 1, 17, 35):
        single = door(bowl(noise=NOISE), seeds=[lane] * 4)
        copies = x[lane].repeat(4, 1), y[lane].repeat(4, 1)
        assert torch.equal(getattr(single, query)(*copies, single.sample_g(3))[0], together[lane])


@pytest.mark.parametrize("B", [5, sizes(1, 2, 500, 4)], ids=["common", "per lane"])
def test_sample_of_an_exact_problem_is_the_exact_answer_and_is_charged_as_one(bowl, door, normal, B):
    oracle, x, y = door(bowl()), normal(4, 3), normal(4, 5)
    assert torch.equal(oracle.grad_g_y(x, y, oracle.sample_g(B)), oracle.grad_g_y(x, y))
    assert cost(oracle) == [2] * 4
    oracle.grad_f(x, y, oracle.sample_f(B, points=3))
    assert cost(oracle) == [5] * 4
    assert oracle.counts_agree


@pytest.mark.parametrize(
    ("noise", "f", "g"),
    [
        (Additive(), 1, 1),
        (Additive(sigma_f=1.0), 7, 1),
        (Additive(sigma_g=1.0), 1, 7),
        (Additive(sigma_h=1.0), 1, 7),  # a sample of g serves products too
        (Additive(sigma_f=1.0, sigma_g=1.0), 7, 7),
    ],
    ids=str,
)
@pytest.mark.parametrize("B", [7, sizes(7, 7, 7, 7)], ids=["common", "per lane"])
def test_a_level_without_noise_is_charged_as_exact(bowl, door, normal, noise, f, g, B):
    for query, price in (("grad_f_y", f), ("grad_g_y", g)):
        oracle, x, y = door(bowl(noise=noise)), normal(4, 3), normal(4, 5)
        noisy, plain = (getattr(oracle, query)(x, y, xi) for xi in (draw(oracle, query, B), None))
        assert cost(oracle) == [price + 1] * 4
        assert torch.equal(noisy, plain) == (getattr(noise, f"sigma_{query[5]}") == 0)


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("B", [0, -3])
@pytest.mark.parametrize("make", ["bowl", "least_squares"])
def test_batch_without_a_sample_is_refused(request, door, make, B):
    oracle = door(request.getfixturevalue(make)())
    with pytest.raises(InvalidInput, match=f"a batch of {B} of g: ask for a whole number of samples, at least one"):
        oracle.sample_g(B)


def test_batch_without_a_sample_in_one_lane_is_refused(bowl, door):
    with pytest.raises(InvalidInput, match=r"a batch of 0.* of f: ask for a whole number of samples, at least one"):
        door(bowl()).sample_f(sizes(1, 2, 0, 4))


@pytest.mark.parametrize("B", [None, 4.0, "4"])
def test_batch_that_is_no_number_is_refused(bowl, door, B):
    with pytest.raises(
        InvalidInput, match=f"a batch of {B} of g: ask for a whole number of samples, at least one; the exact"
    ):
        door(bowl()).sample_g(B)


@pytest.mark.parametrize("make", ["bowl", "least_squares"])
@pytest.mark.parametrize(
    ("order", "way_out"), [("bogus", "choose from block, epoch"), ("Epochs", "did you mean 'epoch'")]
)
def test_order_that_does_not_exist_is_refused(request, door, make, order, way_out):
    with pytest.raises(InvalidInput, match=f"a sample has no order='{order}'; {way_out}"):
        door(request.getfixturevalue(make)()).sample_g(4, order=order)


@pytest.mark.parametrize(("query", "wrong"), [("grad_f", "g"), ("value_f", "g"), ("grad_g_y", "f")])
def test_sample_of_the_other_level_is_refused(few, query, wrong):
    oracle, x, y = few
    with pytest.raises(InvalidInput, match=f"{query} was given a sample of {wrong}; draw it with oracle.sample_"):
        getattr(oracle, query)(x, y, draw(oracle, f"_{wrong}", 2))
    assert cost(oracle) == [0] * 4


@pytest.mark.parametrize("order", ["epoch", "block"])
def test_order_without_a_finite_sum_is_refused(few, order):
    with pytest.raises(InvalidInput, match=f"order='{order}' needs a finite sum"):
        few[0].sample_g(2, order=order)


def test_blocks_without_a_finite_sum_are_refused(few):
    with pytest.raises(InvalidInput, match="blocks of g need a finite sum"):
        few[0].blocks_g(2)


@pytest.mark.parametrize("rest", [{"points": 3}, {"size": sizes(1, 2, 3, 4)}], ids=["points", "sizes per lane"])
@pytest.mark.parametrize("order", ["epoch", "block"])
def test_ordered_samples_take_one_size_and_no_points(least_squares, door, order, rest):
    with pytest.raises(InvalidInput, match="takes one whole number as size and no points"):
        door(least_squares()).sample_g(**{"size": 2, "order": order, **rest})


@pytest.mark.parametrize("K", [sizes(1, 2, 3, 4), sizes(2, 2, 2, 2)], ids=["different", "equal"])
def test_epochs_inside_a_loop_of_per_lane_length_are_refused_whatever_the_other_lanes(least_squares, door, K):
    oracle = door(least_squares())
    loop = oracle.repeat(K)
    next(loop)
    with pytest.raises(InvalidInput, match='order="epoch" in a loop of per-lane length'):
        oracle.sample_g(2, order="epoch")


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf")])
def test_noise_level_is_a_finite_number(sigma):
    with pytest.raises(InvalidInput, match="sigma_g"):
        Additive(sigma_g=sigma)


def test_finite_sum_has_at_least_one_term():
    with pytest.raises(InvalidInput, match="n_g = 0"):
        FiniteSum(3, 0)


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_sample_for_p_points_at_another_number_of_points_is_refused(least_squares, door, normal, kind):
    oracle = door(least_squares(points=kind))
    with pytest.raises(InvalidInput, match=r"a sample for 3 points used at points \(2,\)"):
        oracle.grad_g_y(normal(2, 4, 2), normal(2, 4, 3), oracle.sample_g(2, points=3))


# ---------------------------------------------------------------------------------------------- finite sums


@pytest.fixture
def sums(least_squares, door, normal):
    return door(least_squares()), normal(4, 2), normal(4, 3)


@pytest.mark.parametrize(("query", "n"), [("grad_f", 11), ("value_f", 11), ("grad_g_y", 17), ("value_g", 17)])
def test_no_sample_is_the_whole_sum_and_is_charged_all_its_rows(sums, query, n):
    oracle, x, y = sums
    getattr(oracle, query)(x, y)
    assert cost(oracle) == [n] * 4
    assert (oracle.n_f, oracle.n_g) == (11, 17)


@pytest.mark.parametrize(
    ("order", "B", "drawn"),
    [
        ("replacement", 18, [17] * 4),
        ("replacement", sizes(1, 17, 18, 400), [1, 17, 17, 17]),
        ("epoch", 18, [17] * 4),
        ("block", 400, [17] * 4),
    ],
)
def test_batch_larger_than_the_data_is_cut_to_them_and_charged_as_drawn(sums, order, B, drawn):
    oracle, x, y = sums
    xi = oracle.sample_g(B, order=order)
    out = oracle.grad_g_y(x, y, xi)
    assert xi.rows.index.shape == (4, 17)
    assert cost(oracle) == drawn
    if order != "replacement":  # all rows once
        torch.testing.assert_close(out, oracle.grad_g_y(x, y))


def test_cut_batch_is_the_batch_of_all_data(least_squares, door):
    cut, whole = door(least_squares()), door(least_squares())
    assert torch.equal(cut.sample_g(18).rows.index, whole.sample_g(17).rows.index)
    assert len(door(least_squares()).blocks_g(40)) == 1


def test_a_cut_is_noted_for_the_lanes_that_made_it(least_squares, door):
    oracle = door(least_squares(), real=[True, True, True, True, False], lanes=5)
    oracle.sample_g(sizes(1, 17, 18, 400, 500))
    oracle.sample_g(sizes(1, 17, 30, 20, 500))
    with oracle.only(sizes(1, 0, 0, 0, 0) == 1):
        oracle.sample_f(12)
    told = [oracle.meter.remarks(lane) for lane in range(5)]
    assert told == [
        ["a batch of 12 of f was cut to its 11 data"],
        [],
        ["a batch of 30 of g was cut to its 17 data"],
        ["a batch of 400 of g was cut to its 17 data"],
        [],
    ]
    oracle.take([3, 0], [True, True])
    assert [oracle.meter.remarks(lane) for lane in range(2)] == [told[3], told[0]]
    oracle.blocks_f(64)
    assert oracle.meter.remarks(0) == ["a batch of 64 of f was cut to its 11 data", *told[3]]


def test_a_lane_without_budget_notes_nothing(least_squares, door, normal):
    oracle = door(least_squares(), budgets=[3, 100, 100, 100])
    oracle.grad_g_y(normal(4, 2), normal(4, 3))
    oracle.sample_g(18)
    assert [len(oracle.meter.remarks(lane)) for lane in range(4)] == [0, 1, 1, 1]


def test_mean_over_single_rows_is_the_whole_sum(sums):
    oracle, x, y = sums
    rows = torch.stack([oracle.grad_g_y(x, y, xi) for xi in oracle.blocks_g(1)])
    assert len(rows) == 17
    torch.testing.assert_close(rows.mean(0), oracle.grad_g_y(x, y))


@pytest.mark.parametrize("B", [1, 5])
def test_rows_with_replacement_are_uniform(least_squares, door, B):
    oracle = door(least_squares(), lanes=MANY)
    xi = oracle.sample_g(B)
    assert xi.rows.index.shape == (MANY, B)
    counts = torch.bincount(xi.rows.index.flatten(), minlength=17)
    assert len(counts) == 17
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_rows_of_one_batch_are_independent(least_squares, door):
    """Pairs are uniform on the square, repeated rows included."""
    index = door(least_squares(), lanes=20_000).sample_f(2).rows.index
    counts = torch.bincount(index[:, 0] * 11 + index[:, 1], minlength=121)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("B", [1, 6])
@pytest.mark.parametrize("query", ["grad_g_x", "grad_g_y", "value_g", "grad_f_y"])
def test_batch_is_unbiased(least_squares, door, normal, query, B):
    oracle = door(least_squares(), lanes=MANY)
    x, y = normal(1, 2).expand(MANY, 2), normal(1, 3).expand(MANY, 3)
    assert_mean(getattr(oracle, query)(x, y, draw(oracle, query, B)), getattr(oracle, query)(x, y)[0])


@pytest.mark.parametrize("query", ["hvp_g_yy", "jvp_g_xy"])
def test_batch_of_a_product_is_unbiased(least_squares, door, normal, query):
    oracle = door(least_squares(), lanes=MANY)
    x, y, v = normal(1, 2).expand(MANY, 2), normal(1, 3).expand(MANY, 3), normal(1, 3).expand(MANY, 3)
    ask = getattr(oracle, query)
    assert_mean(ask(x, y, v, oracle.sample_g(2)), ask(x, y, v)[0])


def test_batch_is_charged_its_rows(sums):
    oracle, x, y = sums
    oracle.grad_g_y(x, y, oracle.sample_g(5))
    oracle.grad_f(x, y, oracle.sample_f(sizes(1, 2, 3, 4)))
    assert cost(oracle) == [6, 7, 8, 9]
    assert oracle.counts_agree


def test_the_same_sample_is_the_same_rows_in_every_query(sums):
    oracle, x, y = sums
    xi = oracle.sample_g(5)
    assert torch.equal(oracle.grad_g(x, y, xi)[1], oracle.grad_g_y(x, y, xi))
    assert torch.equal(oracle.value_g(x, y, xi), oracle.value_g(x, y, xi))


def test_two_samples_have_different_rows(sums):
    oracle, _, _ = sums
    assert not torch.equal(oracle.sample_g(9).rows.index, oracle.sample_g(9).rows.index)


def test_each_lane_has_as_many_rows_as_it_asked_for(sums):
    oracle, _, _ = sums
    xi = oracle.sample_g(sizes(1, 2, 5, 3))
    assert (xi.rows.weight > 0).sum(-1).tolist() == [1, 2, 5, 3]
    torch.testing.assert_close(xi.rows.weight.sum(-1), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("points", [None, 3])
def test_rows_of_a_lane_do_not_depend_on_the_sizes_of_the_others(least_squares, door, points):
    xi = door(least_squares()).sample_g(sizes(1, 2, 9, 3), points=points)
    for lane, B in enumerate((1, 2, 9, 3)):
        single = door(least_squares(), seeds=[lane]).sample_g(B, points=points)
        assert torch.equal(xi.rows.index[..., lane, :B], single.rows.index[..., 0, :])
        assert torch.equal(xi.rows.weight[..., lane, :B], single.rows.weight[..., 0, :])


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_sample_for_p_points_has_its_own_rows_at_each(least_squares, door, normal, kind):
    oracle, x, y = door(least_squares(points=kind)), normal(4, 2), normal(4, 3)
    xi = oracle.sample_g(4, points=3)
    out = oracle.grad_g_y(x, y, xi)
    assert out.shape == (3, 4, 3)
    assert not torch.equal(xi.rows.index[0], xi.rows.index[1])
    for p in range(3):
        torch.testing.assert_close(out[p], oracle._instance.grad_g_y(x, y, xi.rows.at(p, 3)))
    assert cost(oracle) == [12] * 4


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_one_batch_is_shared_by_all_points_of_a_finite_sum(least_squares, door, normal, kind):
    oracle = door(least_squares(points=kind))
    x, y, xi = normal(6, 4, 2), normal(6, 4, 3), oracle.sample_g(4)
    out = oracle.grad_g_y(x, y, xi)
    for p in range(6):
        torch.testing.assert_close(out[p], oracle.grad_g_y(x[p], y[p], xi))
    assert oracle.counts_agree


@pytest.mark.parametrize("order", ["replacement", "epoch", "block"])
def test_rows_are_the_same_packed_and_alone(least_squares, door, order):
    pack = door(least_squares(), lanes=7)
    together = [pack.sample_g(5, order=order) for _ in range(9)]
    for lane in range(7):
        single = door(least_squares(), seeds=[lane])
        for xi in together:
            mine = single.sample_g(5, order=order)
            assert torch.equal(mine.rows.index[0], xi.rows.index[lane])
            assert torch.equal(mine.rows.weight[0], xi.rows.weight[lane])


def test_batch_gradient_has_the_same_bits_packed_and_alone(least_squares, door, normal):
    x, y = normal(36, 2), normal(36, 3)
    pack = door(least_squares(), lanes=36)
    together = pack.grad_g_y(x, y, pack.sample_g(5))
    for lane in range(36):
        single = door(least_squares(), seeds=[lane] * 4)
        alone = single.grad_g_y(x[lane].repeat(4, 1), y[lane].repeat(4, 1), single.sample_g(5))
        assert torch.equal(alone[0], together[lane])


# ---------------------------------------------------------------------------------------------- epochs


@pytest.mark.parametrize("B", [1, 4, 5, 16, 17])
def test_an_epoch_visits_every_row_once(least_squares, door, B):
    oracle = door(least_squares())
    for _ in range(3):
        batches = [oracle.sample_g(B, order="epoch") for _ in range(-(-17 // B))]
        index = torch.cat([xi.rows.index for xi in batches], -1)
        assert torch.equal(index.sort(-1).values, torch.arange(17).expand(4, 17))


def test_an_epoch_of_batches_of_different_sizes_visits_every_row_once(least_squares, door):
    oracle = door(least_squares())
    index = torch.cat([oracle.sample_g(B, order="epoch").rows.index for B in (2, 7, 3, 9)], -1)
    assert torch.equal(index.sort(-1).values, torch.arange(17).expand(4, 17))


def test_epochs_and_lanes_are_shuffled_differently(least_squares, door):
    oracle = door(least_squares())
    first, second = (oracle.sample_g(17, order="epoch").rows.index for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


def test_first_row_of_an_epoch_is_uniform(least_squares, door):
    index = door(least_squares(), lanes=MANY).sample_f(3, order="epoch").rows.index[:, 0]
    assert stats.chisquare(torch.bincount(index, minlength=11).numpy()).pvalue > 1e-3


def test_short_last_batch_of_an_epoch_is_a_mean_and_charged_its_rows(sums):
    oracle, x, y = sums
    batches = [oracle.sample_g(5, order="epoch") for _ in range(4)]
    assert [xi.size for xi in batches] == [5, 5, 5, 2]
    assert torch.equal(batches[-1].rows.weight, torch.full((4, 2), 0.5, dtype=torch.float64))
    oracle.grad_g_y(x, y, batches[-1])
    assert cost(oracle) == [2] * 4


def test_passes_over_f_and_g_are_counted_apart(least_squares, door):
    mixed, plain = door(least_squares()), door(least_squares())
    mixed.sample_f(4, order="epoch")
    assert torch.equal(mixed.sample_g(4, order="epoch").rows.index, plain.sample_g(4, order="epoch").rows.index)


def test_epoch_goes_on_over_steps_and_when_lanes_leave(least_squares, door):
    oracle, twin = door(least_squares()), door(least_squares())
    oracle.sample_g(5, order="epoch")
    oracle.take([2, 3], [True, True])
    oracle.begin_step(2)
    twin.sample_g(5, order="epoch")
    assert torch.equal(oracle.sample_g(5, order="epoch").rows.index, twin.sample_g(5, order="epoch").rows.index[[2, 3]])


# ---------------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("B", [1, 5, 8, 17])
def test_blocks_are_a_partition(least_squares, door, B):
    blocks = door(least_squares()).blocks_g(B)
    assert torch.cat([xi.rows.index[0] for xi in blocks]).tolist() == list(range(17))
    assert [xi.block.tolist() for xi in blocks] == [[i] * 4 for i in range(len(blocks))]


@pytest.mark.parametrize("B", [1, 5, 8, 17])
@pytest.mark.parametrize("query", ["grad_g_y", "value_g"])
def test_mean_over_blocks_is_the_whole_sum_also_for_unequal_sizes(sums, query, B):
    oracle, x, y = sums
    ask = getattr(oracle, query)
    out = torch.stack([ask(x, y, xi) for xi in oracle.blocks_g(B)])
    torch.testing.assert_close(out.mean(0), ask(x, y), rtol=1e-12, atol=1e-12)


def test_all_blocks_together_are_charged_the_whole_sum(sums):
    oracle, x, y = sums
    for xi in oracle.blocks_f(4):
        oracle.grad_f_y(x, y, xi)
    assert cost(oracle) == [11] * 4


def test_drawn_block_is_the_block_of_that_number(sums):
    oracle, x, y = sums
    listed = torch.stack([oracle.grad_g_y(x, y, xi) for xi in oracle.blocks_g(5)])
    for _ in range(10):
        xi = oracle.sample_g(5, order="block")
        torch.testing.assert_close(oracle.grad_g_y(x, y, xi), listed[xi.block, torch.arange(4)])


def test_drawn_block_is_charged_its_size(sums):
    oracle, x, y = sums
    for _ in range(10):
        before, xi = oracle.meter.columns()["cost"], oracle.sample_g(5, order="block")
        oracle.grad_g_y(x, y, xi)
        paid = oracle.meter.columns()["cost"] - before
        assert paid.tolist() == [2 if block == 3 else 5 for block in xi.block.tolist()]


def test_drawn_blocks_are_uniform_also_for_unequal_sizes(least_squares, door):
    block = door(least_squares(), lanes=MANY).sample_g(5, order="block").block
    assert block.shape == (MANY,)
    assert stats.chisquare(torch.bincount(block, minlength=4).numpy()).pvalue > 1e-3


# ---------------------------------------------------------------------------------------------- SAGA


def test_table_gives_the_saga_directions_of_a_plain_loop(sums):
    oracle, x, y = sums
    blocks = oracle.blocks_g(5)
    table = Table(torch.stack([oracle.grad_g_y(x, y, xi) for xi in blocks]))
    memory = [[table.rows[b, lane].clone() for b in range(4)] for lane in range(4)]
    for _ in range(25):
        y = y - 0.05
        xi = oracle.sample_g(5, order="block")
        new = oracle.grad_g_y(x, y, xi)
        direction, table = table.replace(xi.block, new)
        for lane, block in enumerate(xi.block.tolist()):
            mean = sum(memory[lane]) / 4
            expected = new[lane] - memory[lane][block] + mean
            memory[lane][block] = new[lane]
            torch.testing.assert_close(direction[lane], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(table.mean, table.rows.mean(0), rtol=1e-12, atol=1e-12)


def test_saga_direction_is_exact_when_the_memory_is_fresh(sums):
    oracle, x, y = sums
    table = Table(torch.stack([oracle.grad_g_y(x, y, xi) for xi in oracle.blocks_g(5)]))
    xi = oracle.sample_g(5, order="block")
    direction, _ = table.replace(xi.block, oracle.grad_g_y(x, y, xi))
    torch.testing.assert_close(direction, oracle.grad_g_y(x, y), rtol=1e-12, atol=1e-12)


def test_table_is_not_changed_in_place(normal):
    rows = normal(3, 4, 2)
    table, before = Table(rows), rows.clone()
    table.replace(torch.tensor([0, 1, 2, 0]), normal(4, 2))
    assert torch.equal(table.rows, before)


@pytest.mark.parametrize("query", ["grad_g_y", "hvp_g_yy"])
def test_a_batch_that_is_equal_in_all_lanes_is_one_number(sums, normal, query):
    """Whether it is given as a number, as a parameter or for each lane: the same rows, weights, answers and bill."""
    oracle, x, y = sums
    parameter = sizes(3, 3, 3, 3)
    oracle.remember(parameter)
    samples = []
    for size in (3, parameter, sizes(3, 3, 3, 3), sizes(3, 3, 3, 5)):
        oracle.begin_step(1)
        samples.append(oracle.sample_g(size))
    assert [xi.each for xi in samples] == [3, 3, 3, None]
    vector = (normal(4, y.shape[-1]),) if QUERIES[query].takes_vector else ()
    answers, bills = [], []
    for xi in samples:
        before = oracle.meter.sample_columns()["second_order_samples" if vector else "first_order_samples"].copy()
        answers.append(getattr(oracle, query)(x, y, *vector, xi))
        bills.append(
            oracle.meter.sample_columns()["second_order_samples" if vector else "first_order_samples"] - before
        )
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    torch.testing.assert_close(answers[0][:3], answers[3][:3])  # another width, and so another order of adding
    assert [bill.tolist() for bill in bills] == [[3] * 4] * 3 + [[3, 3, 3, 5]]


def test_a_parameter_that_is_no_batch_is_refused_in_every_step(least_squares, door):
    oracle, nothing = door(least_squares()), sizes(0, 0, 0, 0)
    oracle.remember(nothing)
    with pytest.raises(InvalidInput, match="a batch of 0 of g"):
        oracle.sample_g(nothing)
