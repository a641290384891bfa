"""Lanes for a function of one's own: steps of F2BA and AID on a small network, 36 settings by vmap over one setting by itself.

The two sides take turns, and the ratio is that of minima, as in test_meter_and_lanes.py. Nothing is asserted about time
here: the numbers go to summary.json.
"""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from turns import Steps, ratio

from bilevelbench import Instance, from_functions, seeded_module
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.model.torch_state import default_dtype

STEPS = 5


def network() -> Instance:
    """Sample weights for a network of 10 inputs, 16 hidden units and 3 classes, on 60 samples."""
    rng = torch.Generator().manual_seed(0)
    A, b = torch.randn(100, 10, generator=rng), torch.randint(3, (100,), generator=rng)
    net = seeded_module(lambda: nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3)), rng)

    def g(x, model, batch):
        a, b, i = batch
        losses = cross_entropy(model(a), b, reduction="none")
        return (x[i].sigmoid() * losses).mean() + 0.05 * sum(p.square().sum() for p in model.parameters())

    def f(x, model, batch):
        return cross_entropy(model(batch[0]), batch[1])

    train = A[:60], b[:60], torch.arange(60)
    return from_functions(f, g, torch.zeros(60), net, data_f=(A[60:], b[60:]), data_g=train)


def steps(method: str, lanes: int) -> Steps:
    """Some steps of a method with as many x-steps as lanes."""
    with default_dtype(torch.float64):
        instance = network()
    entry = registry().algorithm(method)
    grid = [make(entry, {"eta_x": 0.1 * (1 + i)}).resolve(instance.constants) for i in range(lanes)]
    return Steps(PreparedPack(instance, grid, range(lanes)), STEPS)


@pytest.mark.parametrize("method", ["f2ba", "aid"])
def test_own_lanes(benchmark, summary, method):
    """36 settings of a network by vmap over one setting."""
    summary[f"own_lanes36_ratio_{method}"] = benchmark.pedantic(
        ratio, args=(steps(method, 36), steps(method, 1), 15, time.perf_counter), rounds=1
    )
