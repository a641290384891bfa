"""An agent's oracle: it asks what the agent holds, counts every round, and draws samples of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bilevelbench
from bilevelbench import Additive
from bilevelbench.model.agents import Alone, Part
from bilevelbench.model.queries import QUERIES

SMALL = "quadratic_agents[agents=3,dim_x=2,dim_y=4]"


def part(instance, rank=0):
    return Part(rank, instance, Alone())


def ones(oracle) -> tuple[Tensor, Tensor]:
    return torch.ones(oracle.L, oracle.dx, dtype=torch.float64), torch.ones(oracle.L, oracle.dy, dtype=torch.float64)


def test_an_agent_is_asked_for_what_it_holds(bowl, door):
    mean, local = bowl(), bowl(constants={"mu": 2.0})
    oracle = door(mean, part=part(local))
    oracle.grad_g_y(*ones(oracle))
    assert sum(local.passes) == 1
    assert sum(mean.passes) == 0
    assert oracle.counts_agree


def test_a_round_is_one_message_of_every_lane_that_is_on(bowl, door):
    oracle = door(bowl(), part=part(bowl()))
    x, y = ones(oracle)
    oracle.mean(x, y)
    with oracle.only(torch.tensor([[True], [False], [True], [True]])):
        oracle.mean(y)
    assert oracle.meter.rounds.tolist() == [2, 1, 2, 2]
    assert oracle.meter.bytes.tolist() == [8 * (3 + 5 + 5), 8 * (3 + 5), 8 * (3 + 5 + 5), 8 * (3 + 5 + 5)]


def test_a_message_in_float32_is_half_as_long(bowl, door):
    oracle = door(bowl(), part=part(bowl()), lanes=1)
    oracle.mean(torch.ones(1, 6, dtype=torch.float32))
    assert oracle.meter.bytes.tolist() == [24]


@pytest.mark.parametrize("column", ["rounds", "bytes"])
def test_one_machine_sends_nothing(column):
    """A method that is not distributed sees the mean, whoever owns it."""
    assert bilevelbench.run("f2ba[K=2]", SMALL, steps=2).runs[column].tolist() == [0]


def of_ranks(bowl, door, ask):
    noise = Additive(1.0, 1.0, 1.0)
    return [ask(door(bowl(noise=noise), part=part(bowl(noise=noise), rank), uses=QUERIES)) for rank in (0, 1, 2)]


def test_agents_have_noise_of_their_own(bowl, door):
    first, second, third = of_ranks(bowl, door, lambda o: o.grad_g_y(*ones(o), o.sample_g(1)))
    assert not torch.isclose(first, second).any()
    assert not torch.isclose(second, third).any()


def test_agents_draw_alike_for_the_method(bowl, door):
    first, second, third = of_ranks(bowl, door, lambda o: o.normal(3))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, third, rtol=0, atol=0)


def test_agents_draw_rows_of_their_own(least_squares, door):
    rows = [door(least_squares(), part=part(least_squares(), rank)).sample_g(8).rows.index for rank in (0, 1)]
    assert not torch.equal(*rows)
