"""F3SA: F2SA with recursive-momentum (STORM) estimates of its six gradients, and one lower-level step.

    h <- Q(now; s) + (1 - eta) (h - Q(before; s))      for each gradient Q, both on one fresh sample s; at k = 0: h <- Q(now; s)

    h_z, h_fy, h_gy     follow  g_y(x, z), f_y(x, y), g_y(x, y)                  before: x, y, z of the step before
    z+ <- z - a_z h_z;   y+ <- y - a_y (h_fy/lam + h_gy)
    h_fx, h_gx, h_gxz   follow  f_x(x, y+), g_x(x, y+), g_x(x, z+)               before: the step before's x, with y and z
    x  <- x - xi (a_y/lam) (h_fx + lam (h_gx - h_gxz))

Kwon, Kwon, Wright, Nowak, "A fully first-order method for stochastic bilevel optimization", ICML 2023, Algorithm 2, in the
scale-free form. With t = 1 + k/k0 the penalty is lam t^lam_power, the steps are a t^-step_power and the weight of the newest
sample is eta t^-eta_power. The defaults are the powers for noise in f and g: 1/5, 2/5, 4/5. With noise in f only they are 1/4,
1/4, 1/2, without noise 1/3, 0, 0. Needs sample gradients that are Lipschitz in the mean square. Our choice: k0 = 100.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Constants, Oracle, Sample
from bilevelbench_methods.penalty.pair import USES, fresh_f, fresh_g, horizon_ratio, noise_of

#: by noise: growth of the penalty, decay of the steps and of eta with the number of steps
_SCHEDULE = {"deterministic": (1 / 3, 0.0, 0.0), "partial": (1 / 4, 1 / 4, 1 / 2), "full": (1 / 5, 2 / 5, 4 / 5)}

Query = Callable[[Tensor, Tensor, Sample | None], Tensor]
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    z: Tensor
    x_before: Tensor
    y_before: Tensor
    z_before: Tensor
    h_z: Tensor
    h_fy: Tensor
    h_gy: Tensor
    h_fx: Tensor
    h_gx: Tensor
    h_gxz: Tensor
    k: int


class F3SA(Algorithm):
    name = "f3sa"
    title = "F³SA"
    paper = "https://arxiv.org/abs/2301.10945"
    family = "penalty"
    uses = USES
    tuned = {"a_y": "lower_step", "a_z": "lower_step", "lam": "penalty", "batch": "batch"}

    lam: PositiveFloat = 10.0
    """penalty"""
    xi: PositiveFloat = 1.0
    """x-step over y-step; 1 is the single time scale"""
    eta: Annotated[float, Field(gt=0, le=1)] = 1.0
    """weight of the newest sample in an estimate; 1 is no momentum"""
    a_y: PositiveFloat | None = None
    """effective step of y; default 1/(2 L_g)"""
    a_z: PositiveFloat | None = None
    """effective step of z; default 1/(2 L_g)"""
    lam_power: NonNegativeFloat = 0.2
    """growth of the penalty"""
    step_power: NonNegativeFloat = 0.4
    """decay of the lower-level steps"""
    eta_power: NonNegativeFloat = 0.8
    """decay of eta"""
    k0: PositiveFloat = 100.0
    """steps before the schedule bends"""
    batch: PositiveInt | None = 64
    """size of every mini-batch; without one, gradients are exact"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, a_y=lambda c: 1 / (2 * c.L_gy), a_z=lambda c: 1 / (2 * c.L_gy))

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        none_x, none_y = torch.zeros_like(x0), torch.zeros_like(y0)
        return State(x0, y0, y0, x0, y0, y0, none_y, none_y, none_y, none_x, none_x, none_x, k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, y, z, x_before, B = s.x, s.y, s.z, s.x_before, self.batch
        log_t = torch.log1p(torch.as_tensor(s.k / self.k0))
        lam = self.lam * torch.exp(self.lam_power * log_t)
        decay = torch.exp(-self.step_power * log_t)
        a_y, a_z = self.a_y * decay, self.a_z * decay
        eta = self.eta * torch.exp(-self.eta_power * log_t)

        def follow(h: Tensor, Q: Query, now: Pair, before: Pair, sample: Sample | None) -> Tensor:
            new = Q(*now, sample)
            return new if s.k == 0 else new + (1 - eta) * (h - Q(*before, sample))

        h_z = follow(s.h_z, oracle.grad_g_y, (x, z), (x_before, s.z_before), fresh_g(oracle, B))
        h_fy = follow(s.h_fy, oracle.grad_f_y, (x, y), (x_before, s.y_before), fresh_f(oracle, B))
        h_gy = follow(s.h_gy, oracle.grad_g_y, (x, y), (x_before, s.y_before), fresh_g(oracle, B))
        V, U = oracle.mean(h_z, h_fy / lam + h_gy)
        y_new, z_new = y - a_y * U, z - a_z * V

        h_fx = follow(s.h_fx, oracle.grad_f_x, (x, y_new), (x_before, y), fresh_f(oracle, B))
        h_gx = follow(s.h_gx, oracle.grad_g_x, (x, y_new), (x_before, y), fresh_g(oracle, B))
        h_gxz = follow(s.h_gxz, oracle.grad_g_x, (x, z_new), (x_before, z), fresh_g(oracle, B))
        d = oracle.mean(h_fx + lam * (h_gx - h_gxz))
        x_new = x - self.xi * (a_y / lam) * d
        return State(x_new, y_new, z_new, x, y, z, h_z, h_fy, h_gy, h_fx, h_gx, h_gxz, k=s.k + 1)

    def calls(self, step: int) -> dict[str, int]:
        """The first step has no estimates to correct: half of what the others make."""
        n = 1 if step == 1 else 2
        return {"grad_f_x": n, "grad_f_y": n, "grad_g_x": 2 * n, "grad_g_y": 2 * n}

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """The powers of the schedule that fits the noise, as constants of the horizon; gam = 2 lam alpha."""
        r = horizon_ratio(cls.name, steps)
        noise = noise_of(constants)
        growth, decay, forget = _SCHEDULE[noise]
        gam = 0.8 / constants.L_gy * r**-decay
        return cls(
            lam=2 * scale * r**growth, eta=r**-forget, a_y=gam / 2, a_z=gam, lam_power=0, step_power=0, eta_power=0,
            batch=None if noise == "deterministic" else 1,
        )  # fmt: skip
