"""`representation_*` against numpy and scikit-learn, and what few-shot tasks are drawn from."""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest
import torch
from bilevelbench_problems import RepresentationDigits, RepresentationOmniglot
from bilevelbench_problems.embeddings import embedding, start
from bilevelbench_problems.few_shot import Tasks
from helpers import assert_conforms
from pydantic import ValidationError
from scipy.signal import correlate2d
from scipy.special import logsumexp
from sklearn.linear_model import Ridge
from tensors import close, lower_hessian, normal

import bilevelbench
from bilevelbench import FiniteSum, Instance, InvalidInput
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.testing.checks.derivatives import check_derivatives
from bilevelbench.testing.checks.noise import check_noise

SMALL = {"tasks": 3, "test_tasks": 2, "ways": 3, "shots": 2, "queries": 3, "width": 2}
KINDS = ["linear", "mlp", "cnn"]
PROBLEMS = [
    RepresentationDigits(embedding=e, loss=loss, **SMALL) for e in KINDS for loss in ("squared", "cross_entropy")
]
parametrize = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p.embedding}-{p.loss}")


@functools.cache
def built(problem: RepresentationDigits) -> Instance:
    return problem.build()


def embed(problem: RepresentationDigits, x: np.ndarray, images: np.ndarray) -> np.ndarray:
    """(rows, width) in numpy."""
    parts, place = [], 0
    for shape in embedding(problem.embedding, 8, problem.width).shapes:
        size = int(np.prod(shape))
        parts.append(x[place : place + size].reshape(shape))
        place += size
    assert place == len(x)
    if problem.embedding == "linear":
        return images @ parts[0]
    if problem.embedding == "mlp":
        return np.tanh(images @ parts[0] + parts[1]) @ parts[2]
    return np.stack([_convolved(image.reshape(1, 8, 8), parts) for image in images])


def _convolved(Z: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    for F, b in (parts[:2], parts[2:4]):
        Z = np.stack([sum(correlate2d(z, f, "same") for z, f in zip(Z, fs, strict=True)) for fs in F])
        Z = np.tanh(Z + b[:, None, None])
        Z = Z.reshape(len(Z), Z.shape[1] // 2, 2, Z.shape[2] // 2, 2).mean((2, 4))
    return Z.ravel() @ parts[4]


def values(problem: RepresentationDigits, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """f and g, task by task and image by image."""
    tasks, _, _ = problem._draw()
    heads = y.reshape(problem.tasks, problem.ways, problem.width + 1)
    f, g = [], []
    for t, Y in enumerate(heads):
        for images, targets, out in (
            (tasks.support[t], tasks.support_targets[t], g),
            (tasks.query[t], tasks.query_targets[t], f),
        ):
            E = np.c_[embed(problem, x, images.numpy()), np.ones(len(images))]
            Z, T = E @ Y.T, targets.numpy().T
            each = 0.5 * ((Z - T) ** 2).sum(1) if problem.loss == "squared" else logsumexp(Z, axis=1) - (Z * T).sum(1)
            out.append(each.mean())
        g[-1] += 0.5 * problem.l2 * (Y**2).sum()
    return float(np.mean(f)), float(np.sum(g))


@parametrize
def test_values(problem: RepresentationDigits) -> None:
    instance = built(problem)
    x, y = 0.5 * normal(1, instance.dx), normal(1, instance.dy, seed=1)
    f, g = values(problem, x[0].numpy(), y[0].numpy())
    assert float(instance.value_f(x, y)) == pytest.approx(f, rel=1e-10)
    assert float(instance.value_g(x, y)) == pytest.approx(g, rel=1e-10)


@pytest.mark.parametrize(
    "problem",
    [pytest.param(p, marks=pytest.mark.slow if p.embedding == "cnn" else ()) for p in PROBLEMS],
    ids=lambda p: f"{p.embedding}-{p.loss}",
)
def test_conformance(problem: RepresentationDigits) -> None:
    assert built(problem).noise == FiniteSum(3, 3)
    assert_conforms(problem)


@pytest.mark.parametrize("check", [check_derivatives, check_noise])
@pytest.mark.parametrize("problem", PROBLEMS[-2:], ids=lambda p: p.loss)
def test_derivatives_and_rows_through_convolutions(problem: RepresentationDigits, check) -> None:
    check(problem)


@pytest.mark.parametrize("problem", PROBLEMS[::2], ids=lambda p: p.embedding)
def test_the_lower_solution_is_that_of_scikit_learn_task_by_task(problem: RepresentationDigits) -> None:
    instance, (tasks, _, x0) = built(problem), problem._draw()
    heads = instance.reference.y_star(instance.x0).reshape(3, 3, 3)
    for t in range(3):
        E = embed(problem, x0[0].numpy(), tasks.support[t].numpy())
        E = np.c_[E, np.ones(len(E))]
        model = Ridge(alpha=problem.l2 * len(E), fit_intercept=False).fit(E, tasks.support_targets[t].numpy().T)
        close(heads[t], torch.as_tensor(model.coef_), 1e-9)


@pytest.mark.parametrize("problem", PROBLEMS[::2], ids=lambda p: p.embedding)
def test_the_hypergradient_is_the_slope_of_phi(problem: RepresentationDigits) -> None:
    instance = built(problem)
    x, d = instance.x0, torch.nn.functional.normalize(normal(5, instance.dx, seed=2))
    high, low = (instance.reference.phi(x + s * d) for s in (1e-5, -1e-5))
    close((instance.reference.grad_phi(x) * d).sum(-1, keepdim=True), (high - low) / 2e-5, 1e-7)
    v = Evaluator(instance)._solve_linear(
        x, instance.reference.y_star(x), instance.grad_f_y(x, instance.reference.y_star(x))
    )
    y = instance.reference.y_star(x)
    close(instance.grad_f_x(x, y) - instance.jvp_g_xy(x, y, v), instance.reference.grad_phi(x), 1e-7)


@parametrize
def test_the_lower_hessian_has_a_block_for_each_task_and_mu_holds(problem: RepresentationDigits) -> None:
    instance = built(problem)
    x, y = normal(1, instance.dx, seed=4), normal(1, instance.dy, seed=5)
    H = lower_hessian(instance, x, y)[0]
    inside = torch.block_diag(*[torch.ones(9, 9)] * 3) > 0
    assert H[~inside].abs().max() < 1e-12
    lowest = float(torch.linalg.eigvalsh(H)[0])
    assert lowest >= instance.constants.mu * (1 - 1e-9)
    if instance.constants.given["mu"].kind == "exact":
        assert lowest == pytest.approx(problem.l2)


def test_mu_is_exact_where_images_are_fewer_than_inputs() -> None:
    wide = RepresentationDigits(**SMALL | {"width": 8, "shots": 1}).build()
    assert wide.constants.given["mu"].kind == "exact"
    assert built(PROBLEMS[0]).constants.given["mu"].kind == "bound"  # 6 images for 3 inputs
    lowest = torch.linalg.eigvalsh(lower_hessian(wide, wide.x0, wide.y0)[0])[0]
    assert float(lowest) == pytest.approx(wide.constants.mu)


def test_the_metric_is_the_accuracy_of_fresh_heads_on_other_digits() -> None:
    problem, instance = PROBLEMS[0], built(PROBLEMS[0])
    _, tests, _ = problem._draw()
    x, right = normal(1, instance.dx, seed=6), []
    for t in range(2):
        E, Q = (
            np.c_[embed(problem, x[0].numpy(), part[t].numpy()), np.ones(len(part[t]))]
            for part in (tests.support, tests.query)
        )
        model = Ridge(alpha=problem.l2 * len(E), fit_intercept=False).fit(E, tests.support_targets[t].numpy().T)
        right.append(model.predict(Q).argmax(1) == tests.query_targets[t].numpy().argmax(0))
    assert float(instance.metrics["test_accuracy"](x, instance.y0)) == pytest.approx(np.mean(right))


def test_descent_on_phi_makes_other_tasks_easier() -> None:
    instance = RepresentationDigits(tasks=30, test_tasks=100).build()
    x = instance.x0
    before = float(instance.metrics["test_accuracy"](x, instance.y0))
    for _ in range(200):
        x = x - 0.5 / instance.constants.L_phi * instance.reference.grad_phi(x)
    assert float(instance.reference.phi(x)) < 0.8 * float(instance.reference.phi(instance.x0))
    assert float(instance.metrics["test_accuracy"](x, instance.y0)) > before


@pytest.mark.parametrize("far", [1e200, float("inf"), float("nan")])
def test_an_x_that_has_run_away_has_no_value_and_spoils_no_other_lane(far: float) -> None:
    instance = built(PROBLEMS[0])
    x = instance.x0.expand(2, -1).clone()
    x[1] = far
    for closed_form in (instance.reference.phi, instance.reference.grad_phi, instance.reference.y_star):
        answer = closed_form(x)
        close(answer[:1], closed_form(instance.x0), 1e-12)
        assert not answer[1].isfinite().all()


def test_cross_entropy_is_solved_and_certified_as_an_estimate() -> None:
    instance = built(PROBLEMS[1])
    assert instance.reference is None
    evaluator = Evaluator(instance)
    assert evaluator.certificate == "estimated"
    assert float(evaluator(instance.x0, instance.y0).phi) <= instance.constants.Delta


# ---------------------------------------------------------------------------------------------- tasks


def test_support_and_queries_of_a_task_are_other_images_of_the_same_classes() -> None:
    classes = torch.arange(4 * 6, dtype=torch.float64).reshape(4, 6, 1)
    tasks = Tasks.draw(classes, ways=3, shots=2, queries=4, count=20, rng=torch.Generator().manual_seed(0))
    for support, query in zip(tasks.support, tasks.query, strict=True):
        assert len(torch.cat([support, query]).unique()) == 3 * 6
        for c in range(3):
            owner = support[2 * c : 2 * c + 2] // 6
            assert (owner == owner[0]).all()
            assert (query[4 * c : 4 * c + 4] // 6 == owner[0]).all()
    assert tasks.support_targets[0].argmax(0).tolist() == [0, 0, 1, 1, 2, 2]


def test_more_shots_than_drawings_is_a_sentence() -> None:
    """Before anything is read."""
    sentence = r"shots = 90 and queries = 11 take 101 images of a class, and it has 100; take fewer shots or queries"
    with pytest.raises(InvalidInput, match=sentence):
        bilevelbench.run("f2ba", "representation_digits[shots=90,queries=11]", steps=1)
    with pytest.raises(ValidationError, match=r"shots = 6 and queries = 15 take 21 images of a class, and it has 20"):
        RepresentationOmniglot(shots=6)


def test_more_ways_than_classes_is_a_sentence() -> None:
    with pytest.raises(
        ValidationError, match=r"ways = 4: there are only 3 classes to draw a test task from; take fewer"
    ):
        RepresentationDigits(ways=4)


def test_classes_and_drawings_are_as_many_as_is_said() -> None:
    known, unseen = RepresentationDigits()._classes()
    assert unseen.shape[:2] == (RepresentationDigits.classes, RepresentationDigits.drawings)
    assert known.shape[1] == RepresentationDigits.drawings
    assert len(known) >= len(unseen)


@pytest.mark.parametrize("kind", KINDS)
def test_start_is_normal_over_the_root_of_the_inputs(kind: str) -> None:
    made = embedding(kind, 14, 32)
    x = start(made, torch.Generator().manual_seed(0))[0]
    first = made.shapes[0]
    size, meet = int(np.prod(first)), (196 if kind != "cnn" else 9)
    assert float(x[:size].std()) == pytest.approx(meet**-0.5, rel=0.2)
    if len(made.shapes) > 1:
        assert (x[size : size + made.shapes[1][0]] == 0).all()


def test_float32_sees_the_same_data() -> None:
    double = PROBLEMS[0].build()
    torch.set_default_dtype(torch.float32)
    single = PROBLEMS[0].build()
    assert single.value_g(single.x0, single.y0).dtype == torch.float32
    torch.testing.assert_close(single.x0, double.x0.float())
    assert single.constants.given == double.constants.given


# ---------------------------------------------------------------------------------------------- real drawings

needs_drawings = pytest.mark.skipif("BILEVELBENCH_DATA" not in os.environ, reason="needs Omniglot")


@needs_drawings
def test_omniglot() -> None:
    problem = RepresentationOmniglot(tasks=4, test_tasks=3)
    classes, unseen = problem._classes()
    assert (classes.shape, unseen.shape) == ((199, 20, 196), (43, 20, 196))
    assert 0 <= float(classes.min()) < float(classes.max()) <= 1
    assert 0.02 < float(classes.mean()) < 0.2  # ink on white paper
    instance = problem.build()
    assert (instance.dx, instance.dy) == (6272, 4 * 5 * 33)
    assert norm_of_force(instance) < 1e-10


def norm_of_force(instance: Instance) -> float:
    return float(instance.grad_g_y(instance.x0, instance.reference.y_star(instance.x0)).norm())


@needs_drawings
def test_twenty_drawings_are_twenty() -> None:
    known, unseen = RepresentationOmniglot()._classes()
    assert unseen.shape[:2] == (RepresentationOmniglot.classes, RepresentationOmniglot.drawings) == (43, 20)
    assert known.shape[:2] == (199, 20)
