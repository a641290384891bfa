"""`ridge_abalone` against its data, and against solvers that know nothing of its closed forms."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from bilevelbench_problems import RidgeAbalone, ridge_abalone
from scipy.optimize import minimize, minimize_scalar

from bilevelbench import InvalidInput


def split(problem: RidgeAbalone) -> tuple[np.ndarray, ...]:
    """A_train, b_train, A_val, b_val, made in another way."""
    A, b = (t.numpy() for t in ridge_abalone._abalone())
    if problem.features == "scaled":
        A = np.stack([np.interp(column, [column.min(), column.max()], [-1, 1]) for column in A.T], 1)
    order = torch.randperm(4177, generator=torch.Generator().manual_seed(problem.data_seed)).numpy()
    return A[order[:2924]], b[order[:2924]], A[order[2924:]], b[order[2924:]]


@pytest.fixture(params=["scaled", "raw"])
def problem(request: pytest.FixtureRequest) -> RidgeAbalone:
    return RidgeAbalone(features=request.param)


def test_data() -> None:
    A, b = ridge_abalone._abalone()
    assert A.shape == (4177, 8)
    assert A[0].tolist() == [1, 0.455, 0.365, 0.095, 0.514, 0.2245, 0.101, 0.15]
    assert b[:3].tolist() == [15, 7, 9]
    assert (b.min(), b.max()) == (1, 29)
    assert [int((A[:, 0] == code).sum()) for code in (1, 2, 3)] == [1528, 1307, 1342]  # M, F, I


def test_damaged_data_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size: b"M,0.455")
    with pytest.raises(InvalidInput, match="damaged"):
        RidgeAbalone().build()


def test_functions_are_sums_over_the_rows(problem: RidgeAbalone) -> None:
    instance = problem.build()
    A, b, A_val, b_val = split(problem)
    y = np.random.default_rng(0).normal(size=8)
    at = torch.tensor([[-1.3]]), torch.tensor(y[None])
    assert float(instance.value_f(*at)) == pytest.approx(0.5 * np.sum((A_val @ y - b_val) ** 2))
    assert float(instance.value_g(*at)) == pytest.approx(0.5 * np.sum((A @ y - b) ** 2) + 0.5 * np.exp(-1.3) * y @ y)
    assert float(instance.metrics["val_rmse"](*at)) == pytest.approx(np.sqrt(np.mean((A_val @ y - b_val) ** 2)))
    assert float(instance.metrics["train_rmse"](*at)) == pytest.approx(np.sqrt(np.mean((A @ y - b) ** 2)))


@pytest.mark.parametrize("x", [-4.0, 0.0, 1.5])
def test_phi_against_a_numerical_lower_solve(problem: RidgeAbalone, x: float) -> None:
    A, b, A_val, b_val = split(problem)
    s = np.exp(x)
    scale = 1 / np.sqrt(np.sum(A * A, 0) + s)  # the solver sees a well-scaled problem

    def g(z: np.ndarray) -> tuple[float, np.ndarray]:
        y, r = scale * z, A @ (scale * z) - b
        return 0.5 * r @ r + 0.5 * s * y @ y, scale * (A.T @ r + s * y)

    def hess(z: np.ndarray) -> np.ndarray:
        return scale[:, None] * (A.T @ A + s * np.eye(8)) * scale

    found = minimize(g, np.zeros(8), jac=True, hess=hess, method="trust-exact", options={"gtol": 1e-7, "maxiter": 1000})
    y = scale * found.x
    reference, point = problem.build().reference, torch.tensor([[x]])
    np.testing.assert_allclose(reference.y_star(point).numpy()[0], y, rtol=1e-6, atol=1e-6)
    assert float(reference.phi(point)) == pytest.approx(0.5 * np.sum((A_val @ y - b_val) ** 2), rel=1e-7)


def test_the_default_split_has_an_interior_minimum(problem: RidgeAbalone) -> None:
    instance = problem.build()
    reference = instance.reference

    def phi(x: float) -> float:
        return float(reference.phi(torch.tensor([[x]])))

    found = minimize_scalar(phi, bounds=(-6, 2), method="bounded", options={"xatol": 1e-10})
    at = torch.tensor([[found.x]])
    assert found.x == pytest.approx({"scaled": -0.71, "raw": -1.71}[problem.features], abs=0.01)
    assert abs(float(reference.grad_phi(at))) < 1e-3
    assert float(reference.hess_phi(at)) > 0
    assert phi(-20.0) > found.fun + 1
    assert phi(0.0) - found.fun == pytest.approx(instance.constants.Delta, rel=1e-6)
    assert float(reference.y_star(instance.x0).norm() ** 2) == pytest.approx(instance.constants.R)


def test_delta_of_a_split_without_a_minimum() -> None:
    instance = RidgeAbalone(data_seed=1).build()
    phi = instance.reference.phi
    assert float(phi(torch.tensor([[0.0]])) - phi(torch.tensor([[-40.0]]))) == pytest.approx(instance.constants.Delta)


def test_mu_is_approached_and_estimates_are_marked() -> None:
    instance = RidgeAbalone().build()
    x, y = torch.tensor([[-40.0]]), instance.y0
    H = torch.stack([instance.hvp_g_yy(x, y, e.expand(1, 8))[0] for e in torch.eye(8)])
    assert torch.linalg.eigvalsh(H)[0] == pytest.approx(instance.constants.mu, rel=1e-6)
    kinds = {name: constant.kind for name, constant in instance.constants.given.items()}
    assert {name for name, kind in kinds.items() if kind == "estimated"} == {"L_gy", "L_g", "rho_g", "C_f", "L_phi"}
