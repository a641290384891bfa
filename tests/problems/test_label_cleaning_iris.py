"""`label_cleaning_iris`, the small form of the cleaning problems, against numpy and scikit-learn."""

from __future__ import annotations

import pytest
import torch
from bilevelbench_problems import LabelCleaningIris
from helpers import assert_conforms
from plain_cleaning import PlainCleaning
from pydantic import ValidationError
from sklearn.linear_model import LogisticRegression
from tensors import check_against_differences, check_bits, close, joint_hessian, lower_hessian, normal

from bilevelbench import FiniteSum
from bilevelbench.engine.evaluator import Evaluator

PROBLEM = LabelCleaningIris(data_seed=1)


def test_functions_and_derivatives() -> None:
    instance, plain = PROBLEM.build(), PlainCleaning(PROBLEM)
    assert (instance.dx, instance.dy) == (len(plain.b), 12)
    assert instance.noise == FiniteSum(n_f=len(plain.v), n_g=len(plain.b))
    x, y = normal(1, instance.dx), 3 * normal(1, 12, seed=1)
    assert float(instance.value_g(x, y)) == pytest.approx(plain.g(x[0].numpy(), y[0].numpy()), rel=1e-12)
    assert float(instance.value_f(x, y)) == pytest.approx(plain.f(y[0].numpy()), rel=1e-12)
    check_against_differences(instance, plain, y)


def test_conformance() -> None:
    assert_conforms(PROBLEM)


def test_bits_do_not_depend_on_the_other_lanes() -> None:
    check_bits(PROBLEM.build())


def test_the_lower_solution_is_that_of_scikit_learn() -> None:
    instance, plain = PROBLEM.build(), PlainCleaning(PROBLEM)
    y = Evaluator(instance)._solve_lower(instance.x0, instance.y0)
    model = LogisticRegression(C=0.5 / (len(plain.b) * PROBLEM.ridge), fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(plain.A, plain.b)
    close(y.reshape(3, 4), torch.as_tensor(model.coef_), 1e-5)


def test_constants() -> None:
    instance = PROBLEM.build()
    x, y, constants = instance.x0, instance.y0, instance.constants
    spectrum = torch.linalg.eigvalsh(lower_hessian(instance, x, normal(1, 12))[0])
    assert float(spectrum[0]) == pytest.approx(constants.mu)
    assert float(spectrum[-1]) <= constants.L_gy
    assert float(torch.linalg.matrix_norm(joint_hessian(instance.value_g, x, y), 2)) <= constants.L_g
    found = Evaluator(instance)(x, y)
    assert float(found.phi) == pytest.approx(constants.Delta)


@pytest.mark.parametrize("data_seed", [0, 7])
def test_wrong_labels_are_those_of_the_mask(data_seed: int) -> None:
    problem = LabelCleaningIris(data_seed=data_seed)
    (A, given), _, _, wrong = problem._data()
    (A_right, right), *_ = problem.rows(data_seed=data_seed)._split()
    assert torch.equal(A, A_right)
    assert torch.equal(given != right, wrong)
    assert int(wrong.sum()) == round(0.3 * len(right))
    assert given.unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("corruption", [0.0, 1.0])
def test_some_labels_are_wrong(corruption: float) -> None:
    with pytest.raises(ValidationError, match="corruption"):
        LabelCleaningIris(corruption=corruption)
