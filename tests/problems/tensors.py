"""What the tests of problems share: normals and rows, comparisons, Hessians written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bilevelbench import Instance, Rows
from bilevelbench.model.queries import QUERIES


def close(a: Tensor, b: Tensor, rtol: float = 1e-9) -> None:
    """Equal shapes, and equal values up to `rtol` of the largest one."""
    assert a.shape == b.shape
    torch.testing.assert_close(a, b, rtol=0, atol=rtol * (1 + float(b.abs().max())))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def some_rows(instance: Instance, *shape: int, seed: int = 0) -> Rows:
    """(*points, L, B) rows that exist in f and in g, with weights that need not sum to one."""
    rng = torch.Generator().manual_seed(seed)
    index = torch.randint(min(instance.noise.n_f, instance.noise.n_g), shape, generator=rng)
    return Rows(index, torch.rand(shape, generator=rng))


def call(function: Callable[..., Tensor | tuple[Tensor, ...]], *arguments: Tensor) -> tuple[Tensor, ...]:
    answer = function(*arguments)
    return answer if isinstance(answer, tuple) else (answer,)


def lower_hessian(instance: Instance, x: Tensor, y: Tensor) -> Tensor:
    """The Hessian of g in y, (*points, L, dy, dy), column by column."""
    return torch.stack([instance.hvp_g_yy(x, y, e.expand_as(y)) for e in torch.eye(instance.dy, dtype=y.dtype)], -1)


def joint_hessian(function: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The Hessian of f or g in (x, y) at one point of one lane, by autograd."""
    dx = x.shape[-1]
    return torch.autograd.functional.hessian(
        lambda z: function(z[:dx].expand(1, -1), z[dx:].expand(1, -1)).sum(), torch.cat([x, y], -1).flatten()
    )


def check_bits(instance: Instance, rows: Rows | None = None, scale: float = 1.0) -> None:
    """A lane alone, in a pack filled up with copies, has the bits that it has among 36."""
    L = 36
    x, y, v = (
        scale * normal(L, d, seed=i).to(instance.x0.dtype) for i, d in enumerate([instance.dx, *[instance.dy] * 2])
    )
    for query in QUERIES:
        arguments = (x, y, v) if "vp" in query else (x, y)
        extra = () if rows is None else (rows,)
        whole = call(instance.functions[query], *arguments, *extra)
        for lane in range(L):
            copies = torch.full((4,), lane)
            extra = () if rows is None else (Rows(rows.index[copies], rows.weight[copies]),)
            alone = call(instance.functions[query], *(a[copies] for a in arguments), *extra)
            assert all(torch.equal(a[0], w[lane]) for a, w in zip(alone, whole, strict=True)), (query, lane)


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
