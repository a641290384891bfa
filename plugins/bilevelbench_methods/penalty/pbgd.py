"""PBGD: joint gradient descent on f + gam (g - g*), with one common step (V-PBGD, the value-gap penalty).

    w  <- K steps of gradient descent on g(x, .) from y (published) or from the previous w (warm)
    dx <- f_x(x, y) + gam (g_x(x, y) - g_x(x, w));   dy <- f_y(x, y) + gam g_y(x, y)
    x  <- x - alpha dx;   y <- y - alpha dy               simultaneous, old values on the right

Shen, Chen, "On penalty-based bilevel gradient descent method", ICML 2023, Algorithm 1. With the published start and fixed K
the error of w is a fixed fraction of |y - y*| ~ 1/gam, which gam multiplies back: the limit is biased unless K grows.
With `batch`, every gradient is that of a fresh mini-batch of this size, f and g at (x, y) each of one for both blocks: the
stochastic version in the experiments of Chen, Ma, Zhang 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, Oracle, PerLane, dot, keep
from bilevelbench_methods.penalty.pair import WEAKER_NOTION, fresh_f, fresh_g


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    w: Tensor
    residual: Tensor


class PBGD(Algorithm):
    name = "pbgd"
    title = "V-PBGD"
    paper = "https://arxiv.org/abs/2302.05185"
    family = "penalty"
    uses = frozenset({"grad_f", "grad_g", "grad_g_x", "grad_g_y"})
    tuned = {"alpha": "upper_step", "b": "lower_step", "gam": "penalty", "batch": "batch"}
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            table=1, setting="deterministic", oracle="gradient", eps_exp=3, tilde=True, log_power=1,
            footnote=f"{WEAKER_NOTION}; lam is gam here", reference="Shen, Chen 2023",
        ),
    )  # fmt: skip

    gam: PositiveFloat = 10.0
    """penalty"""
    K: PerLane[PositiveInt] = 10
    """lower-level steps"""
    start: Literal["y", "warm"] = "y"
    """where the lower level starts: at y as published, or at the previous w"""
    alpha: PositiveFloat | None = None
    """step of x and y; default 1/(L_f + gam (2 L_g + L_g^2/mu))"""
    b: PositiveFloat | None = None
    """lower-level step; default 1/L_g"""
    batch: PositiveInt | None = None
    """size of every mini-batch; without one, gradients are exact"""
    coupled_batches: bool = False
    """one mini-batch for g_x at y and at w; published are independent ones"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(
            constants,
            alpha=lambda c: 1 / (c.L_f + self.gam * (2 * c.L_g + c.L_g**2 / c.mu)),
            b=lambda c: 1 / c.L_gy,
        )

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, w=y0, residual=torch.full_like(x0[..., :1], torch.inf))

    def step(self, s: State, oracle: Oracle) -> State:
        x, y, B = s.x, s.y, self.batch
        w = y if self.start == "y" else s.w
        for on in oracle.repeat(self.K):
            w = keep(on, w - self.b * oracle.mean(oracle.grad_g_y(x, w, fresh_g(oracle, B))), w)
        f_x, f_y = oracle.grad_f(x, y, fresh_f(oracle, B))
        at_y = fresh_g(oracle, B)
        g_x, g_y = oracle.grad_g(x, y, at_y)
        g_w = oracle.grad_g_x(x, w, at_y if self.coupled_batches else fresh_g(oracle, B))
        dx, dy = oracle.mean(f_x + self.gam * (g_x - g_w), f_y + self.gam * g_y)
        residual = (dot(dx, dx) + dot(dy, dy)).sqrt()
        return State(x=x - self.alpha * dx, y=y - self.alpha * dy, w=w, residual=residual)

    def extras(self, s: State) -> dict[str, Tensor]:
        return {"penalty_residual": s.residual}

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_f": 1, "grad_g": 1, "grad_g_x": 1, "grad_g_y": self.K}

    def x_step(self) -> float | None:
        return self.alpha

    @classmethod
    def from_theory(cls, constants: Constants, eps: float) -> Self:
        """gam = D1/eps, the common step of the theorem, K ~ kappa log gam from the published start."""
        c = constants
        gam = max(2 * c.L_f / c.mu, c.D1 / eps)
        K = max(1, round(2 * (c.L_gy / c.mu) * max(1.0, math.log(gam))))
        return cls(gam=gam, K=K, start="y", b=1 / c.L_gy).resolve(c)

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """gam ~ 1/eps, so the common step is of order eps; w is warm, which needs no growing K."""
        gam = 2 * scale / eps
        return cls(gam=gam, K=4, start="warm", alpha=1 / (4 * constants.L_gy * gam), b=1 / (2 * constants.L_gy))
