"""What strangers send in stands on the page under names of its own, and says nothing of anybody else."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from described import asked, row

from bilevelbench.leaderboard.build import build
from bilevelbench.leaderboard.collect import load, sent_in
from bilevelbench.leaderboard.names import Names
from bilevelbench.report.analysis.summary import titled
from bilevelbench.results.packs import to_json
from bilevelbench.results.schema import curve_frame, runs_frame
from bilevelbench.results.store import Store
from bilevelbench.results.verified import JudgedTrial, TrialVerdict, VerifyFile, sums, write_verified


def put(folder, seeds, status="budget", record=(), **trial):
    """Trials of f2ba, or of what is called so, with a curve of two evaluations each."""
    trials = [asked(seed, **trial) for seed in seeds]
    given = {name: trial[name] for name in ("plugin", "plugin_version", "label") if name in trial}
    counts = {"steps": 1, "grad_g": 5, "grad_g_x": 5, "first_order": 5, "cost": 5.0}
    runs = [row(t, status=status, **{"plugin": "bilevelbench", **counts, **given}) for t in trials]
    curve = [
        {"trial_id": t["id"], "step": n, "cost": 5.0 * n, "first_order": 5 * n, "grad_phi": 1.0 / (1 + 99 * n),
         "phi": 1.0 - n, "grad_phi_error": 0.0}
        for t in trials
        for n in range(2)
    ]  # fmt: skip
    return Store(folder).add(runs_frame(runs), curve_frame(curve), {"trials": trials, **dict(record)})


@pytest.fixture
def official(tmp_path):
    put(tmp_path / "official" / "exact", range(3), record={"environment": {"cpu": "Ours"}})
    (tmp_path / "official" / "facts").mkdir()
    (tmp_path / "official" / "facts" / "facts.json").write_text(
        '{"methods": {"f2ba": {"text": "OFFICIAL", "family": "penalty"}}}'
    )
    return [tmp_path / "official" / "exact", tmp_path / "official" / "facts"]


def methods(material):
    return titled(material.results["default"].runs).groupby("method").size().to_dict()


def test_only_the_folders_beside_the_first_are_official(tmp_path):
    ours, theirs = tmp_path / "official" / "a", tmp_path / "mallory"
    assert sent_in([ours, tmp_path / "official" / "b", theirs]) == {theirs}
    assert sent_in([ours, tmp_path / "mallory" / "official"]) == {tmp_path / "mallory" / "official"}
    assert sent_in([theirs, tmp_path / "alice"]) == set()  # one's own board


@pytest.mark.parametrize(
    ("trial", "name"),
    [
        ({"plugin": "acme", "plugin_version": "1.0"}, "f2ba (acme 1.0)"),
        ({"plugin": "acme", "plugin_version": "1.0", "label": "f2ba"}, "f2ba (acme 1.0)"),
        ({"plugin_version": "2"}, "f2ba (bilevelbench 2)"),
        ({}, "f2ba (mallory)"),
    ],
    ids=["plugin", "label", "version", "same"],
)
@pytest.mark.quick_cases(1)
def test_fifty_failures_of_a_stranger_are_not_those_of_f2ba(official, tmp_path, trial, name):
    put(tmp_path / "mallory", range(10, 60), "diverged", **trial)
    material = load([*official, tmp_path / "mallory"])
    assert methods(material) == {"f2ba": 3, name: 50}
    index = build([*official, tmp_path / "mallory"], tmp_path / "site")
    board = pd.read_csv(index.parent / "csv" / "board-default-deterministic.csv").set_index("method")
    assert board.loc["f2ba", "failed"] == 0
    assert board.loc[name, "failed"] == 50


def test_the_same_trials_confirm_and_add_no_row(official, tmp_path):
    put(tmp_path / "alice", range(3), record={"environment": {"cpu": "Theirs"}})
    results = load([*official, tmp_path / "alice"]).results["default"]
    assert len(results.runs) == 3
    assert set(results.confirmations()) == {2}


def test_descriptions_come_from_the_official_folder_alone(official, tmp_path):
    put(tmp_path / "mallory", [9], plugin="acme", plugin_version="1.0")
    (tmp_path / "mallory" / "facts.json").write_text('{"methods": {"f2ba": {"text": "MALLORY"}}}')
    (tmp_path / "mallory" / "rates.json").write_text('{"title": "RATES", "rows": []}')
    material = load([*official, tmp_path / "mallory"])
    assert material.facts["methods"]["f2ba"]["text"] == "OFFICIAL"
    assert material.rates == []
    assert [note for note in material.notes if "is not read" in note] == [
        "mallory/facts.json is not read: that is the official folder's to say",
        "mallory/rates.json is not read: that is the official folder's to say",
    ]
    index = build([*official, tmp_path / "mallory"], tmp_path / "site")
    pages = {path.name: path.read_text() for path in (index.parent / "method").iterdir()}
    assert "OFFICIAL" in pages.pop("f2ba.html")
    (theirs,) = pages.values()
    assert "OFFICIAL" not in theirs  # nor is a stranger's method what it is called


def test_a_bad_folder_is_a_note_and_the_page_is_built(official, tmp_path):
    put(tmp_path / "good", [7], plugin="acme", plugin_version="1.0")
    (tmp_path / "broken" / "packs" / ("0" * 16)).mkdir(parents=True)
    forged = tmp_path / "forged"
    put(forged, [0], status="error")
    said = []
    folders = [*official, tmp_path / "broken", forged, tmp_path / "nowhere", tmp_path / "good"]
    index = build(folders, tmp_path / "site", warn=said.append)
    text = index.read_text()
    for name, words in (("broken", "none of the 1 packs"), ("forged", "disagree on trial"), ("nowhere", "no results")):
        (note,) = [one for one in said if one.startswith(f"the folder {name} was sent in and cannot be shown: ")]
        assert words in note
        assert f"the folder {name} was sent in" in text
    assert "f2ba (acme 1.0)" in text


def test_a_stranger_cannot_speak_for_an_official_trial(official, tmp_path):
    """A record that describes another folder's trial would move it to another board."""
    put(tmp_path / "mallory", [9], plugin="acme", plugin_version="1.0")
    (pack,) = (tmp_path / "mallory" / "packs").iterdir()
    record = json.loads((pack / "pack.json").read_text())
    record["trials"].append(asked(0) | {"tuned": "phi", "schedule": {"second_order": True}})
    (pack / "pack.json").write_bytes(to_json(record))
    material = load([*official, tmp_path / "mallory"])
    assert methods(material) == {"f2ba": 3}
    assert material.results["tuned"].runs.empty
    assert any("which the pack does not hold" in note for note in material.notes)


def test_a_problem_of_another_plugin_is_another_problem():
    names = Names()
    ours = runs_frame([row(asked(), problem_plugin="bilevelbench")])
    theirs = runs_frame([row(asked(1), problem_plugin="acme")])
    names.official(ours)
    assert list(names.sent("mallory", theirs)["problem"]) == ["quadratic (acme)"]


def test_two_strangers_with_one_name_stand_apart():
    names = Names()
    shown = [
        titled(names.sent(folder, runs_frame([row(asked(n), plugin="acme", label="mine")])))["method"].iloc[0]
        for n, folder in enumerate(("alice", "bob", "alice"))
    ]
    assert shown == ["mine", "mine (bob)", "mine"]


def test_a_board_of_official_trials_alone_that_nobody_ran_again_has_no_column_of_marks(official, tmp_path):
    assert ">verified</th>" not in build(official, tmp_path / "site").read_text()
    put(tmp_path / "mallory", [9], plugin="acme", plugin_version="1.0")
    assert ">verified</th>" in build([*official, tmp_path / "mallory"], tmp_path / "other").read_text()


def test_every_row_has_its_mark_and_its_command(official, tmp_path):
    folder = official[0]
    ids = [asked(seed)["id"] for seed in range(3)]
    verdicts = tuple(JudgedTrial(trial=trial, verdict=TrialVerdict.REPRODUCED) for trial in ids[:2])
    write_verified(
        folder / "verify.json",
        VerifyFile(created="", machine="", seed=1, sample=2, trials=3, packs=sums(folder), verdicts=verdicts),
    )
    put(tmp_path / "mallory", [9], plugin="acme", plugin_version="1.0")
    index = build([*official, tmp_path / "mallory"], tmp_path / "site")
    assert '<td class="text">verified 2 of 3</td>' in index.read_text()
    assert '<td class="text">unverified</td>' in index.read_text()
    for page in ("method/f2ba.html", next(path.name for path in (index.parent / "problem").iterdir())):
        text = (index.parent / (page if "/" in page else f"problem/{page}")).read_text()
        assert '<td class="text">verified 2 of 3</td>' in text
        assert '<code class="again">bilevelbench reproduce ' in text
        assert str(tmp_path) not in text
