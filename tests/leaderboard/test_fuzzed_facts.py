"""Whatever is written as facts.json, it is shown on the pages or refused with a sentence."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace

import pytest
from fuzzing import EXAMPLES, mutated_json, survives, values
from hypothesis import strategies as st
from leaderboard_data import FACTS, make_results

from bilevelbench.leaderboard.collect import Material
from bilevelbench.leaderboard.facts import read_facts
from bilevelbench.leaderboard.fragments import median_hvp_ratio
from bilevelbench.leaderboard.method_page import MethodPages
from bilevelbench.leaderboard.pages import _environment, _shared, site_files
from bilevelbench.leaderboard.problem_page import problem_page
from bilevelbench.leaderboard.settings import settings_of_trials, standing_words
from bilevelbench.leaderboard.site import Site

pytestmark = pytest.mark.whole  # many inputs


@EXAMPLES
def test_facts(examples, tmp_path):
    """The pages of a method and of a problem always; the whole site, which takes long, of every hundredth."""
    path, numbers = tmp_path / "facts.json", itertools.count()
    results = make_results({"gd": (3, 0, 1.0), "newton": (1, 2, 1.3)}, {"bowl": {}}, seeds=1, points=3)
    material = Material({"default": results}, [], FACTS, [])
    whole, jinja = Site(material, ""), _environment()

    def show(content):
        text = content if isinstance(content, bytes) else json.dumps(content).encode("utf-8", "surrogatepass")
        path.write_bytes(text)
        facts = read_facts(path)
        if next(numbers) % 100 == 0:
            site_files(replace(material, facts=facts), "")
        site = copy.copy(whole)
        site.material, site.ratio = replace(material, facts=facts), median_hvp_ratio(facts)
        site.kinds = site._kinds()
        settings_of_trials(results, facts)
        claims = {name: site.fact(name, name)["claims"] for name in site.methods}
        standing_words("deterministic", claims, {name: name for name in site.methods})
        pages = {"method.html": MethodPages(site).page("gd"), "problem.html": problem_page(site, "bowl")}
        for template, given in pages.items():
            jinja.get_template(template).render(root="../", page=template, **_shared(site), **given)

    survives(examples, mutated_json(FACTS) | values | st.binary(), show)
