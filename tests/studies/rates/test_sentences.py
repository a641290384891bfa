"""Sentences about measured rates, each with data for which a careless one would be false."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from bilevelbench.cli.rates import print_rates
from bilevelbench.leaderboard.claims import rate_tables
from bilevelbench.leaderboard.collect import Material
from bilevelbench.leaderboard.site import Site
from bilevelbench.report.analysis.fit import Fit, range_needed
from bilevelbench.report.analysis.rates import _KINDS, _OPTIONAL, COLUMNS, RateTable, cells, notes
from bilevelbench.results.schema import Results, curve_frame, runs_frame
from bilevelbench.studies.rates.measure import _unreached
from bilevelbench.studies.rates.plan import Point
from bilevelbench.studies.rates.sides import logarithm, necessity, noise, own_notion
from bilevelbench.studies.rates.suite import RateRow

BLANK = _OPTIONAL | {"label": "m", "setting": "deterministic", "verdict": "matches"}


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


BARE = dict.fromkeys(_KINDS) | BLANK | {"method": "m", "oracle": "HVP", "tilde": False}


def shown(**row) -> dict[str, str]:
    return dict(zip(COLUMNS, cells(BARE | row), strict=True))


@pytest.mark.parametrize(
    ("count", "said"),
    [("steps", "steps"), ("cost", "calls"), ("grad_g_y", "lower-level gradients"), ("cost / K", "calls / K")],
)
def test_slope_that_decides_stands_with_its_count_and_its_interval(count, said):
    row = shown(log_free=2.37, low_free=2.36, high_free=2.38, second_half=2.30, log_free_of=count, measured=2.14)
    assert row["decides"] == f"2.37 [2.36, 2.38] {said}"
    assert row["second half"] == "2.30 (-0.07)"


def test_row_without_a_claim_or_a_slope_has_dashes():
    row = shown()
    assert [row[name] for name in ("claimed", "expected", "decides", "second half", "calls", "range")] == ["–"] * 6


def test_row_that_was_counted_has_no_seeds():
    row = {"over": "kappa", "eps_min": 8.0, "eps_max": 64.0, "seeds": 1}
    assert shown(**row, tuned="counted, not run")["range"] == "κ 8 to 64, counted"
    assert shown(**row | {"seeds": 2})["range"] == "κ 8 to 64, 2 seeds"


def test_lower_bound_stands_beside_what_is_expected():
    assert shown(claimed=3.5, target=3.5, over="kappa", lower_bound=2.5)["expected"] == "3.50, at least 2.5"
    assert shown(claimed=3.5, target=3.5, over="kappa")["claimed"] == "O(κ³·⁵)"


def test_queries_are_told_one_by_one_where_a_property_of_the_problem_is_swept():
    columns = {"grad_g_y": [4.0, 3.9, 4.1], "jvp": [3.0, 2.9, 3.1]}
    assert "by query: grad_g_y 4.00 [3.90, 4.10], jvp 3.00 [2.90, 3.10]" in note(over="kappa", columns=columns)
    assert "by query" not in note(columns=columns)


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
    frame["message"] = ["", "", "x is not finite"]
    horizons = RateRow(method="bome", rule="horizon", set_by="steps", horizons=(6, 7), seeds=3)
    told = _unreached(64.0, frame, horizons)
    assert (told["reached"], told["message"]) == (1, "x is not finite")
    assert _unreached(64.0, frame, RateRow(method="f2ba", eps=(0.2, 0.1), seeds=3))["reached"] == 0


WEAK = {"weakened": {"text": "lam = 4", "patience": 2}, "seeds": 2}


def said(row: RateRow, values: dict[float, list[str]], slope: float | None = None) -> str:
    calls = None if slope is None else Fit(slope, slope - 0.01, slope + 0.01, slope, ())
    return necessity(row, *made(values), calls)


def test_necessity_tells_what_was_reached_and_no_more():
    row = RateRow(method="f2ba", eps=(0.2, 0.1), ratio=2**0.25, **WEAK)
    first, *rest, last = row.grid()
    good = {value: ["target", "target"] for value in (first, *rest)}
    missed = said(row, good | {last: ["target", "budget"]}, 2.0)
    # a cost that is the value itself: slope -1
    assert missed == (
        "lam = 4: slope of the calls -1.00 (the row: 2.00); 4 of 5 eps reached by all seeds within 2 times the steps of the "
        "row, 0.1 by 1 of 2"
    )
    assert said(row, {last: ["budget", "budget"]}) == (
        "lam = 4: 0 of 1 eps reached by all seeds within 2 times the steps of the row, 0.1 by 0 of 2"
    )
    everywhere = good | {last: ["target", "target"]}
    assert said(row, everywhere, 2.0).endswith("this part of the preset is not needed here")
    assert said(row, everywhere, -1.5).endswith("(the row: -1.50); all reached within 2 times the steps of the row")
    assert said(row, {}) == "not checked: the row itself reached nothing"
    assert said(RateRow(method="f2ba", eps=(0.2, 0.1)), {}) == ""


def test_necessity_of_a_horizon_is_a_slope_or_the_number_of_horizons():
    row = RateRow(method="bome", rule="horizon", set_by="steps", horizons=(5, 7), **WEAK)
    good, bad = ["budget", "budget"], ["budget", "diverged"]
    assert said(row, {32.0: good, 64.0: good, 128.0: good}, 6.0) == (
        "lam = 4: slope of the calls 4.00 (the row: 6.00), at the end 4.00"
    )
    assert said(row, {32.0: good, 64.0: good, 128.0: bad}) == (
        "lam = 4: no slope, 2 of 3 horizons were finished by all seeds"
    )


def test_own_notion_says_what_it_counted():
    horizons = RateRow(method="bome", rule="horizon", set_by="steps", horizons=(5, 6), seeds=1, own_notion="own")
    few = {32.0: ["budget"], 64.0: ["diverged"]}
    assert own_notion(horizons, *made(few)) == "own: 1 horizons finished by all seeds, too few for a slope"
    eps = RateRow(method="pbgd", eps=(0.2, 0.1), ratio=2, seeds=1, own_notion="own")
    assert (
        own_notion(eps, *made({0.2: ["target"], 0.1: ["budget"]}))
        == "own: 1 eps reached by all seeds, too few for a slope"
    )


def test_theorem_s_range_is_told_only_where_it_was_missed():
    assert "for eps below 0.00015 only" in note(verdict="outside the theorem's range", largest_eps=1.5e-4)
    assert "theorem" not in note(verdict="matches", largest_eps=16.0)


def quietly(row: RateRow, loud: float, still: float) -> str:
    """The mean accuracy of each horizon T is loud or still times T^-1/4, with a cost of T."""
    horizons = {value: ["budget"] for value in row.grid()}
    points, results = made(horizons)
    others = [Point(p.value, p.seed, SimpleNamespace(id=f"still-{p.trial.id}")) for p in points]
    runs, curve = results.runs.copy(), results.curve.copy()
    curve["mean_grad_phi"] *= loud
    runs["steps"] = runs["cost"].astype(int)
    quiet_runs, quiet_curve = runs.assign(cost=1.0), results.curve.copy()  # a batch costs one call there
    for frame in (quiet_runs, quiet_curve):
        frame["trial_id"] = "still-" + frame["trial_id"].astype(str)
    quiet_curve["mean_grad_phi"] *= still
    both = Results(pd.concat([runs, quiet_runs]), pd.concat([curve, quiet_curve]), [])
    return noise(row, points, others, both)


def test_noise_binds_only_where_it_changes_what_is_reached():
    row = RateRow(method="ttsa", rule="horizon", set_by="steps", horizons=(5, 8), seeds=1, without_noise=True)
    same = quietly(row, 1.05, 1.0)
    assert same == (
        "without noise, with the same parameters: slope of the steps 4.00 (the row: 4.00); the schedule alone gives this "
        "slope; noise was not binding"
    )
    binds = quietly(row, 1.6, 1.0)
    assert "not binding" not in binds
    assert binds.endswith(
        "and accuracy of 0.25 in place of 0.4 at the end: noise is the larger half of the squared error there, 60%"
    )
    assert quietly(row, 1.25, 1.0).endswith("noise is the smaller half of the squared error there, 35%")
    assert quietly(row, 1.0, 1.5).endswith("noise adds nothing to the error there")
    assert noise(row.model_copy(update={"without_noise": False}), [], [], made({})[1]) == ""


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (1.05, "the schedule alone gives this slope; noise was not binding"),
        (1.5, "steps of 400 in place of 600 at the end: noise is the smaller half of the squared error there, 33%"),
        (3.0, "steps of 400 in place of 1.2e+03 at the end: noise is the larger half of the squared error there, 66%"),
        (5.0, "steps of 400 in place of 2e+03 at the end: noise is the larger half of the squared error there, 80%"),
    ],
)
def test_part_of_noise_is_told_by_steps_where_the_accuracy_is_given(times, said):
    """Steps of 4/eps^2 without noise: a squared error falls as one over them, so three times as many leave a third of it."""
    row = RateRow(method="f2bsa", setting="partial", table=2, eps=(0.4, 0.1), ratio=2, seeds=1, without_noise=True)
    points, results = made({value: ["target"] for value in row.grid()})
    others = [Point(p.value, p.seed, SimpleNamespace(id=f"still-{p.trial.id}")) for p in points]
    still = results.runs.assign(steps=[round(4 / p.value**2) for p in points])
    loud = still.assign(steps=(still["steps"] * times).astype(int))
    still["trial_id"] = "still-" + still["trial_id"].astype(str)
    told = noise(row, points, others, Results(pd.concat([loud, still]), results.curve, []))
    assert told.endswith(said)


def on_a_line(eps: float, steps: float) -> dict[str, float]:
    return {"eps": eps, "steps": steps, "cost": steps * (3 + 2 * np.log(1 / eps))}


def test_logarithm_in_the_calls_of_a_step_is_fitted_and_told_with_how_far_it_is_off():
    row = RateRow(method="f2ba", eps=(0.2, 0.05), ratio=2)
    points = [on_a_line(eps, 7 / eps**2) for eps in row.grid()]
    assert logarithm(row, points) == "calls of a step: 3 +2 log(1/eps), within 1%"
    points[1]["cost"] *= 1.05
    assert logarithm(row, points).endswith("within 5%")
    points[1]["cost"] *= 1.3
    assert logarithm(row, points) == ""
    powers = [p | {"cost": p["steps"] / p["eps"] ** 2} for p in points]
    assert logarithm(row, powers) == ""  # a batch grows by a power
    assert logarithm(row, [p | {"cost": 5 * p["steps"]} for p in points]) == ""


def needed(said, points, slopes=None, horizons=False) -> str:
    return range_needed(said, points, slopes, "eps", horizons)


def test_range_that_a_verdict_would_take_is_computed():
    points = [{"eps": eps, "cost": eps**-3} for eps in (0.4, 0.2, 0.1)]
    assert needed("unmeasured", points) == (
        "for a verdict it would take 4 values reached by all seeds: to eps 0.05, about 8.0e+03 calls in each trial there"
    )
    assert needed("not straight", points, (3.0, 3.5)) == (
        "for a verdict it would take a range as long that starts where the second half does: to eps 0.05, about 1.1e+04 "
        "calls in each trial there"
    )
    assert needed("matches", points, (3.0, 3.5)) == needed("matches", points[:1]) == ""
    assert needed("unmeasured", points[:1]) == (
        "for a verdict it would take 4 values reached by all seeds, and too few were to tell their cost"
    )


def test_range_that_a_verdict_would_take_is_printed_under_the_table_and_on_the_page():
    row = BARE | {"verdict": "unmeasured", "needed": "for a verdict it would take more"}
    console = Console(file=io.StringIO(), width=160)
    print_rates(console, "t", [row])
    assert "m: for a verdict it would take more" in console.file.getvalue()
    (shown,) = rate_tables(Site(Material({}, [RateTable("t", [row], Path())]), "make page"))
    assert shown["notes"] == ["m: for a verdict it would take more"]


def test_range_of_horizons_that_a_verdict_would_take_is_computed():
    """Four horizons with a factor of two in accuracy from one to the next: two more make a quarter of it."""
    points = [{"eps": eps, "cost": eps**-2} for eps in (0.8, 0.4, 0.2, 0.1)]
    assert needed("unmeasured", points, horizons=True) == (
        "for a verdict it would take 6 horizons finished by all seeds: to eps 0.025, about 1.6e+03 calls in each trial there"
    )
