"""The lower level of the penalty methods: z follows y*(x), y follows y_lam*(x) = argmin f/lam + g.

`batch` is the size of every mini-batch, an int or one for each lane; None asks for exact gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from bilevelbench import Constants, InvalidInput, Oracle, Sample, keep

USES = frozenset({"grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y"})

#: The paper's note (a) to Table 1.
WEAKER_NOTION = (
    "the guarantee is for eps-stationarity of f + lam (g - g*) jointly in (x, y) with lam ~ 1/eps, which implies "
    "|grad phi| = O(kappa eps)"
)

Batch = int | Tensor | None

#: Lower-level steps that divide the squared distances by exp(first argument) where L_g/mu is the second.
Shrink = Callable[[float | Tensor, float | Tensor], Tensor]


def descent(log_factor: float | Tensor, ratio: float | Tensor) -> Tensor:
    """By gradient descent with a_y = 1/(2 L_g), on f/lam + g, which is mu/2-strongly convex: (1 - 1/(4 ratio))^-n."""
    return 4 * torch.as_tensor(ratio, dtype=torch.float64) * log_factor


def fresh_f(oracle: Oracle, batch: Batch, points: int | None = None) -> Sample | None:
    """A sample of f that no other query has seen, for each of the points its own, or None: the exact answer."""
    return None if batch is None else oracle.sample_f(batch, points=points)


def fresh_g(oracle: Oracle, batch: Batch, points: int | None = None) -> Sample | None:
    """A sample of g that no other query has seen, for each of the points its own, or None: the exact answer."""
    return None if batch is None else oracle.sample_g(batch, points=points)


def pen_pair(
    oracle: Oracle,
    x: Tensor,
    y: Tensor,
    z: Tensor,
    K: int | Tensor,
    lam: float | Tensor,
    a_y: float | Tensor,
    a_z: float | Tensor,
    batch: Batch = None,
    coupled: bool = False,
    betas: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """K gradient steps on each, in the scale-free form: the steps do not depend on lam. Returns y, z and the last U, V.

    V <- g_y(x, z; s1);   U <- f_y(x, y; s2)/lam + g_y(x, y; s3)            `coupled` makes s3 the same as s1
    z <- z - a_z V;       y <- y - a_y U

    `betas`, of y and of z, are the weights of Nesterov's momentum: gradients and steps are then taken from
    y + beta_y (y - y_prev) and z + beta_z (z - z_prev).
    """
    U, V = y, z  # of the right shape; K is at least 1, so that every lane has gradients of its own
    y_prev, z_prev = y, z
    for on in oracle.repeat(K):
        s1, s2 = fresh_g(oracle, batch), fresh_f(oracle, batch)
        s3 = s1 if coupled else fresh_g(oracle, batch)
        p, q = (y, z) if betas is None else (y + betas[0] * (y - y_prev), z + betas[1] * (z - z_prev))
        at_q, at_p = oracle.mean(oracle.grad_g_y(x, q, s1), oracle.grad_f_y(x, p, s2) / lam + oracle.grad_g_y(x, p, s3))
        V, U = keep(on, at_q, V), keep(on, at_p, U)
        y_prev, z_prev = y, z
        z, y = keep(on, q - a_z * V, z), keep(on, p - a_y * U, y)
    return y, z, U, V


def penalty_gradient(
    oracle: Oracle, x: Tensor, y: Tensor, z: Tensor, lam: float | Tensor, batch: Batch = None, coupled: bool = False
) -> Tensor:
    """f_x(x, y; s4) + lam (g_x(x, y; s5) - g_x(x, z; s6)), the estimate of grad phi; `coupled` makes s6 the same as s5."""
    s4, s5 = fresh_f(oracle, batch), fresh_g(oracle, batch)
    s6 = s5 if coupled else fresh_g(oracle, batch)
    return oracle.mean(oracle.grad_f_x(x, y, s4) + lam * (oracle.grad_g_x(x, y, s5) - oracle.grad_g_x(x, z, s6)))


def lower_steps(
    oracle: Oracle, delta: Tensor, lam: float | Tensor, zeta: float | Tensor, K: int | Tensor, steps: Shrink = descent
) -> Tensor:
    """K_t that make the penalty gradient exact to zeta where y and z are off by delta, the sum of squares; at least K.

    `steps(log_factor, L_g/mu)` divide delta by exp(log_factor).
    """
    L_g, ratio = oracle.constant("L_g"), oracle.constant("L_gy") / oracle.constant("mu")
    wanted = torch.ceil(steps(2 * torch.log(4 * lam * L_g * delta.sqrt() / zeta), ratio)).to(delta.dtype)
    return torch.maximum(wanted, torch.as_tensor(K, dtype=wanted.dtype))


def noise_of(constants: Constants) -> Literal["deterministic", "partial", "full"]:
    """Noise in f only is partial, noise in g is full; those of a finite sum are not known, which is an error."""
    if constants.sigma_g > 0:
        return "full"
    return "partial" if constants.sigma_f > 0 else "deterministic"


def horizon_ratio(name: str, steps: float) -> float:
    """T/64, at least 1: below 64 steps a horizon's schedule has not begun to bend."""
    if not (steps >= 1 and steps == int(steps)):
        raise InvalidInput(f"{name} has no preset for a horizon of {steps} steps; give a whole number, 1 or more")
    return max(1.0, steps / 64)
