"""Intervals of 95 per cent for what few trials show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_Z = 1.959964  # of the normal distribution


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Of a probability; Wilson's interval, which stays within 0 and 1 and holds for few trials."""
    share, z2 = successes / trials, _Z**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the mean of two values or more; Student's."""
    from scipy.special import stdtrit  # slow to import

    v = np.asarray(values, dtype=float)
    half = float(stdtrit(len(v) - 1, 0.975)) * float(v.std(ddof=1)) / math.sqrt(len(v))
    return float(v.mean()) - half, float(v.mean()) + half
