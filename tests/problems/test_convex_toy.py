"""`convex_toy`: the optimistic value, and what is said to a method that needs strong convexity."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bilevelbench_problems import ConvexToy
from helpers import assert_conforms
from scipy.optimize import minimize
from tensors import check_bits, close, joint_hessian, lower_hessian, normal

import bilevelbench
from bilevelbench import Additive, Constants, Exact, MissingConstant, exact
from bilevelbench.engine.evaluator import Evaluator


@pytest.mark.parametrize("problem", [ConvexToy(dim=1), ConvexToy(dim=3, data_seed=4)], ids=repr)
def test_conformance(problem: ConvexToy) -> None:
    assert_conforms(problem)


def test_the_lower_level_does_not_see_half_of_y() -> None:
    instance = ConvexToy(dim=2).build()
    spectrum = torch.linalg.eigvalsh(lower_hessian(instance, instance.x0, instance.y0)[0])
    assert spectrum.tolist() == pytest.approx([0, 0, 1, 1], abs=1e-12)
    assert "mu" not in instance.constants.given
    assert instance.mu_at is None


def test_phi_is_the_best_value_of_f_over_all_lower_solutions() -> None:
    instance = ConvexToy(dim=3).build()
    x = normal(1, 3)

    def f(y_b: np.ndarray) -> float:
        y = torch.cat([x, torch.as_tensor(y_b)[None]], -1)
        assert float(instance.grad_g_y(x, y).abs().max()) < 1e-12  # a lower solution, whatever y_b is
        return float(instance.value_f(x, y))

    best = minimize(f, np.zeros(3))
    assert float(instance.reference.phi(x)) == pytest.approx(best.fun, abs=1e-9)
    close(instance.reference.y_star(x)[0, 3:], torch.as_tensor(best.x), 1e-5)
    slopes = [
        (instance.reference.phi(x + 1e-5 * e) - instance.reference.phi(x - 1e-5 * e)) / 2e-5 for e in torch.eye(3)
    ]
    close(instance.reference.grad_phi(x), torch.cat(slopes, -1), 1e-8)


def test_constants_are_attained() -> None:
    instance = ConvexToy(dim=2, data_seed=1).build()
    for level in "fg":
        hessian = joint_hessian(instance.functions[f"value_{level}"], instance.x0, instance.y0)
        assert torch.linalg.matrix_norm(hessian, 2) == pytest.approx(instance.constants[f"L_{level}"])
    assert float(instance.reference.phi(instance.x0)) == pytest.approx(instance.constants.Delta)
    distance = (instance.y0 - instance.reference.y_star(instance.x0)).square().sum()
    assert float(distance) == pytest.approx(instance.constants.R)


def test_the_metric_is_the_distance_from_the_solution() -> None:
    instance = ConvexToy(dim=4).build()
    x = torch.ones(2, 4)
    x[1] = 3
    assert instance.metrics["distance"](x, torch.zeros(2, 8)).flatten().tolist() == pytest.approx([0, 4])


def test_noise_is_exact_unless_asked_for() -> None:
    assert ConvexToy().build().noise == Exact()
    assert ConvexToy(sigma_f=0.5).build().noise == Additive(sigma_f=0.5)


def test_bits_do_not_depend_on_the_other_lanes() -> None:
    check_bits(ConvexToy().build())


# ---------------------------------------------------------------------------------------------- methods


def row(method: str, steps: int = 400):
    return bilevelbench.run(method, "convex_toy", steps=steps, jobs=0).runs.iloc[0]


@pytest.mark.parametrize("method", ["ba", "bsa"])
def test_a_default_that_needs_mu_is_refused_with_a_sentence(method: str) -> None:
    got = row(method)
    assert got.status == "error"
    said = "problem 'convex_toy' declares no constant 'mu' above zero, so its lower level may not be strongly convex"
    assert said in got.message
    assert f"(needed for {method}'s default" in got.message
    assert "set the parameter that depends on it yourself" in got.message


@pytest.mark.parametrize("mu", [exact(0), bilevelbench.Constant((1.0, 0.0))])
def test_a_mu_of_zero_is_none(mu) -> None:
    constants = Constants({"mu": mu, "L_gy": 1.0}, "flat")
    for ask in (lambda: constants.mu, lambda: constants.of_lanes("mu", torch.float64), lambda: constants.kappa):
        with pytest.raises(MissingConstant, match=r"'flat' declares no constant '(mu' above zero|L_f)"):
            ask()
    assert Constants({"mu": 0.5}).mu == 0.5


def test_without_a_closed_form_a_mu_of_zero_certifies_nothing() -> None:
    instance = ConvexToy(dim=1).build()
    known = {"mu": exact(0), "L_f": exact(2), "L_g": exact(2), "rho_g": exact(0)}
    bare = bilevelbench.Instance(instance.value_f, instance.value_g, instance.x0, instance.y0, constants=known)
    assert Evaluator(bare).certificate == "not certified"


def test_a_penalty_method_finds_the_optimistic_solution_and_an_implicit_one_does_not() -> None:
    """F2SA moves y_b through f_y/lam; AID by Richardson leaves it at its start, and ends at x = (y_b + e)/2."""
    found = bilevelbench.run(["f2sa", "aid[solver=richardson]"], "convex_toy", budget=12_000)
    ends = found.curve.groupby("trial_id").distance.last()
    distance = dict(zip(found.runs.algorithm, found.runs.trial_id.map(ends), strict=True))
    y_b = ConvexToy().build().y0[0, 5:]
    assert distance["f2sa"] < 1e-3
    assert distance["aid"] == pytest.approx(float((y_b - 1).norm()) / 2, rel=1e-3)
    assert distance["aid"] > 0.5


def test_a_linear_solver_that_trusts_strong_convexity_runs_away() -> None:
    assert row("aid", steps=5).status == "diverged"
