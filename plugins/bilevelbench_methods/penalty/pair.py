"""The lower level of the penalty methods: z follows y*(x), y follows y_lam*(x) = argmin f/lam + g."""

from __future__ import annotations

from torch import Tensor

from bilevelbench import Oracle, keep

USES = frozenset({"grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y"})


def pen_pair(
    oracle: Oracle, x: Tensor, y: Tensor, z: Tensor, K: int | Tensor, lam: Tensor, a_y: Tensor, a_z: Tensor
) -> tuple[Tensor, Tensor]:
    """K gradient steps on each, in the scale-free form: the steps do not depend on lam.

    z <- z - a_z g_y(x, z)
    y <- y - a_y (f_y(x, y)/lam + g_y(x, y))
    """
    for on in oracle.repeat(K):
        V, U = oracle.mean(oracle.grad_g_y(x, z), oracle.grad_f_y(x, y) / lam + oracle.grad_g_y(x, y))
        z, y = keep(on, z - a_z * V, z), keep(on, y - a_y * U, y)
    return y, z


def penalty_gradient(oracle: Oracle, x: Tensor, y: Tensor, z: Tensor, lam: Tensor) -> Tensor:
    """f_x(x, y) + lam (g_x(x, y) - g_x(x, z)), the estimate of grad phi."""
    return oracle.mean(oracle.grad_f_x(x, y) + lam * (oracle.grad_g_x(x, y) - oracle.grad_g_x(x, z)))
