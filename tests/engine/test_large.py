"""A lower level with a million variables and no closed form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from large import chain

from bilevelbench import Schedule, solve

LIMITS = {10**6: (60.0, 2.0)}  # seconds, GiB


def measured(size: int) -> list[str]:
    program = Path(__file__).resolve().parents[1] / "large.py"
    done = subprocess.run([sys.executable, str(program), str(size)], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_evaluation_at_the_end_of_a_long_chain():
    """Solved as far as a curve needs; to rounding it is the same phi, and the same gradient."""
    f, g, x0, y0 = chain(20_000)
    got = solve(f, g, x0, y0, "f2ba", eta_x=0.5, steps=5, evaluate="end")
    assert got.curve["phi"].isna().all()
    exact = solve(
        f, g, got.x, got.y, "f2ba", eta_x=0.5, steps=1, constants={"mu": 0.1, "L_gy": 5.1}, evaluate=Schedule()
    )
    assert got.phi == pytest.approx(exact.curve["phi"][0], rel=1e-6)
    assert got.grad_phi == pytest.approx(exact.curve["grad_phi"][0], rel=1e-4)


@pytest.mark.long  # it is timed
@pytest.mark.parametrize("size", LIMITS)
def test_a_million_variables(size):
    seconds, peak, phi, grad_phi, status, steps = measured(size)
    assert (status, steps) == ("budget", "20")
    assert torch.tensor([float(phi), float(grad_phi)]).isfinite().all()
    assert float(seconds) < LIMITS[size][0]
    assert float(peak) < LIMITS[size][1]
