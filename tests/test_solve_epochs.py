"""`solve` with `order="epoch"`: data in shuffled passes, without replacement."""

from __future__ import annotations

import pytest
import torch
from test_solve_networks import TRAIN, VALID, ZERO, line_at_zero, module_f, module_g, solve_sampled

import bilevelbench
from bilevelbench import InvalidInput
from bilevelbench.model.own_functions import own_problem
from bilevelbench.oracle.oracle import Oracle


def test_an_epoch_takes_every_row_once_in_an_order_of_its_lane():
    own = own_problem(module_f, module_g, {"weights": ZERO}, line_at_zero(), data_f=VALID, data_g=TRAIN, order="epoch")
    oracle = Oracle(own.instance, frozenset({"grad_g_y"}), [3, 4])
    sizes = torch.full((2, 1), 7)
    for step in range(2):
        oracle.begin_step(step)
        batches = [oracle.sample_g(sizes).rows.index for _ in range(9)]
        assert [batch.shape[-1] for batch in batches] == [7] * 8 + [4]
        rows = torch.cat(batches, -1)
        assert torch.equal(rows.sort(-1).values, torch.arange(60).expand(2, 60))
        assert not torch.equal(rows[0], rows[1])


def last_x(**more):
    """The last iterate: the answer of these methods is a random one."""
    seen = []
    solve_sampled(evaluate="never", callback=lambda info: seen.append(info.x["weights"]), **more)
    return seen[-1]


def test_batches_that_are_an_epoch_are_the_whole_sum():
    """Whatever the seed; drawn independently they are not."""
    epochs = [last_x(batch=60, order="epoch", seed=seed) for seed in (3, 4)]
    assert epochs[0].abs().max() > 1e-3
    torch.testing.assert_close(*epochs, rtol=1e-9, atol=1e-9)
    independent = [last_x(batch=60, seed=seed) for seed in (3, 4)]
    assert (independent[0] - independent[1]).abs().max() > 1e-3


@pytest.mark.parametrize("method", ["stocbio", "f2bsa", "auto"])
def test_epochs_have_the_same_bits_for_the_same_seed(method):
    step = None if method == "auto" else 1.0
    first, again, other = (
        last_x(algorithm=method, eta_x=step, batch=5, order=order) for order in ("epoch", "epoch", "replacement")
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_epochs_that_there_are_not():
    with pytest.raises(InvalidInput, match="order='epochs'; did you mean 'epoch'"):
        solve_sampled(order="epochs")
    with pytest.raises(InvalidInput, match="order='epoch': there are no data to draw from; give data_f or data_g"):
        bilevelbench.solve(
            lambda x, m: module_f(x, m, VALID), lambda x, m: module_g(x, m, TRAIN), {"weights": ZERO}, line_at_zero(),
            order="epoch",
        )  # fmt: skip
