"""The cost model of docs/internet-scale.md: the simulation of a round agrees with the formulas, the fit finds its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bilevelbench.discovery.loose_files import load_file

FILE = Path(__file__).parents[2] / "benchmarks" / "distributed_cost.py"


@pytest.fixture(scope="module")
def model():
    return load_file(FILE)


@pytest.mark.parametrize("agents", [2, 8, 64])
def test_a_simulated_round_takes_as_many_hops_as_the_formula(model, agents):
    def punctual():
        return np.ones(agents)

    # a hop of one second and no bytes
    assert model.simulated_ring(agents, punctual) == model.ring(agents, 0, 1, np.inf) == 2 * (agents - 1)
    assert model.simulated_tree(agents, punctual) == model.tree(agents, 0, 1, np.inf) == 2 * np.log2(agents)


def test_one_slow_agent_holds_up_a_ring_at_every_hop_and_a_tree_at_its_own(model):
    slow = np.ones(64)
    slow[63] = 10
    assert model.simulated_ring(64, lambda: slow) == 10 * 126
    assert model.simulated_tree(64, lambda: slow) == 12 + 9  # a leaf: one hop up, none down


def test_a_ring_carries_twice_the_message_whatever_the_number_of_agents(model):
    for agents in (2, 10, 1000):
        assert model.ring(agents, 1e9, 0, 1e9) == pytest.approx(2 * (agents - 1) / agents)


def test_the_fit_finds_its_line(model):
    sizes = [8e2, 8e3, 8e4, 8e5]
    latency, per_byte = model.line(sizes, np.array([1e-4 + 1e-9 * size for size in sizes]))
    assert latency == pytest.approx(1e-4)
    assert per_byte == pytest.approx(1e-9)
