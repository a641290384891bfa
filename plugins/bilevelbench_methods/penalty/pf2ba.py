"""PF2BA: F2BA that leaves strict saddles, by a small random kick where its gradient is small.

    K_t times:  z <- z - a_z g_y(x, z);   y <- y - a_y (f_y(x, y)/lam + g_y(x, y))
    d  <- f_x(x, y) + lam (g_x(x, y) - g_x(x, z))
    xi <- uniform in the ball of radius r  if |d| <= 0.8 eps and t - t_last > T_p, and then t_last <- t;  else 0
    x' <- x - eta_x (d + xi)
    delta <- delta/2 + 34 (L_g/mu)^2 |x' - x|^2

The kick is scaled by eta_x, and d belongs to the point before it. y and z are warm-started. Chen, Ma, Zhang, "Near-Optimal
Nonconvex-Strongly-Convex Bilevel Optimization with Fully First-Order Oracles", JMLR 2025, Algorithm 3, in the scale-free
form a = lam eta; its theorem prints a z-step that diverges, ours is that of the other theorems.

With `zeta`, K_t = (8 L_g/mu) log(4 lam L_g sqrt(delta)/zeta), at least K, makes d exact to zeta; the paper prints delta without
the root. delta bounds |y - y_lam*|^2 + |z - y*|^2; at the start it comes from one gradient of each level. Without `zeta`,
K_t = K. The answer is the last x that was kicked, with its y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, PerLane, dot
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_methods.penalty.pair import USES, lower_steps, pen_pair, penalty_gradient
from bilevelbench_methods.perturb import Escape, Kicks, Perturbed, kick


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    z: Tensor
    delta: Tensor
    K_t: Tensor
    kicks: Kicks


class PF2BA(Perturbed):
    name = "pf2ba"
    title = "PF²BA"
    paper = "https://arxiv.org/abs/2306.14853"
    family = "penalty"
    uses = USES | {"mu", "L_g", "L_gy"}
    tuned = {"eta_x": "upper_step", "a_y": "lower_step", "a_z": "lower_step", "lam": "penalty"}
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            table=3, setting="deterministic", oracle="gradient", eps_exp=2, tilde=True, log_power=5, kappa_exp=4,
            log_source="derived",  # iota^4 steps of log lower-level steps
            extra="ell", reference="Chen, Ma, Zhang 2025",
        ),
    )  # fmt: skip

    lam: PositiveFloat = 1000.0
    """penalty"""
    K: PerLane[PositiveInt] = 10
    """lower-level steps; the least of them, if zeta is set"""
    zeta: PositiveFloat | None = None
    """accuracy wanted of d, which sets K_t; None: K steps always"""
    a_y: PositiveFloat | None = None
    """effective step of y; default 1/(2 L_g)"""
    a_z: PositiveFloat | None = None
    """effective step of z; default 1/(2 L_g)"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(
            constants,
            r=lambda c: 0.1 * self.eps,
            eta_x=lambda c: 1 / (2 * c.L_phi),
            a_y=lambda c: 1 / (2 * c.L_gy),
            a_z=lambda c: 1 / (2 * c.L_gy),
        )

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        zero = torch.zeros_like(x0[..., :1])
        delta = zero if self.zeta is None else self._distance(x0, y0, oracle)
        return State(x=x0, y=y0, z=y0, delta=delta, K_t=zero, kicks=Kicks.none(x0, y0))

    def step(self, s: State, oracle: Oracle) -> State:
        x, K_t = s.x, self._lower_steps(s.delta, oracle)
        y, z, *_ = pen_pair(oracle, x, s.y, s.z, K_t, self.lam, self.a_y, self.a_z)
        d = penalty_gradient(oracle, x, y, z, self.lam)
        due = s.kicks.due(d, self.eps, self.T_p)
        x_new = x - self.eta_x * (d + kick(oracle, due, self.r))
        return State(
            x=x_new,
            y=y,
            z=z,
            delta=self._moved(s.delta, x_new - x, oracle),
            K_t=K_t.to(x.dtype),
            kicks=s.kicks.after(due, x, y),
        )

    def _distance(self, x: Tensor, y: Tensor, oracle: Oracle) -> Tensor:
        """g is mu-strongly convex in y and f/lam + g is so with mu/2, for lam >= 2 L_f/mu."""
        g_y = oracle.grad_g_y(x, y)
        V, U = oracle.mean(g_y, oracle.grad_f_y(x, y) / self.lam + g_y)
        mu = oracle.constant("mu")
        return (dot(V, V) + 4 * dot(U, U)) / (mu * mu)

    def _lower_steps(self, delta: Tensor, oracle: Oracle) -> Tensor:
        if self.zeta is None:
            return torch.as_tensor(self.K)
        return lower_steps(oracle, delta, self.lam, self.zeta, self.K)

    def _moved(self, delta: Tensor, move: Tensor, oracle: Oracle) -> Tensor:
        if self.zeta is None:
            return delta
        lipschitz = oracle.constant("L_g") / oracle.constant("mu")
        return delta / 2 + 34 * lipschitz * lipschitz * dot(move, move)

    def extras(self, s: State) -> dict[str, Tensor]:
        return {"kicks": s.kicks.count, "K_t": s.K_t}

    def calls(self, step: int) -> dict[str, int] | None:
        if self.zeta is not None:
            return None  # K_t follows the moves of x
        return {"grad_f_x": 1, "grad_f_y": self.K, "grad_g_x": 2, "grad_g_y": 2 * self.K}

    @classmethod
    def from_theory(cls, constants: Constants, eps: float, dx: int = 100, delta_fail: float = 0.1) -> Self:
        """The theorem with its constants repaired. dx bounds the dimension of x: only its logarithm matters."""
        c = constants
        lam = second_order_penalty(c, eps)
        escape = Escape.from_theory(c.L_star, c.rho_star, eps, dx, delta_fail)
        a, K = 1 / (2 * c.L_gy), math.ceil(8 * c.L_gy / c.mu)
        return cls(
            eps=eps, T_p=escape.T_p, r=escape.r, lam=lam, K=K, zeta=escape.zeta, eta_x=escape.eta_x, a_y=a, a_z=a
        )

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """F2BA's powers of eps; r ~ eps, T_p ~ eps^-1/2."""
        exact = F2BA.from_rate(constants, eps, scale)
        lower = {field: getattr(exact, field) for field in ("lam", "K", "eta_x", "a_y", "a_z")}
        return cls(eps=eps, r=0.1 * eps, T_p=math.ceil(4 / math.sqrt(2 * eps)), **lower)


def second_order_penalty(c: Constants, eps: float) -> float:
    """The theorems' lam for second-order stationarity: that of F2BA, and kappa^3.5 (ell/eps)^(1/2)."""
    lam: float = max(F2BA.from_theory(c, eps).lam, c.kappa**3.5 * math.sqrt(c.ell / eps))
    return lam
