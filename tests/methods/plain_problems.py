"""Problems in numpy, for one point, with derivatives that are written by hand; and the same ones for torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bilevelbench import Instance, Problem, bound
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.model.torch_state import default_dtype

Vector = np.ndarray
Matrix = np.ndarray


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


def quadratic(**params: float) -> tuple[Plain, Instance]:
    """The plugin's, of 4 and 6 dimensions unless told."""
    with default_dtype(torch.float64):
        instance = make(registry().problem("quadratic"), {"dim_x": 4, "dim_y": 6, **params}).build()
    return of_quadratic(instance), instance


def wavy(**params: float) -> tuple[Plain, Instance]:
    problem = Wavy(**params)
    return problem.plain(), problem.build()


def bent() -> tuple[Plain, Instance]:
    """g = 1/2 yᵀA y - xᵀB y + (1/2 + 1/4 sin x_1) Σ log cosh y_i;  f = Σ √(1+(y_i-c_i)²) + xᵀC y + Σ log(1+x_i²).

    The weight of what bends g depends on x. f and g only: all derivatives by autograd.
    """
    rng = np.random.default_rng(0)
    dx, dy = 3, 5
    R = rng.standard_normal((dy, dy))
    A = R @ R.T / dy + np.eye(dy)
    B, C = rng.standard_normal((dx, dy)) / 2, rng.standard_normal((dx, dy)) / 4
    c, x0, y0 = rng.standard_normal(dy), rng.standard_normal(dx), rng.standard_normal(dy)
    At, Bt, Ct, ct = map(torch.from_numpy, (A, B, C, c))

    def f(x: Tensor, y: Tensor) -> Tensor:
        smooth = (1 + (y - ct) ** 2).sqrt().sum(-1, keepdim=True) + (1 + x**2).log().sum(-1, keepdim=True)
        return smooth + ((x @ Ct) * y).sum(-1, keepdim=True)

    def g(x: Tensor, y: Tensor) -> Tensor:
        bend = (0.5 + 0.25 * x[..., :1].sin()) * y.cosh().log().sum(-1, keepdim=True)
        return 0.5 * ((y @ At) * y).sum(-1, keepdim=True) - ((x @ Bt) * y).sum(-1, keepdim=True) + bend

    def w(x: Vector) -> float:
        return 0.5 + 0.25 * np.sin(x[0])

    def log_cosh(y: Vector) -> float:
        return np.log(np.cosh(y)).sum()

    e = np.eye(dx)[0]
    plain = Plain(
        x0=x0,
        y0=y0,
        f_x=lambda x, y: C @ y + 2 * x / (1 + x**2),
        f_y=lambda x, y: (y - c) / np.sqrt(1 + (y - c) ** 2) + C.T @ x,
        g=lambda x, y: 0.5 * y @ A @ y - x @ B @ y + w(x) * log_cosh(y),
        g_x=lambda x, y: -B @ y + 0.25 * np.cos(x[0]) * log_cosh(y) * e,
        g_y=lambda x, y: A @ y - B.T @ x + w(x) * np.tanh(y),
        H=lambda x, y: A + w(x) * np.diag(1 - np.tanh(y) ** 2),
        J=lambda x, y: -B + 0.25 * np.cos(x[0]) * np.outer(e, np.tanh(y)),
    )
    return plain, Instance(f=f, g=g, x0=torch.from_numpy(x0), y0=torch.from_numpy(y0))
