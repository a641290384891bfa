"""`washboard` and its A3 form: closed forms, and the powers of the condition number that they are made for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from bilevelbench_problems import Washboard, WashboardA3
from helpers import assert_conforms
from scipy.optimize import brentq
from tensors import check_bits, lower_hessian

from bilevelbench import Problem
from bilevelbench.testing import run_checks

SMOOTH = [Washboard(), Washboard(kappa=2), WashboardA3(), WashboardA3(kappa=4)]
ROUGH = [Washboard(kappa=40, q=2.0), WashboardA3(kappa=100)]
PROBLEMS = [*SMOOTH, *ROUGH]
parametrize = pytest.mark.parametrize("problem", PROBLEMS, ids=repr)


@pytest.mark.parametrize("problem", SMOOTH, ids=repr)
def test_conformance(problem: Problem) -> None:
    assert_conforms(problem)


@pytest.mark.parametrize("problem", ROUGH, ids=repr)
def test_conformance_where_the_steps_of_the_kit_are_longer_than_a_well(problem: Problem) -> None:
    """Differences of phi along x_2 are taken below, with steps that suit its width."""
    failed = {outcome.check for outcome in run_checks(problem) if outcome.status == "failed"}
    assert failed <= {"hypergradient", "hessian_of_phi"}


@parametrize
def test_the_lower_solution_is_that_of_a_root_finder(problem) -> None:
    instance, mu, w = problem.build(), 1 / problem.kappa, problem.width()
    for s in (-7.3, -0.5, 0.0, 1.0, 12.0):
        x = torch.tensor([[0.3, s * mu * w]])
        root = brentq(lambda u, s=s: 1.5 * u - 0.5 * math.cos(u) - s, -20, 20, xtol=1e-15)
        y = instance.reference.y_star(x)[0]
        assert y.tolist() == pytest.approx([0.3, w * root], rel=1e-12)
        phi = float(instance.value_f(x, torch.tensor([[0.3, w * root]])))
        assert float(instance.reference.phi(x)) == pytest.approx(phi, rel=1e-9, abs=1e-12)


@parametrize
def test_the_rough_direction_against_differences_of_the_root(problem) -> None:
    instance, mu, w = problem.build(), 1 / problem.kappa, problem.width()
    for s in (4.0, 5.2, 6.5):
        x, h = torch.tensor([[0.0, s * mu * w]]), 1e-5 * mu * w
        shift = torch.tensor([[0.0, h]])
        for function, derivative in (
            (instance.reference.phi, instance.reference.grad_phi(x)[0, 1]),
            (lambda x: instance.reference.grad_phi(x)[:, 1:], instance.reference.hess_phi(x)[0, 1, 1]),
        ):
            slope = float((function(x + shift) - function(x - shift)) / (2 * h))
            assert float(derivative) == pytest.approx(slope, rel=1e-5)


@parametrize
def test_the_lower_curvature_is_between_mu_and_twice_mu_and_attained(problem) -> None:
    instance, mu, w = problem.build(), 1 / problem.kappa, problem.width()
    low, high = (torch.tensor([[0.0, side * math.pi / 2 * w]]) for side in (-1, 1))
    x = torch.zeros(1, 2)
    assert lower_hessian(instance, x, low)[0].diagonal().tolist() == pytest.approx([1, mu])
    assert lower_hessian(instance, x, high)[0].diagonal().tolist() == pytest.approx([1, 2 * mu])
    assert instance.constants.mu == pytest.approx(mu)


@pytest.mark.parametrize(("cls", "power", "bent"), [(Washboard, 3, 0.0), (WashboardA3, 2.5, 0.5)])
def test_the_roughness_grows_with_its_power_of_kappa(cls, power: float, bent: float) -> None:
    """The curvature at the bottom of the well, u = pi, and the third derivative of g."""
    curvatures, thirds, fourths = [], [], []
    for kappa in (8, 16, 32):
        problem = cls(kappa=kappa)
        instance, mu, w = problem.build(), 1 / kappa, problem.width()
        bottom = torch.tensor([[0.0, (1.5 * math.pi + 0.5) * mu * w]])
        assert float(instance.reference.grad_phi(bottom)[0, 1]) == pytest.approx(0, abs=1e-12 / mu)
        curvatures.append(float(instance.reference.hess_phi(bottom)[0, 1, 1]))
        thirds.append(instance.constants.rho_g)
        fourths.append(instance.constants.given["nu_g"].most)
    assert np.diff(np.log2(curvatures)) == pytest.approx([power, power])
    assert np.diff(np.log2(thirds)) == pytest.approx([-bent, -bent], abs=1e-12)
    if cls is Washboard:
        assert curvatures[0] == pytest.approx(0.5 / 1.5**3 * 8**3)
        assert thirds == pytest.approx([0.5] * 3)
    else:
        assert fourths == pytest.approx([0.5] * 3)


@pytest.mark.parametrize("kappa", [8, 16])
def test_gradient_descent_stays_in_the_well_up_to_the_predicted_step_only(kappa: int) -> None:
    """13.5 mu^3 = 2 / phi''; twice as long a step leaves the bottom."""
    problem = Washboard(kappa=kappa)
    instance, mu = problem.build(), 1 / kappa
    means = []
    for factor in (6.0, 27.0):
        x, sizes = instance.x0.clone(), []
        for _ in range(200):
            gradient = instance.reference.grad_phi(x)[:, 1:]
            sizes.append(float(gradient.abs()))
            x = x - factor * mu**3 * torch.cat([torch.zeros_like(gradient), gradient], -1)
        means.append(float(np.mean(sizes[-50:])))
    assert means[0] < 1e-6 < means[1]


def test_L_phi_is_not_declared_and_comes_from_the_formula_for_all() -> None:
    constants = Washboard(kappa=16).build().constants
    assert "L_phi" not in constants.given
    assert constants.L_phi > 0.235 * 16**3


def test_the_start_is_in_a_well() -> None:
    problem = Washboard(kappa=16, data_seed=2)
    instance, mu = problem.build(), 1 / 16
    assert float(instance.x0[0, 1]) == pytest.approx((1.5 * math.pi + 0.8) * mu**2)
    assert instance.y0[0].tolist() == pytest.approx([0, math.pi * mu])
    assert abs(float(instance.x0[0, 0])) <= 0.5


def test_bits_do_not_depend_on_the_other_lanes() -> None:
    check_bits(Washboard().build())


def test_lanes_have_starts_of_their_own() -> None:
    stacked = Washboard().build_lanes((0, 1, 2))
    picked = stacked.take(torch.tensor([2, 0]))
    assert torch.equal(picked.x0, stacked.x0[[2, 0]])
    single = Washboard(data_seed=2).build()
    assert picked.constants.given["Delta"].value[0] == pytest.approx(single.constants.Delta)
