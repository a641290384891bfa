"""Methods under the names of their papers."""

from __future__ import annotations

import pytest

from bilevelbench import Algorithm
from bilevelbench.discovery.catalogue import describe
from bilevelbench.discovery.entry import Entry
from bilevelbench.discovery.registry import Registry, registry
from bilevelbench.leaderboard.facts import method_facts
from bilevelbench.leaderboard.names import paper_facts, paper_name


def test_every_built_in_method_has_the_name_the_year_and_the_address_of_its_paper():
    ours = [name for name, entry in registry().algorithms.items() if entry.plugin == "bilevelbench"]
    found = {name: describe(registry(), name) for name in ours}
    assert len(found) >= 60
    for name, said in found.items():
        paper = paper_facts({"references": said.references, "paper": said.paper})
        assert said.title, name
        assert 1990 <= int(paper["year"]) <= 2030, (name, paper)
        assert paper["paper"] == said.paper, name
        assert said.paper.startswith("https://"), name
    titles = [said.title for said in found.values()]
    assert len(set(titles)) == len(titles)
    assert {"F²BA", "AccF²BA", "AID"} <= set(titles)


def test_a_method_that_is_made_from_another_has_not_its_name():
    base = registry().algorithm("f2ba")

    class Mine(base.value):  # type: ignore[name-defined, misc]
        name = "mine"

    mine = Registry()
    mine.algorithms["mine"] = Entry(Mine, "acme", "1.0")
    said = describe(mine, "mine")
    assert said.title == ""
    assert said.paper == base.value.paper  # what it cites is that of the method it is made from, as its references are
    assert Algorithm.title == Algorithm.paper == ""


@pytest.mark.parametrize(
    ("method", "title", "shown"),
    [
        ("f2ba", "F²BA", "F²BA"),
        ("f2ba[lam=10]", "F²BA", "F²BA[lam=10]"),
        ("f2ba (acme 1.0)", "F²BA", "F²BA (acme 1.0)"),
        ("f2ba, for comparison", "F²BA", "F²BA, for comparison"),
        ("f2ba_released", "F²BA", "f2ba_released"),  # another method
        ("as released", "F²BA", "as released"),  # a label
        ("f2ba", "", "f2ba"),
    ],
)
def test_names_are_those_of_papers_and_labels_stay(method, title, shown):
    assert paper_name(method, "f2ba", title) == shown


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "http://arxiv.org/abs/1", 'https://a.b/"onclick=', "", "https://"]
)
def test_only_addresses_of_the_web_are_linked(address):
    assert paper_facts(method_facts({"methods": {"m": {"paper": address}}}, "m"))["paper"] == ""


def test_without_a_reference_there_is_no_year():
    assert paper_facts(method_facts({}, "m")) == {"year": "", "paper": "", "reference": ""}
    assert paper_facts(method_facts({"methods": {"m": {"references": ["somebody, in private"]}}}, "m"))["year"] == ""
