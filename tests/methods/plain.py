"""The methods once more, in numpy, for one lane, from the pseudo-code and not from the plugins.

Each generator yields (x, y) at the start and after every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from plain_problems import Matrix, Plain, Vector

from bilevelbench.oracle.draws import Draws

Point = tuple[Vector, Vector]
Place = tuple[int, ...]


# ---- what is drawn


@dataclass(frozen=True)
class Noise:
    """The noise of one trial by its address: the place in the step's program, the step, the counters of the loops."""

    sigma_f: float = 0.0
    sigma_g: float = 0.0
    sigma_h: float = 0.0
    seed: int = 0

    def vector(self, purpose: str, place: Place, at: Place, shape: tuple[int, ...], B: int) -> np.ndarray:
        """Of a gradient of f or g, or of a product with a second derivative; the mean of B samples."""
        level = purpose[0] if purpose[1] == "_" else "h"
        normal = Draws([self.seed]).normal(purpose, place, at, math.prod(shape), 1).reshape(shape)
        return getattr(self, f"sigma_{level}") / math.sqrt(shape[-1] * B) * normal

    def scalar(self, purpose: str, place: Place, at: Place, B: int) -> float:
        return float(self.vector(purpose, place, at, (1,), B)[0])

    def uniform(self, place: Place, at: Place, count: int = 1) -> Vector:
        return Draws([self.seed]).uniform("method", place, at, count, 1)[:, 0]


EXACT = Noise()


@dataclass(frozen=True)
class Noisy:
    """The gradients of a plain problem with that noise, of mini-batches of B samples."""

    p: Plain
    noise: Noise
    B: int = 1

    def __call__(self, block: str, x: Vector, y: Vector, place: Place, *at: int, B: int | None = None) -> Vector:
        exact = getattr(self.p, block)(x, y)
        return exact + self.noise.vector(block, place, at, exact.shape, B or self.B)


def directions(seed: int, step: int, Q: int, dx: int) -> np.ndarray:
    """The Q normals of PZOBO in that step, (Q, dx): the first draw of the step, outside any loop."""
    return Draws([seed]).normal("method", (1,), (step,), Q * dx, 1).reshape(Q, dx)


def in_ball(seed: int, step: int, loop: int, dx: int, r: float) -> Vector:
    """The point of the ball: a normal and then a uniform, in the step's loop of that number."""
    draws = Draws([seed])
    u = draws.normal("method", (loop, 1), (step, 0), dx, 1)[:, 0]
    radius = draws.uniform("method", (loop, 2), (step, 0), 1, 1)[0, 0] ** (1 / dx)
    return r * radius * u / math.sqrt(u @ u)


# ---- section 1


def lower_gd(p: Plain, x: Vector, y: Vector, n: int, a: float) -> Vector:
    for _ in range(n):
        y = y - a * p.g_y(x, y)
    return y


def nesterov(p: Plain, x: Vector, y: Vector, n: int, a: float, beta: float) -> Vector:
    before = y
    for _ in range(n):
        q = y + beta * (y - before)
        before, y = y, q - a * p.g_y(x, q)
    return y


def penalty(
    p: Plain, x: Vector, y: Vector, z: Vector, lam: float, n: int, eta_y: float, eta_z: float, mu: float | None = None
) -> tuple[Vector, Vector, Vector]:
    """n steps of y and of z, one after the other, and the penalty's gradient there: (y, z, d).

    With mu, of Nesterov's method for condition numbers 2/(a_z mu) of z and 2/(a_y mu) of y, a = lam eta.
    """
    root_z, root_y = (1 if mu is None else math.sqrt(2 / (lam * eta * mu)) for eta in (eta_z, eta_y))
    before = z
    for _ in range(n):
        q = z + (root_z - 1) / (root_z + 1) * (z - before)
        before, z = z, q - eta_z * lam * p.g_y(x, q)
    before = y
    for _ in range(n):
        q = y + (root_y - 1) / (root_y + 1) * (y - before)
        before, y = y, q - eta_y * (p.f_y(x, q) + lam * p.g_y(x, q))
    return y, z, p.f_x(x, y) + lam * (p.g_x(x, y) - p.g_x(x, z))


def cg(A: Matrix, b: Vector, v: Vector, n: int, tol: float = 0.0) -> tuple[Vector, int]:
    """The solution, and how many products it took; the first residual costs one unless v = 0."""
    products = 0
    if np.any(v):
        products, r = 1, b - A @ v
    else:
        r = b.copy()
    q, s = r, r @ r
    for _ in range(n):
        if math.sqrt(s) <= tol:
            break
        w = A @ q
        products += 1
        if q @ w <= 0:
            break
        c = s / (q @ w)
        v, r = v + c * q, r - c * w
        s_new = r @ r
        q, s = r + (s_new / s) * q, s_new
    return v, products


# ---- sections 3 and 4


def ba(
    p: Plain,
    eta_x: float,
    a: float,
    n0: int = 1,
    warm: bool = False,
    dense: bool = True,
    products: list[int] | None = None,
) -> Iterator[Point]:
    x, y, k = p.x0, p.y0, 0
    while True:
        yield x, y
        n = n0 * math.ceil((k + 1) ** (1 / 4) / 2)
        y = lower_gd(p, x, y if warm else p.y0, n, a)
        b, H = p.f_y(x, y), p.H(x, y)
        if dense:
            v = np.linalg.solve(H, b)
        else:
            v, used = cg(H, b, np.zeros_like(b), 10 * len(b), 1e-10 * np.linalg.norm(b))
            if products is not None:
                products.append(used)
        x, k = x - eta_x * (p.f_x(x, y) - p.J(x, y) @ v), k + 1


def aid(p: Plain, D: int, N: int, a: float, eta_x: float, solver: str) -> Iterator[Point]:
    x, y, v = p.x0, p.y0, np.zeros_like(p.y0)
    while True:
        yield x, y
        y = lower_gd(p, x, y, D, a)
        b, H = p.f_y(x, y), p.H(x, y)
        if solver == "cg":
            v, _ = cg(H, b, v, N)
        elif solver == "richardson":
            for _ in range(N):
                v = v - a * (H @ v - b)
        else:  # the series a sum_{q=0}^{N} (I - aH)^q b, by powers
            step = np.eye(len(b)) - a * H
            v = a * sum(np.linalg.matrix_power(step, q) @ b for q in range(N + 1))
        x = x - eta_x * (p.f_x(x, y) - p.J(x, y) @ v)


def itd(p: Plain, D: int, a: float, eta_x: float, truncate: int | None = None) -> Iterator[Point]:
    """By the chain rule forwards: the Jacobian of Y[t] in x is carried along (section 3.3 goes backwards).

    With `truncate = h` the dependence on x of the first D - h steps is dropped.
    """
    x, y = p.x0, p.y0
    while True:
        yield x, y
        M = np.zeros((len(x), len(y)))  # row i: derivative of Y[t] in x_i
        for t in range(D):
            if truncate is None or t >= D - truncate:
                M = M - a * (p.J(x, y) + M @ p.H(x, y))
            y = y - a * p.g_y(x, y)
        x = x - eta_x * (p.f_x(x, y) + M @ p.f_y(x, y))


def pzobo(
    p: Plain, Q: int, D: int, h: float, a: float, eta_x: float, warm: bool = True, seed: int = 0
) -> Iterator[Point]:
    x, y, step = p.x0, p.y0, 0
    while True:
        yield x, y
        step += 1
        s = y if warm else p.y0
        y = lower_gd(p, x, s, D, a)
        d, fy = p.f_x(x, y), p.f_y(x, y)
        for u in directions(seed, step, Q, len(x)):
            w = lower_gd(p, x + h * u, s, D, a)
            d = d + (1 / Q) * ((w - y) / h @ fy) * u
        x = x - eta_x * d


def bome(p: Plain, K: int, eta: float, xi_x: float, xi_y: float, a: float, gap: bool) -> Iterator[Point]:
    x, y = p.x0, p.y0
    while True:
        yield x, y
        z = lower_gd(p, x, y, K, a)
        qx, qy = p.g_x(x, y) - p.g_x(x, z), p.g_y(x, y)
        n2 = np.sum(qx**2) + np.sum(qy**2)
        barrier = eta * (p.g(x, y) - p.g(x, z)) if gap else eta * n2
        fx, fy = p.f_x(x, y), p.f_y(x, y)
        m = max((barrier - fx @ qx - fy @ qy) / (n2 + 1e-8), 0)
        x, y = x - xi_x * (fx + m * qx), y - xi_y * (fy + m * qy)


def pbgd(
    p: Plain, gam: float, K: int, alpha: float, b: float, warm: bool, noise: Noise = EXACT, B: int = 1
) -> Iterator[Point]:
    ask, x, y, w, t = Noisy(p, noise, B), p.x0, p.y0, p.y0, 0
    while True:
        yield x, y
        t += 1
        w = w if warm else y
        for i in range(K):
            w = w - b * ask("g_y", x, w, (1, 1), t, i)
        d_x = ask("f_x", x, y, (2,), t) + gam * (ask("g_x", x, y, (3,), t) - ask("g_x", x, w, (4,), t))
        d_y = ask("f_y", x, y, (2,), t) + gam * ask("g_y", x, y, (3,), t)
        x, y = x - alpha * d_x, y - alpha * d_y


def g_pbgd(p: Plain, gam: float, alpha: float) -> Iterator[Point]:
    x, y = p.x0, p.y0
    while True:
        yield x, y
        q = p.g_y(x, y)
        dx, dy = p.f_x(x, y) + gam * p.J(x, y) @ q, p.f_y(x, y) + gam * p.H(x, y) @ q
        x, y = x - alpha * dx, y - alpha * dy


# ---- sections 2.1, 5.5 and 12.2


def f2ba(
    p: Plain, lam: float, K: int, eta_y: float, eta_z: float, eta_x: float, mu: float | None = None
) -> Iterator[Point]:
    """In the paper's form: eta_y = a_y/lam, eta_z = a_z/lam. With mu, F2BA+."""
    x, y, z = p.x0, p.y0, p.y0
    while True:
        yield x, y
        y, z, d = penalty(p, x, y, z, lam, K, eta_y, eta_z, mu)
        x = x - eta_x * d


def meha(p: Plain, c0: float, power: float, gam: float, eta: float, beta: float, alpha: float) -> Iterator[Point]:
    x, y, th, k = p.x0, p.y0, p.y0, 0
    while True:
        yield x, y
        k += 1
        c = c0 * k**power
        th = th - eta * (p.g_y(x, th) + (th - y) / gam)
        y = y - beta * (p.f_y(x, y) / c + p.g_y(x, y) - (y - th) / gam)
        x = x - alpha * (p.f_x(x, y) / c + p.g_x(x, y) - p.g_x(x, th))


#: Finite differences for a first derivative: node -> weight, by order.
NODES: dict[int, dict[int, float]] = {
    1: {0: -1, 1: 1},
    2: {-1: -1 / 2, 1: 1 / 2},
    3: {-1: -1 / 3, 0: -1 / 2, 1: 1, 2: -1 / 6},
    4: {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12},
    5: {-2: 1 / 20, -1: -1 / 2, 0: -1 / 3, 1: 1, 2: -1 / 4, 3: 1 / 30},
    6: {-3: -1 / 60, -2: 3 / 20, -1: -3 / 4, 1: 3 / 4, 2: -3 / 20, 3: 1 / 60},
}


def f2sa_p(
    p: Plain, order: int, nu: float, K: int, a: float, eta_x: float, noise: Noise = EXACT, B_in: int = 1,
    B_out: int = 1, normalise: bool = False,
) -> Iterator[Point]:  # fmt: skip
    """Noise is drawn for node 0 first, where it is one, and then by node."""
    nodes = sorted(NODES[order], key=lambda j: (j != 0, j))
    of_f = [j for j in nodes if j != 0]
    x, y, Y, t = p.x0, p.y0, dict.fromkeys(nodes, p.y0), 0
    while True:
        yield x, y
        t += 1
        for i in range(K):
            on_f = noise.vector("f_y", (1, 1), (t, i), (len(of_f), len(y)), B_in)
            on_g = dict(zip(nodes, noise.vector("g_y", (1, 2), (t, i), (len(nodes), len(y)), B_in), strict=True))
            f_y = {j: p.f_y(x, Y[j]) + n for j, n in zip(of_f, on_f, strict=True)}
            Y = {j: Y[j] - a * (j * nu * f_y.get(j, 0) + p.g_y(x, Y[j]) + on_g[j]) for j in nodes}
        of_x, of_gx = (noise.vector(which, (place,), (t,), x.shape, B_out) for which, place in (("f_x", 2), ("g_x", 3)))
        d = sum(w * (j * (p.f_x(x, Y[j]) + of_x) + (p.g_x(x, Y[j]) + of_gx) / nu) for j, w in NODES[order].items())
        x = x - eta_x * (d / np.linalg.norm(d) if normalise else d)
        y = Y[0] if 0 in Y else (Y[-1] + Y[1]) / 2


def schedule(k: int, lam: float, c_a: float, c_g: float, k0: float, a: float, c: float) -> tuple[float, float, float]:
    """Section 5.5: lam growing like k^(a-c) from its first value, alpha = c_a (k+k0)^-a, gam = c_g (k+k0)^-c."""
    return lam * ((k + k0) / k0) ** (a - c), c_a * (k + k0) ** -a, c_g * (k + k0) ** -c


def f2sa(p: Plain, T_in: int, xi: float, noise: Noise = EXACT, B: int = 1, **steps: float) -> Iterator[Point]:
    ask, x, y, z, t = Noisy(p, noise, B), p.x0, p.y0, p.y0, 0
    while True:
        yield x, y
        lam, alpha, gam = schedule(t, **steps)
        t += 1
        for i in range(T_in):
            z = z - gam * ask("g_y", x, z, (1, 1), t, i)
            y = y - alpha * (ask("f_y", x, y, (1, 2), t, i) + lam * ask("g_y", x, y, (1, 3), t, i))
        d_g = ask("g_x", x, y, (3,), t) - ask("g_x", x, z, (4,), t)
        x = x - xi * alpha * (ask("f_x", x, y, (2,), t) + lam * d_g)


def f2ba_released(p: Plain, lam: float, K: int, a: float, eta_x: float) -> Iterator[Point]:
    x, y = p.x0, p.y0
    while True:
        yield x, y
        z = y
        for _ in range(K):
            force = p.g_y(x, z)
            y = y - a * (p.f_y(x, y) / lam + force)
            z = z - a * force
        x = x - eta_x * (p.f_x(x, y) + lam * (p.g_x(x, y) - p.g_x(x, z)))
