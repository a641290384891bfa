"""The published tuned boards: their searches cost the same, and saw neither the seeds nor the data of what is shown."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

OFFICIAL = Path(__file__).resolve().parents[2] / "leaderboard" / "results" / "official"
SMALL = OFFICIAL.parents[1] / "suites" / "small"
SEARCHED = sorted(OFFICIAL.glob("*_tuned"))


@pytest.fixture(params=SEARCHED, ids=lambda path: path.name)
def published(request):
    """What the search says of itself, and the trials on the board."""
    packs = [json.loads(path.read_text("utf-8")) for path in request.param.glob("packs/*/pack.json")]
    return json.loads((request.param / "tuning.json").read_text("utf-8")), [one for p in packs for one in p["trials"]]


def test_each_is_of_a_small_suite_and_has_all_of_its_methods():
    assert SEARCHED
    for path in SEARCHED:
        suite = tomllib.loads((SMALL / f"{path.name.removesuffix('_tuned')}.toml").read_text("utf-8"))
        search = json.loads((path / "tuning.json").read_text("utf-8"))
        assert search["title"] == suite["title"]
        named = {
            (entry.get("label", entry["name"]), problem["name"])
            for entry in suite["algorithm"]
            for problem in suite["problem"]
        }
        assert {(row["method"], row["problem"].partition("[")[0]) for row in search["rows"]} == named


def test_every_search_cost_the_same(published):
    search, _ = published
    assert search["rule"]["equal_cost"] is True
    tuned = [row for row in search["rows"] if row["space"]]
    assert len({row["allowed"] for row in tuned}) == 1
    for row in tuned:
        assert row["cost"] == pytest.approx(row["allowed"], rel=0.02), (row["method"], row["problem"])
        assert row["remark"] == ""
    for row in search["rows"]:
        if row not in tuned:
            assert "no parameters to tune" in row["remark"]


def test_what_is_shown_was_not_searched_on(published):
    search, trials = published
    data = {seed for row in search["rows"] for seed in row["data_seeds"]}
    assert trials
    for trial in trials:
        assert trial["seed"] not in search["seeds"]
        assert trial["problem"]["params"]["data_seed"] not in data


def test_what_is_shown_is_what_was_found(published):
    search, trials = published
    found = {(row["method"], row["problem"].partition("[")[0]): row["best"] for row in search["rows"]}
    for trial in trials:
        best = {
            name: value for name, value in found[trial["label"], trial["problem"]["name"]].items() if value is not None
        }
        assert trial["algorithm"]["params"] == best, (trial["label"], trial["problem"])
