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

Where a product shows negative curvature g(x, .) is not convex: y*(x) need not exist, and phi is not claimed. Where x is
confined to a set, |grad phi| is the length of the gradient mapping x - P(x - grad phi); a projection onto a convex set
brings no two points farther apart, so errors are bounded as before.

On a clock (`solve`) an evaluation starts from what the last one found, may be given up, and where nobody can state its
error goes no further than a curve needs: residuals fall by `_LADDER`, again and again, until that changes the hypergradient
by less than `_NEEDED` of its length; what is then left is about `_LADDER` of that.
"""

from __future__ import annotations

import functools
import math
import time
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bilevelbench.engine.curvature import smallest_eigenvalue
from bilevelbench.errors import InvalidInput, MissingConstant
from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import dot, keep, norm
from bilevelbench.model.linear_solvers import Unmetered, conjugate_gradient
from bilevelbench.model.noise import FiniteSum
from bilevelbench.results.reached import MAPPING

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}
_NEWTON_STEPS = 100
_HALVINGS = 40
_FORCING = 1e-2  # residual of the linear solves of the further step, over the right-hand side
_SAFETY = 2.0
_POWERS = 5  # enough for the size of a number that is held against sqrt(eps)
_LADDER, _NEEDED, _RUNGS = 1e-2, 1e-4, 20  # where nobody can state the error: see above

NOT_CONVEX = "not convex"  # the certificate where phi is not claimed


class OutOfTime(Exception):
    """The lower level is not solved yet, and the clock of the evaluation is over."""


@dataclass(frozen=True)
class Evaluation:
    """Each (L, 1). `bent`: lanes whose g(x, .) is not convex, where phi is not claimed. `solved`: phi was looked for."""

    phi: Tensor
    grad_phi: Tensor
    error: Tensor
    g_y: Tensor
    bent: Tensor
    solved: bool = True
    further: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Solved:
    """y near y*(x), v near H^-1 f_y, and the hypergradient made of them; NaN where g(x, .) is not convex."""

    y: Tensor
    f_y: Tensor
    v: Tensor
    grad: Tensor
    H: _Hessian


class _Hessian:
    """Products with the lower Hessian, on the way of one evaluation: whether one shows negative curvature, and the clock."""

    def __init__(self, instance: Instance, x: Tensor, until: float = math.inf) -> None:
        self.instance, self.until = instance, until
        self.bent = torch.zeros_like(x[..., :1], dtype=torch.bool)

    def __call__(self, x: Tensor, y: Tensor, q: Tensor) -> Tensor:
        self.check()
        w: Tensor = self.instance.hvp_g_yy(x, y, q)
        curvature = dot(q, w)
        if bool((curvature < 0).any()):  # below sqrt(eps) of the largest it may be rounding
            least = torch.finfo(q.dtype).eps ** 0.5 * self._largest(x, y, w)
            self.bent = self.bent | (curvature < -least * dot(q, q))
        return w

    def _largest(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """About the largest curvature there: some power iterations."""
        for _ in range(_POWERS):
            v = self.instance.hvp_g_yy(x, y, v / norm(v))
        return norm(v)

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        self.check()
        g_y: Tensor = self.instance.grad_g_y(x, y)
        return g_y

    def check(self) -> None:
        if time.perf_counter() > self.until:
            raise OutOfTime


class Evaluator:
    """`certificate` says how sure its numbers are: closed form, bound, estimated, or not certified.

    Without `phi` a lower level that has no closed form is not solved: phi and its gradient are NaN, certificate "none".
    So is |g_y| of a finite sum: a pass over all its rows may take longer than the trial. `clocked`: its numbers may depend
    on what was evaluated before.
    """

    def __init__(
        self, instance: Instance, second_order: bool = False, phi: bool = True, *, clocked: bool = False
    ) -> None:
        self.instance, self.second_order, self.clocked = instance, second_order, clocked
        self.solves = phi or instance.reference is not None
        self.rho_phi: Tensor | float | None = None
        if second_order and instance.project is not None:
            raise InvalidInput(
                "x is confined to a set, where an eigenvalue of the Hessian of phi says nothing; leave out "
                "schedule.second_order"
            )
        if second_order:
            with suppress(MissingConstant):  # then there is the eigenvalue, and nothing to hold it against
                self.rho_phi = instance.constants.of_lanes("rho_phi", instance.x0)
        if instance.reference is not None:
            self._kind = "closed form"
        else:
            self._kind = _certificate(instance) if phi else "none"
        self._found: tuple[Tensor, Tensor | None] | None = (
            None  # y and v, as far as the last evaluation on a clock came
        )

    @property
    def certificate(self) -> str:
        return self._kind if self.instance.project is None else f"{self._kind}; {MAPPING}"

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor, phi: bool = True, until: float = math.inf) -> Evaluation:
        """Without `phi`, or if the clock says `until` before it is found, phi and its gradient are NaN."""
        instance = self.instance
        solved = self.solves and phi
        with instance.uncounted():
            seen = _unknown(x)
            if solved:
                try:
                    seen = self._phi(x, y, until)
                except OutOfTime:
                    solved = False
            value, grad, error, bent = seen
            sums = solved or not isinstance(instance.noise, FiniteSum)
            g_y = norm(instance.grad_g_y(x, y)) if sums else torch.full_like(x[..., :1], torch.nan)
            away = instance.away(x)  # a small gradient out there says nothing
            value, grad = value.masked_fill(away, torch.nan), grad.masked_fill(away, torch.nan)
            further = {name: metric(x, y) for name, metric in instance.metrics.items()}
            if self.second_order and solved:
                further |= self._second_order(x, y, grad, error)
        return Evaluation(value, self._size(x, grad), error, g_y, bent, solved, further)

    @torch.no_grad()
    def grad_phi(self, x: Tensor, y: Tensor) -> Tensor:
        """The hypergradient itself."""
        if self.instance.reference is not None:  # also asked at every step, where a mean over steps is wanted
            return self.instance.reference.grad_phi(x)
        with self.instance.uncounted():
            return self._solve(x, y).grad

    def stationarity(self, x: Tensor, y: Tensor) -> Tensor:
        """|grad phi|, or what stands for it where x is confined to a set: (L, 1)."""
        return self._size(x, self.grad_phi(x, y))

    def _size(self, x: Tensor, grad_phi: Tensor) -> Tensor:
        project = self.instance.project
        return norm(grad_phi if project is None else x - project(x - grad_phi))

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

    def _phi(self, x: Tensor, y: Tensor, until: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        reference, one = self.instance.reference, torch.zeros_like(x[..., :1])
        if reference is not None:
            return reference.phi(x), reference.grad_phi(x), one, one.bool()
        found = self._solve(x, y, until)
        error, bent = self._error(x, found), found.H.bent
        value = self.instance.value_f(x, found.y)
        return value.masked_fill(bent, torch.nan), found.grad, error.masked_fill(bent, torch.nan), bent

    def _solve(self, x: Tensor, y: Tensor, until: float = math.inf) -> _Solved:
        H, least = _Hessian(self.instance, x, until), TOLERANCE[x.dtype]
        if not self.clocked:
            return self._solve_to(H, x, y, None, least, least)
        y, v = self._nearest(H, x, y)
        if self._kind != "not certified":
            return self._solve_to(H, x, y, v, least, least)
        before: _Solved | None = None
        for _ in range(_RUNGS):
            in_y = (_LADDER * norm(H.gradient(x, y))).clamp(min=least)
            found = self._solve_to(H, x, y, v, in_y, _LADDER)
            if before is not None and not bool((norm(found.grad - before.grad) > _NEEDED * norm(found.grad)).any()):
                break
            before, y, v = found, found.y, found.v
        return found

    def _solve_to(
        self, H: _Hessian, x: Tensor, y: Tensor, v: Tensor | None, in_y: float | Tensor, in_v: float
    ) -> _Solved:
        """To these tolerances: of |g_y|, and of the residual of v over what it is now."""
        y = self._newton(H, x, y, in_y)
        f_x, f_y = self.instance.grad_f(x, y)
        if v is None:
            v = self._inverse(H, x, y, f_y, in_v * norm(f_y))
        else:
            lacking = f_y - H(x, y, v)
            least = TOLERANCE[x.dtype] * norm(f_y)
            v = v + self._inverse(H, x, y, lacking, torch.maximum(in_v * norm(lacking), least))
        if self.clocked:
            self._found = y, v
        grad = f_x - self.instance.jvp_g_xy(x, y, v)
        return _Solved(y, f_y, v, grad.masked_fill(H.bent, torch.nan), H)

    def _nearest(self, H: _Hessian, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """The method's own y, or that of the last evaluation where it solves the lower level better; v is the last one."""
        if self._found is None:
            return y, None
        last, v = self._found
        return keep(norm(H.gradient(x, last)) < norm(H.gradient(x, y)), last, y), v

    def _solve_lower(self, x: Tensor, y: Tensor) -> Tensor:
        return self._newton(_Hessian(self.instance, x), x, y, TOLERANCE[x.dtype])

    def _solve_linear(self, x: Tensor, y: Tensor, b: Tensor) -> Tensor:
        return self._inverse(_Hessian(self.instance, x), x, y, b, TOLERANCE[b.dtype] * norm(b))

    def _newton(self, H: _Hessian, x: Tensor, y: Tensor, tolerance: float | Tensor) -> Tensor:
        """Newton's direction decreases |g_y| for any strongly convex g, so that norm is the merit function."""
        g_y = H.gradient(x, y)
        size = norm(g_y)
        going = size > tolerance
        for _ in range(_NEWTON_STEPS):
            if not bool(going.any()):
                break

            direction = self._inverse(H, x, y, g_y, 1e-4 * size)
            going = going & ~H.bent
            t, searching = torch.ones_like(size), going
            for _ in range(_HALVINGS):
                g_new = H.gradient(x, y - t * direction)
                searching = searching & ~(norm(g_new) <= (1 - 1e-4 * t) * size)
                if not bool(searching.any()):
                    break
                t = torch.where(searching, t / 2, t)
            moved = going & ~searching  # no step decreases the norm: rounding is reached
            y = torch.where(moved, y - t * direction, y)
            g_y = torch.where(moved, g_new, g_y)
            size = norm(g_y)
            going = moved & (size > tolerance)
            if self.clocked:  # what is given up is gone on with
                self._found = y, None if self._found is None else self._found[1]
        return y

    def _inverse(self, H: _Hessian, x: Tensor, y: Tensor, b: Tensor, tolerance: Tensor) -> Tensor:
        """H(x, y)^-1 b to this residual."""
        limit, product = 20 + 2 * self.instance.dy, functools.partial(H, x, y)
        return conjugate_gradient(Unmetered(), product, b, torch.zeros_like(b), limit, tolerance, cold=True)

    def _error(self, x: Tensor, found: _Solved) -> Tensor:
        if self._kind == "not certified":
            return torch.full_like(x[..., :1], torch.nan)
        mu_at = self.instance.mu_at
        mu = self.instance.constants.of_lanes("mu", x) if mu_at is None else mu_at(x)
        return (self._bound if self._kind == "bound" else self._estimate)(x, found, mu)

    def _bound(self, x: Tensor, found: _Solved, mu: Tensor | float) -> Tensor:
        L_f, L_g, rho_g = (self.instance.constants.of_lanes(name, x) for name in ("L_f", "L_g", "rho_g"))
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
        H = found.H
        g_y = self.instance.grad_g_y(x, found.y)
        step = self._inverse(H, x, found.y, g_y, _FORCING * norm(g_y))
        y = found.y - step
        f_x, f_y = self.instance.grad_f(x, y)
        lacking = f_y - self.instance.hvp_g_yy(x, y, found.v)
        more = self._inverse(H, x, y, lacking, _FORCING * norm(lacking))
        change = norm(f_x - self.instance.jvp_g_xy(x, y, found.v + more) - found.grad)
        steps = torch.maximum(_steps(norm(g_y) / mu, norm(step)), _steps(norm(lacking) / mu, norm(more)))
        return _SAFETY * change * steps


def _unknown(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    one = torch.full_like(x[..., :1], torch.nan)
    return one, torch.full_like(x, torch.nan), one, torch.zeros_like(one, dtype=torch.bool)


def _steps(distance: Tensor, step: Tensor) -> Tensor:
    """How many steps make the distance; one where there is nothing to go."""
    return torch.where(distance == 0, 1.0, distance / step)


def _certificate(instance: Instance) -> str:
    given = instance.constants.given
    holds = {name for name, constant in given.items() if constant.kind != "estimated"}
    if instance.mu_at is None and ("mu" not in holds or instance.constants.get("mu") is None):
        return "not certified"
    return "bound" if holds >= {"L_f", "L_g", "rho_g"} else "estimated"
