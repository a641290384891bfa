"""Claims: what the kit demands of one, and what is said of one that is in no table of the paper."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bilevelbench_methods.implicit.soba import SOBA
from bilevelbench_methods.implicit.spaba import SPABA
from bilevelbench_methods.implicit.stocbio import StocBiO

from bilevelbench import Claim, InvalidInput
from bilevelbench.discovery.catalogue import describe
from bilevelbench.discovery.registry import registry
from bilevelbench.leaderboard.settings import SETTINGS
from bilevelbench.studies.rates.measure import claim_of
from bilevelbench.studies.rates.suite import RateRow
from bilevelbench.testing.checks.algorithm import check_claims
from bilevelbench.testing.outcome import Failure

SUM = Claim(
    setting="finite_sum", oracle="HVP", eps_exp=2, n_exp=0.5, source="other paper", reference="Somebody 2024",
    mean_squared_smooth=True,
)  # fmt: skip


def checked(claim: Claim) -> None:
    check_claims(type("Claiming", (SOBA,), {"claims": (claim,)})())


def test_a_claim_of_another_paper_about_a_finite_sum_is_well_formed() -> None:
    checked(SUM)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n_exp": -1}, "the claim of finite_sum to be well formed; saw n_exp = -1"),
        ({"setting": "full"}, "n_exp = 0.5 in the setting 'full'; only a finite sum has a number of data"),
        ({"source": "paper"}, "saw source = 'paper' and no table; say which table"),
        ({"table": 0}, "saw table = 0; tables are counted from 1"),
        ({"oracle": "value"}, "saw oracle = 'value' beside second-order queries in `uses`; say oracle='HVP'"),
        ({"setting": "sum"}, "values of the right kind; saw setting = 'sum'"),
        ({"oracle": "values"}, "values of the right kind; saw oracle = 'values'"),
    ],
)
def test_what_a_claim_may_not_say(change: dict, said: str) -> None:
    with pytest.raises(Failure) as failure:
        checked(replace(SUM, **change))
    assert said in str(failure.value)


def test_it_is_told_without_a_table() -> None:
    text = describe(registry(), "spaba").as_text()
    assert "Claims (finite_sum): n^0.5 eps^-2 (other paper), for mean-squared smooth samples; Chu, Xu, Yao" in text
    assert "Claims (full): eps^-3 (other paper), for mean-squared smooth samples; Chu, Xu, Yao, Zhang 2024" in text
    assert "None" not in text.split("Claims")[1]
    assert "Claims (table 2, full): eps^-4 (paper)" in describe(registry(), "stocbio").as_text()


def test_a_row_of_rates_finds_the_claim_of_its_table_or_the_one_that_is_in_none() -> None:
    def claim(cls, **row):
        return claim_of(cls, RateRow(method=cls.name, eps=(0.2, 0.1), **row))

    assert claim(StocBiO, table=2, setting="full").table == 2
    assert claim(SPABA, setting="finite_sum").n_exp == 0.5
    assert claim(SPABA, setting="full").eps_exp == 3
    for cls, row in ((StocBiO, {"setting": "full"}), (SPABA, {"setting": "partial"})):
        with pytest.raises(InvalidInput, match=f"{cls.name} claims nothing for table 1, setting '{row['setting']}'"):
            claim(cls, table=1, **row)
    assert claim(StocBiO, setting="full").table == 2
    assert claim(SPABA, setting="partial") is None


def test_a_board_counts_it_where_it_holds() -> None:
    def boards(claim: Claim) -> set[str]:
        said = {"table": claim.table, "setting": claim.setting}
        return {name for name, setting in SETTINGS.items() if setting.covers(said)}

    assert boards(SUM) == {"finite-sum"}
    assert boards(replace(SUM, setting="full")) == {"full", "finite-sum"}
    assert boards(replace(SUM, setting="deterministic")) == {"deterministic"}
    assert boards(replace(SUM, setting="deterministic", table=3)) == {"deterministic", "second-order"}
