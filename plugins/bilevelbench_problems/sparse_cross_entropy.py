"""Cross-entropy of sparse rows with many words: its derivatives, and the constants of the problem that they make."""

from __future__ import annotations

import math

import numpy as np
import scipy  # its parts load when they are used
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bilevelbench import Constant, bound, estimated
from bilevelbench_problems.common import joint_norm
from bilevelbench_problems.csr import CSR

_POWER_STEPS = 30
_CURVATURE, _SLOPE, _THIRD = 1 / 2, math.sqrt(2), math.sqrt(2) ** 3 / (6 * math.sqrt(3))  # of CE along unit vectors


class SparseLoss:
    """Mean cross-entropy of some posts as a function of Y (.., p, C), and its derivatives."""

    def __init__(self, A: scipy.sparse.csr_matrix, labels: np.ndarray, classes: int, dtype: torch.dtype) -> None:
        self.A, (self.n, self.p) = CSR(A, dtype), A.shape
        self.labels = torch.from_numpy(labels.astype(np.int64))
        self.T = one_hot(self.labels, classes).to(dtype)

    def value(self, Y: Tensor) -> Tensor:
        Z = self.A @ Y
        return (torch.logsumexp(Z, -1) - (self.T * Z).sum(-1)).mean(-1, keepdim=True)

    def accuracy(self, Y: Tensor) -> Tensor:
        return ((self.A @ Y).argmax(-1) == self.labels).to(Y.dtype).mean(-1, keepdim=True)

    def gradient(self, Y: Tensor) -> Tensor:
        out: Tensor = self.A.T @ ((self.probabilities(Y) - self.T) / self.n)
        return out

    def probabilities(self, Y: Tensor) -> Tensor:
        return torch.softmax(self.A @ Y, -1)

    def bend(self, P: Tensor, V: Tensor) -> Tensor:
        """The Hessian times V, where the classes have these probabilities."""
        out: Tensor = self.A.T @ (_bend(P, self.A @ V) / self.n)
        return out

    def turn(self, P: Tensor, V: Tensor, W: Tensor) -> Tensor:
        """The derivative of that product along W."""
        U, dP = self.A @ V, _bend(P, self.A @ W)
        out: Tensor = self.A.T @ ((dP * (U - _dot(P, U)) - P * _dot(dP, U)) / self.n)
        return out


def _dot(P: Tensor, U: Tensor) -> Tensor:
    return (P * U).sum(-1, keepdim=True)


def _bend(P: Tensor, U: Tensor) -> Tensor:
    """The Hessian of CE in each post's scores times U."""
    return P * (U - _dot(P, U))


def measured_constants(
    posts: list[tuple[scipy.sparse.csr_matrix, np.ndarray]], train: SparseLoss, val: SparseLoss, Y: Tensor, reg: float
) -> dict[str, Constant]:
    (A, _), (V, _) = posts[:2]
    top, top_val = _top(A), _top(V)
    L_gy = _CURVATURE * top + reg
    words = Y.square().sum(-1).double()  # the regulariser couples x_j with row j, and the Hessian in y is at most L_gy
    size = float(words.max().sqrt())
    return {
        "mu": estimated(reg),
        "L_gy": estimated(L_gy),
        "L_g": estimated(joint_norm(0.5 * reg * words, reg * words.sqrt(), L_gy)),
        "rho_g": estimated(_THIRD * _longest(A) * top + reg * (0.5 * size**2 + 3 * size + 3)),
        "C_f": bound(_SLOPE * math.sqrt(top_val)),
        "L_f": bound(_CURVATURE * top_val),
        "rho_f": bound(_THIRD * _longest(V) * top_val),
        "L_phi": estimated(_curvature(A, train, val, Y, reg)),
        "Delta": estimated(float(val.value(Y))),
    }


def _top(A: scipy.sparse.csr_matrix) -> float:
    """The largest eigenvalue of the mean of a aᵀ; features are not negative, so the mean post is no bad start."""
    (sigma,) = scipy.sparse.linalg.svds(A, k=1, return_singular_vectors=False, v0=np.ones(min(A.shape)))
    top: float = float(sigma) ** 2 / A.shape[0] * (1 + 1e-9)
    return top


def _longest(A: scipy.sparse.csr_matrix) -> float:
    return math.sqrt(A.multiply(A).sum(1).max())


def _curvature(A: scipy.sparse.csr_matrix, train: SparseLoss, val: SparseLoss, Y: Tensor, reg: float) -> float:
    """The largest |eigenvalue| of M f_yy Mᵀ - v·(g_yxx + g_yyx M + its transpose + g_yyy[M, M]), by power iteration.

    M = -J H⁻¹ and v = H⁻¹ f_y, with the diagonal of H for H: then M, like J, keeps to the row of its word.
    """
    P, P_val = train.probabilities(Y), val.probabilities(Y)
    across = (P * (1 - P)).double().numpy()
    H = torch.from_numpy(A.multiply(A).T.tocsr() @ across / train.n + reg).to(Y.dtype)
    v, M = val.gradient(Y) / H, -reg * Y / H
    diagonal = reg * (v * (Y + 2 * M)).sum(-1)

    def product(u: Tensor) -> Tensor:
        dY = u.unsqueeze(-1) * M
        return (M * (val.bend(P_val, dY) - train.turn(P, v, dY))).sum(-1) - diagonal * u

    u = torch.full((train.p,), train.p**-0.5, dtype=Y.dtype)
    size = 0.0
    for _ in range(_POWER_STEPS):
        u = product(u)
        size = float(u.norm())
        u = u / size
    return size
