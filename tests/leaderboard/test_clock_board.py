"""The board by the clock: which trials stand on it, and that seconds alone decide there."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from leaderboard_data import make_results

from bilevelbench.leaderboard.build import build, write_site
from bilevelbench.leaderboard.clock import by_clock, timed_trials
from bilevelbench.leaderboard.collect import Material, load
from bilevelbench.leaderboard.heat_map import short_names
from bilevelbench.leaderboard.pages import _board_text
from bilevelbench.leaderboard.problem_page import problem_page
from bilevelbench.leaderboard.site import Site
from bilevelbench.report.analysis.ranking import costs
from bilevelbench.results.store import Store

#: By calls `many` is first, by seconds `quick`, whose steps are the same and take a tenth of the time.
METHODS = {"many": (2, 0, 1.0), "quick": (3, 1, 1.0)}


def timed_results(twins=()):
    """Trials of which those of `quick` are ten times as fast as they ask; `twins` go the way of `many`, in other seconds."""
    found = make_results({**METHODS, **dict.fromkeys(twins, METHODS["many"])}, {"bowl": {}}, seeds=4)
    label = found.curve["trial_id"].map(found.runs.set_index("trial_id")["label"])
    curve = found.curve.assign(seconds=found.curve["seconds"].where(label != "quick", found.curve["seconds"] / 10))
    first = found.runs.loc[found.runs["label"] == "many", "trial_id"].to_numpy()
    for twin in twins:
        for own, its in zip(first, found.runs.loc[found.runs["label"] == twin, "trial_id"], strict=True):
            grad_phi = curve.loc[curve["trial_id"] == own, "grad_phi"].to_numpy()
            curve.loc[curve["trial_id"] == its, "grad_phi"] = grad_phi
            curve.loc[curve["trial_id"] == its, "phi"] = grad_phi**2
            curve.loc[curve["trial_id"] == its, "seconds"] *= 3
    return replace(found, curve=curve, records=[{**record, "timed": True} for record in found.records])


def test_only_what_ran_alone_in_every_pack_is_timed():
    found = make_results(METHODS, {"bowl": {}}, seeds=1)
    (record,), (one, two) = found.records, found.runs["trial_id"]
    assert timed_trials(found) == set()
    assert timed_trials(replace(found, records=[record | {"timed": True}])) == {one, two}
    beside = record | {"trial_ids": [two]}
    assert timed_trials(replace(found, records=[record | {"timed": True}, beside])) == {one}
    assert timed_trials(replace(found, records=[record | {"timed": "yes"}])) == set()


def test_seconds_take_the_place_of_calls():
    found = timed_results()
    table = costs(by_clock(found), [0.1])
    met = costs(found, [0.1])
    assert table["first_order"].tolist() == pytest.approx(met["seconds"].tolist())
    assert table["cost"].tolist() == pytest.approx(met["seconds"].tolist())
    assert (table["second_order"] == 0).all()


@pytest.mark.parametrize(("noisy", "unit"), [(True, "samples"), (False, "calls")])
def test_the_budget_is_in_what_was_paid_for(noisy, unit):
    found = timed_results()
    (record,) = found.records
    limited = [{"id": own, "budget": {"cost": 64_000}} for own in found.runs["trial_id"]]
    curve = found.curve.assign(second_order_samples=0.0) if noisy else found.curve
    site = Site(Material({"timed": replace(found, curve=curve, records=[{**record, "trials": limited}])}), "make")
    assert f"after 64,000 {unit} at the latest" in _board_text(site, site.boards[0])
    (table,) = problem_page(site, "bowl")["tables"]
    assert table["budget"] == f"A trial ends after 64,000 {unit} at the latest."


def test_the_order_is_that_of_seconds():
    found = timed_results()
    order = {
        mode: list(Site(Material({mode: found}), "make").boards[0].rows["method"]) for mode in ("default", "timed")
    }
    assert order == {"default": ["many", "quick"], "timed": ["quick", "many"]}


def test_methods_that_ask_the_same_are_one_row_by_the_clock_too():
    (board,) = Site(Material({"timed": timed_results(["twin"])}), "make").boards
    assert board.merged.of("many") == ["many", "twin"]
    assert set(board.rows["method"]) == {"many", "quick"}


def test_the_page_speaks_of_time(tmp_path):
    index = write_site(Material({"timed": timed_results()}), tmp_path / "out")
    text = " ".join(index.read_text("utf-8").split())
    answer = re.search(r'<p class="answer"><strong>(.*?)</strong>', text)[1]
    assert answer.startswith("Least time: quick, ")
    assert "price" not in answer
    assert "Ranked by seconds of the method&#39;s own steps" in text
    assert "time / best" in text
    problem = (tmp_path / "out" / "problem" / "bowl.html").read_text("utf-8")
    assert re.search(r"Fastest to relative accuracy [\d.]+: quick, [\d.e-]+ seconds;", problem)
    assert "Costs are seconds to a share" in problem


def test_folders_keep_what_is_timed_off_the_other_boards(tmp_path):
    for name, prefix, mark in (("plain", "p", {}), ("timed", "t", {"timed": True})):
        found = make_results(METHODS, {"bowl": {}}, seeds=1, prefix=prefix)
        Store(tmp_path / name).add(found.runs, found.curve, {"trials": [], **mark})
    loaded = load([tmp_path / "plain", tmp_path / "timed"])
    ids = {mode: {trial[0] for trial in one.runs["trial_id"]} for mode, one in loaded.results.items()}
    assert ids == {"default": {"p"}, "tuned": set(), "timed": {"t"}}
    build([tmp_path / "plain", tmp_path / "timed"], tmp_path / "site")


def test_a_problem_is_called_by_its_name_alone_where_that_tells_it_apart():
    assert short_names(["bowl[a=1]", "valley[b=2,c=3]"]) == ["bowl", "valley"]
    assert short_names(["bowl", "bowl[a=1]", "ridge"]) == ["bowl", "bowl[a=1]", "ridge"]
