"""`cosine_kappa` against numpy and scipy, which know nothing of its derivatives."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from bilevelbench_problems import CosineKappa
from helpers import assert_conforms
from scipy.optimize import minimize
from scipy.special import logsumexp
from tensors import check_bits, close, joint_hessian, lower_hessian, normal

from bilevelbench import Instance
from bilevelbench.engine.evaluator import Evaluator

PROBLEM = CosineKappa(dim=6, kappa=50)


class Numpy:
    """f and g as the paper has them."""

    def __init__(self, problem: CosineKappa) -> None:
        data = problem._draw()
        self.c, (self.D1, self.D2, self.Q) = problem.c, (t.numpy() for t in (data.D1, data.D2, data.Q))

    def f(self, x: np.ndarray, y: np.ndarray) -> float:
        return 0.1 * np.cos(x @ np.diag(self.D1) @ y) + 0.5 * np.sum((np.diag(self.D2) @ x - y) ** 2)

    def g(self, x: np.ndarray, y: np.ndarray) -> float:
        return self.c * np.sin(x + y).sum() + logsumexp(x * y) + 0.5 * y @ self.Q @ y

    def solve(self, x: np.ndarray) -> np.ndarray:
        return minimize(functools.partial(self.g, x), np.zeros_like(x), method="BFGS", options={"gtol": 1e-10}).x


@pytest.fixture
def instance() -> Instance:
    return PROBLEM.build()


def test_values(instance: Instance) -> None:
    plain, x, y = Numpy(PROBLEM), normal(1, 6), normal(1, 6, seed=1)
    assert float(instance.value_f(x, y)) == pytest.approx(plain.f(x[0].numpy(), y[0].numpy()))
    assert float(instance.value_g(x, y)) == pytest.approx(plain.g(x[0].numpy(), y[0].numpy()))


@pytest.mark.parametrize("problem", [PROBLEM, CosineKappa(dim=1, kappa=1, c=0.0), CosineKappa(data_seed=2)], ids=repr)
def test_conformance(problem: CosineKappa) -> None:
    assert_conforms(problem)


def test_the_hypergradient_is_the_slope_of_phi_by_scipy(instance: Instance) -> None:
    plain, x = Numpy(PROBLEM), 0.5 * normal(1, 6, seed=3)

    def phi(x: np.ndarray) -> float:
        return plain.f(x, plain.solve(x))

    evaluator = Evaluator(instance)
    here = x[0].numpy()
    close(evaluator._solve_lower(x, instance.y0)[0], torch.as_tensor(plain.solve(here)), 1e-6)
    slopes = [(phi(here + 1e-3 * e) - phi(here - 1e-3 * e)) / 2e-3 for e in np.eye(6)]
    close(evaluator.grad_phi(x, instance.y0)[0], torch.as_tensor(slopes), 1e-4)


@pytest.mark.parametrize("kappa", [1.0, 50.0, 1e4])
def test_the_spectrum_has_the_condition_number_that_was_asked_for(kappa: float) -> None:
    data = CosineKappa(dim=8, kappa=kappa, c=0.0)._draw()
    spectrum = torch.linalg.eigvalsh(data.Q)  # c = 0: no D3
    assert spectrum[0] == pytest.approx(1)
    assert spectrum[-1] == pytest.approx(kappa)


def test_mu_is_a_bound_where_the_sine_bends_most(instance: Instance) -> None:
    """At x + y = pi/2 the sine takes c off, at x = 0 nothing is added; D3 is at most c."""
    x = torch.zeros(1, 6)
    y = torch.full((1, 6), np.pi / 2)
    lowest = float(torch.linalg.eigvalsh(lower_hessian(instance, x, y)[0])[0])
    assert lowest == pytest.approx(instance.constants.mu, rel=1e-6)
    assert 0.5 <= lowest <= 1


def test_estimates_hold_at_the_start(instance: Instance) -> None:
    x0, y0, constants = instance.x0, instance.y0, instance.constants
    for level in "fg":
        hessian = joint_hessian(instance.functions[f"value_{level}"], x0, y0)
        assert torch.linalg.matrix_norm(hessian, 2) <= constants[f"L_{level}"]
    assert torch.linalg.eigvalsh(lower_hessian(instance, x0, y0)[0])[-1] <= constants.L_gy
    assert {name for name, c in constants.given.items() if c.kind == "estimated"} == {
        "L_gy", "L_g", "rho_g", "L_f", "rho_f", "C_f", "L_phi",
    }  # fmt: skip


def test_L_phi_is_the_curvature_on_the_way_to_zero(instance: Instance) -> None:
    evaluator, sizes = Evaluator(instance), []
    for share in (1.0, 0.5, 0.0):
        x = share * instance.x0
        columns = [
            (evaluator.grad_phi(x + 1e-4 * e, instance.y0) - evaluator.grad_phi(x - 1e-4 * e, instance.y0)) / 2e-4
            for e in torch.eye(6)
        ]
        sizes.append(float(torch.linalg.matrix_norm(torch.cat(columns), 2)))
    assert instance.constants.L_phi == pytest.approx(max(sizes), rel=0.05)


def test_certificate_and_start(instance: Instance) -> None:
    evaluator = Evaluator(instance)
    assert evaluator.certificate == "estimated"  # mu is known to hold
    found = evaluator(instance.x0, instance.y0)
    assert float(found.phi) + 0.1 == pytest.approx(instance.constants.Delta)
    assert float(found.error) < 1e-6


def test_bits_do_not_depend_on_the_other_lanes() -> None:
    check_bits(PROBLEM.build())
