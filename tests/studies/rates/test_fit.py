"""Slopes, intervals, verdicts and the predicted slope, against numbers that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from bilevelbench.report.analysis import predict
from bilevelbench.report.analysis.fit import Fit, fit, verdict


def test_slope_of_an_exact_power_is_its_exponent():
    eps = 0.2 / np.sqrt(2) ** np.arange(8)
    cost = np.log(3.0 * eps**-2.5) + np.zeros((5, 1))
    found = fit(-np.log(eps), cost)
    assert found.slope == pytest.approx(2.5, abs=1e-12)
    assert (found.low, found.high, found.second_half) == pytest.approx((2.5, 2.5, 2.5), abs=1e-12)
    assert found.local == pytest.approx([2.5] * 7)


@pytest.mark.whole
def test_interval_covers_the_truth_at_its_level():
    """Seeds whose exponents scatter around 2: about 95 of 100 intervals hold 2."""
    rng, eps = np.random.default_rng(1), 0.2 / np.sqrt(2) ** np.arange(6)
    x, inside = -np.log(eps), 0
    for trial in range(100):
        slopes = 2 + 0.1 * rng.standard_normal(40)
        found = fit(x, slopes[:, None] * x[None, :], seed=trial)
        inside += found.low <= 2 <= found.high
    assert 88 <= inside <= 100


def test_accuracy_may_be_what_was_measured():
    steps = 2.0 ** np.arange(7, 14)
    accuracy = steps**-0.25 * np.exp(0.01 * np.random.default_rng(0).standard_normal((9, 7)))
    assert fit(-np.log(accuracy), np.log(steps) + np.zeros((9, 1))).slope == pytest.approx(4, abs=0.05)


def made(slope: float, low: float | None = None, high: float | None = None, second: float | None = None) -> Fit:
    return Fit(slope, low or slope - 0.01, high or slope + 0.01, slope if second is None else second, ())


@pytest.mark.parametrize(
    ("found", "claimed", "target", "points", "horizons", "said"),
    [
        (made(1.95), 2, 1.95, 7, False, "matches"),
        (made(1.95), 2, 1.95, 3, False, "unmeasured"),
        (made(1.95), 2, 1.95, 5, True, "unmeasured"),
        (None, 2, 1.95, 9, False, "unmeasured"),
        (made(1.95, second=2.1), 2, 1.95, 7, False, "not straight"),
        (made(5.7, second=5.8), 6, 5.86, 7, False, "matches"),
        (made(5.6, second=6.04), 6, 5.86, 7, False, "not straight"),
        (made(3.84), 6, 5.86, 9, True, "faster than claimed"),
        (made(2.3), 2, 1.95, 7, False, "slower than claimed"),
    ],
)
def test_verdict(found, claimed, target, points, horizons, said):
    assert verdict(found, claimed, target, points, horizons) == said


@pytest.mark.parametrize("eps", [0.3, 0.05])
def test_predicted_steps_are_those_of_the_flow(eps):
    """u' = (1 + u^2)^(-q/2) in units of eta: the time at which the slope is eps."""
    q = 1.05
    end = np.sqrt(eps ** (-2 / q) - 1)
    hit = lambda t, u: u[0] - end  # noqa: E731
    hit.terminal = True
    flow = solve_ivp(lambda t, u: (1 + u**2) ** (-q / 2), (0, 1e6), [0.0], events=hit, rtol=1e-10, atol=1e-10)
    assert predict.steps_to(eps, 0.1, q, "hit") == pytest.approx(flow.t_events[0][0] / 0.1, rel=1e-5)


def test_mean_rule_takes_about_four_times_the_steps():
    ratio = predict.steps_to(0.01, 0.1, 1.05, "mean") / predict.steps_to(0.01, 0.1, 1.05, "hit")
    assert 3.5 < ratio < 4.5


def test_predicted_slope_tends_to_one_plus_one_over_q():
    eps = 1e-6 / np.sqrt(2) ** np.arange(6)
    assert predict.slope(eps, [0.1] * 6, 1.05, "hit") == pytest.approx(1 + 1 / 1.05, abs=1e-3)
