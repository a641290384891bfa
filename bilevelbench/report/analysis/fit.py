"""Slopes with intervals, and what they mean: pure numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

DRAWS = 2000
#: A slope's tolerance: finite ranges bend, and the more so the steeper the claim.
TOLERANCE, TOLERANCE_STEEP, STEEP = 0.1, 0.25, 5.0
FEWEST_EPS, FEWEST_HORIZONS = 4, 6

#: The verdict on a theorem that speaks of smaller eps than any that was run.
OUTSIDE = "outside the theorem's range"


@dataclass(frozen=True)
class Fit:
    """Slope of log cost on log 1/eps, its 95% interval over seeds, the slope of the second half, and the local slopes."""

    slope: float
    low: float
    high: float
    second_half: float
    local: tuple[float, ...]


def fit(log_inverse_eps: F64, log_cost: F64, seed: int = 0) -> Fit:
    """`log_cost` is (seeds, points), or `log_inverse_eps` too where accuracy is what was measured.

    The interval is a bootstrap over seeds, each with all of its points, since lanes of one seed share their instance. It
    is the spread between instances only, and far smaller than the error of a finite range.
    """
    x = np.broadcast_to(log_inverse_eps, log_cost.shape)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(log_cost), size=(DRAWS, len(log_cost)))
    slopes = np.array([_slope(x[p].mean(0), log_cost[p].mean(0)) for p in picks])
    mean_x, mean_y = x.mean(0), log_cost.mean(0)
    half = len(mean_x) // 2
    local = np.diff(mean_y) / np.diff(mean_x)
    return Fit(
        slope=_slope(mean_x, mean_y),
        low=float(np.percentile(slopes, 2.5)),
        high=float(np.percentile(slopes, 97.5)),
        second_half=_slope(mean_x[half:], mean_y[half:]),
        local=tuple(float(s) for s in local),
    )


def _slope(x: F64, y: F64) -> float:
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())


def verdict(
    fit: Fit | None, claimed: float | None, target: float | None, points: int, horizons: bool, logs: float = 0.0
) -> str:
    """One of six, in this order. Claims are upper bounds, so only `slower than claimed` is an alarm.

    `logs` is what the logarithms that a claim hides add to a slope; where they are not counted, they need no allowance.
    """
    if fit is None or points < (FEWEST_HORIZONS if horizons else FEWEST_EPS):
        return "unmeasured"
    if claimed is None or target is None:
        return "no claim"
    tolerance = TOLERANCE_STEEP if claimed >= STEEP else TOLERANCE
    if abs(fit.second_half - fit.slope) > tolerance:
        return "not straight"
    return compared(fit.low, fit.high, claimed, target, logs)


def compared(low: float, high: float, claimed: float, target: float, logs: float = 0.0) -> str:
    """An interval of slopes, widened by the tolerance, against the slope that the claim predicts on the instance."""
    tolerance = TOLERANCE_STEEP if claimed >= STEEP else TOLERANCE
    if high + tolerance < target:
        return "faster than claimed"
    return "matches" if low - tolerance <= target + logs else "slower than claimed"


def slope_of_logs(eps: Sequence[float], power: int) -> float:
    """What log^power(1/eps) adds to a slope on this range; nothing where an eps is above 1/e."""
    logs = np.log(1 / np.asarray(eps, dtype=np.float64))
    if len(logs) < 2 or logs.min() <= 1:
        return 0.0
    return power * _slope(logs, np.log(logs))


def range_needed(
    said: str, points: Sequence[Mapping[str, float]], slopes: tuple[float, float] | None, over: str, horizons: bool
) -> str:
    """The range that a verdict would take, and its calls by the slopes that were measured, where this one is too short.

    `points` have `eps`, or what is swept over in its place, and `cost`; `slopes` are that which decides and its second half.
    """
    fewest, what = (FEWEST_HORIZONS, "horizons finished") if horizons else (FEWEST_EPS, "values reached")
    short = f"for a verdict it would take {fewest} {what} by all seeds"
    if len(points) < 2:
        return f"{short}, and too few were to tell their cost" if said == "unmeasured" else ""
    first, last = points[0], points[-1]
    span = max(first["eps"] / last["eps"], last["eps"] / first["eps"])
    slope = float(np.log(last["cost"] / first["cost"]) / np.log(span))
    if said == "unmeasured":
        further, told = span ** ((fewest - len(points)) / (len(points) - 1)), short
    elif said == "not straight" and slopes is not None:
        further, told = span**0.5, "for a verdict it would take a range as long that starts where the second half does"
        slope += slopes[1] - slopes[0]
    else:
        return ""
    end = last["eps"] / further if over == "eps" else last["eps"] * further
    return f"{told}: to {over} {end:.3g}, about {last['cost'] * further**slope:.1e} calls in each trial there"
