"""A prepared pack: what the runner, agents, the conformance kit and the tests all step."""

from __future__ import annotations

import pytest
import torch
from helpers import Bowl, Shrink, plugins, prepared, states_of, trial

from bilevelbench import Instance, Oracle
from bilevelbench.engine.setup import PreparedPack, SetupFailure, prepare
from bilevelbench.errors import BudgetExhausted, CountsDisagree
from bilevelbench.model.lanes import PAD, take


def bowl() -> Instance:
    return Bowl().build()


def of_rates(*rates: float, wide: bool = True) -> PreparedPack:
    return PreparedPack(bowl(), [Shrink(rate=rate) for rate in rates], range(len(rates)), wide=wide)


def test_a_wide_pack_is_padded_with_copies_that_are_not_real():
    pack = of_rates(*(0.1 * i for i in range(1, 6)))
    assert pack.oracle.L == 2 * PAD
    assert pack.algorithm.rate.reshape(-1).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.1, 0.1, 0.1])
    assert of_rates(0.1, wide=False).oracle.L == 1


def test_steps_are_made_without_a_graph_and_each_lane_has_its_own_parameters():
    with torch.enable_grad():
        first, second = states_of(of_rates(0.1, 0.25), 1)
    assert not second.x.requires_grad
    factors = second.x / first.x
    assert factors[:2, 0].tolist() == pytest.approx([0.8, 0.5])


def test_the_start_is_a_copy_and_another_point_may_be_given():
    pack = of_rates(0.25, wide=False)
    x0, y0 = pack.start()
    x0 += 1
    assert torch.equal(pack.start()[0], bowl().x0)
    assert torch.equal(pack.init(x0, y0).x, x0)


class Draws(Shrink):
    name = "draws"

    def step(self, s, oracle: Oracle):
        new = super().step(s, oracle)
        return type(new)(new.x + oracle.normal(oracle.dx), new.y, new.k)


def test_the_lanes_that_stay_go_on_as_if_nothing_had_happened():
    whole, narrowed = (prepared(Draws(), bowl(), range(PAD)) for _ in range(2))
    state = narrowed.step(1, narrowed.init())
    index = narrowed.narrow([1, 3])
    state = narrowed.step(2, take(state, index))
    assert torch.equal(state.x, states_of(whole, 2)[-1].x[[1, 3]])
    assert narrowed.oracle.L == 2


def test_a_call_past_the_oracle_is_found_in_the_books():
    pack = of_rates(0.25, wide=False)
    state = pack.step(1, pack.init())
    pack.check_counts()
    pack.instance.value_f(state.x, state.y)
    with pytest.raises(CountsDisagree, match=r"value_f: 0 at the door, 1 below it.*past the oracle"):
        pack.check_counts()


def test_a_budget_ends_the_step_that_it_does_not_cover():
    pack = PreparedPack(bowl(), [Shrink()], [0], [1.0])
    state = pack.step(1, pack.init())
    with pytest.raises(BudgetExhausted):
        pack.step(2, state)


class Broken(Bowl):
    name = "broken"

    def build(self) -> Instance:
        raise RuntimeError("no data today")


def test_what_cannot_be_set_up_says_why_and_where():
    among = plugins(Broken, Shrink)
    with pytest.raises(SetupFailure, match=r"could not be set up: RuntimeError: no data today \(test_setup.py:\d+\)"):
        prepare([trial("shrink", "broken", steps=1, among=among)], among)
