from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch

from bilevelbench.engine.setup import pack_algorithm
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.lanes import PAD, PerLane, dot, keep, norm, padded, take
from bilevelbench.model.noise import Rows
from bilevelbench.oracle.sample import Sample, Table

DTYPES = [torch.float64, torch.float32]
WIDTHS = [4, 8, 36, 40, 64, 100]
F64 = torch.float64


def lanes(*numbers):
    return torch.tensor(numbers)


def column(*values):
    return torch.tensor(values, dtype=F64).reshape(-1, 1)


# ---------------------------------------------------------------------------------------------- algebra


def test_dot_is_the_inner_product_of_each_lane_and_point(normal):
    a, b = normal(2, 3, 5), normal(2, 3, 5)
    torch.testing.assert_close(dot(a, b), torch.einsum("pld,pld->pl", a, b).unsqueeze(-1))


def test_dot_broadcasts_points(normal):
    assert dot(normal(4, 3, 5), normal(3, 5)).shape == (4, 3, 1)


def test_norm_is_the_root_of_dot(normal):
    a = normal(2, 3, 5)
    torch.testing.assert_close(norm(a), dot(a, a).sqrt())


def test_keep_with_true_returns_the_new_tensor_itself(normal):
    new, old = normal(3, 2), normal(3, 2)
    assert keep(True, new, old) is new


def test_keep_drops_the_nan_of_lanes_that_are_off():
    new, old = torch.tensor([[1.0], [torch.nan]]), torch.tensor([[5.0], [6.0]])
    assert keep(torch.tensor([[True], [False]]), new, old).tolist() == [[1.0], [6.0]]


def test_keep_broadcasts_over_points(normal):
    new, old = normal(4, 2, 3), normal(4, 2, 3)
    out = keep(torch.tensor([[True], [False]]), new, old)
    assert torch.equal(out[:, 0], new[:, 0])
    assert torch.equal(out[:, 1], old[:, 1])


@pytest.mark.parametrize(("count", "width"), [(1, 4), (3, 4), (4, 4), (5, 8), (36, 36)])
def test_padded_is_a_multiple_of_four_that_begins_with_the_lanes(count, width):
    places = list(range(10, 10 + count))
    out = padded(places, 4)
    assert len(out) == width
    assert out[:count] == places
    assert set(out[count:]) <= {places[0]}


def test_padded_to_one_adds_nothing():
    assert padded([3, 4, 5], 1) == [3, 4, 5]


# ---------------------------------------------------------------------------------------------- take


@dataclasses.dataclass(frozen=True)
class State:
    x: torch.Tensor
    memory: tuple[torch.Tensor, ...]
    k: int
    note: str | None = None


class Pair(NamedTuple):
    x: torch.Tensor
    k: int


class Swept(Algorithm):
    name = "swept"
    uses: ClassVar[frozenset[str]] = frozenset()

    lr: float = 0.1
    K: PerLane[int] = 3
    mode: str = "fast"

    def init(self, x0, y0, oracle):
        raise NotImplementedError

    def step(self, state, oracle):
        raise NotImplementedError


def test_take_selects_lanes_before_the_last_axis_at_every_point(normal):
    x = normal(2, 4, 3)
    assert torch.equal(take(x, lanes(2, 0)), x[:, [2, 0]])


def test_take_leaves_a_scalar_tensor_alone():
    t = torch.tensor(3.0)
    assert take(t, lanes(0)) is t


@pytest.mark.parametrize("value", [None, True, 7, 0.5, "text"])
def test_take_leaves_plain_values_alone(value):
    assert take(value, lanes(1)) == value


def test_take_goes_through_a_dataclass_and_its_tuples(normal):
    s = State(normal(4, 2), (normal(4, 1), normal(5, 4, 1)), 9, "n")
    out = take(s, lanes(3, 1, 1))
    assert isinstance(out, State)
    assert torch.equal(out.x, s.x[[3, 1, 1]])
    assert torch.equal(out.memory[0], s.memory[0][[3, 1, 1]])
    assert torch.equal(out.memory[1], s.memory[1][:, [3, 1, 1]])
    assert (out.k, out.note) == (9, "n")


def test_take_keeps_a_named_tuple_what_it_is(normal):
    out = take(Pair(normal(4, 2), 3), lanes(1))
    assert isinstance(out, Pair)
    assert out.k == 3


def test_take_of_a_packed_algorithm_selects_its_swept_fields():
    pack = pack_algorithm([Swept(lr=0.1 * i, K=i) for i in range(1, 5)], F64)
    out = take(pack, lanes(2, 0))
    assert isinstance(out, Swept)
    torch.testing.assert_close(out.lr, column(0.3, 0.1))
    assert out.K.tolist() == [[3], [1]]
    assert out.mode == "fast"


def test_take_of_a_table_selects_the_lanes_of_rows_and_mean(normal):
    table = Table(normal(5, 4, 2))
    out = take(table, lanes(3, 1))
    assert torch.equal(out.rows, table.rows[:, [3, 1]])
    assert torch.equal(out.mean, table.mean[[3, 1]])


def test_take_of_a_sample_selects_rows_sizes_and_blocks():
    rows = Rows(torch.arange(8).reshape(4, 2), torch.arange(8.0).reshape(4, 2))
    sample = Sample("g", torch.tensor([[1], [2], [3], [4]]), (1,), (0,), 1, rows=rows, block=torch.arange(4))
    out = take(sample, lanes(2, 0))
    assert out.size.tolist() == [[3], [1]]
    assert out.rows.index.tolist() == [[4, 5], [0, 1]]
    assert out.rows.weight.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert out.block.tolist() == [2, 0]


def test_take_of_a_sample_forgets_the_noise_of_the_wider_pack():
    sample = Sample("g", 3, (1,), (0,), 1, noise={"g_x": torch.zeros(4, 2)})
    assert take(sample, lanes(1)).noise == {}


REFUSED = [[1, 2], {"a": 1}, {1}, np.zeros((4, 2)), np.int64(3), object()]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_take_refuses_other_types_and_names_them(value):
    with pytest.raises(TypeError, match=f"not {type(value).__name__}"):
        take(value, lanes(0))


# ---------------------------------------------------------------------------------------------- rounding
# Packed equals alone bit for bit: each operation must give a lane the same bits in every width and at every place.


def random(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def alone(function, rows, lane, width=PAD):
    """The lane's answer in a pack of its own: itself and its copies."""
    return function(*(r[..., lane : lane + 1, :].expand(*r.shape[:-2], width, r.shape[-1]).contiguous() for r in rows))


def assert_same_bits_packed_and_alone(function, *rows):
    together = function(*rows)
    for lane in range(rows[0].shape[-2]):
        by_itself = alone(function, rows, lane)
        assert torch.equal(together[..., lane, :], by_itself[..., 0, :]), f"lane {lane} of {rows[0].shape[-2]}"


# Shapes for which MKL, without MKL_CBWR, rounds a row by its place among the others.
PLACED = [(20, 3), (20, 5), (5, 64), (4177, 8)]
DIMS = [(1, 8), (8, 8), (20, 30), (300, 200), (8, 1), (30, 20), (784, 10), (8, 4177), *PLACED]


@pytest.mark.parametrize("layout", ["plain", "transposed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_matrix_product_gives_a_row_the_same_bits_in_every_width(dims, dtype, layout):
    M = random(*dims, dtype=dtype) if layout == "plain" else random(*reversed(dims), dtype=dtype).T
    for width in WIDTHS:
        assert_same_bits_packed_and_alone(lambda rows: rows @ M, random(width, dims[0], dtype=dtype, seed=width))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", [(8, 8), (20, 5), (20, 30)], ids=str)
def test_matrix_product_at_several_points_gives_the_bits_of_one_point(dims, dtype):
    M, x = random(*dims, dtype=dtype), random(3, 36, dims[0], dtype=dtype, seed=1)
    assert torch.equal(x @ M, torch.stack([point @ M for point in x]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", [(8, 8), (8, 5), (20, 30), (3, 1)], ids=str)
def test_batched_product_gives_a_lane_the_same_bits_in_every_width(dims, dtype):
    for width in (4, 36, 100):
        x, M = random(width, 1, dims[0], dtype=dtype), random(width, *dims, dtype=dtype, seed=1)
        together = x @ M
        for lane in range(width):
            copies = [t[lane : lane + 1].repeat(PAD, 1, 1) for t in (x, M)]
            assert torch.equal(together[lane], (copies[0] @ copies[1])[0])


ELEMENTWISE = {
    "exp": torch.exp,
    "log": lambda t: torch.log(t.abs()),
    "sqrt": lambda t: torch.sqrt(t.abs()),
    "log1p": lambda t: torch.log1p(t.abs()),
    "tanh": torch.tanh,
    "sin": torch.sin,
    "erf": torch.erf,
    "division": lambda t: t / (1 + t * t),
    "square": torch.square,
}
# What torch computes eight (float64) or sixteen (float32) at a time, and the rest of a tensor by another function.
WITH_A_REST = {
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "power": lambda t: t.abs() ** -0.4,
    "cosh": torch.cosh,
    "exp2": torch.exp2,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_function_gives_the_same_bits_in_every_width(name, dtype):
    for d in (1, 3, 13, 30):
        assert_same_bits_packed_and_alone(ELEMENTWISE[name], 2 * random(36, d, dtype=dtype, seed=d))


# Here a library rounds by the place in the pack; what is promised is a few units in the last place.


def assert_close_packed_and_alone(function, rows):
    together = function(rows)
    for lane in range(rows.shape[-2]):
        expected = alone(function, [rows], lane)[..., 0, :]
        torch.testing.assert_close(together[..., lane, :], expected, rtol=8 * torch.finfo(rows.dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WITH_A_REST)
def test_elementwise_function_with_a_rest_differs_in_the_last_bits_at_most(name, dtype):
    for d in (1, 3, 13, 30):
        for seed in range(8):
            assert_close_packed_and_alone(WITH_A_REST[name], 2 * random(9 * PAD, d, dtype=dtype, seed=seed))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mean_over_points_differs_in_the_last_bits_at_most(dtype):
    for points in (5, 50):
        assert_close_packed_and_alone(lambda t: t.mean(0), random(points, 9 * PAD, 13, dtype=dtype).abs())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduce", [dot, lambda a, b: norm(a - b), lambda a, b: (a + b).mean(-1, keepdim=True)])
def test_sum_over_the_last_axis_gives_the_same_bits_in_every_width(reduce, dtype):
    for d in (1, 2, 5, 8, 30, 300, 4177):
        a, b = random(36, d, dtype=dtype, seed=d), random(36, d, dtype=dtype, seed=1)
        assert_same_bits_packed_and_alone(reduce, a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_table_gives_a_lane_the_same_bits_in_every_width(dtype):
    rows, block, new = random(7, 36, 13, dtype=dtype), torch.arange(36) % 7, random(36, 13, dtype=dtype, seed=1)

    def saga(rows, new, block):
        direction, table = Table(rows).replace(block, new)
        return torch.cat([direction, table.mean], -1)

    together = saga(rows, new, block)
    for lane in range(36):
        index = torch.full((PAD,), lane)
        assert torch.equal(together[lane], saga(rows[:, index], new[index], block[index])[0])
