"""Tables: one row is changed in place, and every table that is still held reads as it was."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from bilevelbench import InvalidInput, Table
from bilevelbench.oracle.sample import _MOST

L, BLOCKS, WIDTH = 4, 5, 3


def random_blocks(step):
    return (torch.arange(L) * 2 + step) % BLOCKS


@pytest.fixture
def history(normal):
    """Tables made one from the other, with copies of what each of them held."""
    tables, copies = [Table(normal(BLOCKS, L, WIDTH))], []
    copies.append(tables[0].rows.clone())
    for step in range(6):
        block, new = random_blocks(step), normal(L, WIDTH)
        _, table = tables[-1].replace(block, new)
        rows = copies[-1].clone()
        rows[block, torch.arange(L)] = new
        tables.append(table)
        copies.append(rows)
    return tables, copies


@pytest.mark.parametrize("order", [range(7), range(6, -1, -1), [3, 0, 6, 3, 5, 1, 6]], ids=["on", "back", "to and fro"])
def test_every_table_reads_as_it_was_in_whatever_order(history, order):
    tables, copies = history
    for i in order:
        assert torch.equal(tables[i].rows, copies[i])
        torch.testing.assert_close(tables[i].mean, copies[i].mean(0), rtol=1e-12, atol=1e-13)


def test_two_tables_made_from_one_do_not_meet(history, normal):
    """A step that is made again from the same state."""
    tables, copies = history
    block, new = random_blocks(1), normal(L, WIDTH)
    first, branch = tables[2].replace(block, new)
    again, twin = tables[2].replace(block, new)
    assert torch.equal(first, again)
    assert torch.equal(branch.rows, twin.rows)
    assert all(torch.equal(table.rows, rows) for table, rows in zip(tables, copies, strict=True))


def test_a_replacement_moves_one_row_and_copies_nothing(normal):
    table = Table(normal(BLOCKS, L, WIDTH))
    storage = table.rows.data_ptr()
    _, newer = table.replace(random_blocks(0), normal(L, WIDTH))
    assert newer.rows.data_ptr() == storage
    assert table.rows.data_ptr() == storage  # put back


def test_tables_that_nobody_holds_are_gone(normal):
    table = Table(normal(BLOCKS, L, WIDTH))
    first = weakref.ref(table)
    for step in range(3):
        _, table = table.replace(random_blocks(step), normal(L, WIDTH))
    gc.collect()
    assert first() is None


def test_the_rows_that_a_table_is_made_of_stay_the_callers(normal):
    rows = normal(BLOCKS, L, WIDTH)
    before = rows.clone()
    _, table = Table(rows).replace(random_blocks(0), normal(L, WIDTH))
    assert table.rows.shape == rows.shape
    assert torch.equal(rows, before)


def test_lanes_of_an_old_table_are_those_that_it_had(history):
    tables, copies = history
    lanes = torch.tensor([3, 1])
    taken = tables[2].take(lanes)
    assert torch.equal(taken.rows, copies[2][:, lanes])
    taken.replace(torch.tensor([0, 0]), torch.zeros(2, WIDTH, dtype=torch.float64))
    assert torch.equal(tables[2].rows, copies[2])


def test_a_table_of_zeros_has_the_lanes_the_width_and_the_dtype_of_its_model():
    table = Table.zeros(BLOCKS, torch.ones(L, WIDTH, dtype=torch.float32))
    assert table.rows.shape == (BLOCKS, L, WIDTH)
    assert table.rows.dtype == table.mean.dtype == torch.float32
    assert not table.rows.any()
    assert not table.mean.any()


def test_a_table_that_is_too_large_is_refused_with_a_sentence_whatever_the_pack():
    n = 20_000  # x has a coordinate for each datum
    for lanes in (1, 4):
        with pytest.raises(InvalidInput) as refused:
            Table.zeros(n, torch.zeros(lanes, n))
        assert str(refused.value) == (
            "a table of 20,000 blocks times 20,000 numbers would keep 400,000,000 of them for every trial, and 4,194,304 is "
            "the most; draw larger batches, which makes fewer blocks, or take a method that keeps no table"
        )
    assert Table.zeros(4, torch.zeros(1, _MOST // 4)).mean.shape == (1, _MOST // 4)
