"""PAID: AID that leaves strict saddles, by a small random kick where its gradient is small.

    D_t times:  q <- y + beta (y - y_prev);   y_prev <- y;   y <- q - a g_y(x, q)        beta = 0: gradient descent
    v  <- N steps of conjugate gradients on H(x, y) v = f_y(x, y), from the previous v
    d  <- f_x(x, y) - J(x, y) v
    xi <- uniform in the ball of radius r  if |d| <= 0.8 eps and t - t_last > T_p, and then t_last <- t;  else 0
    x' <- x - eta_x (d + xi)

The kick is scaled by eta_x, and d belongs to the point before it. y and v are warm-started, the momentum of y begins anew
in each step. Huang, Chen, Ji, Ma, Lai, "Efficiently escaping saddle points in bilevel optimization", 2022.

With `zeta_y`, D_t = (L_g/mu) log(delta/zeta_y), at least D, brings y as close as zeta_y to y*(x), from delta = |g_y|/mu at the
start and delta <- zeta_y + (L_g/mu) |x' - x|. Without it, D_t = D. The answer is the last x that was kicked, with its y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, PerLane, conjugate_gradient, norm
from bilevelbench_methods.descent import lower_agd, momentum
from bilevelbench_methods.perturb import Escape, Kicks, Perturbed, kick


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    v: Tensor
    k: int
    delta: Tensor
    D_t: Tensor
    kicks: Kicks


class PAID(Perturbed):
    name = "paid"
    title = "PAID"
    paper = "https://arxiv.org/abs/2202.03684"
    family = "implicit"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy", "mu", "L_g", "L_gy"})
    tuned = {"eta_x": "upper_step", "a": "lower_step"}
    claims = (
        Claim(
            table=3, setting="deterministic", oracle="HVP", eps_exp=2, tilde=True, log_power=5,
            log_source="derived",  # iota^4 steps of log lower-level steps
            reference="Huang, Chen, Ji, Ma, Lai 2022",
        ),
    )  # fmt: skip

    D: PerLane[PositiveInt] = 10
    """lower-level steps; the least of them, if zeta_y is set"""
    zeta_y: PositiveFloat | None = None
    """accuracy wanted of y, which sets D_t; None: D steps always"""
    N: PerLane[PositiveInt] = 10
    """steps of conjugate gradients"""
    tol: NonNegativeFloat = 0.0
    """residual at which they stop"""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """momentum of the lower level"""
    a: PositiveFloat | None = None
    """lower-level step; default 1/L_g"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(
            constants,
            r=lambda c: 0.1 * self.eps,
            eta_x=lambda c: 1 / (2 * c.L_phi),
            a=lambda c: 1 / c.L_gy,
        )

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        zero = torch.zeros_like(x0[..., :1])
        delta = zero if self.zeta_y is None else norm(oracle.grad_g_y(x0, y0)) / oracle.constant("mu")
        return State(x=x0, y=y0, v=torch.zeros_like(y0), k=0, delta=delta, D_t=zero, kicks=Kicks.none(x0, y0))

    def step(self, s: State, oracle: Oracle) -> State:
        x, D_t = s.x, self._lower_steps(s.delta, oracle)
        y = lower_agd(oracle, x, s.y, D_t, self.a, self.beta)
        f_x, f_y = oracle.grad_f(x, y)

        def H(u: Tensor) -> Tensor:
            return oracle.hvp_g_yy(x, y, u)

        v = conjugate_gradient(oracle, H, f_y, s.v, self.N, self.tol, cold=s.k == 0)
        d = f_x - oracle.jvp_g_xy(x, y, v)
        due = s.kicks.due(d, self.eps, self.T_p)
        x_new = x - self.eta_x * (d + kick(oracle, due, self.r))
        return State(
            x=x_new,
            y=y,
            v=v,
            k=s.k + 1,
            delta=self._moved(s.delta, x_new - x, oracle),
            D_t=D_t.to(x.dtype),
            kicks=s.kicks.after(due, x, y),
        )

    def _lower_steps(self, delta: Tensor, oracle: Oracle) -> Tensor:
        if self.zeta_y is None:
            return torch.as_tensor(self.D)
        ratio = oracle.constant("L_gy") / oracle.constant("mu")
        wanted = torch.ceil(ratio * torch.log(delta / self.zeta_y))
        return torch.maximum(wanted, torch.as_tensor(self.D, dtype=wanted.dtype))

    def _moved(self, delta: Tensor, move: Tensor, oracle: Oracle) -> Tensor:
        if self.zeta_y is None:
            return delta
        return self.zeta_y + oracle.constant("L_g") / oracle.constant("mu") * norm(move)

    def extras(self, s: State) -> dict[str, Tensor]:
        return {"kicks": s.kicks.count, "D_t": s.D_t}

    @classmethod
    def from_theory(cls, constants: Constants, eps: float, dx: int = 100, delta_fail: float = 0.1) -> Self:
        """The theorem; D_t and N make d exact to its zeta. dx bounds the dimension of x: only its logarithm matters.

        |d - grad phi| <= (mu + L_g) lip |y - y*| + L_g |v - H^-1 f_y|, where H^-1 f_y is lip-Lipschitz and at most C_f/mu;
        each half is given zeta/2. After N steps of conjugate gradients an error is at most 2 sqrt(k) exp(-2N/sqrt(k)) times
        what it was, k = L_g/mu.
        """
        c = constants
        escape = Escape.from_theory(c.L_phi, c.rho_phi, eps, dx, delta_fail)
        k, lip = c.L_gy / c.mu, (c.L_f + c.rho_g * c.C_f / c.mu) / c.mu
        zeta_y, zeta_v = escape.zeta / (2 * (c.mu + c.L_g) * lip), escape.zeta / (2 * c.L_g)
        shrink = 2 * math.sqrt(k) * (1 + 2 * c.C_f / (c.mu * zeta_v))
        N = max(1, math.ceil(math.sqrt(k) / 2 * math.log(shrink)))
        return cls(
            eps=eps, T_p=escape.T_p, r=escape.r, D=math.ceil(k), zeta_y=zeta_y, N=N, eta_x=escape.eta_x, a=1 / c.L_gy
        )

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """Six Nesterov steps and three of conjugate gradients for every eps, both warm; r ~ eps, T_p ~ eps^-1/2."""
        c = constants
        return cls(
            eps=eps, T_p=math.ceil(4 / math.sqrt(2 * eps)), r=0.1 * eps, D=6, N=3, beta=momentum(c),
            eta_x=0.4 / c.L_phi, a=1 / c.L_gy,
        )  # fmt: skip
