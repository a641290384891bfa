from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch

from bilevelbench.errors import BudgetExhausted
from bilevelbench.model.queries import QUERIES, ROW
from bilevelbench.oracle.meter import Meter

INF = math.inf


def meter(budgets=(INF,) * 4, real=None, n_f=1, n_g=1):
    whole = {q: n_f if "_f" in q else n_g for q in QUERIES}
    return Meter(whole, budgets, real or [True] * len(budgets))


def mask(*on):
    return torch.tensor(on, dtype=torch.bool).reshape(-1, 1)


def column(m, name):
    return m.columns()[name].tolist()


# ---------------------------------------------------------------------------------------------- columns


def test_charge_counts_points_and_samples_in_every_lane():
    m = meter()
    m.charge("hvp_g_yy", 3, 10)
    assert column(m, "hvp") == [3] * 4
    assert column(m, "cost") == [30] * 4


@pytest.mark.parametrize("level", ["f", "g"])
def test_joint_query_is_one_gradient_and_one_in_each_block(level):
    m = meter()
    m.charge(f"grad_{level}", 1, 1)
    assert [column(m, f"grad_{level}{block}")[0] for block in ("", "_x", "_y")] == [1, 1, 1]
    assert column(m, "cost")[0] == 1


def test_gradient_column_is_not_the_sum_of_its_blocks_after_joint_and_single_queries():
    m = meter()
    m.charge("grad_f", 2, 1)
    m.charge("grad_f_x", 3, 1)
    m.charge("grad_f_y", 4, 1)
    assert column(m, "grad_f")[0] == 9
    assert column(m, "grad_f_x")[0] == 5
    assert column(m, "grad_f_y")[0] == 6


def test_first_and_second_order_add_up_their_columns():
    m = meter()
    for query, times in (("grad_f", 1), ("grad_g_y", 2), ("hvp_g_yy", 4), ("jvp_g_xy", 8), ("value_g", 16)):
        m.charge(query, times, 1)
    assert column(m, "first_order")[0] == 3
    assert column(m, "second_order")[0] == 12
    assert column(m, "value")[0] == 16


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_is_part_of_the_cost_once(query):
    m = meter()
    m.charge(query, 2, 7)
    assert column(m, "cost") == [14] * 4


def test_sample_columns_hold_the_samples_of_the_same_columns():
    m = meter(n_g=17)
    m.charge("grad_g_y", 2, 17)
    m.charge("grad_g", 1, 5)
    samples = m.sample_columns()
    assert samples["grad_g_samples"][0] == 39
    assert samples["grad_g_x_samples"][0] == 5
    assert samples["grad_g_y_samples"][0] == 39


def test_usual_and_unusual_calls_of_one_query_are_both_billed():
    """The oracle adds usual calls by itself: one pass and its cost."""
    m = meter(n_g=17)
    m.passes[ROW["grad_g_y"]] += 1
    m.left[0] -= 17
    m.charge("grad_g_y", 2, 5)
    m.passes[ROW["grad_g_y"]] += 1
    m.left[0] -= 17
    assert m.most() == 44
    assert column(m, "grad_g_y")[0] == 4
    assert column(m, "cost")[0] == 44


def test_counts_beyond_32_bits_are_exact():
    m = meter()
    for _ in range(3):
        m.charge("grad_f", 1, 10**12 + 1)
    assert column(m, "cost")[0] == 3 * 10**12 + 3


# ---------------------------------------------------------------------------------------------- masks


def test_masked_lanes_are_not_charged_and_earlier_charges_stay_where_they_were_made():
    m = meter()
    m.charge("grad_f", 1, 1)
    m.switch(mask(1, 0, 1, 0))
    m.charge("grad_f", 1, 10)
    m.switch(None)
    m.charge("grad_f", 1, 100)
    assert column(m, "cost") == [111, 101, 111, 101]


def test_passes_are_counted_whatever_the_mask():
    m = meter()
    m.switch(mask(1, 0, 0, 0))
    m.charge("grad_f", 3, 1)
    assert m.passes[ROW["grad_f"]] == 3


def test_any_on_tells_whether_there_is_work():
    m = meter()
    assert m.any_on()
    m.switch(mask(0, 0, 0, 0))
    assert not m.any_on()
    m.switch(mask(0, 1, 0, 0))
    assert m.any_on()


def test_flush_changes_no_total():
    m = meter()
    m.charge("grad_f", 1, 3)
    m.flush()
    m.flush()
    assert m.most() == 3
    assert column(m, "cost") == [3] * 4


def test_padding_lanes_are_never_charged():
    m = meter(real=[True, True, False, False])
    m.charge("grad_f", 1, 1)
    m.charge_lanes("grad_g", 1, np.array([1.0, 2, 3, 4]))
    assert column(m, "cost") == [2, 3, 0, 0]


# ---------------------------------------------------------------------------------------------- samples per lane


def test_each_lane_pays_its_own_batch():
    m = meter()
    m.charge_lanes("grad_g_y", 2, np.array([1.0, 10, 100, 1000]))
    assert column(m, "cost") == [2, 20, 200, 2000]
    assert column(m, "grad_g_y") == [2] * 4
    assert m.passes[ROW["grad_g_y"]] == 2


def test_batches_per_lane_mix_with_common_ones():
    m = meter()
    m.charge("grad_g_y", 1, 3)
    m.charge_lanes("grad_g_y", 1, np.array([1.0, 2, 3, 4]))
    m.charge("grad_g_y", 1, 3)
    assert column(m, "cost") == [7, 8, 9, 10]


def test_a_batch_that_is_too_large_makes_a_ghost_of_its_lane_only():
    m = meter([10.0] * 4)
    m.charge_lanes("grad_g", 1, np.array([10.0, 11, 9, 12]))
    assert m.ghost.tolist() == [False, True, False, True]
    assert column(m, "cost") == [10, 0, 9, 0]


# ---------------------------------------------------------------------------------------------- budgets


def test_budget_may_be_spent_to_the_last_sample():
    m = meter([5.0])
    for _ in range(5):
        m.charge("grad_f", 1, 1)
    assert column(m, "cost") == [5]
    assert not m.has_ghosts


def test_refused_call_is_in_neither_book():
    m = meter([5.0])
    m.charge("grad_f", 1, 4)
    with pytest.raises(BudgetExhausted):
        m.charge("grad_g", 1, 2)
    assert column(m, "cost") == [4]
    assert m.passes == [int(query == "grad_f") for query in QUERIES]


def test_refused_call_with_batches_per_lane_is_in_neither_book():
    m = meter([5.0, 5.0])
    with pytest.raises(BudgetExhausted):
        m.charge_lanes("grad_g", 1, np.array([6.0, 7.0]))
    assert column(m, "cost") == [0, 0]
    assert m.passes[ROW["grad_g"]] == 0


def test_lane_without_budget_becomes_a_ghost_while_others_go_on():
    m = meter([3.0, 100.0])
    for _ in range(5):
        m.charge("grad_f", 1, 1)
    assert m.ghost.tolist() == [True, False]
    assert column(m, "cost") == [3, 5]


def test_ghost_is_never_charged_again_even_for_what_it_could_pay():
    m = meter([3.0, 100.0])
    m.charge("grad_f", 1, 2)
    m.charge("grad_f", 1, 5)
    m.charge("grad_f", 1, 1)
    assert column(m, "cost") == [2, 8]


def test_exhausted_when_the_last_lane_is_a_ghost():
    m = meter([3.0, 5.0])
    m.charge("grad_f", 3, 1)
    m.charge("grad_f", 2, 1)
    with pytest.raises(BudgetExhausted):
        m.charge("grad_f", 1, 1)
    assert column(m, "cost") == [3, 5]


def test_padding_does_not_keep_a_pack_alive():
    m = meter([3.0] * 4, real=[True, False, False, False])
    with pytest.raises(BudgetExhausted):
        m.charge("grad_f", 1, 4)


def test_lane_that_is_off_keeps_its_budget_and_the_pack():
    m = meter([3.0, 3.0])
    m.switch(mask(1, 0))
    m.charge("grad_f", 1, 4)
    m.switch(None)
    m.charge("grad_f", 1, 3)
    assert m.ghost.tolist() == [True, False]
    assert column(m, "cost") == [0, 3]


@pytest.mark.parametrize("budgets", [(7.0, 20.0, 11.5, 40.0), (40.0, 3.0, 12.0, 12.0)])
def test_packed_and_alone_agree_in_counts(budgets):
    bills = [("grad_f", 1, 1), ("hvp_g_yy", 2, 3), ("grad_g_y", 1, 1), ("grad_g", 1, 5)] * 10

    def spend(m):
        try:
            for bill in bills:
                m.charge(*bill)
        except BudgetExhausted:
            pass
        return m.columns()

    together = spend(meter(budgets))
    for lane, budget in enumerate(budgets):
        single = spend(meter([budget]))
        assert {k: v[lane] for k, v in together.items()} == {k: v[0] for k, v in single.items()}


def test_exhaustion_is_no_exception_that_a_method_may_swallow():
    def careless_method():
        with contextlib.suppress(Exception):
            meter([1.0]).charge("grad_f", 1, 2)

    with pytest.raises(BudgetExhausted):
        careless_method()


# ---------------------------------------------------------------------------------------------- take, most


def test_take_keeps_the_books_of_the_lanes_that_stay():
    m = meter([10.0, 20.0, 30.0, 40.0])
    m.charge_lanes("grad_f", 1, np.array([1.0, 2, 3, 4]))
    m.charge("grad_g", 1, 1)
    m.take([3, 1, 3, 3], [True, True, False, False])
    m.charge("grad_g", 1, 10)
    assert column(m, "cost")[:2] == [15, 13]
    assert m.budgets.tolist() == [40, 20, 40, 40]


def test_take_lets_ghosts_go():
    m = meter([1.0, 20.0])
    m.charge("grad_f", 1, 2)
    assert m.has_ghosts
    m.take([1], [True])
    assert not m.has_ghosts
    with pytest.raises(BudgetExhausted):
        m.charge("grad_f", 1, 19)


def test_budget_binds_after_take_as_before():
    m = meter([5.0, 50.0])
    m.charge("grad_f", 1, 4)
    m.take([0], [True])
    with pytest.raises(BudgetExhausted):
        m.charge("grad_f", 1, 2)


def test_most_is_the_common_cost_while_lanes_keep_step():
    m = meter()
    m.charge("grad_f", 1, 3)
    assert m.most() == 3
    m.flush()
    m.charge("grad_f", 1, 4)
    assert m.most() == 7


def test_most_is_no_less_than_any_lane_when_they_do_not():
    m = meter()
    for on in (mask(1, 0, 0, 0), mask(0, 1, 1, 0), None, mask(0, 0, 1, 1)):
        m.switch(on)
        m.charge("grad_f", 1, 3)
        pending = m.most()
        m.flush()
        assert pending >= m.cost().max()
        assert m.most() == m.cost().max()


@pytest.mark.parametrize("before", [0, 1])
def test_most_counts_a_call_that_was_refused_to_one_lane_once(before):
    m = meter([before + 1.0, 100.0])
    for _ in range(before):
        m.charge("grad_f", 1, 1)
    m.charge("grad_f", 1, 5)
    assert m.has_ghosts
    assert m.most() == before + 5


def test_restarting_the_passes_keeps_the_bill():
    m = meter()
    m.charge("grad_f", 2, 3)
    m.restart_passes()
    assert set(m.passes) == {0}
    m.charge("grad_f", 1, 3)
    assert m.passes[ROW["grad_f"]] == 1
    assert column(m, "cost") == [9] * 4
