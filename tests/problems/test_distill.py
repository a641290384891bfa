"""`distill_*` against numpy and scikit-learn."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from bilevelbench_problems import DistillDigits, LogRegDigits
from scipy.special import logsumexp, softmax
from sklearn.linear_model import LogisticRegression
from tensors import check_against_differences, close, normal, some_rows

from bilevelbench import FiniteSum, Instance, InvalidInput
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.testing.checks.derivatives import check_derivatives
from bilevelbench.testing.checks.stacking import check_points

P = 64


class Numpy:
    """f, g and its derivative in y in numpy, for one point."""

    def __init__(self, problem: DistillDigits) -> None:
        (self.A, self.b), _ = ((a.numpy(), b.numpy()) for a, b in problem._data())
        self.labels, self.ridge = np.tile(np.arange(10), problem.per_class), problem.ridge

    def losses(self, A: np.ndarray, b: np.ndarray, y: np.ndarray) -> np.ndarray:
        Z = A @ y.reshape(10, P).T
        return logsumexp(Z, axis=1) - Z[np.arange(len(b)), b]

    def f(self, y: np.ndarray) -> float:
        return float(self.losses(self.A, self.b, y).mean())

    def g(self, x: np.ndarray, y: np.ndarray) -> float:
        return float(self.losses(x.reshape(-1, P), self.labels, y).mean() + 0.5 * self.ridge * y @ y)

    def g_y(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        X = x.reshape(-1, P)
        R = softmax(X @ y.reshape(10, P).T, axis=1)
        R[np.arange(len(X)), self.labels] -= 1
        return (R.T @ X / len(X)).ravel() + self.ridge * y


@functools.cache
def built(problem: DistillDigits) -> tuple[Instance, Numpy]:
    return problem.build(), Numpy(problem)


@pytest.fixture(params=[1, 3])
def both(request) -> tuple[Instance, Numpy]:
    return built(DistillDigits(per_class=request.param))


def test_sizes_and_start() -> None:
    problem = DistillDigits(per_class=2, data_seed=1)
    instance = problem.build()
    (A, b), (T, _) = problem._data()
    assert (instance.dx, instance.dy) == (2 * 640, 640)
    assert instance.noise == FiniteSum(n_f=899, n_g=20)
    assert len(T) == 1797 - 899
    images = instance.x0.reshape(20, P)
    for i, image in enumerate(images):  # a real image of the class that its row stands for
        same = (image == A).all(-1)
        assert same.any()
        assert i % 10 in b[same]
    assert len(images.unique(dim=0)) == 20
    (seen, labels), *_ = LogRegDigits(data_seed=1)._split()
    assert torch.equal(A, seen)
    assert torch.equal(b, labels)


def test_values_and_metrics(both) -> None:
    instance, plain = both
    x, y = normal(1, instance.dx), 3 * normal(1, instance.dy, seed=1)
    assert float(instance.value_g(x, y)) == pytest.approx(plain.g(x[0].numpy(), y[0].numpy()), rel=1e-12)
    assert float(instance.value_f(x, y)) == pytest.approx(plain.f(y[0].numpy()), rel=1e-12)


def test_derivatives_against_numpy(both) -> None:
    instance, plain = both
    check_against_differences(instance, plain, 2 * normal(1, instance.dy, seed=1))


@pytest.mark.parametrize("check", [check_derivatives, check_points])
def test_derivatives_with_several_images_per_class(check) -> None:
    check(DistillDigits(per_class=3))


def test_a_mini_batch_moves_its_own_images_only() -> None:
    instance, _ = built(DistillDigits())
    rows = some_rows(instance, 4, 3)
    rows.index.clamp_(max=9)
    moved = instance.grad_g_x(normal(4, 640), normal(4, 640, seed=1), rows).reshape(4, 10, P).abs().amax(-1) > 0
    assert torch.equal(moved, torch.zeros(4, 10, dtype=torch.bool).scatter(-1, rows.index, True))


def test_the_lower_solution_and_its_accuracy_are_those_of_scikit_learn() -> None:
    problem = DistillDigits(per_class=3)
    instance, plain = built(problem)
    y = Evaluator(instance)._solve_lower(instance.x0, instance.y0)
    model = LogisticRegression(C=1 / (30 * problem.ridge), fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(instance.x0.reshape(-1, P).numpy(), plain.labels)
    close(y.reshape(10, P), torch.as_tensor(model.coef_), 1e-5)
    T, t = problem._data()[1]
    assert float(instance.metrics["test_accuracy"](instance.x0, y)) == pytest.approx(model.score(T.numpy(), t.numpy()))


def test_constants_at_the_start() -> None:
    problem = DistillDigits()
    instance, _ = built(problem)
    constants, evaluator = instance.constants, Evaluator(instance)
    y = evaluator._solve_lower(instance.x0, instance.y0)
    found = evaluator(instance.x0, instance.y0)
    assert constants.mu == problem.ridge
    assert float(found.phi) <= constants.Delta == pytest.approx(float(found.phi), rel=1e-3)
    assert float(y.square().sum()) <= constants.R == pytest.approx(float(y.square().sum()), rel=1e-2)
    u = torch.nn.functional.normalize(normal(1, 640, seed=5))
    bend = (evaluator.grad_phi(instance.x0 + 1e-3 * u, y) - evaluator.grad_phi(instance.x0 - 1e-3 * u, y)) / 2e-3
    assert 0 < float(bend.norm()) <= constants.L_phi


def test_learned_images_are_worth_more_than_real_ones() -> None:
    instance, _ = built(DistillDigits())
    evaluator, x, y = Evaluator(instance), instance.x0, instance.y0
    first = evaluator._solve_lower(x, y)
    for _ in range(30):
        x = x - 0.5 / instance.constants.L_phi * evaluator.grad_phi(x, y)
    last = evaluator._solve_lower(x, y)
    real, learned = (float(instance.metrics["test_accuracy"](x, y)) for y in (first, last))
    assert learned > real + 0.05
    assert float(evaluator(x, y).phi) < float(evaluator(instance.x0, y).phi)


def test_pictures_go_from_black_to_white() -> None:
    instance, _ = built(DistillDigits(per_class=2))
    x = normal(instance.dx)
    (shown,) = instance.pictures(x, instance.y0[0]).values()
    assert shown.shape == (20, 8, 8)
    assert (shown.amin((-2, -1)) == 0).all()
    assert (shown.amax((-2, -1)) == 1).all()
    order = x.reshape(20, 64).argsort()
    assert torch.equal(shown.flatten(1).argsort(), order)
    (flat,) = instance.pictures(torch.ones(instance.dx), instance.y0[0]).values()
    assert (flat == 0).all()


def test_float32_sees_the_same_data() -> None:
    double = DistillDigits().build()
    torch.set_default_dtype(torch.float32)
    single = DistillDigits().build()
    torch.testing.assert_close(single.x0, double.x0.float())
    assert single.constants.given == double.constants.given


def test_more_images_than_there_are_is_a_sentence() -> None:
    with pytest.raises(
        InvalidInput, match=r"per_class = 900: distill_digits has a class of \d+ training images, .*take fewer"
    ):
        DistillDigits(per_class=900).build()
