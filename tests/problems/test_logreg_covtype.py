"""`logreg_covtype` and `logreg_wine`, which have a regulariser for every class, against numpy and scikit-learn."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import bilevelbench_problems.logreg_covtype as module
import numpy as np
import pytest
import torch
from bilevelbench_problems import LogRegCovtype, LogRegCovtypeAgents, LogRegWine
from helpers import assert_conforms
from pydantic import ValidationError
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.datasets import load_wine
from tensors import close, lower_hessian, normal

import bilevelbench
from bilevelbench import FiniteSum, Instance, InvalidInput
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.model.queries import QUERIES


@pytest.fixture
def covtype(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """A made-up table of the same columns, one of them always zero."""
    rng = np.random.default_rng(0)
    table = rng.integers(0, 300, (600, 55)).astype(np.int16)
    table[:, -1] = rng.integers(1, 8, 600)
    table[:, 0] += 40 * table[:, -1]
    table[:, 7] = 0
    monkeypatch.setattr(module, "_ROWS", 600)
    monkeypatch.setattr(module, "covtype", lambda: torch.from_numpy(table))
    module._constants.cache_clear()
    return table


def g_of(problem) -> Callable[[np.ndarray, np.ndarray], float]:
    """g in numpy; the rows are split once."""
    (A, b), _, _ = problem._split()
    A, b = A.numpy(), b.numpy()

    def g(x: np.ndarray, y: np.ndarray) -> float:
        Y = y.reshape(problem.classes, -1)
        Z = A @ Y.T
        loss = np.mean(logsumexp(Z, axis=1) - Z[np.arange(len(b)), b])
        return loss + 0.5 * problem.reg_scale * sum(np.exp(x[c]) * Y[c] @ Y[c] for c in range(problem.classes))

    return g


def check_everything(problem, instance: Instance) -> None:
    x, y = normal(1, instance.dx), 0.5 * normal(1, instance.dy, seed=1)
    assert float(instance.value_g(x, y)) == pytest.approx(g_of(problem)(x[0].numpy(), y[0].numpy()), rel=1e-12)
    assert_conforms(problem)
    lowest = torch.linalg.eigvalsh(lower_hessian(instance, x, y)[0])[0]
    assert float(lowest) >= float(instance.mu_at(x)) * (1 - 1e-9)
    assert float(instance.mu_at(x)) == pytest.approx(problem.reg_scale * float(x.min().exp()))


def test_wine() -> None:
    problem = LogRegWine(data_seed=1)
    instance = problem.build()
    assert (instance.dx, instance.dy) == (3, 39)
    assert instance.noise.n_f + instance.noise.n_g < len(load_wine().target) == 178
    check_everything(problem, instance)


def test_wine_is_solved_as_scipy_solves_it() -> None:
    problem = LogRegWine()
    instance, x = problem.build(), torch.tensor([[0.5, -0.5, 0.0]])
    y = Evaluator(instance)._solve_lower(x, instance.y0)
    found = minimize(partial(g_of(problem), x[0].numpy()), np.zeros(39), options={"gtol": 1e-7})
    close(y[0], torch.as_tensor(found.x), 1e-3)
    assert float(instance.value_g(x, y)) <= found.fun + 1e-10


def test_wine_estimates_the_curvature_of_phi() -> None:
    instance = LogRegWine().build()
    evaluator, x = Evaluator(instance), instance.x0
    columns = [
        (evaluator.grad_phi(x + 1e-3 * e, instance.y0) - evaluator.grad_phi(x - 1e-3 * e, instance.y0)) / 2e-3
        for e in torch.eye(3)
    ]
    assert float(torch.linalg.matrix_norm(torch.cat(columns), 2)) <= instance.constants.L_phi * (1 + 1e-4)


def test_covtype(covtype) -> None:
    problem = LogRegCovtype(n=200, data_seed=3)
    instance = problem.build()
    assert (instance.dx, instance.dy) == (7, 378)
    assert instance.noise == FiniteSum(n_f=32, n_g=128)
    assert (instance.x0 == -2).all()
    check_everything(problem, instance)


def test_covtype_is_standardised_by_its_training_rows(covtype) -> None:
    (A, b), (V, _), (T, _) = LogRegCovtype(n=600)._split()
    assert (len(A), len(V), len(T)) == (384, 96, 120)
    live = [j for j in range(54) if j != 7]
    assert float(A.mean(0).abs().max()) < 1e-12
    assert A[:, live].std(0, correction=0).tolist() == pytest.approx([1] * 53)
    assert all((part[:, 7] == 0).all() for part in (A, V, T))
    assert sorted(set(b.tolist())) == list(range(7))


def test_agents_hold_rows_of_the_same_table(covtype) -> None:
    shared, whole = LogRegCovtypeAgents(n=600, agents=4).build(), LogRegCovtype(n=600).build()
    assert shared.noise == whole.noise == FiniteSum(n_f=96, n_g=384)
    x, y = normal(2, whole.dx), normal(2, whole.dy, seed=1)
    local = [shared.agents.local(i) for i in range(4)]
    close(sum(one.grad_g_y(x, y) for one in local) / 4, whole.grad_g_y(x, y))
    assert local[0].noise == FiniteSum(n_f=24, n_g=96)


def test_with_all_rows_the_sizes_are_those_of_the_published_benchmark() -> None:
    assert module.sizes(581_012) == (371_847, 92_962, 116_203)


def test_covtype_constants(covtype) -> None:
    instance = LogRegCovtype(n=300).build()
    constants, evaluator = instance.constants, Evaluator(instance)
    found, y = evaluator(instance.x0, instance.y0), evaluator._solve_lower(instance.x0, instance.y0)
    assert float(found.phi) <= constants.Delta == pytest.approx(float(found.phi), rel=1e-2)
    assert float(y.square().sum()) <= constants.R == pytest.approx(float(y.square().sum()), rel=1e-2)
    assert constants.mu == pytest.approx(float(instance.mu_at(instance.x0)))
    x = instance.x0
    columns = [(evaluator.grad_phi(x + 1e-2 * e, y) - evaluator.grad_phi(x - 1e-2 * e, y)) / 2e-2 for e in torch.eye(7)]
    assert constants.L_phi == pytest.approx(float(torch.linalg.matrix_norm(torch.cat(columns), 2)), rel=0.1)


@pytest.mark.parametrize("n", [10, 581_013])
def test_a_number_of_rows_that_cannot_be_had(n: int) -> None:
    with pytest.raises(ValidationError, match="n\n"):
        LogRegCovtype(n=n)


def test_the_table_is_read_past_its_header(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(-200, 7000, (5, 55))
    content = "a,b\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    file = replace(module._COVTYPE, sha256=hashlib.sha256(content.encode()).hexdigest())
    (tmp_path / "covtype.csv").write_text(content)
    monkeypatch.setenv("BILEVELBENCH_DATA", str(tmp_path))
    monkeypatch.setattr(module, "_COVTYPE", file)
    monkeypatch.setattr(module, "_ROWS", 5)
    module.covtype.cache_clear()
    assert np.array_equal(module.covtype().numpy(), rows)
    module.covtype.cache_clear()


def test_without_the_table_the_places_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BILEVELBENCH_DATA", str(tmp_path))
    monkeypatch.setenv("BILEVELBENCH_CACHE", str(tmp_path))
    module.covtype.cache_clear()
    with pytest.raises(InvalidInput, match=r"'covtype' is in none of six places: .*does not hold covtype.csv"):
        LogRegCovtype().build()
    assert bilevelbench.run("f2ba", LogRegCovtype(), steps=1).runs.status[0] == "error"


@pytest.mark.skipif("BILEVELBENCH_DATA" not in os.environ, reason="needs covtype")
def test_the_real_table() -> None:
    if module._COVTYPE.locate() is None:
        pytest.skip("covtype is not here")
    table = module.covtype()
    assert torch.bincount(table[:, -1].long())[1:].tolist() == [211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510]
    assert all(name in QUERIES for name in LogRegCovtype(n=1000).build().analytic)
