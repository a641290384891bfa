"""AID with an x-step that adapts, against the method in numpy, and on slopes of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bilevelbench
from bilevelbench import Oracle, newton_step
from bilevelbench.model.own_functions import estimate_curvature, own_problem

F64 = torch.float64
A = np.diag([1.0, 2.0, 8.0])


def f(x, y):
    return 0.5 * (y - 1).square().sum() + 0.05 * x.square().sum()


def g(x, y):
    return 0.5 * y @ torch.as_tensor(A) @ y - x @ y


def plain(eta: float, steps: int) -> list[np.ndarray]:
    """Three products solve the lower level and the linear system: y = x/A, v = (y - 1)/A, d = x/10 + v."""
    x, before, theta, visited = np.zeros(3), None, 1.0, []
    for _ in range(steps):
        d = 0.1 * x + (x / A.diagonal() - 1) / A.diagonal()
        if before is not None:
            moved, changed = np.linalg.norm(x - before[0]), np.linalg.norm(d - before[1])
            new = min(np.sqrt(1 + theta) * eta, moved / (2 * changed))
            if np.linalg.norm(d) <= 2 * np.linalg.norm(before[1]):
                new = max(new, eta / 2)
            eta, theta = new, new / eta
        before = x, d
        x = x - eta * d
        visited.append(x)
    return visited


@pytest.mark.parametrize("eta", [1e-3, 0.3, 30.0], ids=["short", "fitting", "long"])
def test_steps_are_those_of_the_method_in_numpy(eta):
    visited = []
    zero = torch.zeros(3, dtype=F64)
    bilevelbench.solve(
        f, g, zero, zero, "aid_adgd", D=3, N=3, eta_x=eta, steps=12, evaluate="never",
        callback=lambda info: visited.append(info.x.numpy()),
    )  # fmt: skip
    np.testing.assert_allclose(visited[1:], plain(eta, 12), rtol=1e-6, atol=1e-9)


def test_gradient_steps_below_are_those_of_aid():
    """With one step of x there is nothing to adapt to."""
    start = torch.full((3,), 0.5, dtype=F64)
    aid, adaptive = (
        bilevelbench.solve(f, g, start, start, name, D=2, N=2, eta_x=0.1, steps=1, evaluate="never", **more)
        for name, more in (("aid", {}), ("aid_adgd", {"lower": "gd"}))
    )
    assert torch.equal(aid.x, adaptive.x)
    assert torch.equal(aid.y, adaptive.y)


def stepped(lower, y: float, products: int = 2) -> tuple[float, float, float]:
    """y after a Newton step on a function of one number, the gradient there, and the cost."""
    zero = torch.zeros(1, dtype=F64)
    instance = own_problem(f, lower, zero, zero, constants={"L_gy": 1.0}).instance
    estimate_curvature(instance)
    oracle = Oracle(instance, frozenset({"grad_g_y", "hvp_g_yy"}), [0])
    oracle.begin_step(0)
    x, at = zero[None], torch.full((1, 1), y, dtype=F64)

    def gradient(y):
        return oracle.grad_g_y(x, y)

    new, there = newton_step(oracle, gradient, lambda u: oracle.hvp_g_yy(x, at, u), at, gradient(at), products, 0.5)
    return float(new), float(there), oracle.meter.spent().cost


def test_a_newton_step_solves_a_quadratic():
    y, slope, cost = stepped(lambda x, y: 2 * (y - 3).square().sum(), 10.0)
    assert y == pytest.approx(3)
    assert slope == pytest.approx(0, abs=1e-12)
    assert cost <= 4


def test_a_newton_step_that_is_too_long_is_a_gradient_step():
    """Far out log cosh is nearly straight: Newton would go from 2 to -11."""
    y, slope, _ = stepped(lambda x, y: y.cosh().log().sum(), 2.0)
    assert y == pytest.approx(2 - 0.5 * np.tanh(2.0))
    assert slope == pytest.approx(np.tanh(y))


def test_without_positive_curvature_it_is_a_gradient_step():
    y, _, _ = stepped(lambda x, y: -0.5 * y.square().sum() + 0.25 * y.pow(4).sum(), 0.1)
    assert y == pytest.approx(0.1 - 0.5 * (0.001 - 0.1))
