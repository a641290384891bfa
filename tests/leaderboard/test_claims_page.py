"""The claims figure of the page and its files."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace

import pytest
from leaderboard_data import FACTS, RATE, UNMEASURED, make_results
from typer.testing import CliRunner

from bilevelbench.cli.app import app
from bilevelbench.errors import InvalidInput
from bilevelbench.execute.environment import environment
from bilevelbench.leaderboard.build import write_site
from bilevelbench.leaderboard.claims import beside, pictures, rate_plot, rate_tables
from bilevelbench.leaderboard.collect import Material
from bilevelbench.leaderboard.facts import merged_facts, read_facts
from bilevelbench.leaderboard.links import Links, citation
from bilevelbench.leaderboard.site import Site
from bilevelbench.report.analysis.rates import read_rates

TITLED = {"methods": {**FACTS["methods"], "gd": {**FACTS["methods"]["gd"], "title": "G²D"}}}


def site(folder, *rows, facts=TITLED):
    (folder / "rates.json").write_text(json.dumps({"title": "Table 1", "rows": list(rows)}))
    results = make_results({"gd": (3, 0, 1.0)}, {"bowl": {}}, seeds=2)
    return Site(Material({"default": results}, [read_rates(folder / "rates.json")], facts), "make page")


def test_a_row_has_the_name_the_family_and_the_page_of_its_method(tmp_path):
    table = rate_tables(site(tmp_path, RATE, UNMEASURED))[0]
    ours, stranger = table["rows"]
    assert (ours["name"], ours["family"], ours["page"]) == ("G²D", "penalty", "method/gd.html")
    assert ours["claim"] == "Õ(ℓ ε⁻²)"
    assert ours["mark"]["number"] == "1.95"
    assert stranger["page"] == ""  # measured, and on no board
    assert stranger["mark"]["dot"] is stranger["mark"]["beside"] is None
    assert table["over"] == "1/ε"


@pytest.mark.parametrize("made", ["", "2026-11-18, commit 0123, on M, 2 cores", "<script>alert(1)</script>"])
def test_a_table_says_when_and_where_it_was_measured(tmp_path, made):
    said = {"title": "Table 1", "rows": [RATE], **({"made": made} if made else {})}  # older files have no such line
    (tmp_path / "rates.json").write_text(json.dumps(said))
    results = make_results({"gd": (3, 0, 1.0)}, {"bowl": {}}, seeds=2)
    material = Material({"default": results}, [read_rates(tmp_path / "rates.json")])
    text = (write_site(material, tmp_path / "out").parent / "tables.html").read_text("utf-8")
    unknown = "When, from which commit and on what machine it was measured is not recorded."
    assert f"<p>{f'Measured {html.escape(made)}.' if made else unknown}</p>" in text


@pytest.mark.parametrize("made", ["", "2026-11-18, commit 0123, on M, 2 cores", "<script>alert(1)</script>"])
def test_the_price_of_a_product_says_when_and_where_it_was_measured(tmp_path, made):
    (tmp_path / "facts.json").write_text(json.dumps({"hvp_ratio": {"bowl": 2.0}, **({"made": made} if made else {})}))
    facts = merged_facts({}, read_facts(tmp_path / "facts.json"))
    material = Material({"default": make_results({"gd": (3, 0, 1.0)}, {"bowl": {}}, seeds=2)}, facts=facts)
    index = write_site(material, tmp_path / "out")
    unknown = "When, from which commit and on what machine it was measured is not recorded."
    said = f"Measured {html.escape(made)}." if made else unknown
    assert f"the median over 1 problem of the time of a product over that of a gradient. {said}</p>" in (
        index.parent / "data.html"
    ).read_text("utf-8")
    mark = f'over that of a gradient{f", measured {html.escape(made)}" if made else ""}">measured: 2.0<'
    assert mark in index.read_text("utf-8")


def test_facts_are_written_with_date_commit_and_processor(tmp_path):
    done = CliRunner().invoke(app, ["leaderboard", "facts", "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found, here = read_facts(tmp_path / "facts.json"), environment()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d(, commit [0-9a-f]{10}(\+dirty)?)?, on .+, \d+ cores?", found["made"])
    assert f"on {here['cpu']}, {here['cores']} core" in found["made"]
    assert set(found["hvp_ratio"]) <= set(found["problems"])
    assert all(ratio > 0 for ratio in found["hvp_ratio"].values())


def test_facts_of_two_files_say_when_both_were_made():
    one, two = ({"methods": {}, "problems": {}, "hvp_ratio": {name: 1.0}, "made": f"on {name}"} for name in "ab")
    both = merged_facts(merged_facts({}, one), two)
    assert (both["made"], both["hvp_ratio"]) == ("on a; on b", {"a": 1.0, "b": 1.0})
    assert merged_facts(both, {**two, "made": ""})["made"] == "on a; on b"


def test_a_foreign_method_gets_no_link_from_a_name_that_it_shares(tmp_path):
    one = site(tmp_path, RATE)
    foreign = Site(replace(one.material, foreign=frozenset({"gd"})), "make page")
    assert rate_tables(foreign)[0]["rows"][0]["page"] == ""


@pytest.mark.parametrize(
    ("dot", "marks", "place"),
    [
        (20.0, [20.0, 60.0], 20.0),
        (20.0, [20.0, 25.0, 30.0], 30.0),
        (20.0, [10.0, 20.0, None, 31.0, 44.0], 31.0),
        (None, [5.0], None),
    ],
    ids=["alone", "crowded", "some", "unmeasured"],
)
def test_a_number_stands_beside_its_dot_where_there_is_room(dot, marks, place):
    assert beside(dot, marks) == place


def test_large_numbers_have_room_beside_the_axis():
    points = [{"eps": 0.2, "cost": 4600.0}, {"eps": 0.0125, "cost": 2_000_000.0}]
    plot = rate_plot({"over": "eps", "claimed": 2.0, "points": points})
    assert plot["y"][1] == "2,000,000"
    assert (
        7.2 * len(plot["y"][1]) < plot["box"]["left"] - 5 - 20
    )  # digits of 12 px are 7.2 wide; 20 are the axis' title
    assert rate_plot({"over": "kappa", "claimed": 2.0, "points": points}) is None


def test_without_rates_there_is_no_figure(tmp_path):
    assert set(pictures(site(tmp_path, RATE))) == {f"figures/claims.{kind}" for kind in ("svg", "png", "pdf")}
    assert pictures(Site(Material({}), "make page")) == {}


def test_the_same_rates_give_the_same_files(tmp_path):
    assert pictures(site(tmp_path, RATE, UNMEASURED)) == pictures(site(tmp_path, RATE, UNMEASURED))


def test_links_are_addresses_and_sources_those_of_built_in_methods():
    links = Links("https://example.org/bench/", "docs/index.html")
    assert links.source("bilevelbench_methods/penalty/f2ba.py") == (
        "https://example.org/bench/blob/HEAD/plugins/bilevelbench_methods/penalty/f2ba.py"
    )
    assert links.source("acme/method.py") == Links().source("bilevelbench_methods/penalty/f2ba.py") == ""
    assert links.install == "pip install git+https://example.org/bench/"
    for wrong in ({"repository": "javascript:alert(1)"}, {"address": "example.org"}, {"docs": "javascript:alert(1)"}):
        with pytest.raises(InvalidInput, match=r"--\w+ '.*' is n"):
            Links(**wrong)


def test_the_citation_is_that_of_the_repository(request):
    cff = (request.config.rootpath / "CITATION.cff").read_text(encoding="utf-8")
    for words in ("benchmarks for bilevel optimisation whose counts can be trusted", "The bilevelbench developers",
                  "Near-Optimal Nonconvex-Strongly-Convex Bilevel Optimization with Fully First-Order Oracles"):  # fmt: skip
        assert words in cff
        assert words in citation()
