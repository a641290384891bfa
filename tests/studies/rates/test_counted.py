"""Rows that are counted: the exponents of a preset's cost, and of its factors, by arithmetic alone."""

from __future__ import annotations

import pytest

from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput
from bilevelbench.report.analysis.rates import notes
from bilevelbench.studies.rates.counted import measure_counted
from bilevelbench.studies.rates.study import run_rates
from bilevelbench.studies.rates.suite import RateRow, RateSuite

KAPPA = RateSuite.load(registry().suite("rates_kappa"))
COUNTED = [pytest.param(row, id=f"{row.method}-{row.setting}") for row in KAPPA.row if row.counted]


def nothing(trials):
    assert not trials, "a counted row runs nothing"


@pytest.mark.parametrize("row", COUNTED)
def test_theory_presets_cost_what_their_theorems_say(row):
    found = measure_counted(row, KAPPA, registry())
    assert found.verdict == "matches"
    assert found.measured == pytest.approx(found.claimed, abs=0.25)
    assert found.measured == pytest.approx(sum(slope for slope, *_ in found.columns.values()))


@pytest.mark.parametrize("off", [-0.5, 0.5])
def test_preset_with_another_power_does_not_match(off):
    row = next(row for row in KAPPA.row if row.counted and row.method == "f2ba")
    wrong = row.model_copy(update={"counted": row.counted | {"kappa": 1 + off}})
    said = measure_counted(wrong, KAPPA, registry()).verdict
    assert said == ("slower than claimed" if off > 0 else "faster than claimed")


def test_counted_rows_stand_in_their_place_and_run_nothing():
    row = RateRow(method="f2ba", eps=(0.2, 0.01), preset="rate", counted={"eta_x": -1, "lam": 1}, seeds=1)
    suite = RateSuite(title="t", row=(row,))
    (found,) = run_rates(suite, registry(), nothing)
    assert found.measured == pytest.approx(1)
    assert found.columns["eta_x^-1"][0] == pytest.approx(0)
    swept = found.as_dict() | {"over": "kappa"}
    assert "by factor: eta_x^-1 0.00 [0.00, 0.00], lam 1.00 [1.00, 1.00]; counted, not run" in notes([swept])[
        0
    ].replace("-0.00", "0.00")


@pytest.mark.parametrize(
    ("setting", "slopes"),
    [
        ("partial", {"eta_x^-1": 3, "kappa": 1, "B_in/B_out": 2, "B_out": 0}),
        ("full", {"eta_x^-1": 3, "kappa": 1, "B_in/B_out": 2, "lam^2": 6}),
    ],
)
def test_factors_of_f2bsa_are_those_of_its_theorem(setting, slopes):
    row = next(row for row in KAPPA.row if row.counted and (row.method, row.setting) == ("f2bsa", setting))
    found = measure_counted(row, KAPPA, registry())
    assert {name: round(slope) for name, (slope, *_) in found.columns.items()} == slopes


def test_factor_that_the_preset_does_not_set_is_named():
    row = RateRow(method="f2ba", eps=(0.2, 0.01), preset="rate", counted={"eta": -1})
    with pytest.raises(InvalidInput, match=r"counted: the preset of f2ba sets no 'eta'.*eta_x"):
        measure_counted(row, RateSuite(title="t", row=(row,)), registry())
