"""The inverse of the lower Hessian by one random term of its Neumann series.

And what BSA and TTSA, which use it, declare alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Claim, Oracle, PerLane, keep

#: What the stochastic methods with Hessian products ask for beyond unbiased gradients: a footnote of their claims.
SECOND_DERIVATIVES = "needs unbiased, bounded-variance stochastic second derivatives, hence not directly comparable"


def drawn_term(oracle: Oracle, Q: int | Tensor) -> Tensor:
    """p uniform in 0..Q-1, (L, 1), one draw for each lane."""
    return torch.minimum((Q * oracle.uniform(1)).long(), torch.as_tensor(Q - 1))  # Q u may round up to Q


def random_term(
    oracle: Oracle, H: Callable[[Tensor], Tensor], b: Tensor, p: Tensor, Q: int | Tensor, a: float | Tensor
) -> Tensor:
    """`Q a (I - a H_p) ... (I - a H_1) b`; a lane pays for its own p products only."""
    r = b
    for on in oracle.repeat(p):
        r = keep(on, r - a * H(r), r)
    return Q * a * r


def neumann_random(
    oracle: Oracle, x: Tensor, y: Tensor, b: Tensor, Q: int | Tensor, a: float | Tensor, batch: int | Tensor
) -> Tensor:
    """A random term with fresh data in every product: its mean is `a sum_{q<Q} (I - aH)^q b`."""

    def H(r: Tensor) -> Tensor:
        return oracle.hvp_g_yy(x, y, r, oracle.sample_g(batch))

    return random_term(oracle, H, b, drawn_term(oracle, Q), Q, a)


class Approximation(Algorithm):
    """Stochastic approximation: steps eta_x (k+1)^-eta_power of x and b (k+1)^-b_power of y, and a random Neumann term."""

    family = "implicit"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy", "jvp_g_xy"})
    tuned = {"eta_x": "upper_step", "b": "lower_step", "batch": "batch"}
    reports = "random"

    Q: PerLane[PositiveInt] = 10
    """terms of the Neumann series, of which one is drawn"""
    batch: PerLane[PositiveInt] = 64
    """data of every sample"""
    eta_x: PositiveFloat | None = None
    """first x-step; default 1/(2 L_phi)"""
    eta_v: PositiveFloat | None = None
    """step of the Neumann series; default 1/L_g"""
    eta_power: NonNegativeFloat
    """decay of the x-step"""

    def x_step(self) -> float | None:
        return self.eta_x if self.eta_power == 0 else None

    @staticmethod
    def claims_of(eps_exp: float, reference: str) -> tuple[Claim, ...]:
        return tuple(
            Claim(
                table=2,
                setting=setting,
                oracle="HVP",
                eps_exp=eps_exp,
                footnote=SECOND_DERIVATIVES,
                reference=reference,
            )
            for setting in ("partial", "full")
        )
