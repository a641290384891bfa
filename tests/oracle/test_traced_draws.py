"""Traced draws are the draws themselves: the same rows, and normals that differ by rounding, for every step."""

from __future__ import annotations

import pytest
import torch

from bilevelbench.errors import Untraceable
from bilevelbench.oracle.draws import Draws
from bilevelbench.oracle.traced_draws import TracedDraws

SEEDS = (0, 7, 2**63 + 5)
STEPS = (1, 2, 31, 32, 10_000_019)
#: place, indices after the step, and the length of the innermost loop
PLACES = {
    "outside_of_loops": ((1,), (), 1 << 30),
    "in_a_loop": ((1, 2), (4,), 10),
    "in_a_long_loop": ((2, 1), (77,), 100),
    "in_two_loops": ((1, 3, 1), (2, 0), 3),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("where", PLACES)
def test_rows(where, step):
    place, inner, longest = PLACES[where]
    plain, traced = Draws(SEEDS), TracedDraws(SEEDS)
    for shape, n in (((5, 1), 3), ((64, 2), 1009)):
        wanted = plain.rows("rows_g", place, (step, *inner), shape, longest, n)
        assert torch.equal(traced.rows("rows_g", place, (torch.tensor(step), *inner), shape, longest, n), wanted)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("where", PLACES)
def test_numbers_of_the_method_and_noise(where, step):
    place, inner, longest = PLACES[where]
    plain, traced, now = Draws(SEEDS), TracedDraws(SEEDS), torch.tensor(step)
    wanted = torch.as_tensor(plain.uniform("method", place, (step, *inner), 6, longest))
    assert torch.equal(traced.uniform("method", place, (now, *inner), 6, longest), wanted)
    for purpose in ("method", "g_y"):
        wanted = torch.as_tensor(plain.normal(purpose, place, (step, *inner), 6, longest))
        torch.testing.assert_close(
            traced.normal(purpose, place, (now, *inner), 6, longest), wanted, rtol=1e-13, atol=1e-13
        )
    noise = plain.normal_vectors("f_x", place, (step, *inner), 6, longest, torch.float32)
    again = traced.normal_vectors("f_x", place, (now, *inner), 6, longest, torch.float32)
    torch.testing.assert_close(again, noise, rtol=1e-6, atol=1e-6)


def test_passes_over_the_data_cannot_be_traced():
    with pytest.raises(Untraceable, match="known only as it goes"):
        TracedDraws(SEEDS).uniform("epoch_g", (), (torch.tensor(3),), 4, 1)
