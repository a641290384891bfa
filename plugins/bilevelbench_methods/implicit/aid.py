"""AID: approximate implicit differentiation.

    D times:  y <- y - a g_y(x, y)
    v <- N steps of a linear solver on H(x, y) v = f_y(x, y), from the previous v
    x <- x - eta_x (f_x(x, y) - J(x, y) v)

y and v are warm-started. Ji, Yang, Liang, "Bilevel optimization: convergence analysis and enhanced design", ICML 2021
(AID-BiO); Grazzi, Franceschi, Pontil, Salzo, ICML 2020. Solvers: `cg`, `richardson` with step a (the "fixed point"), and
`neumann`, the series of N + 1 terms, which cannot be warm-started and keeps its truncation error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Constants, Oracle, PerLane, conjugate_gradient, neumann_sum, richardson
from bilevelbench_methods.descent import lower_gd


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    v: Tensor
    k: int


#: How v is found.
Solver = Literal["cg", "richardson", "neumann"]


class AID(Algorithm):
    name = "aid"
    title = "AID"
    paper = "https://arxiv.org/abs/2010.07962"
    family = "implicit"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy"})
    tuned = {"eta_x": "upper_step", "a": "lower_step"}
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            table=1, setting="deterministic", oracle="HVP", eps_exp=2, kappa_exp=4,
            reference="Ji, Yang, Liang 2021",  # kappa: the text after Theorem 1
        ),
    )  # fmt: skip

    D: PerLane[PositiveInt] = 10
    """lower-level steps"""
    N: PerLane[PositiveInt] = 10
    """steps of the linear solver"""
    solver: Solver = "cg"
    """linear solver"""
    tol: NonNegativeFloat = 0.0
    """residual at which cg stops"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(2 L_phi)"""
    a: PositiveFloat | None = None
    """lower-level step; default 1/L_g"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, eta_x=lambda c: 1 / (2 * c.L_phi), a=lambda c: 1 / c.L_gy)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, v=torch.zeros_like(y0), k=0)

    def step(self, s: State, oracle: Oracle) -> State:
        y, v, d = self.hypergradient(s, oracle)
        return State(x=s.x - self.eta_x * d, y=y, v=v, k=s.k + 1)

    def hypergradient(self, s: State, oracle: Oracle) -> tuple[Tensor, Tensor, Tensor]:
        """The new y and v, and d."""
        x, y = s.x, self.lower_level(s, oracle)
        f_x, f_y = oracle.grad_f(x, y)
        f_y = self.agreed(f_y, oracle)

        def H(u: Tensor) -> Tensor:
            return self.agreed(oracle.hvp_g_yy(x, y, u), oracle)

        if self.solver == "cg":
            v = conjugate_gradient(oracle, H, f_y, s.v, self.N, self.tol, cold=s.k == 0)
        elif self.solver == "richardson":
            v = richardson(oracle, H, f_y, s.v, self.N, self.a)
        else:
            v = neumann_sum(oracle, H, f_y, self.N, self.a)
        return y, v, oracle.mean(f_x - oracle.jvp_g_xy(x, y, v))

    def lower_level(self, s: State, oracle: Oracle) -> Tensor:
        return lower_gd(oracle, s.x, s.y, self.D, self.a)

    def agreed(self, local: Tensor, oracle: Oracle) -> Tensor:
        """What agents put into the linear system, whose solution is the same for all of them: means."""
        return oracle.mean(local)

    def calls(self, step: int) -> dict[str, int] | None:
        if self.solver == "cg":
            return None  # a lane whose residual has vanished makes no more products
        return {"grad_f": 1, "grad_g_y": self.D, "hvp_g_yy": self.N, "jvp_g_xy": 1}

    def x_step(self) -> float | None:
        return self.eta_x

    @classmethod
    def from_theory(cls, constants: Constants, eps: float, solver: Solver = "cg") -> Self:
        """D ~ kappa, N ~ sqrt(kappa) of CG and ~ kappa of others, eta_x = 1/(8 L_phi); nothing depends on eps."""
        c = constants
        D, N = _loops(c, solver)
        return cls(D=D, N=N, solver=solver, a=1 / c.L_gy, eta_x=1 / (8 * c.L_phi))

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0, solver: Solver | None = None) -> Self:
        """Eight steps of each loop for every eps, both warm; with a solver named, the theorem's powers of kappa."""
        c = constants
        D, N = (8, 8) if solver is None else _loops(c, solver)
        return cls(D=D, N=N, solver=solver or "richardson", a=1 / (2 * c.L_gy), eta_x=0.4 / c.L_phi)


def _loops(c: Constants, solver: Solver) -> tuple[int, int]:
    """Steps of y and of v that gain a constant factor."""
    ratio = c.L_gy / c.mu
    return max(1, round(4 * ratio)), max(1, round(4 * (ratio**0.5 if solver == "cg" else ratio)))
