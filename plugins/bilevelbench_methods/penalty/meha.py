"""MEHA: a single-loop penalty method with the Moreau envelope of the lower level.

    th <- th - eta (g_y(x, th) + (th - y)/gam)                           th follows argmin_t g(x, t) + |t - y|^2/(2 gam)
    y  <- y - beta (f_y(x, y)/c_k + g_y(x, y) - (y - th)/gam)            the new th
    x  <- x - alpha (f_x(x, y)/c_k + g_x(x, y) - g_x(x, th))             the new th and y,  c_k = c0 (k+1)^power

That is alternating descent on f/c_k plus g minus its envelope, which are equal where y minimises g: g need not be strongly
convex, but only weakly convex for small gam. Liu, Liu, Yao, Zeng, Zhang, "Moreau envelope for nonconvex bi-level
optimization: a single-loop and Hessian-free solution strategy", ICML 2024, without prox terms and constraints. On a strongly
convex lower level the bias in grad phi is of order 1/c_k, so it falls only as k^-power, and power < 1/2: slow by design.

Our choices: the order of the three lines is the paper's, its constants are not: power = 1/4, as in a public program; c0 = 10;
gam = 1/mu, or 10/L_g where there is no mu; the steps 1/(L_g + 1/gam) of th, 1/(L_f/c0 + L_g + 1/gam) of y and
1/(L_f/c0 + 2 L_g + L_g^2/(mu + 1/gam)) of x, from bounds on the curvature in each block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, Oracle
from bilevelbench_methods.penalty.pair import USES


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    th: Tensor
    k: int


class MEHA(Algorithm):
    name = "meha"
    title = "MEHA"
    paper = "https://arxiv.org/abs/2405.09927"
    family = "penalty"
    uses = USES
    tuned = {"alpha": "upper_step", "beta": "lower_step", "eta": "lower_step", "c0": "penalty"}
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            setting="deterministic", oracle="gradient", eps_exp=4, source="other paper",
            reference="Liu, Liu, Yao, Zeng, Zhang 2024",
            footnote="for power = 1/4, the default; in general eps^(-2/(1 - 2 power)), and of a residual of the "
            "penalised problem, not of grad phi; g need only be weakly convex in y",
        ),
    )  # fmt: skip

    c0: PositiveFloat = 10.0
    """penalty at the start"""
    power: Annotated[float, Field(ge=0, lt=0.5)] = 0.25
    """growth of the penalty"""
    gam: PositiveFloat | None = None
    """parameter of the Moreau envelope; default 1/mu, or 10/L_g without a mu"""
    eta: PositiveFloat | None = None
    """step of th; default 1/(L_g + 1/gam)"""
    beta: PositiveFloat | None = None
    """y-step; default 1/(L_f/c0 + L_g + 1/gam)"""
    alpha: PositiveFloat | None = None
    """x-step, times c_k; default 1/(L_f/c0 + 2 L_g + L_g^2/(mu + 1/gam))"""

    def resolve(self, constants: Constants) -> Self:
        mu = constants.get("mu", 0.0)
        chosen = self.fill(constants, gam=lambda c: 1 / mu if mu > 0 else 10 / c.L_gy)
        gam, c0 = chosen.gam, chosen.c0
        return chosen.fill(
            constants,
            eta=lambda c: 1 / (c.L_gy + 1 / gam),
            beta=lambda c: 1 / (c.L_f / c0 + c.L_gy + 1 / gam),
            alpha=lambda c: 1 / (c.L_f / c0 + 2 * c.L_g + c.L_g**2 / (mu + 1 / gam)),
        )

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, th=y0, k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        x, y, gam = s.x, s.y, self.gam
        c = self.c0 * torch.exp(torch.as_tensor(self.power * math.log1p(s.k)))
        th = s.th - self.eta * (oracle.grad_g_y(x, s.th) + (s.th - y) / gam)
        y = y - self.beta * (oracle.grad_f_y(x, y) / c + oracle.grad_g_y(x, y) - (y - th) / gam)
        d = oracle.grad_f_x(x, y) / c + (oracle.grad_g_x(x, y) - oracle.grad_g_x(x, th))
        return State(x=x - self.alpha * d, y=y, th=th, k=s.k + 1)

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_f_x": 1, "grad_f_y": 1, "grad_g_x": 2, "grad_g_y": 2}

    def x_step(self) -> float | None:
        fixed = self.alpha is not None and self.power == 0
        return self.alpha / self.c0 if fixed else None

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """c ~ T^(1/4) throughout, the penalty that the growing one ends with."""
        return cls(c0=10 * scale * steps**0.25, power=0).resolve(constants)
