"""The outer scheme of AccF2BA and PRAHGD: Nesterov's momentum on x, restarted when an epoch has moved far.

    w <- x + (1 - theta)(x - x_prev)                    look-ahead point; theta is one minus the momentum
    d <- an estimate of grad phi(w)                     from the method, whose lower variables are warm-started
    x_prev, x <- x, w - eta_x d;   t <- t + 1           t counts the steps of the epoch
    S <- S + |x - x_prev|^2
    if t S > max(B, B0)^2:                              restart; all lower variables are kept
        if |d| <= max(B, B0)/(2 eta_x): x <- x + a point of the ball of radius r
        x_prev <- x;  t, S <- 0;  B0 <- gamma B0
    if t = T: stop

The answer of an epoch that reaches T is the mean of its look-ahead points up to the step with the smallest move among those
from floor(T/2) on. Li, Lin, "Restarted nonconvex accelerated gradient descent: no more polylogarithmic factor in the
O(eps^(-7/4)) complexity", JMLR 2023, with inexact gradients as in Yang, Luo, Li, Jordan 2023, and in Chen, Ma, Zhang, JMLR
2025, Algorithm 4, where two indices are slips: the sum of the test is over the moves of the epoch, and d is the gradient just
used. The threshold that shrinks is the practical advice of Li and Lin.

If `zeta` is set, the lower level is solved until |d - grad| <= zeta, by the number of steps that delta asks for: a bound on the
squared lower error at w before they are made,

    delta <- delta/2 + c |w - w_prev|^2,

over all look-ahead points, also across a restart. The move is the one that led to w; Chen, Ma, Zhang print the one before it,
with which delta is no bound.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator
from torch import Tensor

from bilevelbench import Algorithm, Constants, InvalidInput, Oracle, PerLane, dot, keep, norm
from bilevelbench_methods.perturb import check_radius, kick

_ROUNDING = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Average:
    """Of the epoch: the sum of its look-ahead points, the smallest late move, and the mean up to that."""

    total: Tensor
    least_move: Tensor
    best: Tensor


@dataclass(frozen=True)
class State:
    x: Tensor
    x_prev: Tensor
    w: Tensor
    lower: tuple[Tensor, Tensor]
    t: Tensor
    S: Tensor
    B0: Tensor
    delta: Tensor
    average: Average | None
    inner: Tensor
    restarts: Tensor
    kicks: Tensor
    k: int

    @property
    def y(self) -> Tensor:
        return self.lower[0]


class Restarted(Algorithm):
    """Fields, step, answer and stop of the scheme; a method says how the lower level is solved."""

    reports = "own"
    perturbed: ClassVar[bool] = True
    loop: ClassVar[str]  # what the lower-level steps are called in the curve

    theta: Annotated[float, Field(gt=0, le=1)] = 0.1
    """one minus the momentum"""
    B: PositiveFloat = 0.1
    """restart threshold, or its floor"""
    B0: NonNegativeFloat = 10.0
    """threshold at the start, which shrinks at restarts; 0: always B"""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.99
    """factor of B0 at each restart"""
    r: NonNegativeFloat = 0.0
    """radius of the kick at a restart with a small gradient; 0: no kicks"""
    T: PerLane[PositiveInt] | None = None
    """length of the epoch that ends the run; None: run to the budget"""
    zeta: PositiveFloat | None = None
    """accuracy of the hypergradient, which sets the lower-level steps; None: their number is constant"""
    delta0: NonNegativeFloat | None = None
    """squared lower error at the start, for zeta; default from |g_y(x0, y0)|/mu, one call"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(4 L_phi)"""

    @field_validator("r")
    @classmethod
    def _kick_above_rounding(cls, r: float) -> float:
        if r > 0 and not cls.perturbed:
            raise ValueError(f"{cls.name} makes no kicks; leave r out, or take p{cls.name}")
        if r > 0:
            check_radius(r, None)
        return r

    @abstractmethod
    def hypergradient(self, w: Tensor, s: State, delta: Tensor, oracle: Oracle) -> tuple[Tensor, Any, Any]:
        """d at w, the new lower variables, and how many lower-level steps were made."""

    @abstractmethod
    def response(self, oracle: Oracle) -> float | Tensor:
        """c: how much a squared move of w adds to delta."""

    def start(self, x0: Tensor, lower: tuple[Tensor, Tensor], delta: float | Tensor | None) -> State:
        zero = torch.zeros_like(x0[..., :1])
        average = Average(torch.zeros_like(x0), zero + torch.inf, torch.full_like(x0, torch.nan))
        return State(
            x=x0,
            x_prev=x0,
            w=x0,
            lower=lower,
            t=zero,
            S=zero,
            B0=zero + self.B0,
            delta=zero if delta is None else zero + delta,
            average=None if self.T is None else average,
            inner=zero,
            restarts=zero,
            kicks=zero,
            k=0,
        )

    def step(self, s: State, oracle: Oracle) -> State:
        w = s.x + (1 - self.theta) * (s.x - s.x_prev)
        delta = s.delta
        if self.zeta is not None:
            delta = delta + self.response(oracle) * dot(w - s.w, w - s.w)
        d, lower, inner = self.hypergradient(w, s, delta, oracle)

        x = w - self.eta_x * d
        move = norm(x - s.x)
        t, S = s.t + 1, s.S + move * move
        threshold = s.B0.clamp(min=self.B)
        restart = t * S > threshold * threshold
        kicked = restart & (norm(d) <= threshold / (2 * self.eta_x)) & (self.r > 0)
        x = x + kick(oracle, kicked, self.r)
        zero = torch.zeros_like(t)
        return State(
            x=x,
            x_prev=keep(restart, x, s.x),
            w=w,
            lower=lower,
            t=keep(restart, zero, t),
            S=keep(restart, zero, S),
            B0=keep(restart, self.gamma * s.B0, s.B0),
            delta=delta / 2,
            average=None if s.average is None else self._averaged(s.average, w, move, s.t, restart),
            inner=zero + inner,
            restarts=s.restarts + restart,
            kicks=s.kicks + kicked,
            k=s.k + 1,
        )

    def _averaged(self, old: Average, w: Tensor, move: Tensor, t: Tensor, restart: Tensor) -> Average:
        total = old.total + w
        better = (t >= self.T // 2) & (move < old.least_move)
        return Average(
            total=keep(restart, torch.zeros_like(total), total),
            least_move=keep(restart, torch.full_like(move, torch.inf), keep(better, move, old.least_move)),
            best=keep(better, total / (t + 1), old.best),
        )

    def point(self, s: State) -> tuple[Tensor, Tensor]:
        return s.w, s.y

    def moved(self, state: State, move: Callable[[Tensor], Tensor]) -> State:
        return replace(state, x=move(state.x), w=move(state.w))

    def answer(self, s: State) -> tuple[Tensor, Tensor]:
        if s.average is None:
            return self.point(s)
        return keep(s.t >= self.T, s.average.best, torch.full_like(s.w, torch.nan)), s.y

    def stopped(self, s: State) -> Tensor | None:
        return None if self.T is None else s.t >= self.T

    def extras(self, s: State) -> dict[str, Tensor]:
        return {"restarts": s.restarts, "kicks": s.kicks, self.loop: s.inner}

    @classmethod
    def theory(cls, L: float, rho: float, eps: float, dx: int, delta_fail: float) -> dict[str, Any]:
        """The theorem for an L-smooth function with a rho-Lipschitz Hessian; it may fail with probability delta_fail.

        It asks for sqrt(rho eps) <= L, and a larger L is a Lipschitz constant as well. Its O(log(dx/(delta_fail eps)))
        is chi with the constant 1. Where its r is below rounding, r is rounding.
        """
        if not rho > 0:
            raise InvalidInput(
                f"the theory preset of {cls.name} divides by the Hessian-Lipschitz constant, and rho = {rho:g} here; "
                "take the rate preset, or set theta, B, r and T yourself"
            )
        eta_x = 1 / (4 * max(L, math.sqrt(rho * eps)))
        theta = 0.5 * (rho * eps * eta_x**2) ** 0.25
        chi = max(1.0, math.log(dx / (delta_fail * eps)))
        T = math.ceil(2 * chi / theta)
        B = math.sqrt(eps / rho) / (288 * chi**2)
        r = min((B + B**2) / math.sqrt(2), theta * B / (20 * T), theta * B**2 / (2 * T))
        zeta = min(rho * B * delta_fail * r * theta / (2 * math.sqrt(dx)), eps**2)
        felt = max(r, _ROUNDING) if cls.perturbed else 0.0
        return {"eta_x": eta_x, "theta": theta, "T": T, "B": B, "B0": 0.0, "r": felt, "zeta": zeta}

    @classmethod
    def rate(cls, constants: Constants, eps: float, scale: float) -> dict[str, Any]:
        """eta_x constant, theta ~ (rho eps)^(1/4), B ~ (eps/rho)^(1/2); `scale` is that of B.

        Where the Hessian of phi does not change, rho is 1: any number is a Lipschitz constant of it.
        """
        eta_x, rho = 0.2 / constants.L_phi, constants.rho_phi or 1.0
        theta = min(1.0, 0.5 * (rho * eps * eta_x**2) ** 0.25)
        r = 0.1 * eps if cls.perturbed else 0.0
        return {"eta_x": eta_x, "theta": theta, "B": scale * math.sqrt(eps / rho), "B0": 0.0, "r": r}

    def largest_eps(self, eps: float) -> float | None:
        """A plain step of eta_x eps is longer than B from here on: it restarts at every step, and has no momentum."""
        assert self.eta_x is not None
        return (self.B / self.eta_x) ** 2 / eps
