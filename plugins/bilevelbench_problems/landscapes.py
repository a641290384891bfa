"""Landscapes with strict saddles, for the unstable coordinates of `saddle` and `saddle_chain`."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from bilevelbench_problems.logcosh import ROBUST
from bilevelbench_problems.separable import ANCHOR, SADDLE, peak

Bounded = Literal["exact", "bound"]


class Landscape(Protocol):
    """F : Rⁿ -> R over lanes, even in each coordinate, F(0) = 0, with a strict saddle at 0.

    `steepest`, `bend` and `twist` are Lipschitz constants of F, ∇F and ∇²F, all `kind`; `drop` is F(0) - inf F.
    """

    n: int
    kind: Bounded
    steepest: float
    bend: float
    twist: float
    drop: float

    def value(self, u: Tensor) -> Tensor: ...
    def gradient(self, u: Tensor) -> Tensor: ...
    def hessian(self, u: Tensor) -> Tensor: ...


class Wells:
    """strength Σ_i h(u_i), h = SADDLE."""

    kind: Bounded = "exact"

    def __init__(self, n: int, strength: float) -> None:
        self.n, self.strength = n, strength
        self.steepest = strength * math.sqrt(n) / 2
        self.bend, self.twist = strength * peak(SADDLE.curvature), strength * peak(SADDLE.third)
        self.drop = strength * n * (1.5 - math.sqrt(2))

    def value(self, u: Tensor) -> Tensor:
        return self.strength * SADDLE.value(u).sum(-1, keepdim=True)

    def gradient(self, u: Tensor) -> Tensor:
        return self.strength * SADDLE.slope(u)

    def hessian(self, u: Tensor) -> Tensor:
        return self.strength * torch.diag_embed(SADDLE.curvature(u))


class Row:
    """strength [Σ_i h_i(u_i) - γ Σ_i r(u_i) r(u_{i+1})] with h_1 = SADDLE, the others β (ANCHOR - 1), and r = ROBUST.

    The constants are bounds, from 0 <= r < 1 and at most two neighbours. Gradient: entry by entry; s' and r' have the sign
    of u, so their difference is at most the larger one, and h' has the other sign where |u| < 1, most at 1/√5. Hessian: the
    largest sum of a row, where s'' >= 0 and r'' >= -1/2. Third derivative: it is largest on the diagonal T[a, a, a],
    ‖a‖ = 1, where Σ|a_i|³ <= 1 and, with k neighbours at most, Σ a_i² (|a_{i-1}| + |a_{i+1}|) <= √k.
    """

    kind: Bounded = "bound"
    beta, gamma = 0.25, 0.75

    def __init__(self, n: int, strength: float) -> None:
        self.n, self.strength = n, strength
        near = torch.tensor([(i > 0) + (i < n - 1) for i in range(n)], dtype=torch.float64)
        r1, r2, r3 = (peak(h) for h in (ROBUST.slope, ROBUST.curvature, ROBUST.third))

        def of_each(first: float, other: float) -> Tensor:
            return torch.tensor([first] + [other] * (n - 1), dtype=torch.float64)

        pull, dip = self.gamma * near, -float(SADDLE.slope(torch.tensor(math.sqrt(0.2), dtype=torch.float64)))
        slopes = torch.maximum(of_each(0.5, self.beta), of_each(dip, 0.0) + pull * r1)
        hollow = of_each(peak(lambda u: SADDLE.curvature(u).clamp(min=0)), self.beta) + pull / 2
        bends = torch.maximum(hollow, of_each(0.5, 0.0) + pull * r2) + pull * r1**2
        twists = of_each(peak(SADDLE.third), self.beta * peak(ANCHOR.third)) + pull * r3
        self.steepest = strength * float(slopes.norm())
        self.bend = strength * float(bends.max())
        self.twist = strength * float(twists.max() + 3 * self.gamma * near.max().sqrt() * r1 * r2)
        self.drop = -float(self.value(self.minimum()))

    def value(self, u: Tensor) -> Tensor:
        r = ROBUST.value(u)
        alone = SADDLE.value(u[..., :1]) + self.beta * (ANCHOR.value(u[..., 1:]) - 1).sum(-1, keepdim=True)
        return self.strength * (alone - self.gamma * (r[..., :-1] * r[..., 1:]).sum(-1, keepdim=True))

    def gradient(self, u: Tensor) -> Tensor:
        alone = torch.cat([SADDLE.slope(u[..., :1]), self.beta * ANCHOR.slope(u[..., 1:])], -1)
        return self.strength * (alone - self.gamma * ROBUST.slope(u) * self._neighbours(u))

    def hessian(self, u: Tensor) -> Tensor:
        alone = torch.cat([SADDLE.curvature(u[..., :1]), self.beta * ANCHOR.curvature(u[..., 1:])], -1)
        diagonal = torch.diag_embed(alone - self.gamma * ROBUST.curvature(u) * self._neighbours(u))
        slope = ROBUST.slope(u)
        above = torch.diag_embed(-self.gamma * slope[..., :-1] * slope[..., 1:], 1)
        return self.strength * (diagonal + above + above.mT)

    def _neighbours(self, u: Tensor) -> Tensor:
        """r(u_{i-1}) + r(u_{i+1})."""
        r = ROBUST.value(u)
        return pad(r[..., :-1], (1, 0)) + pad(r[..., 1:], (0, 1))

    def minimum(self) -> Tensor:
        """The positive one, (n,): T(T(..(1/2, .., 1/2))) grows to it, T as in `SaddleChain`."""
        C = torch.full((self.n,), 2.0, dtype=torch.float64)
        for _ in range(1000):
            near = self._neighbours((C - 1).sqrt())
            rest = (2 * self.gamma / self.beta * near[1:]) ** (2 / 3)
            new = torch.cat([torch.tensor([_first(4 * self.gamma * float(near[0]))], dtype=torch.float64), rest])
            if bool((new <= C * (1 + 1e-15)).all()):  # it grows no more
                break
            C = new
        return (C - 1).sqrt()


def _first(force: float) -> float:
    """C >= 2 with (C - 2) √C = force."""
    from scipy.optimize import brentq  # here: it takes a worker process a third of a second

    return float(brentq(lambda root: root**3 - 2 * root - force, math.sqrt(2) - 1e-9, 2 + force, xtol=1e-15)) ** 2
