"""The lower level of F2BA and AccF2BA: K steps of z and y, by gradient descent or, in F2BA+ and AccF2BA+, by Nesterov's method.

    off:       z <- z - a_z V(z);   y <- y - a_y U(y)                 V = g_y(x, .),   U = f_y(x, .)/lam + g_y(x, .)
    nesterov:  q <- z + beta_z (z - z_prev);   z_prev <- z;   z <- q - a_z V(q)         and y alike, with beta_y and U

z_prev = z and y_prev = y at the start of every outer step: momentum is lost there, while z and y are kept.

    beta = (1 - r)/(1 + r), at least 0,   r = sqrt(a m),   m = mu for z and mu/2 for y:

g is mu-strongly convex in y, and f/lam + g is so with mu/2 where lam >= 2 L_f/mu. For the default steps a_z = 1/L_g and
a_y = 1/(2 L_g) it is Nesterov's (sqrt(k) - 1)/(sqrt(k) + 1), with k = L_g/mu for z and k = 4 L_g/mu for y.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

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
    """effective step of z; default 1/(2 L_g), with momentum 1/L_g"""
    momentum: Literal["off", "nesterov"] = "off"
    """of the lower-level steps"""

    def lower_rules(self, constants: Constants) -> dict[str, Callable[[Constants], float]]:
        """For `fill`."""
        plain = self.momentum == "off"
        if not plain and constants.get("mu") is None:
            raise MissingConstant("mu", constants.problem, f"{self.name}'s lower-level momentum")
        return {"a_y": lambda c: 1 / (2 * c.L_gy), "a_z": lambda c: 1 / ((2 if plain else 1) * c.L_gy)}

    def lower_level(
        self, oracle: Oracle, x: Tensor, y: Tensor, z: Tensor, K: int | Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """y, z and the last U, V."""
        betas = None
        if self.momentum == "nesterov":
            mu = oracle.constant("mu")
            betas = _beta(self.a_y, mu / 2, y), _beta(self.a_z, mu, z)
        return pen_pair(oracle, x, y, z, K, self.lam, self.a_y, self.a_z, betas=betas)

    def steps_to_shrink(self, log_factor: float | Tensor, ratio: float | Tensor) -> Tensor:
        """Enough, with the default steps, to divide the squared distances of y and z from their limits by exp(log_factor).

        ratio = L_g/mu. With k = 4 ratio of y, Nesterov's bound is (1 + k) (1 - 1/sqrt(k))^n.
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
