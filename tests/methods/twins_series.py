"""AmIGO, FSLA, MRBO, SUSTAIN, VRBO, SLIP and AdamBO once more, in numpy, for one lane, from the pseudo-code.

A world is one of `twins_soba`: a sample is what it draws at an address (place in the step's program, step, counters of
loops). Draws and loops of a step are numbered together, from one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from plain import Point
from plain_problems import Vector
from twins_soba import Place, moved, start


@dataclass(frozen=True)
class Drawn:
    """The samples of one pair of directions: `zeta` of f, the others of g."""

    xi: Any
    zeta: Any
    mixed: Any
    products: list[Any]


def drawn(world: Any, place: Place, at: Place, B: int, Q: int, after: int = 4) -> Drawn:
    """`after`: the number of the loop over products."""
    xi, zeta, mixed = (world.rows(level, (*place, i), at, B) for level, i in (("g", 1), ("f", 2), ("g", 3)))
    return Drawn(xi, zeta, mixed, [world.rows("g", (*place, after, 1), (*at, q), B) for q in range(Q)])


def whole(world: Any, Q: int) -> Drawn:
    g, f = world.whole("g"), world.whole("f")
    return Drawn(g, f, g, [g] * Q)


def pair(world: Any, x: Vector, y: Vector, S: Drawn, eta_v: float, terms: int | None = None) -> np.ndarray:
    """(h, u): the Neumann hypergradient and g_y. With `terms`, their number, the last product alone is taken."""
    at = world.five(x, y, np.zeros_like(y), S.xi, S.zeta)
    r = total = at.fy
    for xi in S.products:
        r = r - eta_v * world.five(x, y, r, xi, S.zeta).Hv
        total = total + r
    v = eta_v * total if terms is None else terms * eta_v * r
    return np.array([at.fx - world.five(x, y, v, S.mixed, S.zeta).Jv, at.gy], dtype=object)


def amigo(world: Any, *, a: float, b: float, K: int, N: int, B: int, power: float = 0.0) -> Iterator[Point]:
    x, y, v = start(world)
    for k in itertools.count(1):
        yield x, y
        decay, zeta = k**-power, world.rows("f", (2,), (k,), B)
        for t in range(K):
            y = y - a * decay * world.five(x, y, v, world.rows("g", (1, 1), (k, t), B), zeta).gy
        at = world.five(x, y, v, world.rows("g", (4,), (k,), B), zeta)
        for t in range(N):
            v = v - a * decay * (world.five(x, y, v, world.rows("g", (3, 1), (k, t), B), zeta).Hv - at.fy)
        Jv = world.five(x, y, v, world.rows("g", (4,), (k,), B), zeta).Jv
        x = x - b * decay * (at.fx - Jv)


def fsla(world: Any, *, a: float, b: float, w: float, B: int, power: float = 0.5) -> Iterator[Point]:
    x, y, v = start(world)
    h = x_old = None
    for k in itertools.count(1):
        yield x, y
        s1, s2, s3, s4, s5 = (world.rows(level, (i,), (k,), B) for i, level in enumerate("ggffg", 1))
        decay = k**-power
        y_new = y - a * decay * world.five(x, y, v, s1, s3).gy
        at = world.five(x, y_new, v, s2, s3)
        v_new = v - a * decay * (at.Hv - at.fy)
        new = world.five(x, y_new, v_new, s5, s4)
        d = new.fx - new.Jv
        if h is not None:
            old = world.five(x_old, y, v, s5, s4)
            d = d + (1 - min(1, w * decay)) * (h - (old.fx - old.Jv))
        h, x_old = d, x
        x, y, v = x - b * decay * h, y_new, v_new


def mrbo(
    world: Any, *, a: float, b: float, w: float, eta_v: float, Q: int, B: int, power: float = 1 / 3, random: bool = False
) -> Iterator[Point]:  # fmt: skip
    """With `random`, SUSTAIN."""
    x, y, _ = start(world)
    D, before = None, (x, y)
    for k in itertools.count(1):
        yield x, y
        terms, after = (Q, 5) if random else (None, 4)
        p = min(int(Q * world.uniform((4,), (k,))), Q - 1) if random else Q
        S, decay = drawn(world, (), (k,), B, p, after), k**-power
        new = pair(world, x, y, S, eta_v, terms)
        if D is not None:
            new = new + (1 - min(1, w * decay**2)) * (D - pair(world, *before, S, eta_v, terms))
        D, before = new, (x, y)
        x, y = x - b * decay * D[0], y - a * decay * D[1]


def vrbo(
    world: Any, *, a: float, b: float, eta_v: float, Q: int, M: int, B: int, period: int, big: int | None = None,
    at_the_new_x: bool = False,
) -> Iterator[Point]:  # fmt: skip
    """`at_the_new_x`: as in a public program, both points of a difference have the new x, and the y before a step is the one
    before the last move of the step before it, whether or not the directions were made anew."""
    x, y, _ = start(world)
    D, y_last = None, y
    for k in itertools.count(1):
        yield x, y
        if (k - 1) % period == 0:
            S = whole(world, Q) if big is None else drawn(world, (1,), (k, 0), big, Q)
            D = pair(world, x, y, S, eta_v)
        x_old, y_old, x = x, y_last if at_the_new_x else y, x - b * D[0]
        for t in range(M + 1):
            S = drawn(world, (2,), (k, t), B, Q)
            D = D + pair(world, x, y, S, eta_v) - pair(world, x if at_the_new_x else x_old, y_old, S, eta_v)
            x_old, y_old, y_last = x, y, y_old
            if t < M:
                y = y - a * D[1]


def slip(world: Any, *, a: float, b: float, w: float, T0: int, B: int, power: float = 0.5) -> Iterator[Point]:
    at = start(world)
    r, m = 0.0, np.zeros_like(world.x0)
    for t in range(T0):
        D = world.five(*at, *(world.rows(level, (1, i), (0, t), B) for level, i in (("g", 1), ("f", 2)))).directions()
        at, r = moved(at, D, a, 0), float(np.linalg.norm(D[0]))
    for k in itertools.count(1):
        yield at[:2]
        xi, zeta = (world.rows(level, (i,), (k,), B) for level, i in (("g", 1), ("f", 2)))
        D, weight = world.five(*at, xi, zeta).directions(), min(1, w * k**-power)
        m = (1 - weight) * m + weight * D[0]
        D[0] = m / np.linalg.norm(m)
        at = moved(at, D, a * k**-power, b * (r or 1.0) * k ** (-1.5 * power))


def adambo(
    world: Any, *, a: float, b: float, eta_v: float, Q: int, T0: int, B: int, power: float = 0.5,
    beta1: float = 0.9, beta2: float = 0.999, floor: float = 1e-8,
) -> Iterator[Point]:  # fmt: skip
    x, y, v = start(world)
    for t in range(T0):
        xi = world.rows("g", (1, 1), (0, t), B)
        y = y - a * world.five(x, y, v, xi, world.rows("f", (2,), (0,), B)).gy
    m, n, r = np.zeros_like(x), np.zeros_like(x), None
    for k in itertools.count(1):
        yield x, y
        h, u = pair(world, x, y, drawn(world, (), (k,), B, Q), eta_v)
        r = math.sqrt(np.mean(h**2)) if r is None else r
        m, n = beta1 * m + (1 - beta1) * h, beta2 * n + (1 - beta2) * h**2
        step = (m / (1 - beta1**k)) / (np.sqrt(n / (1 - beta2**k)) / r + floor)
        x, y = x - b * k**-power * step, y - a * k**-power * u
