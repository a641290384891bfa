"""The lower level with searched step lengths: against plain numpy, to its tolerance, with every call on the bill."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bilevelbench_methods.lower_search import lower_backtracking, lower_lbfgs
from plain_problems import Plain, Wavy

from bilevelbench import Oracle, norm

L = 4
USES = frozenset({"grad_g_y", "value_g"})


@pytest.fixture(autouse=True)
def without_grad():
    """As the runner does."""
    with torch.no_grad():
        yield


@pytest.fixture
def problem():
    return Wavy(mu=0.1, L=3.0, analytic=True)


@pytest.fixture
def here(problem, normal):
    instance = problem.build()
    oracle = Oracle(instance, USES, range(L))
    oracle.begin_step(1)
    return oracle, normal(L, 4), 3 * normal(L, 6), problem.plain()


def bill(oracle):
    """(gradients, values) of each lane."""
    counts = oracle.meter.columns()
    return list(zip(counts["grad_g_y"].tolist(), counts["value"].tolist(), strict=True))


def backtracking(p: Plain, x: np.ndarray, y: np.ndarray, n: int, tol: float) -> tuple[np.ndarray, int, int]:
    """One lane from the specification: the point, and how many gradients and values it took."""
    s, gradients, values = 1.0, 0, 0
    for _ in range(n):
        force = p.g_y(x, y)
        gradients += 1
        if np.linalg.norm(force) <= tol:
            break
        value = p.g(x, y)
        values += 1
        for _ in range(16):
            values += 1
            if p.g(x, y - s * force) <= value - s / 2 * force @ force:
                break
            s /= 2
        else:
            break
        y = y - s * force
        s = 1.0 if s <= 1e-6 else 2 * s
    return y, gradients, values


@pytest.mark.parametrize(("n", "tol"), [(3, 0.0), (12, 1e-2), (60, 1e-5)])
def test_backtracking_is_its_specification_lane_by_lane(here, n, tol):
    oracle, x, y, p = here
    out = lower_backtracking(oracle, x, y, n, tol)
    for lane in range(L):
        expected, gradients, values = backtracking(p, x[lane].numpy(), y[lane].numpy(), n, tol)
        np.testing.assert_allclose(out[lane], expected, rtol=1e-10, atol=1e-12)
        assert bill(oracle)[lane] == (gradients, values)


def test_lengths_and_tolerances_of_their_own(here):
    oracle, x, y, p = here
    n, tol = torch.tensor([[1], [5], [40], [40]]), torch.tensor([[0.0], [0.0], [1e-1], [1e-4]], dtype=torch.float64)
    out = lower_backtracking(oracle, x, y, n, tol)
    for lane in range(L):
        expected, *calls = backtracking(p, x[lane].numpy(), y[lane].numpy(), int(n[lane]), float(tol[lane]))
        np.testing.assert_allclose(out[lane], expected, rtol=1e-10, atol=1e-12)
        assert bill(oracle)[lane] == tuple(calls)


@pytest.mark.parametrize("solve", [lower_backtracking, lower_lbfgs])
def test_they_come_to_their_tolerance(here, solve):
    oracle, x, y, p = here
    out = solve(oracle, x, y, 500, 1e-6)
    for lane in range(L):
        assert np.linalg.norm(p.g_y(x[lane].numpy(), out[lane].numpy())) <= 1e-6
        np.testing.assert_allclose(out[lane], p.y_star(x[lane].numpy()), atol=1e-5)


def test_lbfgs_takes_fewer_gradients_where_the_lower_level_is_stretched(normal):
    problem = Wavy(mu=0.01, L=10.0, analytic=True)
    x, y = normal(L, 4), 3 * normal(L, 6)
    taken = []
    for solve in (lower_backtracking, lower_lbfgs):
        oracle = Oracle(problem.build(), USES, range(L))
        oracle.begin_step(1)
        solve(oracle, x, y, 3000, 1e-6)
        taken.append(max(gradients for gradients, _ in bill(oracle)))
    assert taken[1] < taken[0] / 5


@pytest.mark.parametrize("memory", [1, 3, 10])
def test_lbfgs_on_a_quadratic_ends_quickly(normal, memory):
    """Six eigenvalues: a memory that holds them all needs about as many steps; one pair needs more."""
    oracle = Oracle(Wavy(w=0.0, L=20.0, analytic=True).build(), USES, range(L))
    oracle.begin_step(1)
    lower_lbfgs(oracle, normal(L, 4), 3 * normal(L, 6), 200, 1e-6, memory)
    gradients = [g for g, _ in bill(oracle)]
    assert max(gradients) < {1: 60, 3: 40, 10: 25}[memory]


@pytest.mark.parametrize("solve", [lower_backtracking, lower_lbfgs])
def test_a_lane_at_its_solution_pays_one_gradient_and_stays(here, solve):
    oracle, x, y, p = here
    y = torch.from_numpy(np.stack([p.y_star(x[0].numpy()), *y[1:].numpy()]))
    out = solve(oracle, x, y, 20, 1e-8)
    assert torch.equal(out[0], y[0])
    assert bill(oracle)[0] == (1, 0)
    assert not torch.equal(out[1], y[1])


@pytest.mark.parametrize("solve", [lower_backtracking, lower_lbfgs])
def test_where_values_no_longer_tell_points_apart_they_stop(here, solve):
    """A tolerance of zero is never met; they end all the same, long before n, with a small gradient and no NaN."""
    oracle, x, y, _ = here
    out = solve(oracle, x, y, 100_000, 0.0)
    assert bool(out.isfinite().all())
    assert max(gradients for gradients, _ in bill(oracle)) < 1000
    assert bool((norm(oracle.grad_g_y(x, out)) < 1e-5).all())


@pytest.mark.parametrize("solve", [lower_backtracking, lower_lbfgs])
def test_a_lane_has_the_bits_that_it_has_alone(problem, normal, solve):
    x, y = normal(L, 4), 3 * normal(L, 6)
    outs = []
    for lanes in ([0, 1, 2, 3], [2, 2, 2, 2]):
        oracle = Oracle(problem.build(), USES, range(L))
        oracle.begin_step(1)
        outs.append((solve(oracle, x[lanes], y[lanes], 40, 1e-4), bill(oracle)))
    assert torch.equal(outs[0][0][2], outs[1][0][0])
    assert outs[0][1][2] == outs[1][1][0]


@pytest.mark.parametrize("solve", [lower_backtracking, lower_lbfgs])
def test_lanes_that_are_off_pay_nothing_and_stay(here, solve):
    oracle, x, y, _ = here
    with oracle.only(torch.tensor([[True], [False], [True], [False]])):
        out = solve(oracle, x, y, 10, 1e-4)
    assert [gradients > 0 for gradients, _ in bill(oracle)] == [True, False, True, False]
    assert torch.equal(out[1], y[1])
    assert not torch.equal(out[0], y[0])
