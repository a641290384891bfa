"""An instance of a file, with an exponent, a shape and dimensions that nothing was made on: the slopes are those expected."""

from __future__ import annotations

from pathlib import Path

import held_out
import pytest
import torch
from helpers import assert_conforms
from test_own import rates

FILE = str(Path(held_out.__file__))

pytestmark = pytest.mark.whole


def test_instance_conforms():
    assert_conforms(held_out.HeldOut())


def test_declared_bounds_hold_along_the_tail():
    u = torch.linspace(-20, 60, 4001, dtype=torch.float64)
    bend = torch.diff(held_out.slope(u)) / torch.diff(u)
    assert held_out.slope(u).abs().max() < 0.53
    assert bend.abs().max() < 0.2  # with the anchor's 1/2 below L_phi = 0.7


@pytest.mark.parametrize(
    ("method", "eps", "expected"),
    [
        pytest.param("aid", "0.1:0.025", 1.77, marks=pytest.mark.slow),
        pytest.param("f2sa", "0.14:0.035", 2.77, marks=pytest.mark.slow),
        ("f2ba", "0.1:0.035", 1.77),
    ],
)
def test_slopes_are_those_that_the_tail_predicts(method, eps, expected, tmp_path):
    (row,) = rates(tmp_path, "-a", method, "-p", FILE, "--eps", eps, "--rule", "hit", "--seeds", "2")
    assert row["target"] == pytest.approx(expected, abs=1e-2)
    assert row["log_free"] == pytest.approx(expected, abs=0.1)
    assert row["verdict"] == "matches"


@pytest.mark.slow  # the slope of f2ba above needs a penalty that grows
def test_penalty_that_does_not_grow_stops_getting_there(tmp_path):
    """Within 3,000 steps, four times what a penalty of 2/eps takes."""
    fixed = ("-a", "f2ba[lam=4.0,K=12]", "-p", FILE, "--eps", "0.16:0.02", "--rule", "hit", "--seeds", "2")
    (row,) = rates(tmp_path, *fixed, "--steps", "3000")
    assert row["unreached"][-1]["value"] == pytest.approx(0.02)
    assert row["unreached"][-1]["reached"] == 0
    assert row["points"][0]["eps"] == pytest.approx(0.16)
