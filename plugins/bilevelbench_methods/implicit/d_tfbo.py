"""D-TFBO: AID with loops of gradient steps for y and v, and step lengths that need no tuning.

    K times:  beta^2 <- beta^2 + |g_y(x, y)|^2;                  y <- y - g_y(x, y)/beta
    N times:  r <- H(x, y) v - f_y(x, y);  gamma^2 <- gamma^2 + |r|^2;   v <- v - r/gamma
    d <- f_x(x, y) - J(x, y) v;  alpha^2 <- alpha^2 + |d|^2;     x <- x - d/alpha

Yang, Ban, Huang, Ma, Ji, "Tuning-free bilevel optimization: new algorithms and convergence analysis", ICLR 2025. In the paper
the loops end at |g_y|^2 <= 1/T and |r|^2 <= 1/T for T steps in all, and beta and gamma begin anew in each step; `from_horizon`
does that, by `tol` and `restart`. By default it is as in the authors' code: K = N = 10, and the accumulators are kept over the
whole run. Their abstract counts eps^-1 steps for |grad phi|^2 <= eps, not calls, so no claim is made here.

Our choices: y and v are warm-started, v from zero; exact answers alone; nothing is added against division by zero.
"""

from __future__ import annotations

from typing import Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Constants, Oracle, PerLane, keep, norm
from bilevelbench_methods.implicit.tuning_free import State, TuningFree, grown

_MANY = 10_000  # steps of a loop that ends by its tolerance


class DTFBO(TuningFree):
    name = "d_tfbo"
    title = "D-TFBO"
    paper = "https://arxiv.org/abs/2410.05140"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy"})

    K: PerLane[PositiveInt] = 10
    """steps of y, at most"""
    N: PerLane[PositiveInt] = 10
    """steps of v, at most"""
    tol: PositiveFloat | None = None
    """|g_y| and |H v - f_y| at which the loops end; default: they do not end early"""
    restart: bool = False
    """let the accumulators of y and v begin anew in each step"""

    def step(self, s: State, oracle: Oracle) -> State:
        x, y, v, beta, gamma = s.x, s.y, s.v, s.beta, s.gamma
        if self.restart:
            beta, gamma = self.beta0 * torch.ones_like(beta), self.gamma0 * torch.ones_like(gamma)

        going = torch.ones_like(beta, dtype=torch.bool)
        for on in oracle.until(self.K, going):
            y, beta = self._moved(y, beta, oracle.grad_g_y(x, y), on, going)
        f_x, f_y = oracle.grad_f(x, y)
        going = torch.ones_like(going)
        for on in oracle.until(self.N, going):
            v, gamma = self._moved(v, gamma, oracle.hvp_g_yy(x, y, v) - f_y, on, going)
        d = f_x - oracle.jvp_g_xy(x, y, v)
        alpha = grown(s.alpha, d)
        return State(x=x - d / alpha, y=y, v=v, alpha=alpha, beta=beta, gamma=gamma, k=s.k + 1)

    def _moved(
        self, at: Tensor, accumulator: Tensor, direction: Tensor, on: Tensor | bool, going: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One step of the lanes whose direction is above the tolerance; `going` is told which these are."""
        if self.tol is not None:
            going &= norm(direction) > self.tol
            on = going & on
        larger = keep(on, grown(accumulator, direction), accumulator)
        return keep(on, at - direction / larger, at), larger

    def calls(self, step: int) -> dict[str, int] | None:
        if self.tol is not None:
            return None
        return {"grad_f": 1, "grad_g_y": self.K, "hvp_g_yy": self.N, "jvp_g_xy": 1}

    @classmethod
    def from_horizon(cls, constants: Constants, steps: int, scale: float = 1.0) -> Self:
        """The loops to T^-1/2, with accumulators that begin anew; `scale` is that of the first step of x."""
        return cls(tol=steps**-0.5, K=_MANY, N=_MANY, restart=True, alpha0=1 / scale)
