"""AmIGO: warm-started stochastic gradient descent on both inner problems, for y and for the linear system.

    K times:  y <- y - a_k g_y(x, y; fresh)
    f_x, f_y at (x, y; zeta)                                    one zeta for the whole step
    N times:  v <- v - a_k (H(x, y; fresh) v - f_y)             from the v of the step before
    x <- x - b_k (f_x - J(x, y; fresh) v)

with a_k = a (k+1)^-power and b_k = b (k+1)^-power. Arbel, Mairal, "Amortized implicit differentiation for stochastic bilevel
optimization", ICLR 2022, with stochastic gradient descent for both; its other form, conjugate gradients on exact answers, is
`aid`. The right-hand side f_y is not drawn again in the loop for v. With exact answers eps^-2 kappa^4 calls; with noise
eps^-4, here by constant steps and batches ~ eps^-2 (`from_rate`).

Our choices: v starts at zero; one step a for y and v and K = N = 10, as in a public program; one size for all batches;
the decay, which is none by default; the default steps.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from bilevelbench import Claim, Constants, Oracle, richardson
from bilevelbench_methods.implicit.single_loop import Decaying, FromZero, State, claimed, noise_batch


class AmIGO(Decaying, FromZero):
    name = "amigo"
    title = "AmIGO"
    paper = "https://arxiv.org/abs/2111.14580"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy"})
    reports = "random"
    claims: ClassVar[tuple[Claim, ...]] = (
        claimed(
            "deterministic",
            2,
            "Arbel, Mairal 2022, as a later paper quotes it",
            kappa_exp=4,
            kappa_source="other paper",
        ),
        claimed("full", 4, "Arbel, Mairal 2022"),
    )

    power: NonNegativeFloat = 0.0
    """decay of both steps"""
    K: PositiveInt = 10
    """steps of y"""
    N: PositiveInt = 10
    """steps of v"""

    def step(self, s: State, oracle: Oracle) -> State:
        x, y, decay = s.x, s.y, self.decay(s.k)
        a, b = self.a * decay, self.b * decay
        for _ in oracle.repeat(self.K):
            y = y - a * oracle.grad_g_y(x, y, self.sample_g(oracle))
        f_x, f_y = oracle.grad_f(x, y, self.sample_f(oracle))

        def H(v: Tensor) -> Tensor:
            return oracle.hvp_g_yy(x, y, v, self.sample_g(oracle))

        v = richardson(oracle, H, f_y, s.v, self.N, a)
        Jv = oracle.jvp_g_xy(x, y, v, self.sample_g(oracle))
        return State(x=x - b * (f_x - Jv), y=y, v=v, k=s.k + 1)

    def calls(self, step: int) -> dict[str, int] | None:
        return {"grad_f": 1, "grad_g_y": self.K, "hvp_g_yy": self.N, "jvp_g_xy": 1}

    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        """Batches ~ (sigma/eps)^2, constant steps, 4 kappa steps of y and v."""
        c = constants
        inner = math.ceil(4 * c.L_gy / c.mu)
        return cls(a=1 / (2 * c.L_gy), b=0.4 / c.L_phi, K=inner, N=inner, batch=noise_batch(c, eps, scale))
