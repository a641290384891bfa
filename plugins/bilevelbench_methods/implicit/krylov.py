"""A Krylov space that grows by one Lanczos vector at a time, in each lane for itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bilevelbench import dot, keep, norm, over_points

_EXHAUSTED = 1e-12  # a next direction shorter than this is rounding


@dataclass(frozen=True)
class Krylov:
    """Its origin vbar with w = H vbar, its basis (m_max, L, dy), and the tridiagonal matrix by its entries (m_max, L, 1).

    c of the basis vectors are in use; the others are zero, and their entries are those of the identity. q is the next one.
    """

    vbar: Tensor
    w: Tensor
    basis: Tensor
    diagonal: Tensor
    off: Tensor  # entry i stands between i - 1 and i
    q: Tensor
    q_last: Tensor
    beta: Tensor
    c: Tensor

    @classmethod
    def full(cls, like: Tensor, m_max: int) -> Krylov:
        """One that has no room left: it has to be restarted before it is of use."""
        zero, ones = torch.zeros_like(like), torch.ones_like(like[:, :1])
        basis, entries = zero.repeat(m_max, 1, 1), ones.repeat(m_max, 1, 1)
        return cls(zero, zero, basis, entries, 0 * entries, zero, zero, 0 * ones, m_max * ones)

    def restarted(self, v: Tensor, w: Tensor, r: Tensor, on: Tensor) -> Krylov:
        """From v with w = H v and the residual r, in the lanes that are on."""
        zero = torch.zeros_like
        return Krylov(
            vbar=keep(on, v, self.vbar),
            w=keep(on, w, self.w),
            basis=keep(on, zero(self.basis), self.basis),
            diagonal=keep(on, torch.ones_like(self.diagonal), self.diagonal),
            off=keep(on, zero(self.off), self.off),
            q=keep(on, r / norm(r), self.q),
            q_last=keep(on, zero(v), self.q_last),
            beta=keep(on, zero(self.beta), self.beta),
            c=keep(on, zero(self.c), self.c),
        )

    def extended(self, Hq: Tensor, on: Tensor | bool) -> Krylov:
        """By q; a lane in which no next direction is left is full."""
        here = (torch.arange(len(self.basis)).reshape(-1, 1, 1) == self.c) & on
        u = Hq - self.beta * self.q_last
        alpha = dot(self.q, u)
        omega = u - alpha * self.q
        beta = norm(omega)
        exhausted = beta < _EXHAUSTED
        new = replace(
            self,
            basis=keep(here, self.q, self.basis),
            diagonal=keep(here, alpha, self.diagonal),
            off=keep(here, self.beta, self.off),
            q=keep(on, torch.where(exhausted, self.q, omega / beta), self.q),
            q_last=keep(on, self.q, self.q_last),
            beta=keep(on, beta, self.beta),
            c=keep(on, self.c + 1, self.c),
        )
        return new.closed(exhausted & on)

    def projected(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """basis s with tridiagonal s = basis^T r, by elimination, and the lanes whose matrix is positive definite."""
        used = int(self.c.max())
        a, e, t = self.diagonal[:used], self.off[:used], dot(self.basis[:used], r)
        pivots, sides = [a[0]], [t[0]]
        for i in range(1, used):
            factor = e[i] / pivots[-1]
            pivots.append(a[i] - factor * e[i])
            sides.append(t[i] - factor * sides[-1])
        s = [sides[-1] / pivots[-1]]
        for i in reversed(range(used - 1)):
            s.insert(0, (sides[i] - e[i + 1] * s[0]) / pivots[i])
        return over_points(torch.stack(s) * self.basis[:used]), (torch.stack(pivots) > 0).all(0)

    def closed(self, on: Tensor) -> Krylov:
        """Full in these lanes, so that a restart comes next."""
        return replace(self, c=torch.where(on, torch.full_like(self.c, len(self.basis)), self.c))
