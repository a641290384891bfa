"""Whatever is written as facts.json, it is shown on the pages or refused with a sentence."""

from __future__ import annotations

import json

import pytest
from fuzzing import EXAMPLES, mutated_json, survives, values
from hypothesis import strategies as st
from leaderboard_data import FACTS, make_results

from bilevelbench.leaderboard.collect import Material
from bilevelbench.leaderboard.facts import read_facts
from bilevelbench.leaderboard.pages import site_files

pytestmark = pytest.mark.whole  # many inputs


@EXAMPLES
def test_facts(examples, tmp_path):
    path = tmp_path / "facts.json"
    results = make_results({"gd": (3, 0, 1.0), "newton": (1, 2, 1.3)}, {"bowl": {}}, seeds=1, points=3)

    def show(content):
        text = content if isinstance(content, bytes) else json.dumps(content).encode("utf-8", "surrogatepass")
        path.write_bytes(text)
        site_files(Material({"default": results}, [], read_facts(path), []), "")

    survives(examples, mutated_json(FACTS) | values | st.binary(), show)
