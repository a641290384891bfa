"""A finite sum of quadratics, where the sum is known in closed form and every term is far from it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Generator, Tensor
from torch.nn.functional import embedding

from bilevelbench import (
    Agents,
    Constant,
    FiniteSum,
    Instance,
    InvalidInput,
    Reference,
    Rows,
    Shared,
    dot,
    estimated,
    exact,
    norm,
)
from bilevelbench_problems.common import Stretched, random_orthogonal, spread

_REDRAWS = 20


class QuadraticSum(Stretched):
    """g(x, y) = mean_i [1/2 (a_i·y)² + 1/2 (b_i·x)² + (p_i·x)(q_i·y) + c_i·y + d_i·x],  i = 1..n;  f the same, i = 1..m.

    f has vectors of its own. With A = mean a aᵀ, B = mean b bᵀ, C = mean p qᵀ and c, d the means, primes for f:

        y*(x) = Pᵀx + r,  P = -C A⁻¹,  r = -A⁻¹c;     ∇φ = B'x + C'y* + d' + P (A'y* + C'ᵀx + c');
        ∇²φ = B' + P A'Pᵀ + C'Pᵀ + P C'ᵀ.

    a_i = S z_i with z_i normal and S² of a spectrum log-spaced from mu to L, in a random basis; b_i likewise. p_i and q_i
    are one normal vector in two random bases, q_i times `cross`, so ‖C‖ is about cross. c_i and d_i are normal around
    normal means, x0 and y0 are normal. A is that of the n vectors drawn, and the constants mu and L_gy are its. The
    vectors of f are drawn again until ∇²φ is positive definite.

    A term has rank one: it is convex in y, not strongly, and its gradient changes by ‖a_i‖², which is about the sum of all
    eigenvalues of A. So 1/L_gy, right for the sum, is much too long a step for a single row. A mini-batch costs some thin
    products; the whole sum costs its matrices, whatever n is, and is charged as n samples. Metric `distance`: ‖x - x*‖,
    where ∇φ(x*) = 0.
    """

    name = "quadratic_sum"
    finite_sum = True

    n: PositiveInt = 1024
    """terms of g"""
    m: PositiveInt = 1024
    """terms of f"""
    dim_x: PositiveInt = 10
    """dimension of x"""
    dim_y: PositiveInt = 30
    """dimension of y"""
    mu: PositiveFloat = 0.1
    """smallest eigenvalue of the law from which a_i and b_i are drawn"""
    L: PositiveFloat = 1.0
    """its largest eigenvalue"""
    cross: NonNegativeFloat = 0.1
    """norm of the coupling between x and y, in the law"""
    copies: PositiveInt = 1
    """how often each term is there: with more of them the sum is the same, and a pass over its data longer"""

    @model_validator(mode="after")
    def _enough_terms(self) -> Self:
        if self.n < 2 * self.dim_y:
            raise ValueError(
                f"n = {self.n} terms of rank one do not make a strongly convex lower level of dim_y = {self.dim_y}; "
                f"take n = {2 * self.dim_y} or more"
            )
        return self

    def sweep(self, over: str, value: float) -> dict[str, Any]:
        """More data of the same sum: other terms would be another instance, as hard or as easy as it happens to be."""
        if over != "n":
            return super().sweep(over, value)
        if value % self.n:
            raise InvalidInput(
                f"quadratic_sum has n = {self.n} terms, each as often as `copies` says, so {value:g} data of g are none of its "
                "sizes; sweep over multiples of n"
            )
        return {"copies": round(value / self.n)}

    def build(self) -> Instance:
        return self._instance(*self.draw())

    def _instance(self, g: Terms, f: Terms, x0: Tensor, y0: Tensor, agents: Agents | None = None) -> Instance:
        level = _Levels(f, g)
        dtype = torch.get_default_dtype()
        F, G = _Sum(f, dtype, self.copies), _Sum(g, dtype, self.copies)
        P, r, hess, slope, x_min = (t.to(dtype) for t in (level.P, level.r, level.hess, level.slope, level.x_min))
        return Instance(
            **_functions(F, G),
            x0=x0.to(dtype),
            y0=y0.to(dtype),
            constants=level.constants(x0, y0),
            agents=agents,
            reference=Reference(
                y_star=lambda x: x @ P + r,
                phi=lambda x: F.value(x, x @ P + r),
                grad_phi=lambda x: x @ hess + slope,
                hess_phi=lambda x: hess.expand(*x.shape, len(hess)),
            ),
            metrics={"distance": lambda x, y: norm(x - x_min)},
        )

    def draw(self) -> tuple[Terms, Terms, Tensor, Tensor]:
        """The terms of g and of f, x0 and y0, in float64."""
        rng = self.generator()
        x0, y0 = (torch.randn(1, d, generator=rng, dtype=torch.float64) for d in (self.dim_x, self.dim_y))
        g = self._terms(self.n, rng)
        for _ in range(_REDRAWS):
            f = self._terms(self.m, rng)
            if torch.linalg.eigvalsh(_Levels(f, g).hess)[0] > 0:
                return g, f, x0, y0
        raise InvalidInput(
            f"quadratic_sum with m = {self.m}, dim_x = {self.dim_x} and cross = {self.cross:g}: phi was not convex in any of "
            f"{_REDRAWS} draws; take a smaller cross or a larger m"
        )

    def _terms(self, n: int, rng: Generator) -> Terms:
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64)

        dx, dy = self.dim_x, self.dim_y
        shared = normal(n, min(dx, dy))
        return Terms(
            a=self._stretched(normal(n, dy), rng),
            b=self._stretched(normal(n, dx), rng),
            p=shared @ random_orthogonal(dx, rng)[: min(dx, dy)],
            q=self.cross * shared @ random_orthogonal(dy, rng)[: min(dx, dy)],
            c=normal(dy) + normal(n, dy),
            d=normal(dx) + normal(n, dx),
        )

    def _stretched(self, z: Tensor, rng: Generator) -> Tensor:
        d = z.shape[-1]
        spectrum = self.mu * (self.L / self.mu) ** torch.linspace(0, 1, d, dtype=torch.float64)
        Q = random_orthogonal(d, rng)
        return z @ (Q * spectrum.sqrt()) @ Q.T


class QuadraticSumAgents(Shared, QuadraticSum):
    """`quadratic_sum` whose terms are dealt out to agents: f_i and g_i are means over agent i's.

    Terms that do not divide evenly are not drawn. Constants and closed forms are those of the mean problem.
    """

    name = "quadratic_sum_agents"
    embedded = False  # every distributed method would start processes in `run --all`

    def build(self) -> Instance:
        g, f, x0, y0 = self.draw()
        dtype = torch.get_default_dtype()

        def local(i: int) -> Instance:
            F, G = (_Sum(terms.of_agent(i, self.agents), dtype, self.copies) for terms in (f, g))
            return Instance(**_functions(F, G), x0=x0.to(dtype), y0=y0.to(dtype))

        return self._instance(g, f, x0, y0, Agents(self.agents, local))

    def _terms(self, n: int, rng: Generator) -> Terms:
        return super()._terms(n - n % self.agents, rng)


@dataclass(frozen=True)
class Terms:
    """The vectors of a sum, a, q, c (n, dy) and b, p, d (n, dx), in float64."""

    a: Tensor
    b: Tensor
    p: Tensor
    q: Tensor
    c: Tensor
    d: Tensor

    def of_agent(self, i: int, agents: int) -> Terms:
        return Terms(**{field.name: getattr(self, field.name)[i::agents] for field in fields(self)})

    def means(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """A, B, C, c, d."""
        n = len(self.a)
        A, B, C = self.a.T @ self.a / n, self.b.T @ self.b / n, self.p.T @ self.q / n
        return A, B, C, self.c.mean(0), self.d.mean(0)


class _Sum:
    """One of the two functions and its derivatives over (*points, L, .), whole or of some rows."""

    def __init__(self, terms: Terms, dtype: torch.dtype, copies: int) -> None:
        self.A, self.B, self.C, self.c, self.d = (t.to(dtype) for t in terms.means())
        self.Ct = self.C.T.contiguous()
        # one gather and one product for the three vectors that meet y, and for those that meet x
        self.meets_y = torch.cat([terms.a, terms.q, terms.c], 1).to(dtype).repeat(copies, 1)
        self.meets_x = torch.cat([terms.b, terms.p, terms.d], 1).to(dtype).repeat(copies, 1)
        alone = terms.a, terms.b, terms.p, terms.q
        self.a, self.b, self.p, self.q = (t.to(dtype).repeat(copies, 1) for t in alone)

    def value(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            square = 0.5 * dot(y @ self.A, y) + 0.5 * dot(x @ self.B, x)
            return square + dot(x @ self.C, y) + dot(self.c, y) + dot(self.d, x)
        (_, (ay, qy, cy)), (_, (bx, px, dx)) = self._met(x, y, rows)
        return dot(rows.weight, 0.5 * ay * ay + 0.5 * bx * bx + px * qy + cy + dx)

    def in_y(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            return y @ self.A + x @ self.C + self.c
        ay, px = self._along(y, rows, self.meets_y, 0, self.a), self._along(x, rows, self.meets_x, 1, self.p)
        return _combined(_vectors(embedding(rows.index, self.meets_y), y), rows, ay, px)

    def in_x(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            return x @ self.B + y @ self.Ct + self.d
        bx, qy = self._along(x, rows, self.meets_x, 0, self.b), self._along(y, rows, self.meets_y, 1, self.q)
        return _combined(_vectors(embedding(rows.index, self.meets_x), x), rows, bx, qy)

    def gradient(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> tuple[Tensor, Tensor]:
        if rows is None:
            return self.in_x(x, y), self.in_y(x, y)
        (of_y, (ay, qy, _)), (of_x, (bx, px, _)) = self._met(x, y, rows)
        return _combined(of_x, rows, bx, qy), _combined(of_y, rows, ay, px)

    def _met(self, x: Tensor, y: Tensor, rows: Rows) -> tuple[tuple[Tensor, tuple[Tensor, ...]], ...]:
        """The vectors of some rows that meet y, (.., L, 3B, d), with their products with it; and those that meet x."""
        pairs = ((self.meets_y, y), (self.meets_x, x))
        return tuple(_products(embedding(rows.index, vectors), z) for vectors, z in pairs)

    def _along(self, z: Tensor, rows: Rows, three: Tensor, which: int, one: Tensor) -> Tensor:
        """The products with z of one of the three vectors in each row of `three`, which is `one` by itself."""
        if z.shape[:-1].numel() > 1:
            return _times(embedding(rows.index, one), z)  # to gather it once more costs less than the other products
        return _products(embedding(rows.index, three), z)[1][which]  # those of a single lane round with their number

    def hvp(self, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            return spread(v @ self.A, x, y)
        a = embedding(rows.index, self.a)
        return spread(_sum(a, rows.weight * _times(a, v)), x, y)

    def jvp(self, x: Tensor, y: Tensor, v: Tensor, rows: Rows | None = None) -> Tensor:
        if rows is None:
            return spread(v @ self.Ct, x, y)
        along = rows.weight * _times(embedding(rows.index, self.q), v)
        return spread(_sum(embedding(rows.index, self.p), along), x, y)


def _functions(F: _Sum, G: _Sum) -> dict[str, Any]:
    """f and g with their derivatives, and what kind of sums they are."""
    return {
        "f": F.value,
        "g": G.value,
        "grad_f": F.gradient,
        "grad_g": G.gradient,
        "grad_f_x": F.in_x,
        "grad_f_y": F.in_y,
        "grad_g_x": G.in_x,
        "grad_g_y": G.in_y,
        "hvp_g_yy": G.hvp,
        "jvp_g_xy": G.jvp,
        "noise": FiniteSum(n_f=len(F.meets_y), n_g=len(G.meets_y)),
        "points": "stack",
    }


def _times(vectors: Tensor, z: Tensor) -> Tensor:
    """(.., L, B, d) with (.., L, d): (.., L, B). z as a row: as a column it takes MKL three to eight times as long."""
    return _product(z.unsqueeze(-2), vectors.mT).squeeze(-2)


def _sum(vectors: Tensor, weights: Tensor) -> Tensor:
    """Σ_b weights_b vectors_b, (.., L, d)."""
    return _product(weights.unsqueeze(-2), vectors).squeeze(-2)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b; that there is nothing to broadcast `matmul` takes a third of its time to find out."""
    return torch.bmm(a, b) if a.dim() == b.dim() == 3 else a @ b


def _vectors(rows: Tensor, z: Tensor) -> Tensor:
    """Three vectors in each row, (.., L, B, 3d), one below the other."""
    return rows.reshape(*rows.shape[:-2], -1, z.shape[-1])


def _products(rows: Tensor, z: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The three vectors of each row, and the products of each with z, (.., L, B)."""
    vectors = _vectors(rows, z)
    products: Tensor = _times(vectors, z).unflatten(-1, (-1, 3))
    return vectors, products.unbind(-1)


def _combined(vectors: Tensor, rows: Rows, first: Tensor, second: Tensor) -> Tensor:
    """Σ_b weight_b (first_b, second_b, 1) of the three vectors of each row."""
    weights = rows.weight * first, rows.weight * second, rows.weight
    if not weights[0].shape == weights[1].shape == weights[2].shape:
        weights = torch.broadcast_tensors(*weights)
    return _sum(vectors, torch.stack(weights, -1).flatten(-2))


class _Levels:
    """P, r, ∇²φ and all that follows from them, in float64."""

    def __init__(self, f: Terms, g: Terms) -> None:
        self.f, self.g = f.means(), g.means()
        A, _, C, c, _ = self.g
        A_f, B_f, C_f, c_f, d_f = self.f
        self.P = -torch.linalg.solve(A, C.T).T
        self.r = -torch.linalg.solve(A, c)
        cross = C_f @ self.P.T
        self.hess = B_f + self.P @ A_f @ self.P.T + cross + cross.T
        self.slope = C_f @ self.r + d_f + self.P @ (A_f @ self.r + c_f)

    @property
    def x_min(self) -> Tensor:
        x: Tensor = torch.linalg.solve(self.hess, -self.slope)
        return x

    def constants(self, x0: Tensor, y0: Tensor) -> dict[str, Constant]:
        A_f, _, C_f, c_f, _ = self.f
        spectrum, away = torch.linalg.eigvalsh(self.g[0]), x0 - self.x_min
        return {
            "mu": exact(spectrum[0]),
            "L_gy": exact(spectrum[-1]),
            "L_g": exact(_joint(*self.g[:3])),
            "L_f": exact(_joint(*self.f[:3])),
            "rho_f": exact(0),
            "rho_g": exact(0),
            "nu_g": exact(0),
            "C_f": estimated((y0 @ A_f + x0 @ C_f + c_f).norm()),
            "L_phi": exact(torch.linalg.matrix_norm(self.hess, 2)),
            "rho_phi": exact(0),
            "Delta": exact(0.5 * away @ self.hess @ away.T),
            "R": exact((y0 - x0 @ self.P - self.r).square().sum()),
        }


def _joint(A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The norm of the Hessian in (x, y)."""
    norm: Tensor = torch.linalg.matrix_norm(torch.cat([torch.cat([B, C], 1), torch.cat([C.T, A], 1)]), 2)
    return norm
