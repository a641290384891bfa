"""The evaluator: phi, |grad phi| and |g_y| at a point, exactly or to a stated error; unmetered, with the clock stopped.

With a closed form it is exact up to rounding. Without one, y*(x) is found by a damped Newton method and v* by conjugate
gradients, both to `TOLERANCE`, from the method's own y: a pure function of (x, y), the same in every pack. With
delta = |g_y(x, y)|/mu and r = |H v - f_y| the hypergradient's error is then at most

    (L_f + rho_g |v|) delta + L_g ((L_f + rho_g |v|) delta + r)/mu

which is a column; it is NaN where the problem does not declare mu, L_f, L_g and rho_g. On demand also the smallest
eigenvalue of the Hessian of phi (`curvature.py`), and the smallest eps for which x is certified second-order stationary:
|grad phi| <= eps and smallest eigenvalue >= -sqrt(rho_phi eps).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bilevelbench.constants import Constants
from bilevelbench.curvature import smallest_eigenvalue
from bilevelbench.errors import MissingConstant
from bilevelbench.lanes import norm
from bilevelbench.linear import conjugate_gradient
from bilevelbench.noise import FiniteSum
from bilevelbench.problem import Instance

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}
_NEWTON_STEPS = 100
_HALVINGS = 40


@dataclass(frozen=True)
class Evaluation:
    """Each (L, 1)."""

    phi: Tensor
    grad_phi: Tensor
    error: Tensor
    g_y: Tensor
    further: dict[str, Tensor] = field(default_factory=dict)


class _Unmetered:
    """Loops without a meter, for the linear solver."""

    def repeat(self, times: int | Tensor) -> Iterator[Tensor | bool]:
        for _ in range(int(times)):
            yield True

    def only(self, mask: Tensor) -> AbstractContextManager[None]:
        return nullcontext()


class Evaluator:
    """`certificate` says how its numbers come about: closed form, bound, or residual (no constants to bound it with).

    Without `phi` a lower level that has no closed form is not solved: phi and its gradient are NaN, certificate "none".
    So is |g_y| of a finite sum: a pass over all its rows may take longer than the trial.
    """

    def __init__(self, instance: Instance, second_order: bool = False, phi: bool = True) -> None:
        self.instance, self.second_order = instance, second_order
        self.solves = phi or instance.reference is not None
        self.sums = self.solves or not isinstance(instance.noise, FiniteSum)
        self.rho_phi: Tensor | float | None = None
        if second_order:
            with suppress(MissingConstant):  # then there is the eigenvalue, and nothing to hold it against
                self.rho_phi = instance.constants.of_lanes("rho_phi", instance.x0.dtype)
        if instance.reference is not None:
            self.certificate = "closed form"
        else:
            self.certificate = _certificate(instance.constants) if phi else "none"

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor) -> Evaluation:
        with self.instance.uncounted():
            g_y = norm(self.instance.grad_g_y(x, y)) if self.sums else torch.full_like(x[..., :1], torch.nan)
            phi, grad_phi, error = self._phi(x, y) if self.solves else _unknown(x)
            away = self.instance.away(x)  # a small gradient out there says nothing
            phi, grad_phi = phi.masked_fill(away, torch.nan), grad_phi.masked_fill(away, torch.nan)
            further = {name: metric(x, y) for name, metric in self.instance.metrics.items()}
            if self.second_order:
                further |= self._second_order(x, y, grad_phi, error)
        return Evaluation(phi, norm(grad_phi), error, g_y, further)

    @torch.no_grad()
    def grad_phi(self, x: Tensor, y: Tensor) -> Tensor:
        """The hypergradient itself."""
        if self.instance.reference is not None:  # also asked at every step, where a mean over steps is wanted
            return self.instance.reference.grad_phi(x)
        with self.instance.uncounted():
            return self._phi(x, y)[1]

    def _second_order(self, x: Tensor, y: Tensor, grad_phi: Tensor, error: Tensor) -> dict[str, Tensor]:
        """x is an eps-second-order stationary point for every eps from `second_order_eps` on, errors included."""

        def gradient(instance: Instance, x: Tensor, y: Tensor) -> Tensor:
            return (self if instance is self.instance else Evaluator(instance))._phi(x, y)[1]

        rho = float("nan") if self.rho_phi is None else self.rho_phi
        eigenvalue, off = smallest_eigenvalue(self.instance, gradient, x, y, error, rho)
        columns = {"min_eigenvalue": eigenvalue, "min_eigenvalue_error": off}
        if self.rho_phi is not None:
            below = (torch.nan_to_num(off, nan=0.0) - eigenvalue).clamp(min=0)
            first = norm(grad_phi) + torch.nan_to_num(error, nan=0.0)
            columns["second_order_eps"] = torch.maximum(first, below.square() / self.rho_phi)
        return columns

    def _phi(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reference = self.instance.reference
        if reference is not None:
            return reference.phi(x), reference.grad_phi(x), torch.zeros_like(x[..., :1])
        y = self._solve_lower(x, y)
        f_x, f_y = self.instance.grad_f(x, y)
        v, residual = self._solve_linear(x, y, f_y)
        grad = f_x - self.instance.jvp_g_xy(x, y, v)
        return self.instance.value_f(x, y), grad, self._error(x, y, v, residual)

    def _solve_lower(self, x: Tensor, y: Tensor) -> Tensor:
        """Newton's direction decreases |g_y| for any strongly convex g, so that norm is the merit function."""
        g_y = self.instance.grad_g_y(x, y)
        size = norm(g_y)
        going = size > TOLERANCE[x.dtype]
        for _ in range(_NEWTON_STEPS):
            if not bool(going.any()):
                break

            direction = self._inverse(x, y, g_y, 1e-4 * size)
            t, searching = torch.ones_like(size), going
            for _ in range(_HALVINGS):
                g_new = self.instance.grad_g_y(x, y - t * direction)
                searching = searching & ~(norm(g_new) <= (1 - 1e-4 * t) * size)
                if not bool(searching.any()):
                    break
                t = torch.where(searching, t / 2, t)
            moved = going & ~searching  # no step decreases the norm: rounding is reached
            y = torch.where(moved, y - t * direction, y)
            g_y = torch.where(moved, g_new, g_y)
            size = norm(g_y)
            going = moved & (size > TOLERANCE[x.dtype])
        return y

    def _solve_linear(self, x: Tensor, y: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        v = self._inverse(x, y, b, TOLERANCE[b.dtype] * norm(b))
        return v, norm(self.instance.hvp_g_yy(x, y, v) - b)

    def _inverse(self, x: Tensor, y: Tensor, b: Tensor, tolerance: Tensor) -> Tensor:
        """H(x, y)^-1 b to this residual."""
        limit = 20 + 2 * self.instance.dy
        H = functools.partial(self.instance.hvp_g_yy, x, y)
        return conjugate_gradient(_Unmetered(), H, b, torch.zeros_like(b), limit, tolerance, cold=True)

    def _error(self, x: Tensor, y: Tensor, v: Tensor, residual: Tensor) -> Tensor:
        if self.certificate == "residual":
            return torch.full_like(residual, torch.nan)
        c = self.instance.constants
        delta = norm(self.instance.grad_g_y(x, y)) / c.mu
        in_y = (c.L_f + c.rho_g * norm(v)) * delta
        return in_y + c.L_g * (in_y + residual) / c.mu


def _unknown(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    one = torch.full_like(x[..., :1], torch.nan)
    return one, torch.full_like(x, torch.nan), one


def _certificate(constants: Constants) -> str:
    known = [constants.given.get(name) for name in ("mu", "L_f", "L_g", "rho_g")]
    return "bound" if all(c is not None and c.kind != "estimated" for c in known) else "residual"
