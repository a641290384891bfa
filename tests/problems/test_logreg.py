"""`logreg_*` against numpy, scikit-learn and scipy, which know nothing of its derivatives."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from bilevelbench_problems import LogRegBreastCancer, LogRegDigits
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import logsumexp, softmax
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from tensors import check_bits, close, lower_hessian, normal, some_rows

from bilevelbench import FiniteSum, Oracle, Problem, Rows
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.model.queries import QUERIES
from bilevelbench.model.torch_state import default_dtype

CLASSES = [LogRegDigits, LogRegBreastCancer]
SHAPES = {"logreg_digits": (64, 10, 899, 449), "logreg_breast_cancer": (30, 1, 285, 142)}
parametrize = pytest.mark.parametrize("problem", [cls() for cls in CLASSES], ids=lambda p: p.name)


class Numpy:
    """Mean cross-entropy of one set in numpy, with a column of zeros for class 0 if there are two classes."""

    def __init__(self, A: torch.Tensor, b: torch.Tensor, scores: int) -> None:
        self.A, self.b, self.scores = A.numpy(), b.numpy(), scores

    def logits(self, y: np.ndarray) -> np.ndarray:
        Z = self.A @ y.reshape(self.scores, -1).T
        return np.hstack([np.zeros_like(Z), Z]) if self.scores == 1 else Z

    def value(self, y: np.ndarray) -> float:
        Z = self.logits(y)
        return float(np.mean(logsumexp(Z, axis=1) - Z[np.arange(len(Z)), self.b]))

    def back(self, R: np.ndarray) -> np.ndarray:
        return (R[:, -self.scores :].T @ self.A / len(self.b)).ravel()

    def gradient(self, y: np.ndarray) -> np.ndarray:
        P = softmax(self.logits(y), axis=1)
        P[np.arange(len(P)), self.b] -= 1
        return self.back(P)

    def hvp(self, y: np.ndarray, v: np.ndarray) -> np.ndarray:
        P, U = softmax(self.logits(y), axis=1), self.logits(v)
        return self.back(P * (U - np.sum(P * U, axis=1, keepdims=True)))


def in_numpy(problem: Problem) -> list[Numpy]:
    return [Numpy(A, b, SHAPES[problem.name][1]) for A, b in problem._split()]


def solve(train: Numpy, weights: np.ndarray) -> np.ndarray:
    """argmin of CE + 1/2 Σ weights y²: Newton's method with scipy's conjugate gradients."""
    y = np.zeros(len(weights))
    for _ in range(40):
        force = train.gradient(y) + weights * y
        if np.linalg.norm(force) < 1e-14:
            break
        at = y

        def product(v: np.ndarray, at: np.ndarray = at) -> np.ndarray:
            return train.hvp(at, v) + weights * v

        step, _ = cg(LinearOperator((len(y), len(y)), matvec=product), force, rtol=1e-9)
        y = y - step
    assert np.linalg.norm(train.gradient(y) + weights * y) < 1e-12
    return y


@parametrize
def test_sizes_and_split(problem: Problem) -> None:
    instance = problem.build()
    p, scores, n_g, n_f = SHAPES[problem.name]
    assert (instance.dx, instance.dy) == (p, p * scores)
    assert instance.noise == FiniteSum(n_f=n_f, n_g=n_g)
    assert not problem.stackable()
    (A, a), (V, v), (T, t) = problem._split()
    assert [len(A), len(V), len(T)] == [n_g, n_f, len(t)]
    assert A.square().sum(-1).mean() == pytest.approx(1)
    load = load_digits if problem.name == "logreg_digits" else load_breast_cancer
    raw, labels = load(return_X_y=True)
    assert Counter(torch.cat([a, v, t]).tolist()) == Counter(labels.tolist())
    for label, count in Counter(labels.tolist()).items():
        for part, share in ((a, 0.5), (v, 0.25), (t, 0.25)):
            assert abs(int((part == label).sum()) - share * count) <= 1
    everything = torch.cat([A, V, T])
    if problem.name == "logreg_digits":
        pixels = (everything * (raw.max() / everything.max())).round().int()
        assert sorted(pixels.tolist()) == sorted(raw.astype(int).tolist())
    else:
        torch.testing.assert_close(A.mean(0), torch.zeros(30), rtol=0, atol=1e-12)
        torch.testing.assert_close(A.std(0, correction=0), torch.full((30,), 30**-0.5))
        standard = torch.as_tensor((raw - raw.mean(0)) / raw.std(0))
        ours = (everything - everything.mean(0)) / everything.std(0, correction=0)
        torch.testing.assert_close(ours.sum(1).sort().values, standard.sum(1).sort().values)
    assert a[:20].unique().numel() > 1  # not sorted by class: blocks of rows are mixed


@parametrize
def test_data_seed_changes_the_split_alone(problem: Problem) -> None:
    other = problem.model_copy(update={"data_seed": 1})
    assert not torch.equal(problem._split()[0][1], other._split()[0][1])
    assert problem._split()[0][0].shape == other._split()[0][0].shape


@parametrize
def test_values_and_metrics(problem: Problem) -> None:
    instance, (train, val, test) = problem.build(), in_numpy(problem)
    x, y = normal(1, instance.dx), 3 * normal(1, instance.dy, seed=1)
    z = y[0].numpy()
    per_feature = np.square(z).reshape(-1, instance.dx).sum(0)
    penalty = 0.5 * problem.reg_scale * np.exp(x[0].numpy()) @ per_feature
    assert float(instance.value_g(x, y)) == pytest.approx(train.value(z) + penalty)
    assert float(instance.value_f(x, y)) == pytest.approx(val.value(z))
    assert float(instance.metrics["val_loss"](x, y)) == pytest.approx(val.value(z))
    assert float(instance.metrics["test_loss"](x, y)) == pytest.approx(test.value(z))
    right = np.mean(test.logits(z).argmax(1) == test.b)
    assert float(instance.metrics["test_accuracy"](x, y)) == pytest.approx(right)


@parametrize
def test_blocks_of_unequal_size_make_up_the_whole_sum(problem: Problem) -> None:
    instance = problem.build()
    oracle = Oracle(instance, frozenset({"grad_g", "hvp_g_yy", "jvp_g_xy", "grad_f_y"}), seeds=[0] * 4)
    x, y, v = normal(4, instance.dx), normal(4, instance.dy, seed=1), normal(4, instance.dy, seed=2)
    blocks = oracle.blocks_g(100)
    assert len({xi.size for xi in blocks}) == 2
    with torch.no_grad():
        for i in (0, 1):
            close(sum(oracle.grad_g(x, y, xi)[i] for xi in blocks) / len(blocks), oracle.grad_g(x, y)[i])
        close(sum(oracle.hvp_g_yy(x, y, v, xi) for xi in blocks) / len(blocks), oracle.hvp_g_yy(x, y, v))
        close(sum(oracle.jvp_g_xy(x, y, v, xi) for xi in blocks) / len(blocks), oracle.jvp_g_xy(x, y, v))
        blocks = oracle.blocks_f(100)
        close(sum(oracle.grad_f_y(x, y, xi) for xi in blocks) / len(blocks), oracle.grad_f_y(x, y))


@parametrize
def test_a_mini_batch_is_charged_its_rows_and_an_exact_call_all(problem: Problem) -> None:
    instance = problem.build()
    oracle = Oracle(instance, frozenset(QUERIES), seeds=range(4))
    x, y = normal(4, instance.dx), normal(4, instance.dy, seed=1)
    with torch.no_grad():
        xi, zeta = oracle.sample_g(32), oracle.sample_f(16)
        close(oracle.grad_g_y(x, y, xi), instance.grad_g_y(x, y, xi.rows))
        close(oracle.grad_f_y(x, y, zeta), instance.grad_f_y(x, y, zeta.rows))
        assert oracle.meter.columns()["cost"].tolist() == [48] * 4
        oracle.grad_g_y(x, y)
        oracle.grad_f_y(x, y)
    assert oracle.meter.columns()["cost"].tolist() == [48 + instance.noise.n_g + instance.noise.n_f] * 4


@parametrize
@pytest.mark.parametrize("t", [0.0, -2.5])
def test_the_lower_level_is_that_of_scikit_learn(problem: Problem, t: float) -> None:
    """With equal regularisers g is n⁻¹ times its loss with C = 1/(n reg)."""
    instance, (A, b) = problem.build(), problem._split()[0]
    C = 1 / (len(b) * problem.reg_scale * np.exp(t))
    model = LogisticRegression(C=C, fit_intercept=False, solver="newton-cg", tol=1e-9, max_iter=10000)
    theirs = torch.as_tensor(model.fit(A.numpy(), b.numpy()).coef_).reshape(1, -1)
    x = torch.full((1, instance.dx), t)
    with torch.no_grad():
        ours = Evaluator(instance)._solve_lower(x, instance.y0)
    assert instance.grad_g_y(x, ours).norm() < 1e-10
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@parametrize
def test_the_hypergradient_is_the_slope_of_phi(problem: Problem) -> None:
    """Central differences of φ, with y* by scipy, in three directions."""
    instance, (train, val, _) = problem.build(), in_numpy(problem)
    evaluator = Evaluator(instance)
    assert evaluator.certificate == "estimated"
    x = 0.5 * normal(1, instance.dx) - 1

    def phi(at: torch.Tensor) -> float:
        weights = np.tile(problem.reg_scale * np.exp(at[0].numpy()), SHAPES[problem.name][1])
        return val.value(solve(train, weights))

    assert float(evaluator(x, instance.y0).phi) == pytest.approx(phi(x), abs=1e-10)
    grad_phi, h = evaluator.grad_phi(x, instance.y0), 2e-3
    for seed in range(3):
        d = normal(1, instance.dx, seed=seed + 10)
        d = grad_phi if seed == 0 else d
        d = d / d.norm()
        slope = (phi(x + h * d) - phi(x - h * d)) / (2 * h)
        assert slope == pytest.approx(float((grad_phi * d).sum()), abs=1e-6 * float(grad_phi.norm()))


@parametrize
def test_upper_bounds_hold(problem: Problem) -> None:
    instance = problem.build()
    c = instance.constants
    x = torch.zeros(60, 1, instance.dx)
    size = torch.logspace(-1, 2, 60).reshape(-1, 1, 1)
    y1, v = size * normal(60, 1, instance.dy), normal(60, 1, instance.dy, seed=1)
    y2 = y1 + torch.logspace(-2, 1, 60).flip(0).reshape(-1, 1, 1) * v
    distance = (y2 - y1).norm(dim=-1)
    assert (instance.grad_f_y(x, y1).norm(dim=-1) <= c.C_f).all()
    assert ((instance.grad_f_y(x, y2) - instance.grad_f_y(x, y1)).norm(dim=-1) <= c.L_f * distance).all()
    pull = instance.grad_g_y(x, y2) - instance.grad_g_y(x, y1)
    assert (pull.norm(dim=-1) <= c.L_gy * distance).all()
    assert ((pull * (y2 - y1)).sum(-1) >= c.mu * distance**2).all()
    direction = v / v.norm(dim=-1, keepdim=True)
    _, first = torch.autograd.functional.jvp(lambda y: instance.grad_f_y(x, y), y1, direction, create_graph=True)
    ahead = torch.autograd.functional.jvp(lambda y: instance.grad_f_y(x, y), y2, direction)[1]
    assert ((ahead - first).norm(dim=-1) <= c.rho_f * distance + 1e-12).all()
    assert float(instance.value_f(instance.x0, instance.y0)) > 0


@parametrize
def test_estimates_are_marked(problem: Problem) -> None:
    constants = problem.build().constants
    kinds = {name: constant.kind for name, constant in constants.given.items()}
    assert {name for name, kind in kinds.items() if kind == "estimated"} == {"mu", "L_gy", "L_g", "rho_g", "L_phi"}
    assert constants.mu == problem.reg_scale
    assert constants.L_gy <= constants.L_g


@parametrize
def test_delta_and_R_are_those_of_the_start(problem: Problem) -> None:
    instance, (train, val, _) = problem.build(), in_numpy(problem)
    y = solve(train, np.full(instance.dy, problem.reg_scale))
    assert instance.constants.Delta == pytest.approx(val.value(y))
    assert instance.constants["R"] == pytest.approx(y @ y)
    assert (instance.x0 == 0).all()
    assert (instance.y0 == 0).all()


def test_L_phi_is_the_largest_curvature_on_the_line() -> None:
    problem = LogRegBreastCancer()
    instance = problem.build()
    grad_phi, h, found = Evaluator(instance).grad_phi, 1e-3, []
    for t in (0.0, -3.0, -6.0):
        x = torch.full((30, 30), t)
        y = torch.zeros(30, 30)
        hessian = (grad_phi(x + h * torch.eye(30), y) - grad_phi(x - h * torch.eye(30), y)) / (2 * h)
        found.append(float(torch.linalg.eigvalsh((hessian + hessian.T) / 2).abs().max()))
    assert max(found) == pytest.approx(instance.constants.L_phi, rel=1e-4)


def test_the_lower_hessian_is_positive_for_every_x() -> None:
    instance = LogRegBreastCancer().build()
    x, y = 3 * normal(5, 1, 30), 10 * normal(5, 1, 30, seed=1)
    spectrum = torch.linalg.eigvalsh(lower_hessian(instance, x, y))
    assert (spectrum[..., 0] >= 0.01 * x.amin(-1).exp()).all()


@parametrize
def test_float32_sees_the_same_data(problem: Problem) -> None:
    double = problem.build()
    torch.set_default_dtype(torch.float32)
    single = problem.build()
    x, y = normal(4, single.dx), normal(4, single.dy, seed=1)
    rows = some_rows(single, 4, 9)
    assert single.constants.given == double.constants.given
    for extra in ((), (rows,)):
        for query in ("grad_g_y", "grad_f_y", "value_g"):
            answer = single.functions[query](x, y, *extra)
            assert answer.dtype == torch.float32
            torch.testing.assert_close(
                answer.double(), double.functions[query](x.double(), y.double(), *extra), rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@parametrize
def test_bits_do_not_depend_on_the_pack(problem: Problem, dtype: torch.dtype) -> None:
    """Nor on the blocks in which a wide pack is worked off."""
    torch.set_default_dtype(dtype)
    instance = problem.build()
    check_bits(instance)
    for B in (1, 7, 32):
        check_bits(instance, some_rows(instance, 36, B))


@parametrize
def test_probabilities_are_those_of_the_point_that_is_asked_for(problem):
    """They are kept from one derivative to the next: not when the point was changed in place, or is another one."""
    with default_dtype(torch.float64):
        instance, fresh = problem.build(), problem.build()
    x, y, v = (torch.full((4, n), 0.1, dtype=torch.float64) for n in (instance.dx, instance.dy, instance.dy))
    rows = [Rows(torch.arange(32).reshape(4, 8) + start, torch.full((4, 8), 1 / 8, dtype=x.dtype)) for start in (0, 5)]

    def same(*given):
        copies = [t.clone() if isinstance(t, torch.Tensor) else Rows(t.index.clone(), t.weight) for t in given]
        return torch.equal(instance.hvp_g_yy(*given), fresh.hvp_g_yy(*copies))

    for some in ((), *([one] for one in rows)):
        instance.grad_g_y(x, y, *some)
        assert same(x, y, v, *some)
        y *= 1.5
        assert same(x, y, v, *some)
        assert same(x, y, torch.stack([v, 2 * v]), *some)
        assert same(x, y.flip(0), v, *some)
        assert same(x, y[:4], v, *some)
    rows[1].index[:] = rows[0].index
    assert same(x, y, v, rows[1])
    open_y = y.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad((instance.grad_g_y(x, open_y) * v).sum(), open_y)
    torch.testing.assert_close(slope, instance.hvp_g_yy(x, y, v))
