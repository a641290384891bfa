"""`oracle.until`: a loop that each lane leaves when it has arrived."""

from __future__ import annotations

import pytest
import torch

from bilevelbench.errors import InvalidInput


def column(*values, dtype=torch.bool):
    return torch.tensor(values, dtype=dtype).reshape(-1, 1)


def calls(oracle):
    return oracle.meter.columns()["grad_g_y"].tolist()


@pytest.fixture
def point(normal):
    return normal(4, 3), normal(4, 5)


@pytest.fixture
def oracle(bowl, door):
    return door(bowl())


def test_a_lane_pays_until_it_leaves_and_the_loop_ends_with_the_last(oracle, point):
    left, rounds = column(3, 1, 0, 2, dtype=torch.int64), 0
    going = left > 0
    for _ in oracle.until(100, going):
        oracle.grad_g_y(*point)
        rounds += 1
        going &= left > rounds
    assert rounds == 3
    assert calls(oracle) == [3, 1, 0, 2]
    assert oracle.meter.mask is None


def test_it_ends_after_its_number_of_rounds_also_by_lane(oracle, point):
    going = column(1, 1, 1, 0)
    for _ in oracle.until(2, going):
        oracle.grad_g_y(*point)
    assert calls(oracle) == [2, 2, 2, 0]
    for _ in oracle.until(column(1, 4, 0, 3, dtype=torch.int64), going):
        oracle.grad_g_y(*point)
    assert calls(oracle) == [3, 6, 2, 0]


def test_on_is_true_while_every_lane_is_on_and_then_their_mask(oracle):
    going, seen = column(1, 1, 1, 1), []
    for on in oracle.until(3, going):
        seen.append(on if on is True else on.flatten().tolist())
        going &= column(1, 0, 1, 0)
    assert seen == [True, [True, False, True, False], [True, False, True, False]]


def test_a_lane_that_has_left_stays_out(oracle, point):
    going = column(1, 1, 1, 1)
    for i, _ in enumerate(oracle.until(3, going)):
        oracle.grad_g_y(*point)
        going[0, 0] = i != 0
    assert calls(oracle) == [1, 3, 3, 3]


def test_what_a_method_does_to_on_changes_nothing(oracle, point):
    going = column(1, 1, 0, 1)
    for on in oracle.until(2, going):
        on.fill_(True)
        oracle.grad_g_y(*point)
    assert calls(oracle) == [2, 2, 0, 2]


def test_it_stays_within_an_outer_mask_and_gives_it_back(oracle, point):
    with oracle.only(column(1, 1, 0, 0)):
        for _ in oracle.until(2, column(0, 1, 1, 1)):
            oracle.grad_g_y(*point)
        oracle.grad_g_y(*point)
    assert calls(oracle) == [1, 3, 0, 0]


def test_leaving_it_early_gives_the_mask_back(oracle, point):
    for _ in oracle.until(5, column(1, 0, 0, 0)):
        oracle.grad_g_y(*point)
        break
    oracle.grad_g_y(*point)
    assert calls(oracle) == [2, 1, 1, 1]


def test_no_lane_at_all_makes_no_round(oracle):
    assert list(oracle.until(5, column(0, 0, 0, 0))) == []


def test_a_lane_without_budget_does_not_hold_it_up(bowl, door, point):
    oracle, rounds = door(bowl(), budgets=[2.0, 100.0, 100.0, 100.0]), 0
    left = column(50, 4, 4, 4, dtype=torch.int64)
    going = left > 0
    for _ in oracle.until(1000, going):
        oracle.grad_g_y(*point)
        rounds += 1
        going &= left > rounds
    assert rounds == 4
    assert calls(oracle) == [2, 4, 4, 4]


def test_draws_inside_do_not_depend_on_the_other_lanes(bowl, door):
    def drawn(lengths, seeds):
        oracle = door(bowl(), seeds=seeds)
        left, seen = column(*lengths, dtype=torch.int64), []
        going = left > 0
        for _ in oracle.until(9, going):
            seen.append(oracle.normal(2))
            going &= left > len(seen)
        return [*seen[: lengths[0]], oracle.normal(2)]

    ours, alone = drawn([2, 5, 1, 3], [7, 1, 2, 3]), drawn([2, 2, 2, 2], [7, 7, 7, 7])
    assert all(torch.equal(a[0], b[0]) for a, b in zip(ours, alone, strict=True))


def test_shuffled_passes_are_refused_inside_also_while_every_lane_is_on(least_squares, door):
    oracle = door(least_squares())
    for _ in oracle.until(1, column(1, 1, 1, 1)):
        with pytest.raises(InvalidInput, match='order="epoch" in a loop of per-lane length'):
            oracle.sample_g(3, order="epoch")


@pytest.mark.parametrize("shape", [(4,), (1, 1), (4, 2)])
def test_a_mask_of_another_shape_is_refused(oracle, shape):
    with pytest.raises(InvalidInput, match=r"until: a mask is \(4, 1\), one number per lane"):
        next(oracle.until(2, torch.ones(shape, dtype=torch.bool)))
