"""36 lanes of every method over one lane, on a small finite sum: steps alone, process time, the best of some rounds.

The two sides take turns, and the ratio is that of minima. Nothing is asserted about time here: the numbers go to
summary.json, and the methods above three times one lane are printed.
"""

from __future__ import annotations

import pytest
import torch
from turns import Steps, fastest, ratio

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.errors import BilevelbenchError
from bilevelbench.model.torch_state import default_dtype

PROBLEM, LANES, STEPS, ROUNDS = "quadratic_sum", 36, 5, 7
LONG = 10.0  # seconds: a method whose steps take that long is measured once
METHODS = list(registry().algorithms)


def steps(method: str, lanes: int) -> Steps:
    """A few steps of a method with its defaults; a seed a lane."""
    plugins = registry()
    with default_dtype(torch.float64):
        instance = make(plugins.problem(PROBLEM), {}).build()
    setting = make(plugins.algorithm(method), {}).resolve(instance.constants)
    return Steps(PreparedPack(instance, [setting] * lanes, range(lanes)), STEPS)


@pytest.mark.parametrize("method", METHODS)
def test_lanes_of_a_method(method, summary, capsys):
    if not registry().algorithm(method).value.lanes:
        with capsys.disabled():
            print(f"\n{method} is left out: its class declares `lanes = False`, so every trial runs alone")
        pytest.skip(f"{method} runs every trial alone")
    try:
        one, many = steps(method, 1), steps(method, LANES)
    except (BilevelbenchError, ImportError) as error:
        pytest.skip(f"{method} does not run on {PROBLEM}: {error}")
    (seconds,) = fastest(many, rounds=1)
    summary[f"lanes36_{method}"] = found = ratio(many, one, ROUNDS if seconds < LONG else 1)
    if found > 3:
        with capsys.disabled():
            print(f"\n{method}: {LANES} lanes cost {found:.2f} times one lane")
