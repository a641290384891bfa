"""`quadratic_sum` against numpy, term by term, and against its closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bilevelbench_problems import QuadraticSum
from helpers import assert_conforms
from pydantic import ValidationError
from tensors import check_bits, close, joint_hessian, lower_hessian, normal, some_rows

from bilevelbench import FiniteSum, InvalidInput, Rows

SMALL = QuadraticSum(n=40, m=30, dim_x=4, dim_y=6, data_seed=3)
PROBLEMS = [SMALL, QuadraticSum(n=20, m=25, dim_x=5, dim_y=2), QuadraticSum(n=30, dim_x=3, dim_y=3, cross=0.0)]
parametrize = pytest.mark.parametrize("problem", PROBLEMS, ids=repr)


def value_of_terms(terms, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Each term as the paper has it, one by one."""
    a, b, p, q, c, d = (getattr(terms, name).numpy() for name in "abpqcd")
    return np.array(
        [
            0.5 * (a[i] @ y) ** 2 + 0.5 * (b[i] @ x) ** 2 + (p[i] @ x) * (q[i] @ y) + c[i] @ y + d[i] @ x
            for i in range(len(a))
        ]
    )


@parametrize
def test_conformance(problem: QuadraticSum) -> None:
    assert_conforms(problem)


@parametrize
def test_values_are_means_of_the_terms(problem: QuadraticSum) -> None:
    instance = problem.build()
    g, f, _, _ = problem.draw()
    x, y = normal(1, problem.dim_x), normal(1, problem.dim_y, seed=1)
    assert instance.noise == FiniteSum(n_f=problem.m, n_g=problem.n)
    for terms, name in ((f, "value_f"), (g, "value_g")):
        each = value_of_terms(terms, x[0].numpy(), y[0].numpy())
        assert float(instance.functions[name](x, y)) == pytest.approx(each.mean(), rel=1e-12)
        rows = some_rows(instance, 1, 5)
        expected = (rows.weight[0].numpy() * each[rows.index[0].numpy()]).sum()
        assert float(instance.functions[name](x, y, rows)) == pytest.approx(expected, rel=1e-12)


def test_the_lower_solution_and_the_hypergradient_by_numpy() -> None:
    instance = SMALL.build()
    g, f, x0, _ = SMALL.draw()
    A, C = (np.mean([np.outer(u, v) for u, v in zip(*pair, strict=True)], 0) for pair in ((g.a, g.a), (g.p, g.q)))
    x = x0[0].numpy()
    y = -np.linalg.solve(A, C.T @ x + g.c.mean(0).numpy())
    close(instance.reference.y_star(x0)[0], torch.as_tensor(y))

    def phi(x: np.ndarray) -> float:
        y = -np.linalg.solve(A, C.T @ x + g.c.mean(0).numpy())
        return value_of_terms(f, x, y).mean()

    slopes = [(phi(x + 1e-5 * e) - phi(x - 1e-5 * e)) / 2e-5 for e in np.eye(len(x))]
    close(instance.reference.grad_phi(x0)[0], torch.as_tensor(slopes), 1e-8)


def test_bits_do_not_depend_on_the_other_lanes() -> None:
    instance = SMALL.build()
    check_bits(instance)
    check_bits(instance, some_rows(instance, 36, 5))


def test_constants_are_attained() -> None:
    instance = SMALL.build()
    x0, y0, constants = instance.x0, instance.y0, instance.constants
    spectrum = torch.linalg.eigvalsh(lower_hessian(instance, x0, y0)[0])
    assert spectrum[0] == pytest.approx(constants.mu)
    assert spectrum[-1] == pytest.approx(constants.L_gy)
    for level in "fg":
        hessian = joint_hessian(instance.functions[f"value_{level}"], x0, y0)
        assert torch.linalg.matrix_norm(hessian, 2) == pytest.approx(constants[f"L_{level}"])
    x_min = x0 - torch.linalg.solve(instance.reference.hess_phi(x0)[0], instance.reference.grad_phi(x0)[0])
    drop = instance.reference.phi(x0) - instance.reference.phi(x_min)
    assert float(drop) == pytest.approx(constants.Delta)
    assert float(instance.metrics["distance"](x_min, y0)) == pytest.approx(0, abs=1e-9)


def test_a_single_term_is_far_steeper_than_the_sum() -> None:
    problem = QuadraticSum()
    g = problem.draw()[0]
    steepest = float(g.a.square().sum(-1).max())
    assert steepest > 10 * problem.build().constants.L_gy


def test_the_spectrum_of_the_law_is_that_of_many_terms() -> None:
    constants = QuadraticSum(n=20_000, m=100, dim_x=2, dim_y=5, mu=0.2, L=3.0).build().constants
    assert constants.mu == pytest.approx(0.2, rel=0.1)
    assert constants.L_gy == pytest.approx(3.0, rel=0.1)


def test_data_seeds_differ() -> None:
    assert SMALL.model_copy(update={"data_seed": 4}).build().constants.Delta != SMALL.build().constants.Delta


def test_too_few_terms_for_a_strongly_convex_lower_level() -> None:
    with pytest.raises(ValidationError, match=r"n = 5 terms of rank one .* dim_y = 30; take n = 60 or more"):
        QuadraticSum(n=5)


def test_a_hyper_objective_that_is_never_convex_is_a_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"m = 1, .* phi was not convex in any of 20 draws; take a smaller cross"):
        QuadraticSum(n=60, m=1, dim_x=20, dim_y=5).build()


def test_copies_are_more_data_of_the_same_sum() -> None:
    once, thrice = SMALL.build(), SMALL.model_copy(update={"copies": 3}).build()
    assert thrice.noise == FiniteSum(n_f=3 * SMALL.m, n_g=3 * SMALL.n)
    x, y = normal(1, SMALL.dim_x), normal(1, SMALL.dim_y, seed=1)
    for name in ("value_f", "grad_g_y", "grad_f_x"):
        assert torch.equal(once.functions[name](x, y), thrice.functions[name](x, y))
    rows = some_rows(thrice, 1, 5)
    one = Rows(rows.index % SMALL.n, rows.weight)
    assert torch.equal(once.functions["grad_g_y"](x, y, one), thrice.functions["grad_g_y"](x, y, rows))
