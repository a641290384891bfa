"""Methods that went the same way are one row; seeds that changed nothing are one curve."""

from __future__ import annotations

import made
import numpy as np
import pytest

from bilevelbench.report.analysis.coinciding import curve_numbers, merged
from bilevelbench.report.analysis.intervals import ranking

FAST, SLOW = [(0, 0, 2.0), (10, 2, 0.05)], [(0, 0, 2.0), (30, 6, 0.05)]


def trials(label, curve, **more):
    return [{"label": label, "curve": curve, "seed": seed} | more for seed in (0, 1)]


def test_methods_with_one_curve_are_one_row():
    data = made.results(*trials("prahgd", FAST), *trials("rahgd", FAST), *trials("aid", SLOW))
    one = merged(data)
    assert one.members == {"rahgd": ["rahgd", "prahgd"]}
    assert one.label("rahgd") == "rahgd = prahgd"
    assert one.label("aid") == "aid"
    assert one.sentence("rahgd") == "rahgd = prahgd here: their curves coincide on every problem."
    board = ranking(data, [0.1])
    assert list(board["method"]) == ["rahgd = prahgd", "aid"]
    assert list(board["rank"]) == [1, 2]  # not 1.5, 1.5 and 3
    assert curve_numbers(data).nunique() == 2  # of six trials


def test_no_kick_is_a_reason_and_a_kick_is_none():
    data = made.results(*trials("prahgd", FAST), *trials("rahgd", FAST))
    data.curve["kicks"] = np.where(data.curve["trial_id"].isin(["t000", "t001"]), 0.0, np.nan)
    assert merged(data).sentence("rahgd").endswith("on every problem, since no kick was needed.")
    data.curve.loc[1, "kicks"] = 1.0
    assert merged(data).sentence("rahgd").endswith("on every problem.")


def test_methods_that_never_left_the_start_coincide_there():
    data = made.results(*trials("a", FAST[:1], status="error"), *trials("b", FAST[:1], status="error"))
    assert merged(data).sentence("a") == (
        "a = b here: their curves coincide on every problem, none of which goes beyond the start."
    )


@pytest.mark.parametrize(
    ("other", "same"),
    [
        pytest.param({"curve": [(0, 0, 2.0), (10, 2, 0.05 * (1 + 1e-13))]}, True, id="rounding"),
        pytest.param({"curve": [(0, 0, 2.0), (10, 2, 0.05 * (1 + 1e-11))]}, False, id="gradient"),
        pytest.param({"curve": [(0, 0, 2.0), (11, 1, 0.05)]}, False, id="other calls at one cost"),
        pytest.param({"curve": [*FAST, (40, 2, 0.01)]}, False, id="goes on"),
        pytest.param({"curve": FAST, "status": "diverged"}, False, id="failed"),
        pytest.param({"curve": FAST, "problem": "ridge"}, False, id="another problem"),
    ],
)
def test_what_makes_a_curve_another(other, same):
    data = made.results({"label": "a", "curve": FAST, "seed": 0}, {"label": "b", "seed": 0} | other)
    assert (curve_numbers(data).nunique() == 1) == same
    assert bool(merged(data).members) == same


def test_one_trial_that_differs_keeps_methods_apart():
    data = made.results(
        *trials("a", FAST), {"label": "b", "curve": FAST, "seed": 0}, {"label": "b", "curve": SLOW, "seed": 1}
    )
    assert merged(data).members == {}


def test_trials_without_a_curve_coincide_with_nothing():
    data = made.results(
        {"label": "a", "curve": []}, {"label": "b", "curve": []}, {"label": "c", "curve": [(0, 0, np.nan)]}
    )
    assert curve_numbers(data).nunique() == 3
    assert merged(data).members == {}
