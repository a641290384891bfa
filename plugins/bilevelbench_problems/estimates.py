"""What is measured at the start of a problem whose Hessians are too large to be written out: y*(x0) and the curvature of φ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench import Unmetered, conjugate_gradient, norm

_NEWTON_STEPS, _PRODUCTS = 50, 200
_ENOUGH = 1e-5  # of ‖g_y‖ at y0: the curvature is an estimate, and float32 has no more
_POWER_STEPS = 6


@dataclass(frozen=True)
class Levels:
    """The derivatives of a problem as functions of (x, y), one lane: (1, dx) and (1, dy)."""

    g_y: Callable[[Tensor, Tensor], Tensor]
    hvp: Callable[[Tensor, Tensor, Tensor], Tensor]
    jvp: Callable[[Tensor, Tensor, Tensor], Tensor]
    grad_f: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

    def solve(self, x: Tensor, y: Tensor, enough: Tensor) -> Tensor:
        """y near y*(x), ‖g_y‖ <= enough, by Newton's method with conjugate gradients."""
        force = self.g_y(x, y)
        for _ in range(_NEWTON_STEPS):
            size = norm(force)
            if bool(size <= enough):
                break
            direction, step = self._inverse(x, y, force, 0.1), 1.0
            while step > 1e-4 and bool(norm(self.g_y(x, y - step * direction)) > (1 - 1e-4 * step) * size):
                step /= 2
            y = y - step * direction
            force = self.g_y(x, y)
        return y

    def grad_phi(self, x: Tensor, y: Tensor, enough: Tensor) -> Tensor:
        y = self.solve(x, y, enough)
        f_x, f_y = self.grad_f(x, y)
        return f_x - self.jvp(x, y, self._inverse(x, y, f_y, 1e-3))

    def _inverse(self, x: Tensor, y: Tensor, b: Tensor, relative: float) -> Tensor:
        """H⁻¹ b."""

        def product(v: Tensor) -> Tensor:
            return self.hvp(x, y, v)

        return conjugate_gradient(
            Unmetered(), product, b, torch.zeros_like(b), _PRODUCTS, relative * norm(b), cold=True
        )


def steepest(gradient: Callable[[Tensor], Tensor], z: Tensor, h: float = 1e-3) -> float:
    """The norm of the Hessian at z (1, d), from below: a power iteration on differences of the gradient over 2h."""
    u, size = gradient(z), 0.0
    for _ in range(_POWER_STEPS):
        u = u / norm(u)
        u = (gradient(z + h * u) - gradient(z - h * u)) / (2 * h)
        size = float(norm(u))
    return size


def bend(gradient: Callable[[Tensor], Tensor], z: Tensor, h: float = 1e-2) -> float:
    """How fast the Hessian changes at z, from below: second differences of the gradient, along where the last one pointed."""
    u, size, middle = gradient(z), 0.0, gradient(z)
    for _ in range(_POWER_STEPS):
        u = u / norm(u)
        u = (gradient(z + h * u) - 2 * middle + gradient(z - h * u)) / h**2
        size = max(size, float(norm(u)))
    return size


def top(A: Tensor) -> float:
    """λ(G), G = mean a aᵀ over the rows of A (n, p), for many rows."""
    return float(torch.linalg.eigvalsh(A.T @ A)[-1]) / len(A)


@dataclass(frozen=True)
class Start:
    """y near y*(x0), how far from it at most, and the curvature of φ there."""

    y: Tensor
    away: float
    L_phi: float


@torch.no_grad()
def measured(levels: Levels, x: Tensor, y: Tensor, mu: float, h: float) -> Start:
    """At x, from y; g(x, .) is mu-strongly convex. `h`: how long a step of x is that changes y* a little."""
    enough = _ENOUGH * norm(levels.g_y(x, y))
    y = levels.solve(x, y, enough)
    L_phi = steepest(lambda x: levels.grad_phi(x, y, enough), x, h)
    return Start(y, float(norm(levels.g_y(x, y))) / mu, L_phi)
