"""Properties that all the problems with closed forms share."""

from __future__ import annotations

import pytest
import torch
from bilevelbench_problems import PowerTail, Quadratic, RidgeAbalone, TailAnchor, bilevelbench_problems
from helpers import assert_conforms

from bilevelbench import Additive, Exact, Problem

PROBLEMS = [
    Quadratic(),
    Quadratic(dim_x=1, dim_y=1),
    Quadratic(dim_x=5, dim_y=3, kappa=1, L=4.0, reg=2.0),
    PowerTail(),
    PowerTail(tails=1, rotate=False),
    TailAnchor(),
    TailAnchor(c=0.7, rotate=False),
    TailAnchor(saddle=True, q=2.0),
    TailAnchor(tails=2, anchors=3, c=0.3, saddle=True),
    RidgeAbalone(),
    RidgeAbalone(features="raw", data_seed=3),
]
parametrize = pytest.mark.parametrize("problem", PROBLEMS, ids=repr)


@parametrize
def test_conformance(problem: Problem) -> None:
    assert_conforms(problem)


@parametrize
def test_data_seed_changes_the_data(problem: Problem) -> None:
    one, other = (problem.model_copy(update={"data_seed": seed}).build() for seed in (1, 2))
    assert one.constants.Delta != other.constants.Delta


@parametrize
def test_float32_sees_the_same_data(problem: Problem) -> None:
    double = problem.build()
    torch.set_default_dtype(torch.float32)
    single = problem.build()
    assert single.x0.dtype == single.y0.dtype == torch.float32
    assert single.grad_g_y(single.x0, single.y0).dtype == single.reference.phi(single.x0).dtype == torch.float32
    torch.testing.assert_close(single.x0, double.x0.float())
    assert single.constants.given == double.constants.given
    expected = double.grad_g_y(double.x0, double.y0).float()
    torch.testing.assert_close(single.grad_g_y(single.x0, single.y0), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cls", [Quadratic, PowerTail, TailAnchor])
def test_noise_is_exact_unless_asked_for(cls: type[Problem]) -> None:
    assert cls().build().noise == Exact()
    assert cls(sigma_g=0.5).build().noise == Additive(sigma_g=0.5)


def test_names_are_unique() -> None:
    names = [cls.name for cls in bilevelbench_problems()]
    assert len(set(names)) == len(names) > 0
