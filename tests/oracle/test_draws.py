from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bilevelbench.oracle import draws
from bilevelbench.oracle.draws import Draws, fold, numbers

N = 100_000
CALLS = 20_000  # numbers along an axis where each is a call of its own
LAWS = ["uniform", "normal"]
CDF = {"uniform": stats.uniform.cdf, "normal": stats.norm.cdf}
GOLDEN = [[0.6113835579533081, 0.6320901068097501], [0.5101769015989513, 0.6268691444418363]]
MOMENTS = {"uniform": (1 / 2, 1 / 12, 0.0, -1.2), "normal": (0.0, 1.0, 0.0, 0.0)}


def draw(law, seeds, purpose="method", place=(1,), indices=(0,), count=1, longest=1):
    return getattr(Draws(seeds), law)(purpose, place, indices, count, longest)


def across_seeds(law):
    return draw(law, range(N))[0]


def across_counts(law):
    return draw(law, [5], count=N)[:, 0]


def across_steps(law):
    source = Draws([5])
    return np.array([getattr(source, law)("method", (1,), (step,), 1, 1 << 30)[0, 0] for step in range(CALLS)])


def across_loop_indices(law):
    source = Draws([5])
    return np.array([getattr(source, law)("method", (1, 1), (7, k), 1, CALLS)[0, 0] for k in range(CALLS)])


def across_outer_indices(law):
    source = Draws([5])
    return np.array([getattr(source, law)("method", (1, 1), (step, 3), 1, 4)[0, 0] for step in range(CALLS)])


def across_places(law):
    source = Draws([5])
    return np.array([getattr(source, law)("method", (place,), (3,), 1, 1)[0, 0] for place in range(CALLS)])


AXES = [across_seeds, across_counts, across_steps, across_loop_indices, across_outer_indices, across_places]


@pytest.fixture(scope="module")
def along():
    """Numbers along one axis with all else fixed, made once."""
    made = {}

    def get(axis, law="normal"):
        if (axis, law) not in made:
            made[axis, law] = axis(law)
        return made[axis, law]

    return get


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.quick_cases(6)
def test_law_holds_along_each_axis(along, axis, law):
    assert stats.kstest(along(axis, law), CDF[law]).pvalue > 1e-3


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("axis", AXES)
def test_moments_are_right_along_each_axis(along, axis, law):
    u = along(axis, law)
    mean, variance, skew, kurtosis = MOMENTS[law]
    assert abs(u.mean() - mean) < 4 * (variance / len(u)) ** 0.5
    assert abs(u.var() / variance - 1) < 4 * ((2 + kurtosis) / len(u)) ** 0.5
    assert abs(stats.skew(u) - skew) < 4 * (6 / len(u)) ** 0.5
    assert abs(stats.kurtosis(u) - kurtosis) < 4 * (24 / len(u)) ** 0.5


@pytest.mark.parametrize("lag", [1, 2, 3, 7, 32])
@pytest.mark.parametrize("axis", AXES)
def test_neighbours_are_uncorrelated_along_each_axis(along, axis, lag):
    u = along(axis)
    assert abs(np.mean(u[lag:] * u[:-lag])) < 4 / len(u) ** 0.5
    assert abs(np.mean((u[lag:] ** 2 - 1) * (u[:-lag] ** 2 - 1))) < 4 * 2 / len(u) ** 0.5


@pytest.mark.whole
def test_axes_are_uncorrelated_with_each_other(along):
    table = np.corrcoef([along(axis)[:CALLS] for axis in AXES])
    assert np.abs(table - np.eye(len(AXES))).max() < 4.5 / CALLS**0.5


@pytest.mark.parametrize("other", ["f_x", "g_x", "g_y", "hvp", "jvp", "rows_g"])
def test_purposes_are_uncorrelated(other):
    a, b = draw("normal", range(N), "f_y")[0], draw("normal", range(N), other)[0]
    assert abs(np.mean(a * b)) < 4 / N**0.5


def test_normal_is_the_inverse_distribution_of_the_uniform():
    u, n = draw("uniform", range(1000)), draw("normal", range(1000))
    np.testing.assert_allclose(stats.norm.cdf(n), u, rtol=1e-12)


@pytest.mark.parametrize(
    "changed",
    [
        {"seeds": [4]},
        {"seeds": [3 + (1 << 32)]},
        {"purpose": "f_x"},
        {"place": (2,)},
        {"indices": (6,)},
        {"place": (1, 2), "indices": (5, 0)},
        {"place": (1, 1), "indices": (0, 5)},
    ],
    ids=str,
)
def test_any_change_of_the_address_changes_every_number(changed):
    address = {"seeds": [3], "purpose": "f_y", "place": (1,), "indices": (5,), "count": 64}
    assert not (draw("uniform", **address) == draw("uniform", **{**address, **changed})).any()


def test_nested_places_do_not_collide_with_flat_ones():
    places = [((a,), (b,)) for a in range(4) for b in range(4)]
    places += [((a, b), (c, d)) for a in range(4) for b in range(4) for c in range(4) for d in range(4)]
    seen = {float(draw("uniform", [0], place=place, indices=indices)[0, 0]) for place, indices in places}
    assert len(seen) == len(places)


def test_no_number_occurs_twice_among_many_addresses():
    u = np.concatenate(
        [draw("uniform", range(50), place=(p,), indices=(i,), count=10).ravel() for p in range(20) for i in range(20)]
    )
    assert len(np.unique(u)) == len(u)


@pytest.mark.parametrize("longest", [1, 2, 5, 31, 32, 1000])
def test_numbers_do_not_depend_on_the_block_they_are_made_in(longest):
    whole = Draws([1, 2, 3])
    blocked = Draws([1, 2, 3])
    for k in range(70):
        expected = whole.normal("g_y", (1, 2), (4, k), 6, 1)
        np.testing.assert_array_equal(blocked.normal("g_y", (1, 2), (4, k), 6, longest), expected)


def test_numbers_do_not_depend_on_a_block_cut_short_by_many_lanes():
    many = Draws(range(5000))  # so many that a block holds one index only
    few = Draws([17])
    for k in (0, 1, 33):
        expected = few.uniform("x", (1,), (k,), 7, 100)[:, 0]
        np.testing.assert_array_equal(many.uniform("x", (1,), (k,), 7, 100)[:, 17], expected)


def test_numbers_do_not_depend_on_the_order_of_the_calls():
    addresses = [(p, (q,), (i, k)) for p in ("f_x", "g_x") for q in (1, 2) for i in (0, 9) for k in (0, 1, 40)]
    forward, backward = Draws([8, 9]), Draws([8, 9])
    ahead = [forward.normal(*address, 3, 50).copy() for address in addresses]
    back = [backward.normal(*address, 3, 50).copy() for address in reversed(addresses)]
    np.testing.assert_array_equal(ahead, back[::-1])


def test_asking_twice_gives_the_same_numbers():
    source = Draws([8, 9])
    first = source.normal("g_x", (1,), (3,), 4, 10).copy()
    source.normal("g_x", (1,), (300,), 4, 10)
    np.testing.assert_array_equal(source.normal("g_x", (1,), (3,), 4, 10), first)


@pytest.mark.parametrize("law", LAWS)
def test_a_seed_has_the_same_numbers_alone_and_in_a_pack_of_seven(law):
    seeds = [0, 5, 5, 123456789, 2**63, 2**64 - 1, 1]
    pack = draw(law, seeds, count=11, longest=4)
    for lane, seed in enumerate(seeds):
        np.testing.assert_array_equal(pack[:, lane], draw(law, [seed], count=11, longest=9)[:, 0])


def test_more_numbers_at_an_address_begin_with_the_fewer():
    np.testing.assert_array_equal(draw("normal", [3, 4], count=9)[:5], draw("normal", [3, 4], count=5))


def test_shape_is_count_by_lanes():
    assert draw("normal", [3, 4], count=9).shape == (9, 2)


def test_golden_numbers_have_not_changed():
    np.testing.assert_allclose(
        draw("uniform", [0, 1], "method", (1, 2), (3, 4), count=2),
        GOLDEN,
        rtol=1e-15,
    )


def _unmix(h: int) -> int:
    """The inverse of the hash's finaliser, one factor at a time."""
    mask = (1 << 64) - 1

    def unshift(h: int, by: int) -> int:
        out = h
        for _ in range(64 // by):
            out = h ^ (out >> by)
        return out

    h = unshift(h, 31) * pow(0x94D049BB133111EB, -1, 1 << 64) & mask
    h = unshift(h, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & mask
    return unshift(h, 30)


@pytest.mark.parametrize("wanted", [0, (1 << 64) - 1])
def test_the_extreme_hashes_give_uniforms_inside_the_open_interval(wanted):
    mask = (1 << 64) - 1
    seed = int(draws.mix(np.array([1], dtype=np.uint64))[0])  # what seed 0 contributes
    key = _unmix((_unmix(wanted) - draws.GOLDEN) & mask) ^ seed
    u = numbers(np.array([0], dtype=np.uint64), np.array([key], dtype=np.uint64), 1).item()
    assert u == (2.0**-53 if wanted == 0 else 1 - 2.0**-53)


def test_fold_is_sensitive_to_the_order_of_the_address():
    assert fold("a", (1, 2)) != fold("a", (2, 1))
    assert fold("a", (0,)) != fold("a", (0, 0)) != fold("a", ())


@pytest.mark.parametrize("seeds", [[7], [9, 3], [5, 2, 5, 9, 2, 2]], ids=["one", "unsorted", "shared"])
@pytest.mark.parametrize("law", ["uniform", "normal"])
def test_a_lane_has_the_numbers_of_its_seed_whoever_shares_it(law, seeds):
    together = getattr(Draws(seeds), law)("rows", (1,), (4,), 6, 10)
    for lane, seed in enumerate(seeds):
        assert np.array_equal(together[:, lane], getattr(Draws([seed]), law)("rows", (1,), (4,), 6, 10)[:, 0])


def test_numbers_of_rows_are_those_of_the_uniforms():
    draws, n, B, points = Draws([3, 1, 3]), 13, 4, 2
    for step in (5, 6, 40, 5):
        u = draws.uniform("rows_g", (1,), (step,), B * points, 1 << 20)
        rows = draws.rows("rows_g", (1,), (step,), (B, points), 1 << 20, n)
        assert rows.shape == (points, 3, B)
        assert np.array_equal(rows.numpy(), np.floor(u * n).reshape(B, points, 3).transpose(1, 2, 0))
