"""The lower level to a tolerance, with step lengths that are searched for: gradient descent and L-BFGS.

All that they ask is on the meter, values included, and a lane that has arrived pays no more. Both compare values of g, so they
come to rest where these no longer tell one point from the next: |g_y| of about the square root of the rounding of g.
"""

from __future__ import annotations

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
    pairs: list[tuple[Tensor, Tensor]] = []
    for _ in oracle.until(n, going):
        d = -inverse_times(pairs, g_y)
        new_y, new_value, new_g_y, found = _searched(oracle, x, y, d, value, g_y, going)
        pairs = [*pairs, (new_y - y, new_g_y - g_y)][-memory:]
        y, value, g_y = new_y, new_value, new_g_y
        going &= found & (norm(g_y) > tol)
    return y


def inverse_times(pairs: list[tuple[Tensor, Tensor]], g_y: Tensor) -> Tensor:
    """B g_y by the two loops over pairs (move, change of g_y); a lane whose pair is not curved leaves it out."""
    q, scale, weights = g_y, torch.ones_like(g_y[:, :1]), []
    none = torch.zeros_like(scale)
    for move, change in reversed(pairs):
        curved = dot(move, change) > _CURVED * dot(move, move)
        inverse = torch.where(curved, 1 / dot(move, change), none)
        alpha = inverse * dot(move, q)
        q = q - alpha * change
        weights.append((inverse, alpha))
    for move, change in pairs:  # the newest pair that is curved
        curved = dot(move, change) > _CURVED * dot(move, move)
        scale = torch.where(curved, dot(move, change) / dot(change, change), scale)
    q = scale * q
    for (move, change), (inverse, alpha) in zip(pairs, reversed(weights), strict=True):
        q = q + (alpha - inverse * dot(change, q)) * move
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
