"""The methods once more, in numpy, for one lane, from the pseudo-code and not from the plugins.

Each generator yields (x, y) at the start and after every step. Derivatives are written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bilevelbench import Instance, Problem, bound
from bilevelbench.oracle.draws import Draws

Vector = np.ndarray
Matrix = np.ndarray
Point = tuple[Vector, Vector]


@dataclass(frozen=True)
class Plain:
    """Two functions by their derivatives. H is dy-by-dy, J is dx-by-dy."""

    x0: Vector
    y0: Vector
    f_x: Callable[[Vector, Vector], Vector]
    f_y: Callable[[Vector, Vector], Vector]
    g: Callable[[Vector, Vector], float]
    g_x: Callable[[Vector, Vector], Vector]
    g_y: Callable[[Vector, Vector], Vector]
    H: Callable[[Vector, Vector], Matrix]
    J: Callable[[Vector, Vector], Matrix]

    def y_star(
        self, x: Vector, lam: float | None = None, f_yy: Callable[[Vector, Vector], Matrix] | None = None
    ) -> Vector:
        """The minimiser of g(x, .), or of f/lam + g, by Newton's method with halving."""
        y = np.zeros_like(self.y0)

        def force(y: Vector) -> Vector:
            return self.g_y(x, y) + (0 if lam is None else self.f_y(x, y) / lam)

        for _ in range(100):
            r = force(y)
            if np.linalg.norm(r) < 1e-13:
                break
            curvature = self.H(x, y)
            if lam is not None and f_yy is not None:
                curvature = curvature + f_yy(x, y) / lam
            direction, t = np.linalg.solve(curvature, r), 1.0
            while np.linalg.norm(force(y - t * direction)) > np.linalg.norm(r) and t > 1e-6:
                t /= 2
            y = y - t * direction
        return y

    def grad_phi(self, x: Vector) -> Vector:
        y = self.y_star(x)
        return self.f_x(x, y) - self.J(x, y) @ np.linalg.solve(self.H(x, y), self.f_y(x, y))


class Wavy(Problem):
    """g = 1/2 yᵀA y - xᵀB y + w Σ log cosh(y + Cᵀx);  f = Σ log(1 + (y-t)²) + r/2 |x|² + s Σ sin(x + E y).

    Not quadratic in either level, not convex in x; rho_g > 0. f and g only, unless `analytic`: then with the same
    derivatives as `plain`, for runs of thousands of steps.
    """

    name = "wavy"

    dim_x: int = 4
    dim_y: int = 6
    mu: float = 0.5
    L: float = 2.0
    w: float = 0.5
    r: float = 0.5
    s: float = 0.3
    analytic: bool = False

    def data(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(7 + self.data_seed)
        dx, dy = self.dim_x, self.dim_y
        Q = np.linalg.qr(rng.standard_normal((dy, dy)))[0]
        return {
            "A": Q @ np.diag(np.linspace(self.mu, self.L, dy)) @ Q.T,
            "B": rng.standard_normal((dx, dy)) / dy**0.5,
            "C": 0.5 * rng.standard_normal((dx, dy)) / dy**0.5,
            "E": rng.standard_normal((dx, dy)) / dy**0.5,
            "t": rng.standard_normal(dy),
            "x0": rng.standard_normal(dx),
            "y0": rng.standard_normal(dy),
        }

    def plain(self) -> Plain:
        A, B, C, E, t, x0, y0 = self.data().values()
        w, r, s = self.w, self.r, self.s

        def sech2(x: Vector, y: Vector) -> Vector:
            return 1 / np.cosh(y + C.T @ x) ** 2

        return Plain(
            x0=x0,
            y0=y0,
            f_x=lambda x, y: r * x + s * np.cos(x + E @ y),
            f_y=lambda x, y: 2 * (y - t) / (1 + (y - t) ** 2) + s * E.T @ np.cos(x + E @ y),
            g=lambda x, y: 0.5 * y @ A @ y - x @ B @ y + w * np.log(np.cosh(y + C.T @ x)).sum(),
            g_x=lambda x, y: -B @ y + w * C @ np.tanh(y + C.T @ x),
            g_y=lambda x, y: A @ y - B.T @ x + w * np.tanh(y + C.T @ x),
            H=lambda x, y: A + w * np.diag(sech2(x, y)),
            J=lambda x, y: -B + w * C * sech2(x, y),
        )

    def f_yy(self, x: Vector, y: Vector) -> Matrix:
        E, t = self.data()["E"], self.data()["t"]
        u = y - t
        return np.diag(2 * (1 - u**2) / (1 + u**2) ** 2) - self.s * E.T @ np.diag(np.sin(x + E @ y)) @ E

    def constants(self) -> dict[str, float]:
        """Bounds that hold everywhere, from the norms of the pieces."""
        A, B, C, E, *_ = self.data().values()
        dx, dy = self.dim_x, self.dim_y
        flat = np.block([[np.zeros((dx, dx)), -B], [-B.T, A]])
        K = np.vstack([C, np.eye(dy)])
        size = np.linalg.norm(K, 2)
        return {
            "mu": self.mu,
            "L_gy": self.L + self.w,
            "L_g": float(np.linalg.norm(flat, 2) + self.w * size**2),
            "rho_g": float(self.w * 4 / (3 * math.sqrt(3)) * np.linalg.norm(K, axis=0).max() * size**2),
            "L_f": float(max(2, self.r) + self.s * (1 + np.linalg.norm(E, 2) ** 2)),
            "C_f": float(math.sqrt(dy) + self.s * np.linalg.norm(E, 2) * math.sqrt(dx)),
        }

    def build(self) -> Instance:
        A, B, C, E, t, x0, y0 = (torch.from_numpy(part) for part in self.data().values())
        w, r, s = self.w, self.r, self.s
        Bt, Ct, Et = B.T.contiguous(), C.T.contiguous(), E.T.contiguous()

        def f(x: Tensor, y: Tensor) -> Tensor:
            inner = (1 + (y - t) ** 2).log().sum(-1, keepdim=True) + 0.5 * r * (x * x).sum(-1, keepdim=True)
            return inner + s * (x + y @ Et).sin().sum(-1, keepdim=True)

        def g(x: Tensor, y: Tensor) -> Tensor:
            flat = 0.5 * ((y @ A) * y).sum(-1, keepdim=True) - ((x @ B) * y).sum(-1, keepdim=True)
            return flat + w * (y + x @ C).cosh().log().sum(-1, keepdim=True)

        def sech2(x: Tensor, y: Tensor) -> Tensor:
            return 1 - (y + x @ C).tanh() ** 2

        known: dict[str, Callable[..., Tensor]] = {
            "grad_f_x": lambda x, y: r * x + s * (x + y @ Et).cos(),
            "grad_f_y": lambda x, y: 2 * (y - t) / (1 + (y - t) ** 2) + s * (x + y @ Et).cos() @ E,
            "grad_g_x": lambda x, y: w * (y + x @ C).tanh() @ Ct - y @ Bt,
            "grad_g_y": lambda x, y: y @ A - x @ B + w * (y + x @ C).tanh(),
            "hvp_g_yy": lambda x, y, v: v @ A + w * sech2(x, y) * v,
            "jvp_g_xy": lambda x, y, v: (w * sech2(x, y) * v) @ Ct - v @ Bt,
        }
        constants = {name: bound(value) for name, value in self.constants().items()}
        derivatives = known if self.analytic else {}
        return Instance(f=f, g=g, x0=x0, y0=y0, constants=constants, points="stack", **derivatives)


def of_quadratic(instance: Instance) -> Plain:
    """The plugin's quadratic problem, with its matrices and vectors read off two gradients."""
    dx, dy = instance.dx, instance.dy
    x_units, y_units = torch.eye(dx, dtype=torch.float64), torch.eye(dy, dtype=torch.float64)
    with instance.uncounted():
        A = instance.grad_g_y(torch.zeros(dy, dx, dtype=torch.float64), y_units).numpy()
        B = -instance.grad_g_y(x_units, torch.zeros(dx, dy, dtype=torch.float64)).numpy()
        zero = torch.zeros(1, dx, dtype=torch.float64), torch.zeros(1, dy, dtype=torch.float64)
        c = -instance.grad_f_y(*zero).numpy()[0]
        reg = float(instance.grad_f_x(x_units, torch.zeros(dx, dy, dtype=torch.float64))[0, 0])
    return Plain(
        x0=instance.x0.numpy().reshape(-1),
        y0=instance.y0.numpy().reshape(-1),
        f_x=lambda x, y: reg * x,
        f_y=lambda x, y: y - c,
        g=lambda x, y: 0.5 * y @ A @ y - x @ B @ y,
        g_x=lambda x, y: -B @ y,
        g_y=lambda x, y: A @ y - B.T @ x,
        H=lambda x, y: A,
        J=lambda x, y: -B,
    )


# ---- section 1


def lower_gd(p: Plain, x: Vector, y: Vector, n: int, a: float) -> Vector:
    for _ in range(n):
        y = y - a * p.g_y(x, y)
    return y


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


def directions(seed: int, step: int, Q: int, dx: int) -> np.ndarray:
    """The Q normals of PZOBO in that step, (Q, dx): the first draw of the step, outside any loop."""
    return Draws([seed]).normal("method", (1,), (step,), Q * dx, 1).reshape(Q, dx)


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


def pbgd(p: Plain, gam: float, K: int, alpha: float, b: float, warm: bool) -> Iterator[Point]:
    x, y, w = p.x0, p.y0, p.y0
    while True:
        yield x, y
        w = lower_gd(p, x, w if warm else y, K, b)
        dx = p.f_x(x, y) + gam * (p.g_x(x, y) - p.g_x(x, w))
        dy = p.f_y(x, y) + gam * p.g_y(x, y)
        x, y = x - alpha * dx, y - alpha * dy


def g_pbgd(p: Plain, gam: float, alpha: float) -> Iterator[Point]:
    x, y = p.x0, p.y0
    while True:
        yield x, y
        q = p.g_y(x, y)
        dx, dy = p.f_x(x, y) + gam * p.J(x, y) @ q, p.f_y(x, y) + gam * p.H(x, y) @ q
        x, y = x - alpha * dx, y - alpha * dy


# ---- sections 2.1, 5.5 and 12.2


def f2ba(p: Plain, lam: float, K: int, eta_y: float, eta_z: float, eta_x: float) -> Iterator[Point]:
    """In the paper's form: eta_y = a_y/lam, eta_z = a_z/lam."""
    x, y, z = p.x0, p.y0, p.y0
    while True:
        yield x, y
        for _ in range(K):
            z = z - eta_z * lam * p.g_y(x, z)
        for _ in range(K):
            y = y - eta_y * (p.f_y(x, y) + lam * p.g_y(x, y))
        x = x - eta_x * (p.f_x(x, y) + lam * (p.g_x(x, y) - p.g_x(x, z)))


def f2sa(
    p: Plain, c_a: float, c_g: float, T_in: int, xi: float, lam: float, k0: float, a: float, c: float
) -> Iterator[Point]:
    """Section 5.5: gam = c_g (k+k0)^-c, alpha = c_a (k+k0)^-a, lam growing like k^(a-c), from `lam` at k = 0."""
    x, y, z, k = p.x0, p.y0, p.y0, 0
    while True:
        yield x, y
        gam, alpha = c_g * (k + k0) ** -c, c_a * (k + k0) ** -a
        now = lam * ((k + k0) / k0) ** (a - c)
        for _ in range(T_in):
            z = z - gam * p.g_y(x, z)
            y = y - alpha * (p.f_y(x, y) + now * p.g_y(x, y))
        x = x - xi * alpha * (p.f_x(x, y) + now * (p.g_x(x, y) - p.g_x(x, z)))
        k += 1


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
