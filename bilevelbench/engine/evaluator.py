"""The evaluator: phi, |grad phi| and |g_y| at a point, exactly or to a stated error; unmetered, with the clock stopped.

With a closed form it is exact up to rounding. Without one, y*(x) is found by a damped Newton method and v* by conjugate
gradients, both to `TOLERANCE`, from the method's own y: a pure function of (x, y), the same in every pack. With
mu the strong convexity of g(x, .), delta = |g_y(x, y)|/mu and r = |H v - f_y| the hypergradient's error is then at most

    (L_f + rho_g |v|) delta + L_g ((L_f + rho_g |v|) delta + r)/mu

up to rounding, which is a column (certificate "bound"). Where one of L_f, L_g and rho_g is not known to hold, the error is
estimated: delta still bounds the distance of y from y*, and how much the hypergradient changes on the way is seen from one
further Newton step (`_estimate`). Where mu is not known the error is NaN, and no accuracy counts as reached. On demand also
the smallest eigenvalue of the Hessian of phi (`curvature.py`), and the smallest eps for which x is certified second-order
stationary: |grad phi| <= eps and smallest eigenvalue >= -sqrt(rho_phi eps).
"""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bilevelbench.engine.curvature import smallest_eigenvalue
from bilevelbench.errors import MissingConstant
from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import norm
from bilevelbench.model.linear_solvers import Unmetered, conjugate_gradient
from bilevelbench.model.noise import FiniteSum

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}
_NEWTON_STEPS = 100
_HALVINGS = 40
_FORCING = 1e-2  # residual of the linear solves of the further step, over the right-hand side
_SAFETY = 2.0


@dataclass(frozen=True)
class Evaluation:
    """Each (L, 1)."""

    phi: Tensor
    grad_phi: Tensor
    error: Tensor
    g_y: Tensor
    further: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Solved:
    """y near y*(x), v near H^-1 f_y, and the hypergradient made of them."""

    y: Tensor
    f_y: Tensor
    v: Tensor
    grad: Tensor


class Evaluator:
    """`certificate` says how sure its numbers are: closed form, bound, estimated, or not certified.

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
            self.certificate = _certificate(instance) if phi else "none"

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
            return self._solve(x, y).grad

    def _second_order(self, x: Tensor, y: Tensor, grad_phi: Tensor, error: Tensor) -> dict[str, Tensor]:
        """x is an eps-second-order stationary point for every eps from `second_order_eps` on, errors included."""

        def gradient(instance: Instance, x: Tensor, y: Tensor) -> Tensor:
            return (self if instance is self.instance else Evaluator(instance)).grad_phi(x, y)

        rho = float("nan") if self.rho_phi is None else self.rho_phi
        eigenvalue, off = smallest_eigenvalue(self.instance, gradient, x, y, error, rho)
        columns = {"min_eigenvalue": eigenvalue, "min_eigenvalue_error": off}
        if self.rho_phi is not None:
            below = (off - eigenvalue).clamp(min=0)
            columns["second_order_eps"] = torch.maximum(norm(grad_phi) + error, below.square() / self.rho_phi)
        return columns

    def _phi(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reference = self.instance.reference
        if reference is not None:
            return reference.phi(x), reference.grad_phi(x), torch.zeros_like(x[..., :1])
        found = self._solve(x, y)
        return self.instance.value_f(x, found.y), found.grad, self._error(x, found)

    def _solve(self, x: Tensor, y: Tensor) -> _Solved:
        y = self._solve_lower(x, y)
        f_x, f_y = self.instance.grad_f(x, y)
        v = self._solve_linear(x, y, f_y)
        return _Solved(y, f_y, v, f_x - self.instance.jvp_g_xy(x, y, v))

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

    def _solve_linear(self, x: Tensor, y: Tensor, b: Tensor) -> Tensor:
        return self._inverse(x, y, b, TOLERANCE[b.dtype] * norm(b))

    def _inverse(self, x: Tensor, y: Tensor, b: Tensor, tolerance: Tensor) -> Tensor:
        """H(x, y)^-1 b to this residual."""
        limit = 20 + 2 * self.instance.dy
        H = functools.partial(self.instance.hvp_g_yy, x, y)
        return conjugate_gradient(Unmetered(), H, b, torch.zeros_like(b), limit, tolerance, cold=True)

    def _error(self, x: Tensor, found: _Solved) -> Tensor:
        if self.certificate == "not certified":
            return torch.full_like(x[..., :1], torch.nan)
        mu_at = self.instance.mu_at
        mu = self.instance.constants.of_lanes("mu", x.dtype) if mu_at is None else mu_at(x)
        return (self._bound if self.certificate == "bound" else self._estimate)(x, found, mu)

    def _bound(self, x: Tensor, found: _Solved, mu: Tensor | float) -> Tensor:
        L_f, L_g, rho_g = (self.instance.constants.of_lanes(name, x.dtype) for name in ("L_f", "L_g", "rho_g"))
        delta = norm(self.instance.grad_g_y(x, found.y)) / mu
        residual = norm(self.instance.hvp_g_yy(x, found.y, found.v) - found.f_y)
        in_y = (L_f + rho_g * norm(found.v)) * delta
        return in_y + L_g * (in_y + residual) / mu

    def _estimate(self, x: Tensor, found: _Solved, mu: Tensor | float) -> Tensor:
        """The change of the hypergradient over one further Newton step of y, and of v, carried on to the whole distance.

        y is at most |g_y|/mu from y*, and v at most |f_y - H v|/mu from what belongs to the new y. The steps are shorter, by
        up to kappa, so the change is multiplied by the larger of the two distances over steps. To first order that is safe:
        the step of y is y - y* but for the hundredth that the linear solve leaves, and the change is the error itself. What
        the first order misses shrinks like delta^2; `_SAFETY` leaves as much again for both. It is no bound: the
        hypergradient may happen to change little along the step and much along the rest of the way.
        """
        g_y = self.instance.grad_g_y(x, found.y)
        step = self._inverse(x, found.y, g_y, _FORCING * norm(g_y))
        y = found.y - step
        f_x, f_y = self.instance.grad_f(x, y)
        lacking = f_y - self.instance.hvp_g_yy(x, y, found.v)
        more = self._inverse(x, y, lacking, _FORCING * norm(lacking))
        change = norm(f_x - self.instance.jvp_g_xy(x, y, found.v + more) - found.grad)
        steps = torch.maximum(_steps(norm(g_y) / mu, norm(step)), _steps(norm(lacking) / mu, norm(more)))
        return _SAFETY * change * steps


def _unknown(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    one = torch.full_like(x[..., :1], torch.nan)
    return one, torch.full_like(x, torch.nan), one


def _steps(distance: Tensor, step: Tensor) -> Tensor:
    """How many steps make the distance; one where there is nothing to go."""
    return torch.where(distance == 0, 1.0, distance / step)


def _certificate(instance: Instance) -> str:
    given = instance.constants.given
    holds = {name for name, constant in given.items() if constant.kind != "estimated"}
    if instance.mu_at is None and ("mu" not in holds or instance.constants.get("mu") is None):
        return "not certified"
    return "bound" if holds >= {"L_f", "L_g", "rho_g"} else "estimated"
