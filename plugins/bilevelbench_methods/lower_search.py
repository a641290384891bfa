"""The lower level to a tolerance, with step lengths that are searched for: gradient descent and L-BFGS.

All that they ask is on the meter, values included, and a lane that has arrived pays no more. Both compare values of g, so they
come to rest where these no longer tell one point from the next: |g_y| of about the square root of the rounding of g.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from bilevelbench import Oracle, dot, keep, norm

_HALVINGS = 15  # of a trial step, at most
_TRIALS = 30  # of a step of L-BFGS, at most
_SMALL = 1e-6  # a step that has fallen to this begins anew at one
_FALL, _FLATTEN = 1e-4, 0.9  # the conditions of Wolfe: how much the value falls, how much the slope flattens
_CURVED = 1e-10  # a pair with less curvature than this is left out


def backtracking_moves(
    oracle: Oracle, x: Tensor, y: Tensor, n: int | Tensor, tol: float | Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """(s, y) after each of at most n steps `y <- y - s g_y(x, y)`; s is zero in a lane that has stopped, where |g_y| <= tol.

    s begins with twice the last one (one at first) and is halved until g(x, y - s g_y) <= g(x, y) - s/2 |g_y|^2; a lane that
    has halved it 15 times in vain stays where it is and stops. A step costs a gradient, a value, and a value for each trial.
    """
    s = torch.ones_like(y[:, :1])
    going = torch.ones_like(s, dtype=torch.bool)
    for _ in oracle.until(n, going):
        g_y = oracle.grad_g_y(x, y)
        size = dot(g_y, g_y)
        going &= norm(g_y) > tol
        with oracle.only(going):
            value = oracle.value_g(x, y)
        searching = going.clone()
        for _ in oracle.until(1 + _HALVINGS, searching):
            trial = y - s * g_y
            falls = oracle.value_g(x, trial) <= value - 0.5 * s * size
            y = keep(searching & falls, trial, y)
            searching &= ~falls
            s = torch.where(searching, s / 2, s)
        going &= ~searching
        yield torch.where(going, s, torch.zeros_like(s)), y
        s = torch.where(going, torch.where(s <= _SMALL, torch.ones_like(s), 2 * s), s)


def lower_backtracking(oracle: Oracle, x: Tensor, y: Tensor, n: int | Tensor, tol: float | Tensor) -> Tensor:
    """Where at most n steps of `backtracking_moves` end."""
    for _, moved in backtracking_moves(oracle, x, y, n, tol):
        y = moved
    return y


def lower_lbfgs(oracle: Oracle, x: Tensor, y: Tensor, n: int | Tensor, tol: float | Tensor, memory: int = 10) -> Tensor:
    """At most n steps of L-BFGS; a lane stops where |g_y| <= tol, or where no step length is found.

    The direction is -B g_y with B from the last `memory` moves. Its length begins with one, and is doubled or bisected until
    the value falls and the slope flattens enough (the weak conditions of Wolfe), 30 trials at most. The start costs a gradient
    and a value, a trial a value, and a gradient if the value falls enough.
    """
    g_y = oracle.grad_g_y(x, y)
    going = norm(g_y) > tol
    with oracle.only(going):
        value = oracle.value_g(x, y)
    B = InverseHessian(memory)
    for _ in oracle.until(n, going):
        d = -B.times(g_y)
        new_y, new_value, new_g_y, found = _searched(oracle, x, y, d, value, g_y, going)
        B.add(new_y - y, new_g_y - g_y)
        y, value, g_y = new_y, new_value, new_g_y
        going &= found & (norm(g_y) > tol)
    return y


class InverseHessian:
    """BFGS's estimate of H^-1 from pairs (move of y, change of g_y), as products with it: by two loops over the pairs.

    It starts from <move, change>/<change, change> of the newest pair; a lane whose pair is not curved leaves it out.
    """

    def __init__(self, memory: int | None = None, least: float = 0.0) -> None:
        """The last `memory` pairs count, or all; a move that is shorter than `least` times the longest one is left out."""
        self.pairs: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=memory)
        self.least, self.longest = least, torch.zeros(())
        self.scale: Tensor | None = None

    def add(self, move: Tensor, change: Tensor) -> None:
        product, length = dot(move, change), norm(move)
        self.longest = torch.maximum(self.longest, length)
        curved = (product > _CURVED * length * length) & (length >= self.least * self.longest)
        scale = torch.ones_like(product) if self.scale is None else self.scale
        self.scale = torch.where(curved, product / dot(change, change), scale)
        self.pairs.append((move, change, torch.where(curved, 1 / product, torch.zeros_like(product))))

    def times(self, q: Tensor) -> Tensor:
        weights = []
        for move, change, inverse in reversed(self.pairs):
            weights.append(inverse * dot(move, q))
            q = q - weights[-1] * change
        if self.scale is not None:
            q = self.scale * q
        for (move, change, inverse), weight in zip(self.pairs, reversed(weights), strict=True):
            q = q + (weight - inverse * dot(change, q)) * move
        return q


def _searched(
    oracle: Oracle, x: Tensor, y: Tensor, d: Tensor, value: Tensor, g_y: Tensor, going: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The new point along d with its value and gradient, and the lanes that found one; the others stay where they are."""
    slope = dot(g_y, d)
    low, high, t = torch.zeros_like(slope), torch.full_like(slope, torch.inf), torch.ones_like(slope)
    at = y, value, g_y
    searching = going.clone()
    for _ in oracle.until(_TRIALS, searching):
        trial = y + t * d
        new_value = oracle.value_g(x, trial)
        falls = searching & (new_value <= value + _FALL * t * slope)
        with oracle.only(falls):
            new_g_y = oracle.grad_g_y(x, trial)
        flat = falls & (dot(new_g_y, d) >= _FLATTEN * slope)
        at = keep(flat, trial, at[0]), keep(flat, new_value, at[1]), keep(flat, new_g_y, at[2])
        low, high = torch.where(falls, t, low), torch.where(falls, high, t)
        t = torch.where(high.isfinite(), (low + high) / 2, 2 * low)
        searching &= ~flat
    return *at, going & ~searching
