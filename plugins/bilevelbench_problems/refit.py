"""y*(x) of a softmax regression on sparse rows, by Newton's method with preconditioned conjugate gradients.

    G(Y) = mean CE + Σ_j w_j/2 ‖Y_j‖²,    a step solves H D = ∇G to a tenth at first, and closer near the end

The preconditioner is the diagonal of H, whose entries span the counts of words, four decades. A fit is finished when the
Newton decrement λ = √(∇G·D), the length of what is left to go in the norm of H, is at most `ENOUGH`: a loss ℓ of other posts is
then off by about λ ‖∇ℓ‖ in the norm of H⁻¹, some 1e-3 at most, which no figure shows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import scipy  # its parts load when they are used
import torch
from torch import Tensor

from bilevelbench_problems.csr import CSR
from bilevelbench_problems.sparse_cross_entropy import SparseLoss

ENOUGH = 2e-3
_STEPS, _PRODUCTS, _HALVINGS = 60, 400, 30


class Refit:
    """The minimiser for any weights w (p,), each time from where the last one was found."""

    def __init__(self, A: scipy.sparse.csr_matrix, loss: SparseLoss, start: Tensor) -> None:
        self.loss, self.squares, self.last = loss, CSR(A.multiply(A).tocsr(), start.dtype), start

    def __call__(self, w: Tensor) -> Tensor:
        W, Y = w.unsqueeze(-1), self.last
        for _ in range(_STEPS):
            P = self.loss.probabilities(Y)
            G = self.loss.gradient(Y) + W * Y
            diagonal = self.squares.T @ (P * (1 - P) / self.loss.n) + W
            D = _solve(functools.partial(self._product, P, W), G, diagonal)
            decrement = float((G * D).sum())
            Y, moved = self._step(W, Y, D, decrement)
            if decrement <= ENOUGH**2 or not moved:
                break
        self.last = Y
        return Y

    def _product(self, P: Tensor, W: Tensor, V: Tensor) -> Tensor:
        return self.loss.bend(P, V) + W * V

    def _step(self, W: Tensor, Y: Tensor, D: Tensor, decrement: float) -> tuple[Tensor, bool]:
        """Halved until G falls by a part of what the slope promises; not at all where rounding hides the fall."""
        value, t = float(self._value(W, Y)), 1.0
        for _ in range(_HALVINGS):
            new = Y - t * D
            if float(self._value(W, new)) <= value - 1e-4 * t * decrement:
                return new, True
            t /= 2
        return Y, False

    def _value(self, W: Tensor, Y: Tensor) -> Tensor:
        return self.loss.value(Y).double() + 0.5 * (W * Y.square()).sum(dtype=torch.float64)


def _solve(H: Callable[[Tensor], Tensor], G: Tensor, diagonal: Tensor) -> Tensor:
    """D near H⁻¹ G: conjugate gradients with this diagonal, until G - H D is small in the norm of its inverse."""
    D, R = torch.zeros_like(G), G
    Z = R / diagonal
    Q, s = Z, float((R * Z).sum())
    enough = min(1e-2, max(s, 1e-12) ** 0.5) * s
    for _ in range(_PRODUCTS):
        V = H(Q)
        c = s / float((Q * V).sum())
        D, R = D + c * Q, R - c * V
        Z = R / diagonal
        s, before = float((R * Z).sum()), s
        if s <= enough:
            break
        Q = Z + (s / before) * Q
    return D
