"""The tail alone, a demonstration: it only asks that x drifts far, so bias and noise cost nothing on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveInt

from bilevelbench import Instance
from bilevelbench_problems.common import Stretched
from bilevelbench_problems.tail_anchor import TailAnchor


class PowerTail(Stretched):
    """f(x, y) = Σ_i p(y_i),  p'(u) = -(1+u²)^(-q/2);  g(x, y) = 1/2 (y-x)ᵀH(y-x).

    It is `tail_anchor` without anchors, without bᵀx and with c = 0; its closed forms, data and constants are described
    there. inf φ is approached as every x_i tends to infinity.
    """

    name = "power_tail"

    tails: PositiveInt = 2
    """coordinates that are tails"""
    q: Annotated[float, Field(gt=1)] = 1.05
    """power of the tail"""
    rotate: bool = True
    """whether the coordinates are rotated at random"""
    sigma_f: NonNegativeFloat = 0.0
    """noise of a sampled gradient of f"""
    sigma_g: NonNegativeFloat = 0.0
    """noise of a sampled gradient of g"""
    sigma_h: NonNegativeFloat = 0.0
    """noise of a sampled product with second derivatives of g"""

    def drift_exponent(self) -> float:
        return self.q

    def build_lanes(self, data_seeds: Sequence[int]) -> Instance:
        return TailAnchor(anchors=0, drift=0.0, **dict(self)).build_lanes(data_seeds)
