"""The constants of `quadratic` are attained."""

from __future__ import annotations

import pytest
import torch
from bilevelbench_problems import Quadratic
from tensors import joint_hessian, lower_hessian


@pytest.mark.parametrize("problem", [Quadratic(), Quadratic(kappa=50, L=3.0, reg=1.5), Quadratic(dim_x=1, dim_y=1)])
def test_constants_are_attained(problem: Quadratic) -> None:
    instance = problem.build()
    x0, y0, constants = instance.x0, instance.y0, instance.constants
    spectrum = torch.linalg.eigvalsh(lower_hessian(instance, x0, y0)[0])
    assert spectrum[0] == pytest.approx(constants.mu)
    assert spectrum[-1] == pytest.approx(constants.L_gy)
    assert spectrum[-1] == pytest.approx(problem.L)
    if problem.dim_y > 1:
        assert spectrum[0] == pytest.approx(problem.L / problem.kappa)
    for level in "fg":
        hessian = joint_hessian(instance.functions[f"value_{level}"], x0, y0)
        assert torch.linalg.matrix_norm(hessian, 2) == pytest.approx(constants[f"L_{level}"])
    assert torch.linalg.matrix_norm(instance.reference.hess_phi(x0), 2) == pytest.approx(constants.L_phi)


def test_delta_and_R_are_exact() -> None:
    instance = Quadratic().build()
    x0, reference = instance.x0, instance.reference
    x_min = x0 - torch.linalg.solve(reference.hess_phi(x0)[0], reference.grad_phi(x0)[0])
    torch.testing.assert_close(reference.grad_phi(x_min), torch.zeros_like(x0), rtol=0, atol=1e-10)
    assert float(reference.phi(x0) - reference.phi(x_min)) == pytest.approx(instance.constants.Delta)
    assert float((instance.y0 - reference.y_star(x0)).norm() ** 2) == pytest.approx(instance.constants.R)


def test_lanes_share_the_data() -> None:
    instance = Quadratic().build()
    assert not Quadratic.stackable()
    assert instance.take(torch.tensor([0, 2])) is instance
