"""The slope that a claim predicts on the tail, row by row of the bundled suites, and the verdicts around it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bilevelbench import Constants
from bilevelbench.discovery.registry import registry
from bilevelbench.report.analysis import predict
from bilevelbench.report.analysis.fit import Fit, verdict
from bilevelbench.report.analysis.rates import read_rates
from bilevelbench.studies.rates.measure import claim_of, exponent_of, target_of
from bilevelbench.studies.rates.study import drift_of
from bilevelbench.studies.rates.suite import RateRow, RateSuite

SUITES = {
    name: RateSuite.load(registry().suite(name)) for name in sorted(registry().suites) if name.startswith("rates_")
}
ROWS = [
    pytest.param(row, suite, id=f"{name[6:]}-{row.label or row.method}-{row.setting}")
    for name, suite in SUITES.items()
    for row in suite.row
]
PUBLISHED = sorted((Path(__file__).parents[3] / "leaderboard" / "results" / "official").glob("rates*/rates.json"))

# Presets set by eps: steps on the tail are eps^-(1 + 1/q) over the step, times samples a step. The power of 1/eps beyond.
BEYOND = {
    "aid": 0, "itd": 0, "f2ba": 0, "paid": 0, "pf2ba": 0,
    "pbgd": 1, "f2sa": 1,  # eta ~ eps
    "stocbio": 2, "f2bsa": {"partial": 2, "full": 4},  # batches
    "f3bsa": {"partial": 2, "full": 4},  # eta ~ eps^2, eps^4
    "prahgd": -1 / 4, "acc_f2ba": -1 / 4,  # momentum
    "amigo": 2, "vrbo": 1,  # batches, and those of differences
    "f2sa_p, p = 2": 3, "f2sa_p, p = 3": 2 + 2 / 3, "f2sa_p, p = 4": 2.5,  # batches ~ (lam/eps)^2, lam ~ eps^-1/p
}  # fmt: skip

# Presets set by the steps T: (c, s) for a cost of T^c and a step of T^-s. T T^-s = u^(1+q) and the accuracy is u^-q.
OF_STEPS = {
    "ba": (5 / 4, 0), "pzobo": (1, 1 / 2), "bome": (1, 2 / 3), "bsa": (3 / 2, 1 / 2), "ttsa": (1, 3 / 5),
    "pzobo_s": (2, 1 / 2), "f2sa": {"partial": (1, 3 / 5), "full": (1, 5 / 7)},
    "soba": (1, 1 / 2), "ma_soba": (1, 1 / 2), "fsla": (1, 1 / 2),
    "srmba": (1, 1 / 3), "fdehbo": (1, 1 / 3), "mrbo": (1, 1 / 3), "sustain": (1, 1 / 3),
}  # fmt: skip

# What is swept at one eps: steps, times the calls or samples of one. Of A3 instances none needs more than kappa^2.5 steps.
SWEPT = {
    "kappa": {
        "aid": 3 + 1, "itd": 3 + 1, "f2ba": 3 + 1, "f2ba_plus": 3 + 1 / 2,
        "f2bsa": {"partial": 3 + 1 + 2, "full": 3 + 1 + 2 + 6}, "f3bsa": {"partial": 3 + 2, "full": 3 + 6 + 2},
        "pf2ba": 3 + 1, "acc_f2ba": 3 - 1 / 4 + 1, "prahgd": 3 - 1 / 4 + 1 / 2,
        "pf2ba, tuned": 2.5 + 1, "acc_f2ba, tuned, no restarts": 2.5 - 1 / 4 + 1,
        "prahgd, tuned, no restarts": 2.5 - 1 / 4 + 1 / 2,
    },
    "n": {"saba": 2 / 3, "srba": 1 / 2, "spaba": 1 / 2},
    "dim_x": {"pzobo": 2},
}  # fmt: skip
#: Rows about which nobody claims anything.
UNCLAIMED = {("kappa", "ba"), ("kappa", "f2sa"), ("n", "aid"), ("dim_x", "f2ba"), ("dim_x", "aid")}


def exact_slope(row: RateRow, q: float | None) -> float:
    """Of a run that costs what the method's theorem says, on the tail of exponent q; where there is none, as if q were 1."""
    table = SWEPT[row.sweep] if row.sweep else OF_STEPS if row.set_by == "steps" else BEYOND
    found = table[row.label if row.label in table else row.method]
    found = found[row.setting] if isinstance(found, dict) else found
    if row.sweep:
        return found
    q = q or 1.0
    if row.set_by == "eps":
        return 1 + 1 / q + found
    cost, step = found
    return cost * (1 + q) / ((1 - step) * q)


def said(row: RateRow, q: float | None, off: float = 0.0, bend: float = 0.0, points: int = 9) -> str:
    claimed = exponent_of(claim_of(registry().algorithm(row.method).value, row), row)
    slope = exact_slope(row, q) + off
    found = Fit(slope, slope - 0.01, slope + 0.01, slope + bend, ())
    return verdict(found, claimed, target_of(claimed, row, q), points, row.rule == "horizon")


@pytest.mark.parametrize("q", [1.05, 1.3, 2.0])
@pytest.mark.parametrize(("row", "suite"), ROWS)
def test_exact_slope_matches_and_others_do_not(row, suite, q):
    if (row.sweep, row.method) in UNCLAIMED:
        assert exponent_of(claim_of(registry().algorithm(row.method).value, row), row) is None
        return
    q = None if drift_of(suite, row, registry()) is None else q  # without a tail the claim itself is expected
    assert said(row, q) == "matches"
    assert said(row, q, off=0.4) == "slower than claimed"
    assert said(row, q, off=-0.4) == "faster than claimed"
    assert said(row, q, bend=0.4) == said(row, q, bend=-0.4) == "not straight"
    assert said(row, q, points=3) == "unmeasured"


@pytest.mark.parametrize("q", [1.3, 2.0])
@pytest.mark.parametrize("method", ["f2sa", "f2bsa", "stocbio"])
def test_rule_of_the_other_kind_raises_a_false_alarm(method, q):
    """What a row of eps showed where `claimed (1 + 1/q)/2` was expected of it."""
    row = next(r for n in "12" for r in SUITES[f"rates_table{n}"].row if r.method == method and r.set_by == "eps")
    claimed = claim_of(registry().algorithm(method).value, row).eps_exp
    slope = exact_slope(row, q)
    found = Fit(slope, slope - 0.01, slope + 0.01, slope, ())
    assert verdict(found, claimed, predict.asymptotic(claimed, "steps", q), 9, False) == "slower than claimed"


@pytest.mark.parametrize("q", [1.05, 1.3, 2.0])
@pytest.mark.parametrize(("method", "claimed"), [("f2ba", 2), ("f2sa", 3), ("pbgd", 3)])
def test_expected_slope_is_what_quadrature_gives_for_the_preset_at_small_eps(method, claimed, q):
    constants = Constants({"mu": 1, "L_g": 4, "L_gy": 2, "L_f": 1, "C_f": 2, "rho_g": 0, "rho_f": 1, "L_phi": 1})
    eps = 1e-6 / np.sqrt(2) ** np.arange(6)
    etas = [registry().algorithm(method).value.from_rate(constants, float(e)).x_step() for e in eps]
    slope = predict.slope(eps, etas, q, "mean")
    assert predict.asymptotic(claimed, "eps", q) == pytest.approx(slope, abs=2e-3)


@pytest.mark.parametrize("claimed", [2.0, 2.5, 6.0])
def test_condition_number_is_swept_at_one_eps_where_the_tail_plays_no_part(claimed):
    assert predict.asymptotic(claimed, "sweep", 1.05) == claimed


def test_tail_exponent_is_that_of_the_row_s_own_instance():
    suite = SUITES["rates_table1"]
    row = RateRow(method="f2ba", eps=(0.2, 0.1))
    assert drift_of(suite, row, registry()) == 1.05
    assert drift_of(suite, row.model_copy(update={"problem": {"q": 1.3}}), registry()) == 1.3
    assert drift_of(suite, row.model_copy(update={"on": "quadratic"}), registry()) is None


@pytest.mark.parametrize("set_by", ["eps", "steps", "sweep"])
def test_problem_that_knows_no_drift_is_held_against_the_claim_itself(set_by):
    assert predict.asymptotic(3.0, set_by, None) == 3.0


# ---- files from before rows named their rule


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_published_rows_are_judged_by_their_rule(path):
    rows = read_rates(path).rows
    for row, before in zip(rows, json.loads(path.read_text())["rows"], strict=True):
        assert row["measured"] == before["measured"]
        if row["over"] != "eps":
            assert row["set_by"] == "sweep"
            assert (row["target"] is None) == (row["claimed"] is None)
            continue
        expected = predict.asymptotic(row["claimed"], row["set_by"], 1.05)
        assert row["target"] == pytest.approx(expected)
        assert (row["set_by"] == "steps") == (row["method"] == "ba" or row["rule"] == "horizon")


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_published_row_has_a_verdict_or_the_range_that_one_would_take(path):
    for row in read_rates(path).rows:
        assert row["verdict"] not in ("unmeasured", "not straight") or row["needed"], row["label"]


def test_published_tables():
    assert {path.parent.name for path in PUBLISHED} >= {"rates1", "rates2", "rates3", "rates_kappa"}


def old_row(**changes) -> dict:
    return {
        "table": 1, "method": "f2sa", "label": "f2sa", "setting": "deterministic", "oracle": "gradient", "claimed": 3.0,
        "tilde": True, "target": 2.93, "verdict": "matches", "measured": 2.9, "low": 2.89, "high": 2.91, "rule": "mean",
        "measured_steps": 2.9, "low_steps": 2.89, "high_steps": 2.91, "eps_max": 0.4, "eps_min": 0.05, "log_free": 2.9,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "target", "word"),
    [
        ({}, 2.952, "matches"),
        ({"high_steps": 2.84, "low_steps": 2.82}, 2.952, "faster than claimed"),  # above 2.83, as they had it
        ({"low_steps": 3.04, "high_steps": 3.05, "verdict": "slower than claimed"}, 2.952, "matches"),
        ({"low_steps": 3.04, "high_steps": 3.05, "rule": "horizon"}, 2.929, "matches"),
        ({"verdict": "not straight", "high_steps": 1.0}, 2.952, "not straight"),
        ({"log_free_of": "cost", "low": 3.2, "high": 3.3}, 2.952, "slower than claimed"),
        ({"log_free_of": "cost / K", "low": 3.2, "high": 3.3, "measured": 3.25, "log_free": 2.95}, 2.952, "matches"),
        ({"over": "kappa", "rule": "hit"}, 3.0, "matches"),
        ({"low": None, "high": None, "measured": None}, 2.952, "matches"),
        ({"log_free": None}, 2.952, "matches"),
    ],
)
def test_row_of_an_older_file_gets_the_expected_slope_of_its_rule_and_a_verdict_on_it(changes, target, word, tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"title": "t", "rows": [old_row(**changes)]}))
    (row,) = read_rates(path).rows
    assert row["target"] == pytest.approx(target, abs=1e-3)
    assert row["verdict"] == word


def test_row_of_an_older_file_calls_nothing_needed(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"title": "t", "rows": [old_row(necessity="lam = 1: 0.05 by 0 of 16 seeds; needed")]}))
    (row,) = read_rates(path).rows
    assert row["necessity"] == "lam = 1: 0.05 by 0 of 16 seeds"


def test_row_that_names_its_rule_is_read_as_it_is(tmp_path):
    path = tmp_path / "rates.json"
    given = old_row(set_by="eps", q=1.3, target=2.77, verdict="slower than claimed")
    path.write_text(json.dumps({"title": "t", "rows": [given]}))
    (row,) = read_rates(path).rows
    assert (row["target"], row["verdict"]) == (2.77, "slower than claimed")
