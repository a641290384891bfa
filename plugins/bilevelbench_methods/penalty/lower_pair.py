"""The lower level of F2BA and AccF2BA: K steps of z and y, by gradient descent or, in F2BA+ and AccF2BA+, by Nesterov's method.

    off:       z <- z - a_z V(z);   y <- y - a_y U(y)                 V = g_y(x, .),   U = f_y(x, .)/lam + g_y(x, .)
    nesterov:  q <- z + beta_z (z - z_prev);   z_prev <- z;   z <- q - a_z V(q)         and y alike, with beta_y and U

z_prev = z and y_prev = y at the start of every outer step: momentum is lost there, while z and y are kept.

    beta = (1 - r)/(1 + r), at least 0,   r = sqrt(a mu/2):

where lam >= 2 L_f/mu, f/lam + g is mu/2-strongly convex and 2 L_g-smooth in y. For the default steps 1/(2 L_g) that is
Nesterov's (sqrt(k) - 1)/(sqrt(k) + 1) with k = 4 L_g/mu. g alone would allow z a step of 1/L_g and k = L_g/mu. But lam
multiplies what y and z are still off in d = f_x + lam (g_x(x, y) - g_x(x, z)), and that cancels only as far as both follow x
alike: with K = 10 and steps of their own the method diverges already on the default quadratic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from bilevelbench import Algorithm, Constants, MissingConstant, Oracle, PerLane
from bilevelbench_methods.penalty.pair import descent, pen_pair


class LowerPair(Algorithm):
    """The penalty, the lower-level steps and their momentum."""

    lam: PositiveFloat = 1000.0
    """penalty"""
    K: PerLane[PositiveInt] = 10
    """lower-level steps"""
    a_y: PositiveFloat | None = None
    """effective step of y; default 1/(2 L_g)"""
    a_z: PositiveFloat | None = None
    """effective step of z; default 1/(2 L_g)"""
    momentum: Literal["off", "nesterov"] = "off"
    """of the lower-level steps"""

    def fill_lower(self, constants: Constants, **rules: Callable[[Constants], float]) -> Self:
        """`fill` by these rules and those of the lower-level steps."""
        filled = self.fill(constants, **rules, a_y=lambda c: 1 / (2 * c.L_gy), a_z=lambda c: 1 / (2 * c.L_gy))
        if self.momentum == "nesterov" and constants.get("mu") is None:
            raise MissingConstant("mu", constants.problem, f"{self.name}'s lower-level momentum")
        return filled

    def lower_level(
        self, oracle: Oracle, x: Tensor, y: Tensor, z: Tensor, K: int | Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """y, z and the last U, V."""
        betas = None
        if self.momentum == "nesterov":
            half = oracle.constant("mu") / 2
            betas = _beta(self.a_y, half, y), _beta(self.a_z, half, z)
        return pen_pair(oracle, x, y, z, K, self.lam, self.a_y, self.a_z, betas=betas)

    def steps_to_shrink(self, log_factor: float | Tensor, ratio: float | Tensor) -> Tensor:
        """Enough, with the default steps, to divide the squared distances of y and z from their limits by exp(log_factor).

        ratio = L_g/mu. With k = 4 ratio, Nesterov's bound is (1 + k) (1 - 1/sqrt(k))^n.
        """
        if self.momentum == "off":
            return descent(log_factor, ratio)
        k = 4 * torch.as_tensor(ratio, dtype=torch.float64)
        return k.sqrt() * (log_factor + torch.log1p(k))

    def calls(self, step: int) -> dict[str, int] | None:
        return {"grad_f_x": 1, "grad_f_y": self.K, "grad_g_x": 2, "grad_g_y": 2 * self.K}


def _beta(a: float | Tensor, m: float | Tensor, like: Tensor) -> Tensor:
    r = (torch.as_tensor(a, dtype=like.dtype) * torch.as_tensor(m, dtype=like.dtype)).sqrt()
    return ((1 - r) / (1 + r)).clamp(min=0)
