"""Sentences about measured rates, each with data for which a careless one would be false."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from bilevelbench.report.analysis.rates import _OPTIONAL, notes
from bilevelbench.results.schema import Results, curve_frame, runs_frame
from bilevelbench.studies.rates.measure import _necessity, _own, _unreached
from bilevelbench.studies.rates.plan import Point
from bilevelbench.studies.rates.suite import RateRow

BLANK = _OPTIONAL | {"label": "m", "setting": "deterministic"}


def note(**row) -> str:
    (text,) = notes([BLANK | row])
    return text


@pytest.mark.parametrize(
    ("success", "said"),
    [(1.0, "100% of"), (0.996, "99% of"), (0.29, "29% of"), (0.004, "less than 1% of"), (0.0, "0% of")],
)
def test_all_is_said_of_all_and_none_of_none(success, said):
    assert f": {said} the trials reached their accuracy" in note(success=success)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"rule": "hit"}, "not fitted: eps 0.05, reached by 3 of 4 seeds"),
        ({"rule": "horizon"}, "not fitted: horizon 0.05, finished by 3 of 4 seeds"),
        ({"rule": "hit", "over": "kappa"}, "not fitted: kappa 0.05, reached by 3 of 4 seeds"),
    ],
)
def test_what_was_not_fitted_is_named_by_its_grid(row, said):
    assert said in note(unreached=[{"value": 0.05, "reached": 3, "seeds": 4}], **row)


def test_count_of_the_verdict_is_named_where_it_is_neither_steps_nor_calls():
    assert "which the verdict is about" not in note(log_free=1.9, log_free_of="steps")
    assert "lower-level gradients 2.37, which the verdict is about" in note(log_free=2.37, log_free_of="grad_g_y")


def made(values: dict[float, list[str]]) -> tuple[list[Point], Results]:
    """A trial for each grid value and status; horizons have the accuracy T^-1/4."""
    points, runs, curve = [], [], []
    for value, statuses in values.items():
        for seed, status in enumerate(statuses):
            name = f"{value}-{seed}"
            points.append(Point(value, seed, SimpleNamespace(id=name)))
            runs.append(
                {
                    "trial_id": name,
                    "algorithm": "a",
                    "problem": "p",
                    "seed": seed,
                    "status": status,
                    "steps": 10,
                    "cost": value,
                }
            )
            reached = np.nan if status == "diverged" else value**-0.25
            curve.append({"trial_id": name, "step": 0, "mean_grad_phi": reached, "own": reached})
    return points, Results(runs_frame(runs), curve_frame(curve), [])


def test_horizon_that_one_seed_did_not_finish_counts_the_others():
    frame = pd.DataFrame({"status": ["budget", "budget", "diverged"], "accuracy": [0.1, np.nan, 0.1]})
    assert _unreached(64.0, frame, 3, horizons=True)["reached"] == 1
    assert _unreached(64.0, frame, 3, horizons=False)["reached"] == 0


WEAK = {"weakened": {"text": "lam = 4", "patience": 2}, "seeds": 2}


def said(row: RateRow, values: dict[float, list[str]]) -> str:
    return _necessity(row, *made(values), row.rule == "horizon")


def test_necessity_tells_what_was_reached_and_no_more():
    row = RateRow(method="f2ba", eps=(0.2, 0.1), **WEAK)
    missed = said(row, {0.14: ["target", "target"], 0.1: ["target", "budget"]})
    assert missed.startswith(
        "lam = 4: eps 0.14 by 2 of 2, 0.1 by 1 of 2 seeds within 2 times the most steps of the row; "
    )
    assert missed.endswith("it takes longer or never gets there")
    assert said(row, {0.1: ["target", "target"]}).endswith("this part of the preset is not needed here")
    assert said(row, {}) == "not checked: the row itself reached nothing"
    assert said(RateRow(method="f2ba", eps=(0.2, 0.1)), {}) == ""


def test_necessity_of_a_horizon_is_a_slope_or_the_number_of_horizons():
    row = RateRow(method="bome", rule="horizon", set_by="steps", horizons=(5, 8), **WEAK)
    good, bad = ["budget", "budget"], ["budget", "diverged"]
    assert said(row, {32.0: good, 64.0: good, 128.0: good}) == "lam = 4: slope 4.00, at the end 4.00"
    assert said(row, {32.0: good, 64.0: good, 128.0: bad}) == (
        "lam = 4: no slope, 2 of 3 horizons were finished by all seeds"
    )


def test_own_notion_says_what_it_counted():
    horizons = RateRow(method="bome", rule="horizon", set_by="steps", horizons=(5, 6), seeds=1, own_notion="own")
    few = {32.0: ["budget"], 64.0: ["diverged"]}
    assert _own(horizons, *made(few)) == "own: 1 horizons finished by all seeds, too few for a slope"
    eps = RateRow(method="pbgd", eps=(0.2, 0.1), ratio=2, seeds=1, own_notion="own")
    assert (
        _own(eps, *made({0.2: ["target"], 0.1: ["budget"]})) == "own: 1 eps reached by all seeds, too few for a slope"
    )
