"""SOBA and its relatives once more, in numpy, for one lane, from the pseudo-code and not from the plugins.

Two worlds to make steps in: a small finite sum with derivatives by hand, and a smooth problem with affine noise. A sample is
what a world draws at an address: (place in the step's program, step, counters of loops).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from helpers import iterates
from plain import Point
from plain_problems import Plain, Vector, Wavy
from torch import Tensor

from bilevelbench import Affine as AffineNoise
from bilevelbench import Algorithm, FiniteSum, Instance, Problem, Rows, bound, dot
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.oracle.draws import Draws
from bilevelbench.plan.spec_text import parse_spec

Place = tuple[int, ...]

#: Levels of noise where it is affine.
SIGMA = {"f": 0.6, "g": 0.4, "h": 0.5}
STEPS = 20


class TinySum(Problem):
    """Finite sums that are quadratic in neither level.

    g_i = 1/2 (a_i y - b_i x - e_i)² + 1/2 ‖y‖² + c log cosh(a_i y + b_i x);  f_j = log(1 + (d_j y - t_j)²) + w_j x + r/2 ‖x‖²
    """

    name = "tiny_sum"

    n_g: int = 13
    n_f: int = 9
    dim_x: int = 3
    dim_y: int = 4
    c: float = 0.3
    r: float = 0.5

    def data(self) -> dict[str, np.ndarray]:
        rng, dx, dy = np.random.default_rng(3 + self.data_seed), self.dim_x, self.dim_y
        return {
            "a": rng.standard_normal((self.n_g, dy)) / dy**0.5,
            "b": rng.standard_normal((self.n_g, dx)) / dx**0.5,
            "e": rng.standard_normal(self.n_g),
            "d": rng.standard_normal((self.n_f, dy)) / dy**0.5,
            "t": rng.standard_normal(self.n_f),
            "w": 0.3 * rng.standard_normal((self.n_f, dx)),
            "x0": rng.standard_normal(dx),
            "y0": rng.standard_normal(dy),
        }

    def build(self) -> Instance:
        dtype = torch.get_default_dtype()
        a, b, e, d, t, w, x0, y0 = (torch.from_numpy(part).to(dtype) for part in self.data().values())
        c, r = self.c, self.r

        def along(rows_of: Tensor, at: Tensor, rows: Rows | None) -> Tensor:
            return at @ rows_of.T if rows is None else (rows_of[rows.index] * at.unsqueeze(-2)).sum(-1)

        def mean(terms: Tensor, rows: Rows | None) -> Tensor:
            return terms.mean(-1, keepdim=True) if rows is None else (rows.weight * terms).sum(-1, keepdim=True)

        def picked(values: Tensor, rows: Rows | None) -> Tensor:
            return values if rows is None else values[rows.index]

        def g(x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
            ay, bx = along(a, y, rows), along(b, x, rows)
            bend = torch.logaddexp(ay + bx, -ay - bx)
            return mean(0.5 * (ay - bx - picked(e, rows)).square() + c * bend + 0.5 * dot(y, y), rows)

        def f(x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
            u = along(d, y, rows) - picked(t, rows)
            return mean((1 + u * u).log() + along(w, x, rows) + 0.5 * r * dot(x, x), rows)

        top = float(torch.linalg.matrix_norm(torch.cat([a, b], 1), 2)) ** 2 / self.n_g * (1 + c)
        L_f = 2 * float(torch.linalg.matrix_norm(d, 2)) ** 2 / self.n_f + r
        constants = {"mu": bound(1), "L_gy": bound(1 + top), "L_g": bound(1 + top), "L_phi": 4 * (L_f + 1)}
        noise = FiniteSum(n_f=self.n_f, n_g=self.n_g)
        return Instance(f=f, g=g, x0=x0, y0=y0, constants=constants, noise=noise, points="stack")


class Five(NamedTuple):
    fx: Vector
    fy: Vector
    gy: Vector
    Jv: Vector
    Hv: Vector

    def directions(self) -> np.ndarray:
        """(Dx, Dy, Dv) as one vector of objects."""
        return np.array([self.fx - self.Jv, self.gy, self.Hv - self.fy], dtype=object)


class Sums:
    """The finite sum: a sample is weights of the rows."""

    def __init__(self, problem: TinySum, seed: int = 0) -> None:
        self.problem, self.seed = problem, seed
        self.a, self.b, self.e, self.d, self.t, self.w, self.x0, self.y0 = problem.data().values()
        self.n = {"g": problem.n_g, "f": problem.n_f}

    def whole(self, level: str) -> Vector:
        return np.full(self.n[level], 1 / self.n[level])

    def rows(self, level: str, place: Place, at: Place, B: int) -> Vector:
        """B rows with replacement."""
        u = Draws([self.seed]).uniform(f"rows_{level}", place, at, B, 1)[:, 0]
        index = np.minimum((u * self.n[level]).astype(int), self.n[level] - 1)
        return np.bincount(index, minlength=self.n[level]) / B

    def block(self, level: str, place: Place, at: Place, B: int) -> tuple[int, Vector]:
        """A block of the partition, and its rows: the mean over blocks is the whole."""
        n, blocks = self.n[level], math.ceil(self.n[level] / B)
        u = float(Draws([self.seed]).uniform(f"block_{level}", place, at, 1, 1)[0, 0])
        number = min(int(u * blocks), blocks - 1)
        return number, self.rows_of(level, number, B) * (blocks / n)

    def rows_of(self, level: str, number: int, B: int) -> Vector:
        index = np.arange(self.n[level])
        return ((index >= number * B) & (index < (number + 1) * B)).astype(float)

    def uniform(self, place: Place, at: Place) -> float:
        return float(Draws([self.seed]).uniform("method", place, at, 1, 1)[0, 0])

    def five(self, x: Vector, y: Vector, v: Vector, xi: Vector, zeta: Vector) -> Five:
        p, total_g, total_f = self.problem, xi.sum(), zeta.sum()
        r, s = self.a @ y - self.b @ x - self.e, self.a @ y + self.b @ x
        sech2, av = 1 / np.cosh(s) ** 2, self.a @ v
        u = self.d @ y - self.t
        return Five(
            fx=total_f * p.r * x + zeta @ self.w,
            fy=(zeta * 2 * u / (1 + u**2)) @ self.d,
            gy=(xi * (r + p.c * np.tanh(s))) @ self.a + total_g * y,
            Jv=(xi * (p.c * sech2 - 1) * av) @ self.b,
            Hv=(xi * (1 + p.c * sech2) * av) @ self.a + total_g * v,
        )

    def gx(self, x: Vector, y: Vector, xi: Vector) -> Vector:
        r, s = self.a @ y - self.b @ x - self.e, self.a @ y + self.b @ x
        return (xi * (self.problem.c * np.tanh(s) - r)) @ self.b


@dataclass(frozen=True)
class Function:
    """n and S = s u u^T of one sample of affine noise."""

    nx: Vector
    ny: Vector
    s: float
    u: Vector


class Affine:
    """A smooth problem with affine noise: a sample is a function that is added to it."""

    def __init__(self, p: Plain, sigma: dict[str, float], seed: int = 0) -> None:
        self.p, self.sigma, self.seed, self.x0, self.y0 = p, sigma, seed, p.x0, p.y0

    def rows(self, level: str, place: Place, at: Place, B: int) -> Function:
        def normal(purpose: str, width: int) -> Vector:
            return Draws([self.seed]).normal(f"{level}_{purpose}", place, at, width, 1)[:, 0]

        dx, dy, sigma = len(self.x0), len(self.y0), self.sigma[level]
        u = normal("u", dx + dy)
        return Function(
            nx=sigma / math.sqrt(dx * B) * normal("x", dx),
            ny=sigma / math.sqrt(dy * B) * normal("y", dy),
            s=self.sigma["h"] / math.sqrt(B) * float(normal("s", 1)[0]),
            u=u / np.linalg.norm(u),
        )

    def uniform(self, place: Place, at: Place) -> float:
        return float(Draws([self.seed]).uniform("method", place, at, 1, 1)[0, 0])

    def five(self, x: Vector, y: Vector, v: Vector, xi: Function, zeta: Function) -> Five:
        z, dx = np.concatenate([x - self.x0, y - self.y0]), len(x)
        of_f, of_g = (w.s * (w.u @ z) * w.u for w in (zeta, xi))
        products = xi.s * (xi.u[dx:] @ v) * xi.u
        return Five(
            fx=self.p.f_x(x, y) + zeta.nx + of_f[:dx],
            fy=self.p.f_y(x, y) + zeta.ny + of_f[dx:],
            gy=self.p.g_y(x, y) + xi.ny + of_g[dx:],
            Jv=self.p.J(x, y) @ v + products[:dx],
            Hv=self.p.H(x, y) @ v + products[dx:],
        )

    def gx(self, x: Vector, y: Vector, xi: Function) -> Vector:
        z = np.concatenate([x - self.x0, y - self.y0])
        return self.p.g_x(x, y) + xi.nx + (xi.s * (xi.u @ z) * xi.u)[: len(x)]


class ByDifferences:
    """A world without second derivatives: central differences of gradients, by shifts of y no longer than `difference`."""

    def __init__(self, world: Any, difference: float) -> None:
        self.world, self.difference, self.x0, self.y0 = world, difference, world.x0, world.y0

    def rows(self, level: str, place: Place, at: Place, B: int) -> Any:
        return self.world.rows(level, place, at, B)

    def five(self, x: Vector, y: Vector, v: Vector, xi: Any, zeta: Any) -> Five:
        h = self.difference / max(np.linalg.norm(v), 1)
        here = self.world.five(x, y, v, xi, zeta)
        ahead, behind = (self.world.five(x, y + sign * h * v, v, xi, zeta).gy for sign in (1, -1))
        Jv = (self.world.gx(x, y + h * v, xi) - self.world.gx(x, y - h * v, xi)) / (2 * h)
        return here._replace(Jv=Jv, Hv=(ahead - behind) / (2 * h))


def moved(at: tuple[Vector, ...], D: np.ndarray, a: float, b: float) -> tuple[Vector, Vector, Vector]:
    x, y, v = at
    return x - b * D[0], y - a * D[1], v - a * D[2]


def start(world: Any) -> tuple[Vector, Vector, Vector]:
    return world.x0, world.y0, np.zeros_like(world.y0)


def soba(world: Any, *, a: float, b: float, power: float, B: int, w: float | None = None) -> Iterator[Point]:
    """With w, MA-SOBA: the x-direction is averaged."""
    at, h = start(world), np.zeros_like(world.x0)
    for k in itertools.count():
        yield at[:2]
        xi, zeta = (world.rows(level, (i,), (k + 1,), B) for level, i in (("g", 1), ("f", 2)))
        D, decay = world.five(*at, xi, zeta).directions(), (k + 1) ** -power
        if w is not None:
            weight = min(1, w * decay)
            h = (1 - weight) * h + weight * D[0]
            D[0] = h
        at = moved(at, D, a * decay, b * decay)


def in_ball(v: Vector, radius: float) -> Vector:
    return v * min(1, radius / max(np.linalg.norm(v), 1e-300))


def srmba(
    world: Any, *, a: float, b: float, power: float, B: int, w: float, radius: float = math.inf
) -> Iterator[Point]:
    at = start(world)
    D, before = None, at
    for k in itertools.count():
        yield at[:2]
        xi, zeta = (world.rows(level, (i,), (k + 1,), B) for level, i in (("g", 1), ("f", 2)))
        new, decay = world.five(*at, xi, zeta).directions(), (k + 1) ** -power
        if D is not None:
            new = new + (1 - min(1, w * decay**2)) * (D - world.five(*before, xi, zeta).directions())
        D, before = new, at
        x, y, v = moved(at, D, a * decay, b * decay)
        at = x, y, in_ball(v, radius)


def recursive(
    world: Any, *, a: float, b: float, B: int, period: int | None = None, p: float = 0.0, big: int | None = None,
    radius: float = math.inf,
) -> Iterator[Point]:  # fmt: skip
    """SRBA with a period, SPABA with a probability. The loops of a step are numbered after its draws."""
    at = start(world)
    D, before, first = None, at, 1 if period is not None else 2
    for k in itertools.count():
        yield at[:2]
        fresh = k == 0 or (k % period == 0 if period is not None else world.uniform((1,), (k + 1,)) < p)
        if fresh and big is None:
            D = world.five(*at, world.whole("g"), world.whole("f")).directions()
        elif fresh:
            place = () if k == 0 else (first,)
            xi, zeta = (
                world.rows(level, (*place, i), (k + 1, *(0 for _ in place)), big) for level, i in (("g", 1), ("f", 2))
            )
            D = world.five(*at, xi, zeta).directions()
        else:
            xi, zeta = (world.rows(level, (first + 1, i), (k + 1, 0), B) for level, i in (("g", 1), ("f", 2)))
            D = D + world.five(*at, xi, zeta).directions() - world.five(*before, xi, zeta).directions()
        before = at
        x, y, v = moved(at, D, a, b)
        at = x, y, in_ball(v, radius)


def saba(world: Sums, *, a: float, b: float, B: int, full: bool = False) -> Iterator[Point]:
    at = start(world)
    x, y, v = at
    counts = {level: math.ceil(n / B) for level, n in world.n.items()}
    widths = {"fx": len(x), "fy": len(y), "gy": len(y), "Jv": len(x), "Hv": len(y)}
    tables = {name: np.zeros((counts["f" if name[0] == "f" else "g"], width)) for name, width in widths.items()}
    if full:
        for i in range(counts["g"]):
            weights = world.rows_of("g", i, B) * counts["g"] / world.n["g"]
            tables["gy"][i] = world.five(x, y, v, weights, world.whole("f")).gy
        for j in range(counts["f"]):
            weights = world.rows_of("f", j, B) * counts["f"] / world.n["f"]
            of = world.five(x, y, v, world.whole("g"), weights)
            tables["fx"][j], tables["fy"][j] = of.fx, of.fy
    for k in itertools.count():
        yield at[:2]
        i, xi = world.block("g", (1,), (k + 1,), B)
        j, zeta = world.block("f", (2,), (k + 1,), B)
        new, corrected = world.five(*at, xi, zeta)._asdict(), {}
        for name, table in tables.items():
            row = j if name[0] == "f" else i
            corrected[name] = new[name] - table[row] + table.mean(0)
            table[row] = new[name]
        at = moved(at, Five(**corrected).directions(), a, b)


# ---------------------------------------------------------------------------------------------- a method beside its twin


def method(text: str) -> Algorithm:
    (spec,) = parse_spec(text)
    return make(registry().algorithm(spec.name), spec.params)


def tiny(**params: Any) -> Instance:
    with default_dtype(torch.float64):
        return TinySum(**params).build()


def wavy() -> Instance:
    instance = Wavy().build()
    instance.noise = AffineNoise(SIGMA["f"], SIGMA["g"], SIGMA["h"])
    return instance


def agree(text: str, instance: Instance, twin: Iterator[Point]) -> None:
    """The method's iterates are the twin's, and go somewhere."""
    got = iterates(method(text), instance, STEPS)
    expected = list(itertools.islice(twin, STEPS + 1))
    for (x, y), (x_, y_) in zip(got, expected, strict=True):
        np.testing.assert_allclose(x, x_.astype(float), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(y, y_.astype(float), rtol=1e-10, atol=1e-10)
    assert np.linalg.norm(got[-1][0] - got[0][0]) > 1e-2
