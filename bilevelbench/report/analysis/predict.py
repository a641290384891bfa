"""What an exact run of a fixed-step method shows on the tail: the finite-range slope, by quadrature.

On `p'(u) = -(1 + u^2)^(-q/2)` descent with step eta moves by eta p', so the steps from u0 to u are
(1/eta) times the integral of (1 + u^2)^(q/2). The gradient is eps at u_eps = sqrt(eps^(-2/q) - 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

#: What a row's step sizes, batches and loop lengths are set by.
SetBy = Literal["eps", "steps", "sweep"]


def asymptotic(claimed: float, set_by: SetBy, q: float | None) -> float:
    """The exponent that an exact run of a claim `claimed` tends to on a tail of exponent q; without one, the claim itself.

    A fixed step needs eps^-(1 + 1/q) steps there, in place of the eps^-2 that the theorems allow for. What a preset `set_by`
    eps pays beyond (short steps, batches) is a power of eps whatever the instance, so 1 - 1/q is lost once. What one set by
    the number of steps pays is a power of that number, and every power of it shrinks by (1 + 1/q)/2. Where something else
    is swept, all runs have one eps.
    """
    if set_by == "sweep" or q is None:
        return claimed
    return claimed - 1 + 1 / q if set_by == "eps" else claimed * (1 + 1 / q) / 2


def steps_to(eps: float, eta: float, q: float, rule: str, u0: float = 0.0) -> float:
    """Steps of length eta |p'| until |p'| (rule "hit") or its mean over the steps so far (rule "mean") is eps."""
    from scipy.optimize import brentq  # slow to import

    if rule == "hit":
        return _integral(u0, float(np.sqrt(eps ** (-2 / q) - 1)), q) / eta

    def mean_minus_eps(log_u: float) -> float:  # the mean is the way gone over the time taken
        u = u0 + np.exp(log_u)
        return float((u - u0) / _integral(u0, u, q) - eps)

    log_u = brentq(mean_minus_eps, np.log(1e-6), np.log(1e12))
    return _integral(u0, u0 + float(np.exp(log_u)), q) / eta


def _integral(low: float, high: float, q: float) -> float:
    """Of (1 + u^2)^(q/2), on a logarithmic scale beyond 1, where it is a power."""
    from scipy.integrate import quad  # slow to import

    inner, _ = quad(lambda u: (1 + u * u) ** (q / 2), low, min(high, 1.0))
    if high <= 1.0:
        return float(inner)
    outer, _ = quad(lambda s: np.exp(s) * (1 + np.exp(2 * s)) ** (q / 2), 0.0, np.log(high), limit=200)
    return float(inner + outer)


def slope(eps: Sequence[float], etas: Sequence[float], q: float, rule: str) -> float:
    """Of the logarithm of the steps on that of 1/eps."""
    steps = [steps_to(e, eta, q, rule) for e, eta in zip(eps, etas, strict=True)]
    return float(np.polyfit(np.log(1 / np.asarray(eps)), np.log(steps), 1)[0])
