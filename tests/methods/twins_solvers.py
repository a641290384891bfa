"""Methods that search, adapt or solve to a tolerance once more, in numpy, for one lane, from the pseudo-code.

Each generator yields (x, y) at the start and after every step, and asks an `Asked`, which counts.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from plain import Noise, Point
from plain_problems import Plain, Vector

Pairs = list[tuple[Vector, Vector]]


class Asked:
    """A problem, and how often it was asked for what: the columns of `runs`."""

    def __init__(self, p: Plain, f: Callable[[Vector, Vector], float]) -> None:
        self.p, self.value, self.n = p, f, Counter[str]()
        self.x0, self.y0 = p.x0, p.y0

    def grad_f(self, x: Vector, y: Vector) -> tuple[Vector, Vector]:
        self.n["grad_f"] += 1
        return self.p.f_x(x, y), self.p.f_y(x, y)

    def g_y(self, x: Vector, y: Vector) -> Vector:
        self.n["grad_g_y"] += 1
        return self.p.g_y(x, y)

    def g(self, x: Vector, y: Vector) -> float:
        self.n["value"] += 1
        return self.p.g(x, y)

    def f(self, x: Vector, y: Vector) -> float:
        self.n["value"] += 1
        return self.value(x, y)

    def H(self, x: Vector, y: Vector, v: Vector) -> Vector:
        self.n["hvp"] += 1
        return self.p.H(x, y) @ v

    def J(self, x: Vector, y: Vector, v: Vector) -> Vector:
        self.n["jvp"] += 1
        return self.p.J(x, y) @ v


# ---- lower solvers


def backtracking(q: Asked, x: Vector, y: Vector, n: int, tol: float) -> list[tuple[float, Vector]]:
    """The accepted steps, and where they lead."""
    s, out = 1.0, []
    for _ in range(n):
        g_y = q.g_y(x, y)
        if np.linalg.norm(g_y) <= tol:
            break
        value = q.g(x, y)
        for _ in range(16):
            if q.g(x, y - s * g_y) <= value - s / 2 * g_y @ g_y:
                break
            s /= 2
        else:
            break
        y = y - s * g_y
        out.append((s, y))
        s = 1.0 if s <= 1e-6 else 2 * s
    return out


def bfgs(pairs: Pairs, dim: int, least: float = 0.0) -> np.ndarray:
    """The inverse as a matrix, by the updates; a pair counts unless it was short beside those up to it."""
    lengths = [float(np.linalg.norm(s)) for s, _ in pairs]
    pairs = [
        (s, r)
        for i, (s, r) in enumerate(pairs)
        if s @ r > 1e-10 * s @ s and lengths[i] >= least * max(lengths[: i + 1])
    ]
    B = np.eye(dim) * (pairs[-1][0] @ pairs[-1][1] / (pairs[-1][1] @ pairs[-1][1]) if pairs else 1.0)
    for s, r in pairs:
        V = np.eye(dim) - np.outer(r, s) / (s @ r)
        B = V.T @ B @ V + np.outer(s, s) / (s @ r)
    return B


def lbfgs(q: Asked, x: Vector, y: Vector, n: int, tol: float, memory: int = 10) -> Vector:
    g_y = q.g_y(x, y)
    if np.linalg.norm(g_y) <= tol:
        return y
    value, pairs = q.g(x, y), []
    for _ in range(n):
        d = -bfgs(pairs[-memory:], len(y)) @ g_y
        low, high, t = 0.0, math.inf, 1.0
        for _ in range(30):
            new_value = q.g(x, y + t * d)
            if new_value <= value + 1e-4 * t * g_y @ d:
                new_g_y = q.g_y(x, y + t * d)
                if new_g_y @ d >= 0.9 * g_y @ d:
                    break
                low = t
            else:
                high = t
            t = 2 * low if math.isinf(high) else (low + high) / 2
        else:
            return y
        pairs.append((t * d, new_g_y - g_y))
        y, value, g_y = y + t * d, new_value, new_g_y
        if np.linalg.norm(g_y) <= tol:
            return y
    return y


def cg(A: Callable[[Vector], Vector], b: Vector, v: Vector, n: int, tol: float, cold: bool) -> Vector:
    r = b if cold else b - A(v)
    d = r
    for _ in range(n):
        if np.linalg.norm(r) <= tol:
            break
        w = A(d)
        c = r @ r / (d @ w)
        v, new = v + c * d, r - c * w
        d, r = new + (new @ new) / (r @ r) * d, new
    return v


def hypergradient(
    q: Asked, x: Vector, y: Vector, v: Vector, n: int, tol: float, cold: bool, normal: bool = False
) -> tuple[Vector, Vector]:
    f_x, f_y = q.grad_f(x, y)
    if normal:
        b = q.H(x, y, f_y)
        v = cg(lambda u: q.H(x, y, q.H(x, y, u)), b, 0 * b, n, tol * np.linalg.norm(b), True)
    else:
        v = cg(lambda u: q.H(x, y, u), f_y, v, n, tol * np.linalg.norm(f_y), cold)
    return f_x - q.J(x, y, v), v


# ---- methods


def aid_solved(
    q: Asked, *, D: int, tol: float, rtol: float, eta_x: float, normal: bool = False, memory: int | None = None
) -> Iterator[Point]:
    """AID-LS; with a memory, AID-LBFGS."""
    x, y, v = q.x0, q.y0, np.zeros_like(q.y0)
    for k in itertools.count():
        yield x, y
        if memory is None:
            y = [y, *(moved for _, moved in backtracking(q, x, y, D, tol))][-1]
        else:
            y = lbfgs(q, x, y, D, tol, memory)
        d, v = hypergradient(q, x, y, v, 10 * len(y), rtol, k == 0, normal)
        x = x - eta_x * d


def itd_searched(
    q: Asked, *, D: int, tol: float, eta_x: float, truncate: int | None = None, warm: bool = True
) -> Iterator[Point]:
    x, y = q.x0, q.y0
    while True:
        yield x, y
        start = y if warm else q.y0
        moves = backtracking(q, x, start, D, tol)
        Y, S = [start, *(moved for _, moved in moves)], [s for s, _ in moves]
        d, r = q.grad_f(x, Y[-1])
        first = 0 if truncate is None else max(0, len(S) - truncate)
        for t in reversed(range(first, len(S))):
            d = d - S[t] * q.J(x, Y[t], r)
            if t > first:
                r = r - S[t] * q.H(x, Y[t], r)
        x, y = x - eta_x * d, Y[-1]


def lancbio(q: Asked, *, T: int, m_max: int, growth: float, period: int, a: float, eta_x: float) -> Iterator[Point]:
    x, y, v, m = q.x0, q.y0, np.zeros_like(q.y0), 1
    basis: list[Vector] = []
    diagonal: list[float] = []
    between: list[float] = []
    restart = True
    for k in itertools.count():
        yield x, y
        for _ in range(T):
            y = y - a * q.g_y(x, y)
        f_x, b = q.grad_f(x, y)
        if k % period == period - 1:
            m = min(math.ceil(m * growth), m_max, len(y))
        skip = False
        if restart or len(basis) >= m:
            product = q.H(x, y, v)
            skip = bool(np.linalg.norm(b - product) < 1e-14)
            if not skip:
                origin, w, last, beta = v, product, np.zeros_like(v), 0.0
                direction = (b - w) / np.linalg.norm(b - w)
                basis, diagonal, between, restart = [], [], [], False
        if not skip:
            u = q.H(x, y, direction) - beta * last
            if basis:
                between.append(beta)
            basis.append(direction)
            diagonal.append(direction @ u)
            matrix = np.diag(diagonal) + np.diag(between, 1) + np.diag(between, -1)
            omega = u - diagonal[-1] * direction
            beta, last = float(np.linalg.norm(omega)), direction
            restart = beta < 1e-12
            direction = direction if restart else omega / beta
            if np.linalg.eigvalsh(matrix)[0] > 0:
                Q = np.array(basis).T
                v = origin + Q @ np.linalg.solve(matrix, Q.T @ (b - w))
            else:
                restart = True
        x = x - eta_x * (f_x - q.J(x, y, v))


def s_tfbo(q: Asked, *, alpha: float = 1.0, beta: float = 1.0, gamma: float = 1.0) -> Iterator[Point]:
    x, y, v = q.x0, q.y0, np.zeros_like(q.y0)
    while True:
        yield x, y
        f_x, f_y = q.grad_f(x, y)
        Dy, Dv, Dx = q.g_y(x, y), q.H(x, y, v) - f_y, f_x - q.J(x, y, v)
        beta, gamma, alpha = (math.sqrt(a**2 + D @ D) for a, D in ((beta, Dy), (gamma, Dv), (alpha, Dx)))
        phi = max(beta, gamma)
        x, y, v = x - Dx / (alpha * phi), y - Dy / beta, v - Dv / phi


def d_tfbo(
    q: Asked, *, K: int, N: int, tol: float | None = None, restart: bool = False, alpha: float = 1.0,
    beta0: float = 1.0, gamma0: float = 1.0,
) -> Iterator[Point]:  # fmt: skip
    x, y, v = q.x0, q.y0, np.zeros_like(q.y0)
    beta, gamma = beta0, gamma0

    def loop(at: Vector, total: float, n: int, D: Callable[[Vector], Vector]) -> tuple[Vector, float]:
        for _ in range(n):
            direction = D(at)
            if tol is not None and np.linalg.norm(direction) <= tol:
                break
            total = math.sqrt(total**2 + direction @ direction)
            at = at - direction / total
        return at, total

    while True:
        yield x, y
        if restart:
            beta, gamma = beta0, gamma0
        here = x
        y, beta = loop(y, beta, K, lambda at: q.g_y(here, at))  # noqa: B023
        f_x, f_y = q.grad_f(x, y)
        there = y
        v, gamma = loop(v, gamma, N, lambda at: q.H(here, there, at) - f_y)  # noqa: B023
        d = f_x - q.J(x, y, v)
        alpha = math.sqrt(alpha**2 + d @ d)
        x = x - d / alpha


def hoag(
    q: Asked, *, tol: float, rule: Callable[[int], float], rise: float, D: int = 100, memory: int = 10,
    floor: float = 1e-8,
) -> Iterator[Point]:  # fmt: skip
    """The accepted points."""
    scale = float(np.linalg.norm(q.g_y(q.x0, q.y0)))
    x, share, before = q.x0, 1.0, tol
    xa, ya, va, da, Fa, L = q.x0, q.y0, np.zeros_like(q.y0), np.zeros_like(q.x0), math.inf, 1.0
    for k in itertools.count():
        yield xa, ya
        now = max(tol * rule(k) * share, floor)
        y = lbfgs(q, x, ya, D, now * scale, memory)
        d, v = hypergradient(q, x, y, va, 10 * len(y), now, k == 0)
        F = q.f(x, y)
        refused = False
        if k == 0:
            size = float(np.linalg.norm(d))
            L = size / math.sqrt(len(x)) if size > 1e-3 else L
        else:
            s = float(np.linalg.norm(x - xa))
            explained = Fa + now / 4 + 1.25 * before * s
            if explained - L * s**2 >= F:
                L *= 0.95
            elif explained + rise * abs(Fa) <= F:
                L, share, refused = 2 * L, share / 2, True
        if not refused:
            xa, ya, va, da, Fa = x, y, v, d, F
        x, before = xa - da / L, now


def qnbo(q: Asked, *, P: int, T: int, a: float, eta_x: float) -> Iterator[Point]:
    x, y = q.x0, q.y0
    while True:
        yield x, y
        pairs: Pairs = []
        g_y = q.g_y(x, y)
        for t in range(P + T):
            move = -a * g_y if t < P else -bfgs(pairs, len(y), 1e-4) @ g_y
            new = q.g_y(x, y + move)
            pairs.append((move, new - g_y))
            y, g_y = y + move, new
        f_x, f_y = q.grad_f(x, y)
        x = x - eta_x * (f_x - q.J(x, y, bfgs(pairs, len(y), 1e-4) @ f_y))


def search(
    q: Asked, ask: Callable[[int, list[tuple[Vector, float]]], Vector], *, D: int, tol: float
) -> Iterator[Point]:
    """The best try so far; `ask` is told the number of the step, from 2 on, and all tries with their values."""
    best, tries = (q.x0, q.y0), []
    for step in itertools.count(1):
        yield best
        x = q.x0 if step == 1 else ask(step, tries)
        y = lbfgs(q, x, q.y0, D, tol)
        tries.append((x, q.f(x, y)))
        if tries[-1][1] <= min(value for _, value in tries):
            best = x, y


def uniform(step: int, dim: int, low: float, high: float) -> Vector:
    return low + (high - low) * Noise().uniform((1,), (step,), dim)
