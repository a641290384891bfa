"""Checks that every problem with closed forms has to pass; each one names a property."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bilevelbench import FiniteSum, Instance, Rows, norm
from bilevelbench.model.derivatives import derive
from bilevelbench.model.queries import QUERIES


def close(a: Tensor, b: Tensor, rtol: float = 1e-9) -> None:
    """Equal shapes, and equal values up to `rtol` of the largest one."""
    assert a.shape == b.shape
    torch.testing.assert_close(a, b, rtol=0, atol=rtol * (1 + float(b.abs().max())))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def call(function: Callable[..., Tensor | tuple[Tensor, ...]], *arguments: Tensor) -> tuple[Tensor, ...]:
    answer = function(*arguments)
    return answer if isinstance(answer, tuple) else (answer,)


def lanes_of(instance: Instance) -> int:
    """Data with a lane axis fix the number of lanes; others serve any."""
    return len(instance.x0) if len(instance.x0) > 1 else 4


def check_derivatives(instance: Instance) -> None:
    """Each analytic derivative is that of f or g by autograd, with the shape of all points, whoever carries them."""
    L, dx, dy = lanes_of(instance), instance.dx, instance.dy
    by_autograd = derive(instance.functions["value_f"], instance.functions["value_g"], {})
    for x_points, y_points, v_points in [
        ((), (), ()),
        ((3,), (3,), (3,)),
        ((), (3,), (3,)),
        ((3,), (), ()),
        ((), (3,), ()),
    ]:
        x = normal(*x_points, L, dx, seed=1)
        y = 3 * normal(*y_points, L, dy, seed=2)
        v = normal(*v_points, L, dy, seed=3)
        for query in QUERIES:
            arguments = (x, y, v) if "vp" in query else (x, y)
            ours = call(instance.functions[query], *arguments)
            theirs = call(by_autograd[query], *arguments)
            for a, b in zip(ours, theirs, strict=True):
                close(a, b)
        points = torch.broadcast_shapes(x_points, y_points)
        assert instance.value_f(x, y).shape == instance.value_g(x, y).shape == (*points, L, 1)


def check_derivatives_at_solution(instance: Instance) -> None:
    """Also at y = y*(x), where arguments of non-smooth formulas would be zero."""
    L = lanes_of(instance)
    by_autograd = derive(instance.functions["value_f"], instance.functions["value_g"], {})
    x, v = normal(L, instance.dx), normal(L, instance.dy, seed=1)
    y = instance.reference.y_star(x)
    for query in ("hvp_g_yy", "jvp_g_xy"):
        close(instance.functions[query](x, y, v), by_autograd[query](x, y, v))


def check_solution(instance: Instance) -> None:
    """g_y(x, y*(x)) = 0 and phi(x) = f(x, y*(x)), also over a point axis."""
    x = normal(2, lanes_of(instance), instance.dx)
    y = instance.reference.y_star(x)
    scale = norm(instance.grad_g_y(x, torch.zeros_like(y))).max()
    assert norm(instance.grad_g_y(x, y)).max() <= 1e-10 * (1 + scale)
    close(instance.reference.phi(x), instance.value_f(x, y))


def _central(function: Callable[[Tensor], Tensor], x: Tensor, h: float) -> Tensor:
    """The derivative in each coordinate of x, on a new last axis."""
    steps = h * torch.eye(x.shape[-1])
    return torch.stack([(function(x + e) - function(x - e)) / (2 * h) for e in steps], -1)


def check_hypergradient(instance: Instance) -> None:
    """grad_phi and hess_phi against central differences of phi and grad_phi, and grad_phi = f_x - J v*."""
    x, ref = normal(2, lanes_of(instance), instance.dx), instance.reference
    close(_central(ref.phi, x, 1e-4).squeeze(-2), ref.grad_phi(x), 1e-6)
    close(_central(ref.grad_phi, x, 1e-4), ref.hess_phi(x), 1e-6)
    y = ref.y_star(x)
    v = torch.linalg.solve(lower_hessian(instance, x, y), instance.grad_f_y(x, y).unsqueeze(-1)).squeeze(-1)
    close(instance.grad_f_x(x, y) - instance.jvp_g_xy(x, y, v), ref.grad_phi(x), 1e-8)


def lower_hessian(instance: Instance, x: Tensor, y: Tensor) -> Tensor:
    """The Hessian of g in y, (*points, L, dy, dy), column by column."""
    return torch.stack([instance.hvp_g_yy(x, y, e.expand_as(y)) for e in torch.eye(instance.dy)], -1)


def joint_hessian(function: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The Hessian of f or g in (x, y) at one point of one lane, by autograd."""
    dx = x.shape[-1]
    return torch.autograd.functional.hessian(
        lambda z: function(z[:dx].expand(1, -1), z[dx:].expand(1, -1)).sum(), torch.cat([x, y], -1).flatten()
    )


def check_bounds(instance: Instance, scale: float = 2.0) -> None:
    """What is declared exact or bound holds between many pairs of points, near and far."""
    L, dx, dy = lanes_of(instance), instance.dx, instance.dy
    given = instance.constants.given
    holds = {name: c.most for name, c in given.items() if c.kind != "estimated"}
    x1, y1 = scale * normal(100, L, dx, seed=1), scale * normal(100, L, dy, seed=2)
    away = torch.logspace(-2, 1, 100).reshape(-1, 1, 1)
    x2, y2 = x1 + away * normal(100, L, dx, seed=3), y1 + away * normal(100, L, dy, seed=4)
    tolerance = 1 + 1e-9

    def lipschitz(name: str, difference: Tensor, distance: Tensor) -> None:
        if name in holds:
            assert (difference <= holds[name] * distance * tolerance + 1e-9).all(), name

    both = torch.cat([x2 - x1, y2 - y1], -1)
    for level in "fg":
        gradient = [torch.cat(instance.functions[f"grad_{level}"](*at), -1) for at in ((x1, y1), (x2, y2))]
        lipschitz(f"L_{level}", norm(gradient[1] - gradient[0]), norm(both))
    pull = instance.grad_g_y(x1, y2) - instance.grad_g_y(x1, y1)
    lipschitz("L_gy", norm(pull), norm(y2 - y1))
    assert ((pull * (y2 - y1)).sum(-1, keepdim=True) * tolerance >= holds["mu"] * norm(y2 - y1) ** 2).all()
    lipschitz("C_f", norm(instance.grad_f_y(x1, y1)), torch.tensor(1.0))
    ref = instance.reference
    lipschitz("L_phi", norm(ref.grad_phi(x2) - ref.grad_phi(x1)), norm(x2 - x1))
    bend = torch.linalg.matrix_norm(ref.hess_phi(x2) - ref.hess_phi(x1), 2).unsqueeze(-1)
    lipschitz("rho_phi", bend, norm(x2 - x1))
    x0, y0 = instance.x0, instance.y0
    assert (ref.phi(x0) - ref.phi(x1) <= holds["Delta"] * tolerance).all()
    assert (norm(y0 - ref.y_star(x0)) ** 2 <= holds["R"] * tolerance).all()


def check_hessian_bounds(instance: Instance) -> None:
    """rho_f and rho_g, for an instance of one lane: differences of the joint Hessians."""
    holds = {name: c.most for name, c in instance.constants.given.items() if c.kind != "estimated"}
    for seed in range(10):
        x1, y1 = normal(1, instance.dx, seed=seed), normal(1, instance.dy, seed=seed + 100)
        x2 = x1 + 0.3 * normal(1, instance.dx, seed=seed + 200)
        y2 = y1 + 0.3 * normal(1, instance.dy, seed=seed + 300)
        distance = torch.cat([x2 - x1, y2 - y1], -1).norm()
        for level in "fg":
            function = instance.functions[f"value_{level}"]
            change = torch.linalg.matrix_norm(joint_hessian(function, x2, y2) - joint_hessian(function, x1, y1), 2)
            if f"rho_{level}" in holds:
                assert change <= holds[f"rho_{level}"] * distance + 1e-9, level


def check_same(one: Instance, other: Instance) -> None:
    """Two builds agree bit for bit."""
    L = lanes_of(one)
    x, y, v = normal(L, one.dx), normal(L, one.dy, seed=1), normal(L, one.dy, seed=2)
    assert torch.equal(one.x0, other.x0)
    assert torch.equal(one.y0, other.y0)
    assert one.constants.given == other.constants.given
    for query in QUERIES:
        arguments = (x, y, v) if "vp" in query else (x, y)
        for a, b in zip(call(one.functions[query], *arguments), call(other.functions[query], *arguments), strict=True):
            assert torch.equal(a, b), query


def check_against_differences(instance: Instance, plain: Any, y: Tensor) -> None:
    """Gradients and products against central differences of f(y), g(x, y) and g_y(x, y) as numpy has them; f_x = 0."""
    x, v, h = normal(1, instance.dx), normal(1, instance.dy, seed=2), 1e-5

    def slope(function: Callable[..., Any], at: Tensor, along: Tensor) -> Any:
        a, d = at[0].numpy(), along[0].numpy()
        return (function(a + h * d) - function(a - h * d)) / (2 * h)

    for seed in range(3):
        p, q = normal(1, instance.dx, seed=seed + 10), normal(1, instance.dy, seed=seed + 20)
        along_x = slope(lambda a: plain.g(a, y[0].numpy()), x, p)
        along_y = slope(lambda b: plain.g(x[0].numpy(), b), y, q)
        assert float((instance.grad_g_x(x, y) * p).sum()) == pytest.approx(along_x, rel=1e-7, abs=1e-9)
        assert float((instance.grad_g_y(x, y) * q).sum()) == pytest.approx(along_y, rel=1e-7, abs=1e-9)
        assert float((instance.grad_f_y(x, y) * q).sum()) == pytest.approx(slope(plain.f, y, q), rel=1e-7, abs=1e-9)
        mixed = slope(lambda a: plain.g_y(a, y[0].numpy()) @ v[0].numpy(), x, p)
        assert float((instance.jvp_g_xy(x, y, v) * p).sum()) == pytest.approx(mixed, rel=1e-6, abs=1e-9)
    Hv = slope(lambda b: plain.g_y(x[0].numpy(), b), y, v)
    close(instance.hvp_g_yy(x, y, v)[0], torch.as_tensor(Hv), 1e-8)
    assert (instance.grad_f_x(x, y) == 0).all()


def check_derivatives_of_rows(instance: Instance, rows: Rows, x: Tensor) -> None:
    """By autograd, at three points in four lanes with these rows, one of them twice; each point as it is alone."""
    by_autograd = derive(instance.functions["value_f"], instance.functions["value_g"], {})
    y, v = normal(3, 4, instance.dy, seed=1), normal(3, 4, instance.dy, seed=2)
    rows.index[..., 3] = rows.index[..., 0]
    for query in QUERIES:
        arguments = (x, y, v) if "vp" in query else (x, y)
        ours = call(instance.functions[query], *arguments, rows)
        for a, b in zip(ours, call(by_autograd[query], *arguments, rows), strict=True):
            close(a, b)
        for point in range(3):
            at = (a[point] if a.dim() == 3 else a for a in arguments)
            for a, b in zip(ours, call(instance.functions[query], *at, rows.at(point, 3)), strict=True):
                close(a[point], b)


def check_rows_are_unbiased(instance: Instance) -> None:
    """The mean over all single rows is the whole sum, for f, for g with its regulariser, and for the products."""
    assert isinstance(instance.noise, FiniteSum)
    x, y, v = normal(1, instance.dx), normal(1, instance.dy, seed=1), normal(1, instance.dy, seed=2)
    for query in QUERIES:
        n = instance.noise.n_f if "f" in query.split("_") else instance.noise.n_g
        each = Rows(torch.arange(n).reshape(n, 1, 1), torch.ones(n, 1, 1))
        arguments = [a.expand(n, 1, -1) for a in ((x, y, v) if "vp" in query else (x, y))]
        singles = call(instance.functions[query], *arguments, each)
        whole = call(instance.functions[query], *(a[0] for a in arguments))
        for one, all_rows in zip(singles, whole, strict=True):
            close(one.mean(0), all_rows)
