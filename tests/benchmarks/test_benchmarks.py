"""What the speed benchmarks time has to do the same work on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bilevelbench.discovery.loose_files import load_file

Stepper = load_file(Path(__file__).parents[2] / "benchmarks" / "test_meter_and_lanes.py").Stepper


@pytest.mark.parametrize("trials", [1, 3])
def test_the_step_without_a_meter_is_the_same_step(trials):
    metered, raw = Stepper(trials), Stepper(trials, raw=True)
    with torch.no_grad():
        ours, theirs = (one.pack.algorithm.step(one.state, one.pack.oracle) for one in (metered, raw))
        metered(), raw()
    for name in ("x", "y", "z"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
