"""Hypergradients by themselves: against closed forms in numpy, on trees and on modules, with counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bilevelbench import InvalidInput
from bilevelbench import torch_hypergradient as hg

RNG = np.random.default_rng(3)
A, B = RNG.normal(size=(40, 6)), RNG.normal(size=(30, 6))
a, b = RNG.normal(size=40), RNG.normal(size=30)
LABELS, VALID = np.sign(RNG.normal(size=40)), np.sign(RNG.normal(size=30))
X = RNG.normal(size=6) / 2


def t(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(array, dtype=torch.float64)


# ---- ridge: g = |Ay - a|²/80 + Σ exp(x) y²/2, f = |By - b|²/60


def ridge_g(x, y):
    return (t(A) @ y - t(a)).square().mean() / 2 + (x.exp() * y**2).sum() / 2


def ridge_f(x, y):
    return (t(B) @ y - t(b)).square().mean() / 2


H = A.T @ A / 40 + np.diag(np.exp(X))
Y = np.linalg.solve(H, A.T @ a / 40)
RIDGE = -np.exp(X) * Y * np.linalg.solve(H, B.T @ (B @ Y - b) / 30)
STEP = 1 / np.linalg.eigvalsh(H).max()


@pytest.mark.parametrize("solver", ["cg", "richardson", "neumann"])
def test_implicit_on_a_ridge(solver):
    got = hg.implicit(ridge_f, ridge_g, t(X), t(Y), solver=solver, steps=400, step=STEP)
    np.testing.assert_allclose(got.grad, RIDGE, atol=1e-8)
    np.testing.assert_allclose(got.v, np.linalg.solve(H, B.T @ (B @ Y - b) / 30), atol=1e-8)
    assert got.counts["grad_f"] == got.counts["jvp"] == 1
    assert got.counts["hvp"] == 400 if solver != "cg" else 1 <= got.counts["hvp"] <= 12


def test_unrolled_on_a_ridge():
    got = hg.unrolled(ridge_f, ridge_g, t(X), t(0 * Y), steps=400, step=STEP)
    np.testing.assert_allclose(got.grad, RIDGE, atol=1e-8)
    np.testing.assert_allclose(got.y, Y, atol=1e-8)
    assert (got.counts["grad_g_y"], got.counts["hvp"], got.counts["jvp"]) == (400, 399, 400)


def test_unrolled_is_the_derivative_of_what_was_computed():
    """Far from y*(x), where the two differ: against autograd through the steps."""
    x = t(X).requires_grad_()
    y = t(0 * Y)
    for _ in range(3):
        y = y - STEP * torch.func.grad(lambda y: ridge_g(x, y))(y)
    (want,) = torch.autograd.grad(ridge_f(x, y), x)
    got = hg.unrolled(ridge_f, ridge_g, t(X), t(0 * Y), steps=3, step=STEP)
    np.testing.assert_allclose(got.grad, want, atol=1e-12)
    assert np.abs(got.grad.numpy() - RIDGE).max() > 1e-4


@pytest.mark.parametrize("steps", [1, 4])
def test_one_graph_of_all_steps_is_the_same_at_the_same_counts(steps):
    """Of several tensors, of which f and g use only some: an input that is not used has gradient zero."""
    x, y = {"weights": t(X), "idle": t(X[:2])}, [t(0 * Y), t(Y[:3])]
    f, g = (lambda x, y, of=of: of(x["weights"], y[0]) for of in (ridge_f, ridge_g))
    slow, fast = (hg.unrolled(f, g, x, y, steps=steps, step=STEP, one_graph=one) for one in (False, True))
    assert fast.counts == slow.counts
    assert slow.grad["weights"].abs().min() > 0 or steps == 1  # from zero the first step meets no weight
    for got, want in ((fast.grad["weights"], slow.grad["weights"]), (fast.y[0], slow.y[0]), (fast.y[1], y[1])):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-15)
        assert not got.requires_grad
    assert not fast.grad["idle"].any()


def test_penalty_on_a_ridge():
    lam = 50.0
    towards = np.linalg.solve(H + B.T @ B / 30 / lam, A.T @ a / 40 + B.T @ b / 30 / lam)
    want = lam * np.exp(X) * (towards**2 - Y**2) / 2
    got = hg.penalty(ridge_f, ridge_g, t(X), t(0 * Y), lam=lam, steps=800, step=STEP / 2)
    np.testing.assert_allclose(got.grad, want, atol=1e-8)
    np.testing.assert_allclose(got.z, Y, atol=1e-9)
    assert got.counts["second_order"] == 0
    assert got.counts["first_order"] == 3 * 800 + 3


@pytest.mark.whole
def test_penalty_is_off_by_the_inverse_of_lam():
    def off(lam: float) -> float:
        got = hg.penalty(ridge_f, ridge_g, t(X), t(Y), lam=lam, steps=800, step=STEP / 2)
        return float(np.abs(got.grad.numpy() - RIDGE).max())

    assert 5 < off(100.0) / off(1000.0) < 20


# ---- logistic regression with a penalty for each feature, by Newton's method in numpy


def logistic_g(x, y):
    return nn.functional.softplus(-t(LABELS) * (t(A) @ y)).mean() + (x.exp() * y**2).sum() / 2


def logistic_f(x, y):
    return nn.functional.softplus(-t(VALID) * (t(B) @ y)).mean()


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def logistic() -> tuple[np.ndarray, np.ndarray]:
    """y*(X), and the hypergradient there."""
    y, D = np.zeros(6), np.diag(np.exp(X))
    for _ in range(30):
        p = sigmoid(LABELS * (A @ y))
        hessian = (A.T * (p * (1 - p))) @ A / 40 + D
        y = y - np.linalg.solve(hessian, -A.T @ (LABELS * (1 - p)) / 40 + D @ y)
    slope = -B.T @ (VALID * (1 - sigmoid(VALID * (B @ y)))) / 30
    return y, -np.exp(X) * y * np.linalg.solve(hessian, slope)


@pytest.mark.parametrize(
    "estimate",
    [
        lambda y: hg.implicit(logistic_f, logistic_g, t(X), t(y)),
        lambda y: hg.implicit(logistic_f, logistic_g, t(X), t(y), solver="richardson", steps=300, step=0.4),
        lambda y: hg.implicit(logistic_f, logistic_g, t(X), t(y), solver="neumann", steps=300, step=0.4),
        lambda y: hg.unrolled(logistic_f, logistic_g, t(X), t(0 * y), steps=300, step=0.4),
        lambda y: hg.penalty(logistic_f, logistic_g, t(X), t(y), lam=1e6, steps=300, step=0.4),
    ],
    ids=["cg", "richardson", "neumann", "unrolled", "penalty"],
)
def test_on_a_logistic_problem(estimate):
    y, want = logistic()
    np.testing.assert_allclose(estimate(y).grad, want, atol=1e-8)


# ---- shapes


def test_trees():
    def split(function):
        return lambda x, y: function(torch.cat([x["a"], x["b"][0].reshape(-1)]), y[0].reshape(-1))

    x, y = {"a": t(X[:2]), "b": [t(X[2:]).reshape(2, 2)]}, (t(Y).reshape(3, 2),)
    got = hg.implicit(split(ridge_f), split(ridge_g), x, y)
    np.testing.assert_allclose(got.grad["a"], RIDGE[:2], atol=1e-8)
    np.testing.assert_allclose(got.grad["b"][0], RIDGE[2:].reshape(2, 2), atol=1e-8)
    assert got.y[0].shape == got.v[0].shape == (3, 2)


def test_modules_and_an_optimiser():
    model = nn.Linear(6, 1, bias=False).double()
    penalties = nn.ParameterDict({"log": nn.Parameter(t(X))})
    with torch.no_grad():
        model.weight.copy_(t(Y)[None])

    def g(x, model):
        return (model(t(A)).squeeze(-1) - t(a)).square().mean() / 2 + (x["log"].exp() * model.weight[0] ** 2).sum() / 2

    def f(x, model):
        return (model(t(B)).squeeze(-1) - t(b)).square().mean() / 2

    got = hg.implicit(f, g, penalties, model)
    np.testing.assert_allclose(got.grad["log"], RIDGE, atol=1e-8)
    model.load_state_dict(got.y)
    optimiser = torch.optim.SGD(penalties.parameters(), lr=0.5)
    for name, parameter in penalties.named_parameters():
        parameter.grad = got.grad[name]
    optimiser.step()
    np.testing.assert_allclose(penalties["log"].detach(), X - 0.5 * RIDGE, atol=1e-8)


@pytest.mark.whole
def test_warm_starts():
    cold = hg.implicit(ridge_f, ridge_g, t(X), t(Y))
    warm = hg.implicit(ridge_f, ridge_g, t(X), t(Y), v=cold.v)
    assert warm.counts["hvp"] == 1  # the residual, which is small enough
    first = hg.penalty(ridge_f, ridge_g, t(X), t(0 * Y), lam=50.0, steps=400, step=STEP / 2)
    again = hg.penalty(ridge_f, ridge_g, t(X), first.y, lam=50.0, steps=400, step=STEP / 2, z=first.z)
    longer = hg.penalty(ridge_f, ridge_g, t(X), t(0 * Y), lam=50.0, steps=800, step=STEP / 2)
    np.testing.assert_allclose(again.grad, longer.grad, atol=1e-12)


def test_arguments_are_left_alone():
    x, y = t(X).requires_grad_(), t(Y).requires_grad_()
    got = hg.unrolled(ridge_f, ridge_g, x, y, steps=2, step=STEP)
    assert x.grad is None
    assert y.grad is None
    assert not got.grad.requires_grad
    np.testing.assert_array_equal(y.detach(), Y)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hg.implicit(ridge_f, ridge_g, t(X), t(Y), solver="newman"), "solver='newman'; did you mean 'neumann'"),
        (lambda: hg.implicit(ridge_f, ridge_g, t(X), t(Y), solver="neumann"), "step=None: neumann needs a positive step"),
        (lambda: hg.implicit(ridge_f, ridge_g, t(X), t(Y), steps=0), "steps=0: give a whole number, 1 or more"),
        (lambda: hg.implicit(ridge_f, ridge_g, t(X), t(Y), v=t(Y[:2])), r"v has \(2,\) where y has a tensor of shape \(6,\)"),
        (lambda: hg.unrolled(ridge_f, ridge_g, t(X), t(Y), step=-1.0), "step=-1.0: unrolled needs a positive step"),
        (lambda: hg.penalty(ridge_f, ridge_g, t(X), t(Y), lam=0.0, step=0.1), "lam=0.0: a penalty is a positive number"),
        (lambda: hg.implicit(lambda x, y: y, ridge_g, t(X), t(Y)), "f returned a tensor of shape"),
        (lambda: hg.implicit(ridge_f, ridge_g, t(X), t(Y).float()), "x is torch.float64 and y torch.float32"),
        (lambda: hg.implicit(ridge_f, ridge_g, t(X), nn.Sequential(nn.Linear(1, 1), nn.Dropout()).double()), "Dropout"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()
