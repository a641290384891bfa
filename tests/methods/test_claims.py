"""The claims of the built-in methods against the paper's three tables, theorems, proofs and notes, and against other papers."""

from __future__ import annotations

import pytest

from bilevelbench.discovery.registry import registry

# (table, setting): method -> oracle, exponent of 1/eps, whether the tables print a tilde
PRINTED = {
    (1, "deterministic"): {
        "ba": ("HVP", 2.5, False), "aid": ("HVP", 2, False), "itd": ("HVP", 2, True), "pzobo": ("gradient", 4, True),
        "bome": ("gradient", 6, True), "pbgd": ("gradient", 3, True), "f2sa": ("gradient", 3, True),
        "f2ba": ("gradient", 2, True),
    },
    (2, "partial"): {
        "bsa": ("HVP", 6, False), "ttsa": ("HVP", 5, False), "stocbio": ("HVP", 4, True),
        "pzobo_s": ("gradient", 8, True), "f2sa": ("gradient", 5, True), "f2bsa": ("gradient", 4, True),
        "f3bsa": ("gradient", 4, True),
    },
    (2, "full"): {
        "bsa": ("HVP", 6, False), "ttsa": ("HVP", 5, False), "stocbio": ("HVP", 4, False),
        "pzobo_s": ("gradient", 8, True), "f2sa": ("gradient", 7, True), "f2bsa": ("gradient", 6, True),
        "f3bsa": ("gradient", 6, True),
    },
    (3, "deterministic"): {
        "paid": ("HVP", 2, True), "prahgd": ("HVP", 1.75, True), "pf2ba": ("gradient", 2, True),
        "acc_f2ba": ("gradient", 1.75, True),
    },
}  # fmt: skip

# method, setting: exponent of kappa, and who says it. AID and ITD: the text after Theorem 1. The others have none.
KAPPA = {
    ("aid", "deterministic"): (4, "paper"),
    ("itd", "deterministic"): (4, "paper"),
    ("f2ba", "deterministic"): (4, "paper"),
    ("f2bsa", "partial"): (6, "paper"),
    ("f2bsa", "full"): (12, "paper"),
    ("f3bsa", "partial"): (5, "paper"),
    ("f3bsa", "full"): (11, "paper"),
    ("pf2ba", "deterministic"): (4, "paper"),
    ("acc_f2ba", "deterministic"): (3.75, "paper"),
    ("prahgd", "deterministic"): (3.25, "other paper"),
}

# method: power of the logarithm, and who says it. The paper prints those of its theorems and, in its discussion of single
# time scales, of PBGD and the deterministic F2SA. Its proofs have iota^4 and chi^6 steps, each of log lower-level steps.
LOGS = {
    ("f2ba", 1): (1, "paper"),
    ("f2bsa", 2): (1, "paper"),
    ("pbgd", 1): (1, "paper"),
    ("f2sa", 1): (1, "paper"),
    ("f3bsa", 2): (2, "derived"),
    ("paid", 3): (5, "derived"),
    ("pf2ba", 3): (5, "derived"),
    ("prahgd", 3): (7, "derived"),
    ("acc_f2ba", 3): (7, "derived"),
    ("itd", 1): (1, "other paper"),
    ("pzobo", 1): (1, "other paper"),
    ("bome", 1): (1, "other paper"),
    ("stocbio", 2): (1, "other paper"),
    ("pzobo_s", 2): (1, "other paper"),
    ("f2sa", 2): (1, "other paper"),
}


# (method, setting): exponents of 1/eps, of the number of data and of kappa; whether there is a tilde and whether samples have
# to be Lipschitz on average. What other papers say, in the unit |grad phi| <= eps.
ELSEWHERE = {
    ("f2ba_plus", "deterministic"): (2, None, 3.5, True, False),
    ("acc_f2ba_plus", "deterministic"): (1.75, None, None, True, False),
    ("f2sa_p", "full"): (5, None, 10, True, False),
    ("hjfbio", "deterministic"): (2, None, None, False, False),
    ("fdehbo", "full"): (3, None, None, True, True),
    ("meha", "deterministic"): (4, None, None, False, False),
    ("soba", "full"): (4, None, 7, False, False),
    ("ma_soba", "full"): (4, None, None, False, False),
    ("saba", "finite_sum"): (2, 2 / 3, None, False, False),
    ("srba", "finite_sum"): (2, 1 / 2, None, False, False),
    ("spaba", "finite_sum"): (2, 1 / 2, None, False, True),
    ("spaba", "full"): (3, None, None, False, True),
    ("srmba", "full"): (3, None, None, True, True),
}


def claims(in_a_table=True):
    return [
        (name, claim)
        for name, entry in registry().algorithms.items()
        if entry.plugin.startswith("bilevelbench") and "example" not in entry.plugin
        for claim in entry.value.claims
        if (claim.table is not None) == in_a_table
    ]


@pytest.mark.parametrize("place", ELSEWHERE, ids="-".join)
def test_claims_of_other_papers_are_theirs_and_say_so(place):
    (claim,) = (claim for name, claim in claims(in_a_table=False) if (name, claim.setting) == place)
    eps, n, kappa, tilde, smooth = ELSEWHERE[place]
    assert (claim.eps_exp, claim.n_exp, claim.kappa_exp) == (eps, n, kappa)
    assert (claim.tilde, claim.mean_squared_smooth) == (tilde, smooth)
    assert claim.oracle == ("gradient" if registry().algorithm(place[0]).value.first_order() else "HVP")
    assert claim.source == "other paper"
    assert claim.kappa_exp is None or claim.kappa_source == "other paper"
    assert claim.reference
    assert claim.place == claim.setting


def test_every_row_of_the_tables_has_one_claim_and_there_are_no_others():
    said = sorted((c.table, c.setting, name) for name, c in claims())
    assert said == sorted((*place, name) for place, rows in PRINTED.items() for name in rows)


@pytest.mark.parametrize(("name", "claim"), [pytest.param(n, c, id=f"{n}-{c.table}-{c.setting}") for n, c in claims()])
def test_claim_is_what_is_printed_and_says_who_says_the_rest(name, claim):
    oracle, exponent, tilde = PRINTED[claim.table, claim.setting][name]
    assert (claim.oracle, claim.eps_exp, claim.source) == (oracle, exponent, "paper")
    assert claim.tilde == tilde or "printed without the tilde" in claim.footnote
    kappa, kappa_source = KAPPA.get((name, claim.setting), (None, "paper"))
    assert (claim.kappa_exp, claim.kappa_source) == (kappa, kappa_source)
    power, log_source = LOGS.get((name, claim.table), (0, "paper"))
    assert (claim.log_power, claim.log_source) == (power, log_source)
    assert claim.reference


def test_bome_and_pbgd_have_the_note_of_the_paper():
    """Note (a) is one for both: stationarity of the penalty function at lam ~ 1/eps, hence O(kappa eps) of phi."""
    for name in ("bome", "pbgd"):
        (claim,) = registry().algorithm(name).value.claims
        assert "eps-stationarity of f + lam (g - g*) jointly in (x, y) with lam ~ 1/eps" in claim.footnote
        assert "implies |grad phi| = O(kappa eps)" in claim.footnote
        assert "not for |grad phi|" not in claim.footnote
