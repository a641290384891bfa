"""y*(x) of a softmax regression on sparse rows, by Newton's method with preconditioned conjugate gradients.

    G(Y) = mean CE + Σ_j w_j/2 ‖Y_j‖²,    a step solves H D = ∇G to a tenth at first, and closer near the end

The preconditioner is the diagonal of H, whose entries span the counts of words, four decades. A fit is finished when the
Newton decrement λ = √(∇G·D), the length of what is left to go in the norm of H, is at most `ENOUGH`: a loss ℓ of other posts is
then off by about λ ‖∇ℓ‖ in the norm of H⁻¹, some 1e-3 at most before the last step, which is still taken. After it they were
off by 2e-5 at most (20 newsgroups, five x of one split, against a decrement of 1e-4), which no figure shows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import scipy  # its parts load when they are used
import torch
from torch import Tensor

from bilevelbench_problems.csr import CSR
from bilevelbench_problems.sparse_cross_entropy import SparseLoss

ENOUGH = 2e-3
_STEPS, _PRODUCTS, _HALVINGS = 60, 400, 30
_FREE, _FIXED = 1e-30, 1e30  # weights beyond these leave a word free, or hold it at zero, as these do


class Refit:
    """The minimiser for any weights w (p,), each time from where the last one was found."""

    def __init__(self, A: scipy.sparse.csr_matrix, labels: np.ndarray, classes: int, start: Tensor) -> None:
        self.words = Merged(A)
        self.loss = SparseLoss(self.words.matrix, labels, classes, start.dtype)
        self.squares = CSR(self.words.matrix.power(2), start.dtype)
        self.last = self.words.merge(start)

    def __call__(self, w: Tensor) -> Tensor:
        if bool(w.isnan().any()):  # a trial that diverged; the next one begins where the last fit ended
            return self.last.new_full((self.words.p, self.last.shape[-1]), torch.nan)
        w = w.double().clamp(_FREE, _FIXED)
        W, Y = self.words.weights(w).to(self.last.dtype).unsqueeze(-1), self.last
        for _ in range(_STEPS):
            P = self.loss.probabilities(Y)
            G = self.loss.gradient(Y).addcmul_(W, Y)
            diagonal = (self.squares.T @ (P * (1 - P) / self.loss.n)).add_(W)
            D = _solve(functools.partial(self._product, P, W), G, diagonal)
            decrement = _inner(G, D)
            Y, moved = self._step(W, Y, D, decrement)
            if decrement <= ENOUGH**2 or not moved:
                break
        self.last = Y
        return self.words.spread(Y, w)

    def _product(self, P: Tensor, W: Tensor, V: Tensor) -> Tensor:
        return self.loss.bend(P, V).addcmul_(W, V)

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


class Merged:
    """The words that a fit is about: those of several posts, and for each post one made of the words that it alone has.

    More than half of the words occur in one post or in none. Where g is smallest, lone words j of a post i all have one
    direction, w_j Y_j = -a_ij (a gradient in the scores of i). So what they add to its scores is enough to know:

        V_i = Σ_j a_ij Y_j,    Y_j = a_ij/w_j W_i V_i,    Σ_j w_j/2 ‖Y_j‖² = W_i/2 ‖V_i‖²    with 1/W_i = Σ_j a_ij²/w_j

    A word of no post has Y_j = 0.
    """

    def __init__(self, A: scipy.sparse.csr_matrix) -> None:
        columns = A.tocsc()
        posts = np.diff(columns.indptr)
        shared, lone = np.flatnonzero(posts > 1), np.flatnonzero(posts == 1)
        owners, owner = np.unique(columns.indices[columns.indptr[lone]], return_inverse=True)
        own = scipy.sparse.csr_matrix(
            (np.ones(len(owners)), (owners, np.arange(len(owners)))), shape=(A.shape[0], len(owners))
        )
        self.matrix = scipy.sparse.hstack([columns[:, shared], own], format="csr")
        self.p, self.owners = A.shape[1], len(owners)
        self.shared, self.lone, self.owner = (torch.from_numpy(part.astype(np.int64)) for part in (shared, lone, owner))
        self.a = torch.from_numpy(columns.data[columns.indptr[lone]])

    def weights(self, w: Tensor) -> Tensor:
        """Those of the shared words, and W."""
        return torch.cat([w[self.shared], 1 / self._sum(self.a.square() / w[self.lone])])

    def merge(self, Y: Tensor) -> Tensor:
        """Rows of the shared words, and V."""
        added = self._sum(self.a.unsqueeze(-1) * Y[self.lone])
        return torch.cat([Y[self.shared], added.to(Y.dtype)])

    def spread(self, Y: Tensor, w: Tensor) -> Tensor:
        """The rows of all words, where weights are these."""
        share = self.a / w[self.lone] * self.weights(w)[len(self.shared) :][self.owner]
        out = Y.new_zeros(self.p, Y.shape[-1])
        out[self.shared] = Y[: len(self.shared)]
        out[self.lone] = share.to(Y.dtype).unsqueeze(-1) * Y[len(self.shared) :][self.owner]
        return out

    def _sum(self, of_lone: Tensor) -> Tensor:
        """Over the lone words of each post."""
        return of_lone.new_zeros(self.owners, *of_lone.shape[1:]).index_add_(0, self.owner, of_lone)


def _inner(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.flatten(), b.flatten()))


def _solve(H: Callable[[Tensor], Tensor], G: Tensor, diagonal: Tensor) -> Tensor:
    """D near H⁻¹ G: conjugate gradients with this diagonal, until G - H D is small in the norm of its inverse.

    In place: vectors of millions of numbers that are made anew cost more than the products.
    """
    D, R, Z = torch.zeros_like(G), G.clone(), G / diagonal
    Q, s = Z.clone(), _inner(G, Z)
    enough = min(1e-2, max(s, 1e-12) ** 0.5) * s
    for _ in range(_PRODUCTS):
        V = H(Q)
        c = s / _inner(Q, V)
        D.add_(Q, alpha=c)
        R.sub_(V, alpha=c)
        torch.div(R, diagonal, out=Z)
        s, before = _inner(R, Z), s
        if s <= enough:
            break
        torch.add(Z, Q, alpha=s / before, out=Q)
    return D
