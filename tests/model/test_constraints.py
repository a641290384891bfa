"""Sets for x: their projections are the nearest points, and a function that is no projection is told so."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from bilevelbench import Ball, Box, InvalidInput, Simplex, norm
from bilevelbench.model.constraints import check_projection, projection_of

F64 = torch.float64


def points(lanes: int = 5, d: int = 4, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(lanes, d, generator=torch.Generator().manual_seed(3), dtype=F64)


def inside(kind, lanes: int = 200, d: int = 4) -> Tensor:
    """Points of the set, made without its projection."""
    generator = torch.Generator().manual_seed(4)
    u = torch.rand(lanes, d, generator=generator, dtype=F64)
    if isinstance(kind, Box):
        return -0.5 + 1.5 * u
    if isinstance(kind, Simplex):
        return kind.total * (-u.log()) / (-u.log()).sum(-1, keepdim=True)
    direction = torch.randn(lanes, d, generator=generator, dtype=F64)
    return kind.center + kind.radius * u[:, :1] * direction / norm(direction)


SETS = [Box(-0.5, 1.0), Simplex(), Simplex(3.0), Ball(0.7), Ball(1.5, torch.tensor([1.0, -1.0, 0.0, 2.0], dtype=F64))]


@pytest.mark.parametrize("kind", SETS, ids=str)
def test_no_point_of_the_set_is_nearer_than_the_projection(kind):
    """(x - P x)(z - P x) <= 0 for every z of the set: the nearest point of a convex set, and no other."""
    for x in points():
        nearest = kind(x[None])[0]
        assert (((inside(kind) - nearest) @ (x - nearest)) <= 1e-12).all()


@pytest.mark.parametrize("kind", SETS, ids=str)
def test_points_of_the_set_stay(kind):
    torch.testing.assert_close(kind(inside(kind)), inside(kind), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", SETS, ids=str)
def test_a_projection_brings_no_two_points_farther_apart(kind):
    a, b = points(), points(scale=3.0).flip(0)
    assert (norm(kind(a) - kind(b)) <= norm(a - b) * (1 + 1e-14)).all()


def test_lanes_are_projected_each_by_itself():
    x = points()
    for kind in SETS:
        assert torch.equal(kind(x), torch.cat([kind(x[i : i + 1]) for i in range(len(x))]))


def test_simplex_is_what_a_solver_finds():
    x = points(1)[0].numpy()
    constraint = {"type": "eq", "fun": lambda z: z.sum() - 1}
    found = minimize(
        lambda z: ((z - x) ** 2).sum(), np.full(4, 0.25), bounds=[(0, None)] * 4, constraints=constraint, tol=1e-14
    )
    np.testing.assert_allclose(Simplex()(torch.from_numpy(x)[None])[0], found.x, atol=1e-6)
    assert math.isclose(float(Simplex()(torch.from_numpy(x)[None]).sum()), 1.0, rel_tol=1e-14)


def test_box_with_a_bound_for_each_coordinate():
    low = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=F64)  # in the shape of a matrix x
    assert Box(low)(torch.zeros(1, 4, dtype=F64)).tolist() == [[0.0, 1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Box(1.0, 0.0), "is empty"),
        (lambda: Simplex(0.0), "has to be above zero"),
        (lambda: Ball(-1.0), "radius has to be above zero"),
        (lambda: Box(torch.zeros(3))(points()), r"a bound of shape \(3,\) for an x of 4 numbers"),
    ],
)
def test_sets_that_are_none(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


@pytest.mark.parametrize(
    ("project", "message"),
    [
        (lambda x: 0.5 * x, "the projection leaves its set: what it returned is moved by"),
        (
            lambda x: x[..., :2],
            r"the projection made torch.float64 \(5, 2\) on cpu of x, which is torch.float64 \(5, 4\)",
        ),
        (lambda x: x.float(), "the projection made torch.float32"),
        (lambda x: x / 0, "not finite"),
        (lambda x: x.tolist(), "the projection made list of x"),
    ],
)
def test_functions_that_are_no_projection(project, message):
    with pytest.raises(InvalidInput, match=message):
        check_projection(project, points())


def test_own_function_gets_x_in_its_shape():
    shapes = []

    def rows_to_one(x: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return x / x.norm(dim=-1, keepdim=True)

    x0 = points(2, 3)
    over_lanes = projection_of(rows_to_one, x0.reshape(-1), lambda x: x.reshape(2, 3), lambda x: x.reshape(-1))
    assert over_lanes(x0.reshape(1, -1)).shape == (1, 6)
    assert set(shapes) == {(2, 3)}


def test_what_is_no_set():
    with pytest.raises(InvalidInput, match=r"project=\(0, 1\): give bilevelbench.Box"):
        projection_of((0, 1), points(), lambda x: x, lambda x: x)
