"""Products with second derivatives of g by differences of its gradients, for SOBA's relatives HJFBiO and FdeHBO.

    h = difference/max(|v|, 1)
    H v ~ (g_y(x, y + h v) - g_y(x, y - h v))/(2 h),    J v ~ (g_x(x, y + h v) - g_x(x, y - h v))/(2 h)
    v <- P(v - a D_v)                                                              P: onto the ball of radius `radius`

Both shifts are two points of one query, with one sample: noise that does not depend on the point (`Additive`) cancels exactly,
and the products are then those without noise. The error of a product is of order max(|v|, 1) |g_y|/difference times the unit of
rounding, and difference^2 |v| times a bound on the fourth derivatives of g.

Our choices: h shrinks with |v|, so that no shift is longer than `difference`; the default difference, 1e-5, or 1e-2 in single
precision; the default radius is C_f/mu, beyond which H^-1 f_y never lies, where the problem has a C_f that holds everywhere;
without one there is no ball.
"""

from __future__ import annotations

from typing import Self

import torch
from pydantic import PositiveFloat
from torch import Tensor

from bilevelbench import Constants, InvalidInput, Oracle, Sample, norm
from bilevelbench_methods.implicit.single_loop import Five, ThreeEquations, Triple, composed, in_ball

_FAR = 1e8  # beyond this it is y that has diverged, not the difference that is too small


class Differences(ThreeEquations):
    """The directions with differences in the place of products."""

    uses = frozenset({"grad_f", "grad_g", "grad_g_y"})
    calls_of_a_point = {"grad_f": 1, "grad_g": 2, "grad_g_y": 1}

    difference: PositiveFloat | None = None
    """longest shift of y in a difference; default 1e-5, in single precision 1e-2"""
    radius: PositiveFloat | None = None
    """v is kept in a ball of this radius; default C_f/mu, and none where C_f is an estimate"""

    def resolve(self, constants: Constants) -> Self:
        filled, C_f = super().resolve(constants), constants.given.get("C_f")
        if C_f is None or C_f.kind == "estimated" or constants.get("mu") is None:
            return filled
        return filled.fill(constants, radius=lambda c: c.C_f / c.mu)

    def directions(self, oracle: Oracle, at: Triple, xi: Sample | None, zeta: Sample | None) -> Triple:
        f_x, f_y = oracle.grad_f(at.x, at.y, zeta)
        g_y = oracle.grad_g_y(at.x, at.y, xi)
        h = self._shift(at)
        to_x, to_y = oracle.grad_g(at.x, torch.stack([at.y + h * at.v, at.y - h * at.v]), xi)
        return composed(Five(f_x, f_y, g_y, Jv=(to_x[0] - to_x[1]) / (2 * h), Hv=(to_y[0] - to_y[1]) / (2 * h)))

    def _shift(self, at: Triple) -> Tensor:
        longest = self.difference
        if longest is None:
            longest = 1e-2 if at.y.dtype == torch.float32 else 1e-5
        size = norm(at.y)
        lost = (size * (4 * torch.finfo(size.dtype).eps) > longest) & (size < _FAR)
        if bool(lost.any()):
            raise InvalidInput(
                f"difference = {torch.as_tensor(longest).min().item():g} is below rounding at |y| = "
                f"{size[lost].max().item():.3g}: y + h v loses most of h v; choose a larger difference"
            )
        return longest / norm(at.v).clamp(min=1)

    def confined(self, v: Tensor) -> Tensor:
        return v if self.radius is None else in_ball(v, self.radius)
