"""The hypergradient from a linear system that is solved to a tolerance."""

from __future__ import annotations

import torch
from torch import Tensor

from bilevelbench import Oracle, conjugate_gradient, norm


def hypergradient(
    oracle: Oracle,
    x: Tensor,
    y: Tensor,
    v: Tensor,
    n: int | Tensor,
    tol: float | Tensor,
    *,
    cold: bool,
    normal: bool = False,
) -> tuple[Tensor, Tensor]:
    """d = f_x - J v and v, from at most n steps of cg on H v = f_y, to a residual of tol |f_y|; `cold`: v is zero.

    `normal` solves H^2 v = H f_y from zero instead, at two products a step.
    """
    f_x, f_y = oracle.grad_f(x, y)

    def H(u: Tensor) -> Tensor:
        return oracle.hvp_g_yy(x, y, u)

    if normal:
        b = H(f_y)
        v = conjugate_gradient(oracle, lambda u: H(H(u)), b, torch.zeros_like(b), n, tol * norm(b), cold=True)
    else:
        v = conjugate_gradient(oracle, H, f_y, v, n, tol * norm(f_y), cold=cold)
    return f_x - oracle.jvp_g_xy(x, y, v), v
