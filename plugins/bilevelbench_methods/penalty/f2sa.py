"""F2SA: the penalty gradient on a single time scale.

    T_in times:  z <- z - a_z g_y(x, z; s1)
                 y <- y - a_y (f_y(x, y; s2)/lam + g_y(x, y; s3))
    x <- x - xi (a_y/lam) (f_x(x, y; s4) + lam (g_x(x, y; s5) - g_x(x, z; s6)))

The x-step is the step of y, a_y/lam, times xi: it shrinks as the penalty grows, which is what F2BA does away with.
Kwon, Kwon, Wright, Nowak, "A fully first-order method for stochastic bilevel optimization", ICML 2023, Algorithm 1, in the
scale-free form. With t = 1 + k/k0 the penalty grows as lam t^lam_power and both lower steps shrink as t^-step_power; the
defaults 0 are the fixed multiplier of the experiments of Chen, Ma, Zhang 2025, lam_power = 1/3 the deterministic schedule.
With noise in f only lam_power = 1/5 and step_power = 2/5, with noise in g 1/7 and 4/7. s1 to s6 are independent
mini-batches of size `batch`; without it every gradient is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, Oracle, PerLane
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_methods.penalty.pair import USES, horizon_ratio, noise_of, pen_pair, penalty_gradient

#: by noise: growth of the penalty and decay of the steps with the number of steps, and lower-level steps
_SCHEDULE = {"deterministic": (1 / 3, 0.0, 4), "partial": (1 / 5, 2 / 5, 1), "full": (1 / 7, 4 / 7, 1)}


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    z: Tensor
    k: int


class F2SA(Algorithm):
    name = "f2sa"
    title = "F²SA"
    paper = "https://arxiv.org/abs/2301.10945"
    family = "penalty"
    uses = USES
    tuned = {"a_y": "lower_step", "a_z": "lower_step", "lam": "penalty", "batch": "batch"}
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            table=1, setting="deterministic", oracle="gradient", eps_exp=3, tilde=True, log_power=1,
            footnote="the original also assumes a Lipschitz Hessian of f and bounded f_x, g_x; unnecessary for a fixed lam",
            reference="Kwon, Kwon, Wright, Nowak 2023",
        ),
        Claim(
            table=2, setting="partial", oracle="gradient", eps_exp=5, tilde=True, log_power=1,
            log_source="other paper", reference="Kwon, Kwon, Wright, Nowak 2023",
        ),
        Claim(
            table=2, setting="full", oracle="gradient", eps_exp=7, tilde=True, log_power=1,
            log_source="other paper", reference="Kwon, Kwon, Wright, Nowak 2023",
        ),
    )  # fmt: skip

    lam: PositiveFloat = 10.0
    """penalty"""
    T_in: PerLane[PositiveInt] = 10
    """lower-level steps"""
    xi: PositiveFloat = 1.0
    """x-step over y-step; 1 is the single time scale"""
    a_y: PositiveFloat | None = None
    """effective step of y; default 1/(2 L_g)"""
    a_z: PositiveFloat | None = None
    """effective step of z; default 1/(2 L_g)"""
    lam_power: NonNegativeFloat = 0.0
    """growth of the penalty"""
    step_power: NonNegativeFloat = 0.0
    """decay of the lower-level steps"""
    k0: PositiveFloat = 1.0
    """steps before the schedule bends"""
    batch: PositiveInt | None = None
    """size of every mini-batch; without one, gradients are exact"""
    coupled_batches: bool = False
    """one mini-batch for both g_x of the x-gradient; published are independent ones"""
    coupled_lower: bool = False
    """one mini-batch for the g_y of y and of z; published are independent ones"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, a_y=lambda c: 1 / (2 * c.L_gy), a_z=lambda c: 1 / (2 * c.L_gy))

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, z=y0, k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        log_t = torch.log1p(torch.as_tensor(s.k / self.k0))
        lam = self.lam * torch.exp(self.lam_power * log_t)
        decay = torch.exp(-self.step_power * log_t)
        a_y, a_z = self.a_y * decay, self.a_z * decay
        y, z, *_ = pen_pair(oracle, s.x, s.y, s.z, self.T_in, lam, a_y, a_z, self.batch, self.coupled_lower)
        d = penalty_gradient(oracle, s.x, y, z, lam, self.batch, self.coupled_batches)
        return State(x=s.x - self.xi * (a_y / lam) * d, y=y, z=z, k=s.k + 1)

    def x_step(self) -> float | None:
        fixed = self.a_y is not None and self.lam_power == self.step_power == 0
        return self.xi * self.a_y / self.lam if fixed else None

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_f_x": 1, "grad_f_y": self.T_in, "grad_g_x": 2, "grad_g_y": 2 * self.T_in}

    @classmethod
    def from_theory(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """The penalty of F2BA's theorem, times `scale`, and L_g/mu lower-level steps, which gain a constant factor."""
        c, a = constants, 1 / (2 * constants.L_gy)
        lam = scale * F2BA.from_theory(c, eps).lam
        return cls(lam=lam, T_in=math.ceil(c.L_gy / c.mu), a_y=a, a_z=a)

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """lam ~ 1/eps, so the x-step is of order eps."""
        a = 1 / (2 * constants.L_gy)
        return cls(lam=2 * scale / eps, T_in=4, a_y=a, a_z=a)

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """The powers of the schedule that fits the noise, as constants of the horizon; gam = 2 lam alpha."""
        r = horizon_ratio(cls.name, steps)
        noise = noise_of(constants)
        growth, decay, T_in = _SCHEDULE[noise]
        gam = 0.8 / constants.L_gy * r**-decay
        batch = None if noise == "deterministic" else 1
        return cls(lam=2 * scale * r**growth, T_in=T_in, a_y=gam / 2, a_z=gam, batch=batch)
