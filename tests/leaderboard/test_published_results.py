"""The published results: every setting has its three boards, and everything says when, where and from which commit it came."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

OFFICIAL = Path(__file__).resolve().parents[2] / "leaderboard" / "results" / "official"
SUITES = OFFICIAL.parents[1] / "suites"
SETTINGS = sorted(path.stem for path in SUITES.glob("*.toml"))

#: A board out of the box is of the suite of its setting; those that are tuned and by the clock are of the small one.
BOARDS = [(name, SUITES / f"{name}.toml") for name in SETTINGS]
BOARDS += [(f"{name}_{mode}", SUITES / "small" / f"{name}.toml") for name in SETTINGS for mode in ("tuned", "timed")]


def records(folder):
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("packs/*/pack.json"))]


@pytest.mark.parametrize(("name", "suite"), BOARDS, ids=[name for name, _ in BOARDS])
def test_every_setting_has_three_boards_with_all_methods_on_all_problems(name, suite):
    plan = tomllib.loads(suite.read_text("utf-8"))
    found = records(OFFICIAL / name)
    shown = {(one["label"] or one["algorithm"]["name"], one["problem"]["name"]) for r in found for one in r["trials"]}
    methods = {entry.get("label", entry["name"]) for entry in plan["algorithm"]}
    assert {method for method, _ in shown} == methods
    assert {problem for _, problem in shown} == {entry["name"] for entry in plan["problem"]}
    assert all(record.get("timed", False) is name.endswith("_timed") for record in found)


def test_every_pack_says_when_where_and_from_which_commit():
    packs = [(path, record) for path in OFFICIAL.iterdir() for record in records(path)]
    assert len(packs) > len(BOARDS)
    for path, record in packs:
        assert re.match(r"\d{4}-\d\d-\d\d", record["created"]), path.name
        assert record["environment"]["cpu"], path.name
        assert record["commits"]
        assert all(re.fullmatch(r"[0-9a-f]{40}", commit) for commit in record["commits"].values()), path.name


@pytest.mark.parametrize("path", sorted(OFFICIAL.glob("*/*.json")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_rates_and_facts_say_it_too(path):
    if path.name in ("rates.json", "facts.json"):
        made = json.loads(path.read_text("utf-8"))["made"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d, commit [0-9a-f]{10}, on .+, \d+ cores?", made)
    else:
        assert path.name == "tuning.json"
