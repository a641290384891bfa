from __future__ import annotations

import numpy as np
import pytest
import torch

from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import dot, norm
from bilevelbench.model.linear_solvers import conjugate_gradient, neumann_sum, richardson

L, D = 4, 6


def column(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype).reshape(-1, 1)


@pytest.fixture
def spd(normal):
    """One positive definite matrix for each lane, spectrum in [1, 4]."""
    Q = torch.linalg.qr(normal(L, D, D))[0]
    return (Q * torch.linspace(1, 4, D, dtype=torch.float64)) @ Q.transpose(-1, -2)


@pytest.fixture
def b(normal):
    return normal(L, D)


@pytest.fixture
def solver(spd, door, normal):
    """An oracle and its metered product v -> A v with a matrix of its own in each lane."""

    def make(A=spd):
        def product(v):
            return (v.unsqueeze(-2) @ A).squeeze(-2)

        zero = torch.zeros(1, D, dtype=torch.float64)
        g = Instance(
            f=lambda x, y: dot(y, y),
            g=lambda x, y: 0.5 * dot(product(y), y),
            x0=zero,
            y0=zero,
            hvp_g_yy=lambda x, y, v: product(v),
        )
        oracle = door(g, lanes=L)
        x = y = torch.zeros(L, D, dtype=torch.float64)
        return oracle, lambda v: oracle.hvp_g_yy(x, y, v)

    return make


def solve(A, b):
    return torch.from_numpy(np.stack([np.linalg.solve(A[i].numpy(), b[i].numpy()) for i in range(L)]))


def products(oracle):
    return oracle.meter.columns()["hvp"].tolist()


def plain_cg(A, b, v, n):
    """The textbook recursion, for one lane in numpy."""
    A, b, v = A.numpy(), b.numpy(), v.numpy().copy()
    r = b - A @ v
    q, s = r.copy(), r @ r
    for _ in range(n):
        w = A @ q
        c = s / (q @ w)
        v, r = v + c * q, r - c * w
        s, old = r @ r, s
        q = r + s / old * q
    return torch.from_numpy(v)


# ---------------------------------------------------------------------------------------------- conjugate gradient


def test_cg_solves_each_lane_in_as_many_steps_as_dimensions(solver, spd, b):
    oracle, A = solver()
    v = conjugate_gradient(oracle, A, b, torch.zeros_like(b), D, cold=True)
    torch.testing.assert_close(v, solve(spd, b), rtol=1e-10, atol=1e-10)


def test_cg_warm_start_solves_too(solver, spd, b, normal):
    oracle, A = solver()
    v = conjugate_gradient(oracle, A, b, normal(L, D), D)
    torch.testing.assert_close(v, solve(spd, b), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_cg_iterates_are_those_of_a_plain_loop(solver, spd, b, normal, n):
    oracle, A = solver()
    start = normal(L, D)
    v = conjugate_gradient(oracle, A, b, start, n)
    torch.testing.assert_close(v, torch.stack([plain_cg(spd[i], b[i], start[i], n) for i in range(L)]))


def test_cg_with_its_own_number_of_steps_in_each_lane(solver, spd, b):
    oracle, A = solver()
    n = column(0, 1, 3, 5)
    v = conjugate_gradient(oracle, A, b, torch.zeros_like(b), n, cold=True)
    expected = [plain_cg(spd[i], b[i], torch.zeros(D, dtype=torch.float64), int(n[i])) for i in range(L)]
    torch.testing.assert_close(v, torch.stack(expected))
    assert products(oracle) == [0, 1, 3, 5]


def test_cg_cold_start_pays_n_products(solver, b):
    oracle, A = solver()
    conjugate_gradient(oracle, A, b, torch.zeros_like(b), 3, cold=True)
    assert products(oracle) == [3] * L


def test_cg_warm_start_pays_one_more_for_the_first_residual(solver, b, normal):
    oracle, A = solver()
    conjugate_gradient(oracle, A, b, normal(L, D), 3)
    assert products(oracle) == [4] * L


def test_cg_meets_its_tolerance_in_every_lane(solver, spd, b):
    oracle, A = solver()
    v = conjugate_gradient(oracle, A, b, torch.zeros_like(b), 100, tol=1e-3, cold=True)
    assert bool((norm((v.unsqueeze(-2) @ spd).squeeze(-2) - b) <= 1e-3 * (1 + 1e-9)).all())


def test_cg_lane_stops_paying_when_its_own_tolerance_is_met(solver, spd, b):
    oracle, A = solver()
    tol = column(1e9, 1.0, 1e-2, 0.0, dtype=torch.float64)
    conjugate_gradient(oracle, A, b, torch.zeros_like(b), 4, tol=tol, cold=True)
    paid = products(oracle)
    for lane in range(L):
        iterates = [plain_cg(spd[lane], b[lane], 0 * b[lane], k) for k in range(5)]
        residuals = [(b[lane] - spd[lane] @ v).norm().item() for v in iterates]
        met = [k for k, r in enumerate(residuals) if r <= tol[lane].item()]
        assert paid[lane] == (met[0] if met else 4)


def test_cg_from_the_solution_pays_only_the_residual(solver, spd, b):
    oracle, A = solver()
    start = solve(spd, b)
    v = conjugate_gradient(oracle, A, b, start, 5, tol=1e-8)
    assert products(oracle) == [1] * L
    assert torch.equal(v, start)


def test_cg_with_b_zero_and_a_cold_start_makes_no_product(solver, b):
    oracle, A = solver()
    v = conjugate_gradient(oracle, A, torch.zeros_like(b), torch.zeros_like(b), 5, cold=True)
    assert products(oracle) == [0] * L
    assert not v.any()


def test_cg_without_positive_curvature_stops_that_lane_only(solver, spd, b):
    matrices = spd.clone()
    matrices[1] = -matrices[1]
    oracle, A = solver(matrices)
    v = conjugate_gradient(oracle, A, b, torch.zeros_like(b), D, cold=True)
    others = [0, 2, 3]
    torch.testing.assert_close(v[others], solve(spd, b)[others], rtol=1e-10, atol=1e-10)
    assert not v[1].any()
    assert products(oracle) == [D, 1, D, D]


def test_cg_returns_the_iterate_before_the_direction_of_negative_curvature(solver, spd, b):
    """The first direction of lane 0 has positive curvature, a later one has not."""
    matrices = spd.clone()
    matrices[0] = torch.diag(torch.tensor([1.0, 2, 3, 4, 5, -30], dtype=torch.float64))
    rhs = b.clone()
    rhs[0] = torch.tensor([1, 1, 1, 1, 1, 0.1], dtype=torch.float64)
    oracle, A = solver(matrices)
    v = conjugate_gradient(oracle, A, rhs, torch.zeros_like(b), D, cold=True)
    steps = int(products(oracle)[0]) - 1
    assert steps >= 1
    torch.testing.assert_close(v[0], plain_cg(matrices[0], rhs[0], 0 * rhs[0], steps))


def test_cg_inside_a_mask_neither_pays_nor_moves_the_lanes_that_are_off(solver, spd, b):
    oracle, A = solver()
    on = column(1, 0, 1, 0, dtype=torch.bool)
    with oracle.only(on):
        v = conjugate_gradient(oracle, A, b, torch.zeros_like(b), D, cold=True)
    assert products(oracle)[1] == products(oracle)[3] == 0
    torch.testing.assert_close(v[[0, 2]], solve(spd, b)[[0, 2]], rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------------------------------- fixed point sums


def power_sum(A, b, terms, a):
    out = torch.zeros_like(b)
    for lane in range(L):
        T = torch.eye(D, dtype=b.dtype) - a[lane] * A[lane]
        for q in range(int(terms[lane])):
            out[lane] += a[lane] * torch.linalg.matrix_power(T, q) @ b[lane]
    return out


@pytest.mark.parametrize("n", [0, 1, 4])
def test_richardson_from_zero_is_the_truncated_neumann_series(solver, spd, b, n):
    oracle, A = solver()
    v = richardson(oracle, A, b, torch.zeros_like(b), n, 0.2)
    torch.testing.assert_close(v, power_sum(spd, b, [n] * L, [0.2] * L))
    assert products(oracle) == [n] * L


def test_richardson_leaves_the_solution_where_it_is(solver, spd, b):
    oracle, A = solver()
    start = solve(spd, b)
    torch.testing.assert_close(richardson(oracle, A, b, start, 3, 0.3), start)


def test_richardson_with_its_own_length_and_step_in_each_lane(solver, spd, b):
    oracle, A = solver()
    n, a = column(0, 1, 3, 7), column(0.1, 0.2, 0.3, 0.05, dtype=torch.float64)
    v = richardson(oracle, A, b, torch.zeros_like(b), n, a)
    torch.testing.assert_close(v, power_sum(spd, b, n.flatten().tolist(), a.flatten().tolist()))
    assert products(oracle) == [0, 1, 3, 7]


@pytest.mark.parametrize("n", [0, 1, 4])
def test_neumann_sum_has_one_term_more_than_products(solver, spd, b, n):
    oracle, A = solver()
    v = neumann_sum(oracle, A, b, n, 0.2)
    torch.testing.assert_close(v, power_sum(spd, b, [n + 1] * L, [0.2] * L))
    assert products(oracle) == [n] * L


def test_neumann_sum_with_its_own_length_and_step_in_each_lane(solver, spd, b):
    oracle, A = solver()
    n, a = column(5, 0, 2, 3), column(0.1, 0.2, 0.25, 0.05, dtype=torch.float64)
    v = neumann_sum(oracle, A, b, n, a)
    torch.testing.assert_close(v, power_sum(spd, b, (n + 1).flatten().tolist(), a.flatten().tolist()))
    assert products(oracle) == [5, 0, 2, 3]


def test_neumann_sum_converges_to_the_solution(solver, spd, b):
    oracle, A = solver()
    torch.testing.assert_close(neumann_sum(oracle, A, b, 300, 0.25), solve(spd, b), rtol=1e-9, atol=1e-9)
