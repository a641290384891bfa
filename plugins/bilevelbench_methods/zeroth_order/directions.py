"""What PZOBO and PZOBO-S share: their parameters, and the points along random directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Constants, InvalidInput, Oracle, PerLane, norm

_FAR = 1e8  # beyond this it is x that has diverged, not h that is too small


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor
    y0: Tensor


class Directional(Algorithm):
    """Q finite differences of radius h of D lower-level steps."""

    family = "zeroth-order"
    uses = frozenset({"grad_f", "grad_g_y"})
    tuned = {"eta_x": "upper_step", "a": "lower_step"}

    Q: PositiveInt = 5
    """random directions"""
    D: PerLane[PositiveInt] = 10
    """lower-level steps"""
    h: PositiveFloat = 1e-2
    """smoothing radius"""
    warm_start: bool = True
    """start the lower level at the previous y instead of y0"""
    eta_x: PositiveFloat | None = None
    """x-step; default 1/(8 L_phi)"""
    a: PositiveFloat | None = None
    """lower-level step; default 1/L_g"""

    def resolve(self, constants: Constants) -> Self:
        return self.fill(constants, eta_x=lambda c: 1 / (8 * c.L_phi), a=lambda c: 1 / c.L_gy)

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x=x0, y=y0, y0=y0)

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_f": 1, "grad_g_y": (self.Q + 1) * self.D}


def perturbed(x: Tensor, u: Tensor, h: float | Tensor) -> tuple[Tensor, Tensor]:
    """x and the points x + h u_j, (Q + 1, L, dx), and the lanes, diverged ones, where rounding loses most of h u."""
    X = torch.cat([x[None], x + h * u])
    lost = (norm((X[1:] - x) / h - u) > 0.5 * norm(u)).any(0)
    if bool((lost & (norm(x) < _FAR)).any()):
        raise InvalidInput(
            f"h = {torch.as_tensor(h).max().item():g} is below rounding at |x| = {norm(x).max().item():.3g}: x + h u loses "
            "most of h u; choose a larger radius h"
        )
    return X, lost
