"""The smallest eigenvalue of the Hessian of phi, with its error: what second-order stationarity is certified by.

A closed form is exact up to rounding. Otherwise a product with the Hessian is a central difference of certified
hypergradients. With step h and an error e of each of them, a product with a unit vector is off by at most

    rho_phi h/2 + e/h

since the mean of the Hessian over [x - h u, x + h u] is that close to its middle. Up to `DENSE` columns the matrix is made
whole, and its d columns move an eigenvalue by at most sqrt(d) times that (Weyl). Beyond, Lanczos (scipy's `eigsh`) finds
the smallest eigenvalue; to the error of a product comes the residual |H u - value u|, within which some eigenvalue lies.
That it is the smallest one holds with probability one over the start, which is fixed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import PAD

DENSE = 500  # up to this many columns the Hessian is made column by column
_LANCZOS_TOLERANCE = 1e-4  # relative; hypergradient differences carry no more

Gradient = Callable[[Instance, Tensor, Tensor], Tensor]


def smallest_eigenvalue(
    instance: Instance, gradient: Gradient, x: Tensor, y: Tensor, gradient_error: Tensor, rho: Tensor | float
) -> tuple[Tensor, Tensor]:
    """The eigenvalue and its error, each (L, 1). `gradient(instance, x, y)` is the certified hypergradient.

    The error is NaN where `rho` or the gradients' error is: then nothing bounds the differences.
    """
    reference, d = instance.reference, instance.dx
    if reference is not None and reference.hess_phi is not None:
        hessian = reference.hess_phi(x)
        return _smallest(hessian), d * torch.finfo(x.dtype).eps * hessian.abs().amax((-2, -1)).unsqueeze(-1)
    h = float(torch.finfo(x.dtype).eps ** (1 / 3))
    of_product = rho * h / 2 + (gradient_error + torch.finfo(x.dtype).eps) / h
    if d <= DENSE:
        return _smallest(_by_columns(instance, gradient, x, y, h)), d**0.5 * of_product
    value, residual = _by_lanczos(instance, gradient, x, y, h)
    return value, residual + of_product


def _by_columns(instance: Instance, gradient: Gradient, x: Tensor, y: Tensor, h: float) -> Tensor:
    columns = []
    for i in range(instance.dx):
        e = torch.zeros(instance.dx, dtype=x.dtype, device=x.device)
        e[i] = h
        columns.append((gradient(instance, x + e, y) - gradient(instance, x - e, y)) / (2 * h))
    hessian = torch.stack(columns, dim=-1)
    return (hessian + hessian.mT) / 2


def _by_lanczos(instance: Instance, gradient: Gradient, x: Tensor, y: Tensor, h: float) -> tuple[Tensor, Tensor]:
    """Lane after lane, each padded like a pack of its own: its numbers do not depend on who else is looked at."""
    found = []
    for lane in range(len(x)):
        index = torch.full((min(len(x), PAD),), lane, device=x.device)
        found.append(_lanczos(instance.take(index), gradient, x[index], y[index], h))
    return tuple(
        torch.tensor(column, dtype=x.dtype, device=x.device).unsqueeze(-1) for column in zip(*found, strict=True)
    )  # type: ignore[return-value]


def _lanczos(instance: Instance, gradient: Gradient, x: Tensor, y: Tensor, h: float) -> tuple[float, float]:
    if not bool(torch.isfinite(x).all()):
        return float("nan"), float("nan")

    def times(v: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        u = torch.from_numpy(v.reshape(-1)).to(x.dtype).to(x.device)
        change = gradient(instance, x + h * u, y) - gradient(instance, x - h * u, y)
        product: npt.NDArray[np.float64] = (change[0] / (2 * h)).cpu().double().numpy()
        return product

    d = instance.dx
    start = np.random.default_rng(0).standard_normal(d)
    operator = LinearOperator((d, d), matvec=times, dtype=np.float64)
    try:
        values, vectors = eigsh(operator, k=1, which="SA", v0=start, tol=_LANCZOS_TOLERANCE)
    except ArpackNoConvergence:
        return float("nan"), float("nan")
    value, vector = float(values[0]), vectors[:, 0]
    return value, float(np.linalg.norm(times(vector) - value * vector))


def _smallest(matrices: Tensor) -> Tensor:
    """The smallest eigenvalue of each symmetric matrix, NaN where it is not finite: LAPACK would fail for all lanes."""
    bad = ~torch.isfinite(matrices).all(-1, keepdim=True).all(-2, keepdim=True)
    eigenvalues = torch.linalg.eigvalsh(torch.where(bad, 0.0, matrices))
    return torch.where(bad[..., 0], torch.nan, eigenvalues[..., :1])
