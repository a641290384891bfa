from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest
from machines import OFFICIAL, ULP, copy_folder

from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.results.merge import MergeReport, merge
from bilevelbench.results.schema import curve_frame, runs_frame
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

RECORD = {"trials": [], "environment": {"python": "3.11"}}


def add(where, *ids, curve_phi=0.5, extra=None, **columns):
    runs = [
        {
            "trial_id": i,
            "algorithm": "f2ba",
            "problem": "quadratic",
            "seed": 5,
            "status": "budget",
            "phi": 1.0,
            "steps": 2,
            **columns,
        }
        for i in ids
    ]
    more = {} if extra is None else {"restarts": extra}
    curve = [{"trial_id": i, "step": s, "phi": curve_phi, **more} for i in ids for s in range(3)]
    return where.packs / where.add(runs_frame(runs), curve_frame(curve), RECORD)


@pytest.fixture
def alice(tmp_path):
    return Store(tmp_path / "alice")


@pytest.fixture
def bob(tmp_path):
    return Store(tmp_path / "bob")


@pytest.fixture
def into(tmp_path):
    return tmp_path / "all"


def test_packs_are_copied_with_their_origin(alice, bob, into):
    add(alice, "a1", "a2")
    add(bob, "b1")
    assert merge([alice.folder, bob.folder], into) == MergeReport(packs=2, trials=3, duplicates=0)
    merged = load_results(into)
    assert merged.runs["trial_id"].tolist() == ["a1", "a2", "b1"]
    origins = {tuple(r["trial_ids"]): r["merged_from"] for r in merged.records}
    assert origins == {("a1", "a2"): "alice", ("b1",): "bob"}
    assert all(r["environment"] == RECORD["environment"] for r in merged.records)
    created = {r["created"] for s in (alice, bob) for r in s.load().records}
    assert {r["created"] for r in merged.records} == created
    assert merged.warnings == []


def test_merging_again_adds_nothing(alice, bob, into):
    add(alice, "a1", "a2")
    merge([alice.folder], into)
    add(bob, "b1")
    assert merge([alice.folder, bob.folder], into) == MergeReport(packs=1, trials=1, duplicates=2)
    assert merge([alice.folder, bob.folder, into], into) == MergeReport(packs=0, trials=0, duplicates=3)


def test_a_second_merge_keeps_the_first_origin(alice, into, tmp_path):
    add(alice, "a")
    merge([alice.folder], into)
    merge([into], tmp_path / "more")
    assert load_results(tmp_path / "more").records[0]["merged_from"] == "alice"


def test_equal_trials_are_merged_once(alice, bob, into):
    add(alice, "a", "s", seconds=1.0, peak_memory=5.0, pack_lanes=2.0, message="slow")
    add(bob, "s", "b", seconds=9.0, peak_memory=7.0, pack_lanes=1.0, message="")
    assert merge([alice.folder, bob.folder], into) == MergeReport(packs=2, trials=3, duplicates=1)
    merged = Store(into).publish()
    assert merged.runs["trial_id"].tolist() == ["a", "b", "s"]
    assert len(merged.curve) == 9


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"phi": 2.0}, r"`runs.phi` \(1.0 against 2.0\)"),
        ({"phi": None}, "`runs.phi`"),
        ({"grad_phi": 1e-3}, "`runs.grad_phi`"),
        ({"status": "error", "phi": 2.0}, "`runs.status`"),
        ({"status": "target", "phi": 2.0}, "`runs.phi`"),
        ({"status": "target", "phi": 2.0, "algorithm_params": '{"K": 4}'}, "`runs.algorithm_params`"),
        ({"algorithm": "soba"}, "`runs.algorithm`"),
        ({"curve_phi": 0.25}, "`curve.phi`"),
        ({"extra": 1.0}, "`curve.restarts`"),
    ],
)
def test_a_clash_is_refused_before_anything_is_written(alice, bob, into, change, column):
    add(alice, "first")
    add(alice, "a", "s")
    add(bob, "s", "b", **change)
    with pytest.raises(StoreError, match=f"the first column that differs is {column}") as caught:
        merge([alice.folder, bob.folder], into)
    message = str(caught.value)
    for part in (str(alice.folder), str(bob.folder), "trial 's'", "f2ba on quadratic, seed 5"):
        assert part in message
    assert not into.exists()


def test_a_clash_with_the_target_is_refused(alice, bob):
    add(alice, "s")
    path = add(bob, "s", phi=2.0)
    with pytest.raises(StoreError, match=r"bob' \(.*\) and .*alice' \(.*\) disagree on trial 's'"):
        merge([alice.folder], bob.folder)
    assert os.listdir(bob.packs) == [path.name]


def test_curves_of_different_length_clash(alice, bob, into):
    add(alice, "s")
    runs, curve = alice.load().runs, alice.load().curve
    bob.add(runs, curve[:2], RECORD)
    with pytest.raises(StoreError, match="`curve` itself"):
        merge([alice.folder, bob.folder], into)


def test_a_corrupt_pack_is_left_out_with_a_sentence(alice, bob, into):
    add(alice, "a")
    bad = add(alice, "x")
    (bad / "curve.parquet").write_bytes(b"PAR1")
    add(bob, "b")
    report = merge([alice.folder, bob.folder], into)
    assert (report.packs, report.trials) == (2, 2)
    assert f"{str(bad / 'curve.parquet')!r} has 4 bytes" in report.skipped[0]
    assert len(report.skipped) == 1
    assert Store(into).done() == {"a", "b"}


def test_a_folder_of_which_nothing_can_be_read_is_an_error(alice, bob, into):
    add(alice, "a")
    (add(bob, "b") / "curve.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"none of the 1 packs in '.*bob' can be read; the first: .*4 bytes"):
        merge([alice.folder, bob.folder], into)
    assert not into.exists()


def test_a_good_copy_takes_the_place_of_a_corrupt_one(alice, into):
    add(alice, "a")
    merge([alice.folder], into)
    (copy,) = (into / "packs").iterdir()
    (copy / "runs.parquet").write_bytes(b"")
    merge([alice.folder], into)
    assert Store(into).done() == {"a"}
    assert (into / "packs" / f"{copy.name}.corrupt-0").is_dir()


def test_nothing_to_merge(alice, into, tmp_path):
    with pytest.raises(InvalidInput, match="name at least one result folder"):
        merge([], into)
    with pytest.raises(InvalidInput, match="other than the one to merge into"):
        merge([alice.folder], alice.folder)
    with pytest.raises(StoreError, match="missing' has no packs to merge"):
        merge([tmp_path / "missing"], into)
    assert not into.exists()


def figure(where, text):
    (where.folder / "experiments").mkdir(exist_ok=True)
    (where.folder / "experiments" / "figure1.json").write_text(text)


def test_what_is_said_about_figures_comes_along(alice, bob, into):
    add(alice, "a")
    add(bob, "b")
    figure(bob, "{}")
    merge([alice.folder, bob.folder], into)
    assert json.loads((into / "experiments" / "figure1.json").read_text()) == {}
    figure(alice, "{}")
    merge([alice.folder, bob.folder], into)  # they agree


def test_two_different_figures_of_one_name_are_refused(alice, bob, into):
    add(alice, "a")
    add(bob, "b")
    figure(alice, "{}")
    figure(bob, '{"other": 1}')
    with pytest.raises(StoreError, match=r"alice' and '.*bob' differ in experiments/figure1.json; nothing was merged"):
        merge([alice.folder, bob.folder], into)
    assert not into.exists()


def test_compact_makes_one_pack_of_an_environment(alice, bob, into):
    add(alice, "a1", "a2")
    add(alice, "a3", extra=7)
    add(bob, "b1")
    apart = into.with_name("apart")
    assert merge([alice.folder, bob.folder], into, compact=True) == merge([alice.folder, bob.folder], apart)
    ours, theirs = load_results(into), load_results(apart)
    assert ours.warnings == []
    pd.testing.assert_frame_equal(ours.runs, theirs.runs)
    pd.testing.assert_frame_equal(ours.curve, theirs.curve)
    assert sorted(r["merged_from"] for r in ours.records) == ["alice", "bob"]  # not three packs
    assert Store(into).done() == {"a1", "a2", "a3", "b1"}
    again = merge([alice.folder], into, compact=True)
    assert (again.packs, again.trials, again.duplicates) == (0, 0, 3)


def test_compact_keeps_what_differs_apart(alice, into):
    for n, (commit, machine) in enumerate([("1", "x"), ("2", "x"), ("1", "y"), ("1", "x")]):
        runs, curve = ([{"trial_id": f"t{n}", "algorithm": "f2ba", "problem": "q", "seed": n, "status": "budget"}], [])
        record = {"commits": {"f2ba": commit}, "environment": {"cpu": machine}, "families": {"f2ba": "penalty"}}
        alice.add(runs_frame(runs), curve_frame(curve), record | {"total_seconds": 2.0})
    merge([alice.folder], into, compact=True)
    found = {(r["commits"]["f2ba"], r["environment"]["cpu"]): r for r in load_results(into).records}
    assert {key: r["trial_ids"] for key, r in found.items()} == {
        ("1", "x"): ["t0", "t3"], ("2", "x"): ["t1"], ("1", "y"): ["t2"],
    }  # fmt: skip
    assert found["1", "x"]["total_seconds"] == 4.0
    assert found["1", "x"]["families"] == {"f2ba": "penalty"}
    assert "timed" not in found["1", "x"]


def test_compact_keeps_timed_packs_apart(alice, into):
    for n, mark in enumerate([{}, {"timed": True}, {"timed": True}]):
        runs = [{"trial_id": f"t{n}", "algorithm": "f2ba", "problem": "q", "seed": n, "status": "budget"}]
        alice.add(runs_frame(runs), curve_frame([]), {"commits": {}, "environment": {}, **mark})
    merge([alice.folder], into, compact=True)
    assert {r.get("timed", False): r["trial_ids"] for r in load_results(into).records} == {
        False: ["t0"], True: ["t1", "t2"],
    }  # fmt: skip


# ---- several machines


def made_on(cpu):
    return {"trials": [], "environment": {"cpu": cpu}, "created": "2026-01-02T03:04:05+00:00"}


def put(where, cpu, *ids, phi=1.0):
    runs = [
        {"trial_id": i, "algorithm": "f2ba", "problem": "q", "seed": 5, "status": "budget", "phi": phi} for i in ids
    ]
    return where.packs / where.add(runs_frame(runs), curve_frame([]), made_on(cpu))


@pytest.mark.parametrize("compact", [False, True])
def test_both_machines_stay(alice, bob, into, compact):
    put(alice, "Left", "s", "a")
    put(bob, "Right", "s", "b", phi=1.0 + 1e-12)
    assert merge([alice.folder, bob.folder], into, compact) == MergeReport(packs=2, trials=3, duplicates=0, confirmed=1)
    merged = Store(into).publish()
    assert merged.runs["trial_id"].tolist() == ["a", "b", "s"]
    assert merged.confirmations().to_dict() == {"a": 1, "b": 1, "s": 2}
    assert {r["environment"]["cpu"]: (r["merged_from"], r["trial_ids"]) for r in merged.records} == {
        "Left": ("alice", ["a", "s"]), "Right": ("bob", ["b", "s"]),
    }  # fmt: skip
    again = merge([alice.folder, bob.folder], into, compact)
    assert again == MergeReport(packs=0, trials=0, duplicates=4, confirmed=0)


def test_the_same_trials_of_two_machines_stay_although_nothing_else_differs(alice, bob, into):
    put(alice, "Left", "s")
    put(bob, "Right", "s")
    assert merge([alice.folder], into) == MergeReport(packs=1, trials=1, duplicates=0)
    assert merge([bob.folder], into) == MergeReport(packs=1, trials=0, duplicates=0, confirmed=1)
    assert len(list((into / "packs").iterdir())) == 2


def test_which_copy_is_shown_does_not_depend_on_the_order_of_folders(alice, bob, tmp_path):
    put(alice, "Left", "s")
    put(bob, "Right", "s", phi=1.0 + 1e-12)
    shown = []
    for n, folders in enumerate(([alice.folder, bob.folder], [bob.folder, alice.folder])):
        merge(folders, tmp_path / str(n))
        shown.append(Store(tmp_path / str(n)).publish().runs)
    pd.testing.assert_frame_equal(*shown, rtol=0, atol=0)


def test_two_packs_of_one_folder_are_held_against_each_other(alice, into):
    ours, theirs = put(alice, "Left", "s", phi=1.0), put(alice, "Left", "s", "t", phi=99_999.0)
    with pytest.raises(
        StoreError, match=r"disagree on trial 's'.*`runs.phi` \(.*99999.0.*; nothing was written"
    ) as caught:
        merge([alice.folder], into)
    assert ours.name in str(caught.value)
    assert theirs.name in str(caught.value)
    assert not into.exists()


def test_a_third_machine_is_held_against_both(alice, bob, into):
    put(alice, "Left", "s")
    put(bob, "Right", "s")
    put(bob, "Third", "s", phi=1.001)
    with pytest.raises(StoreError, match=r"disagree on trial 's'.*1\.001"):
        merge([alice.folder, bob.folder], into)


def test_the_refusal_names_both_processors_and_both_values(alice, bob, into):
    put(alice, "Left", "s")
    put(bob, "Right", "s", phi=1.001)
    with pytest.raises(
        StoreError, match=r"alice' \(Left, pack .*\) and .*bob' \(Right, pack .*\) disagree .*\(1.0 against 1.001\)"
    ):
        merge([alice.folder, bob.folder], into)
    assert not into.exists()


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("by", [ULP, 1e-12])
@pytest.mark.quick_cases(1)
def test_the_published_results_and_those_of_another_processor_come_together(tmp_path, into, by, compact):
    copy_folder(OFFICIAL / "deterministic", tmp_path / "theirs", by, cpu="Another 9000")
    done = merge([OFFICIAL / "deterministic", tmp_path / "theirs"], into, compact)
    published = len(load_results(OFFICIAL / "deterministic").runs)
    assert (done.packs, done.trials, done.duplicates, done.confirmed) == (2, published, 0, published)
    merged = load_results(into)
    assert merged.warnings == []
    assert (merged.confirmations() == 2).all()
    assert {record["environment"]["cpu"] for record in merged.records} == {"AMD EPYC", "Another 9000"}


def test_published_results_that_differ_by_a_thousandth_are_refused(tmp_path, into):
    copy_folder(OFFICIAL / "deterministic", tmp_path / "theirs", 1e-3, cpu="Another 9000")
    with pytest.raises(
        StoreError, match=r"deterministic' \(AMD EPYC, .* and .*theirs' \(Another 9000, .*\d against \d"
    ):
        merge([OFFICIAL / "deterministic", tmp_path / "theirs"], into)
    assert not into.exists()


def test_packs_of_one_name_and_two_machines_come_together(tmp_path, into):
    """As 0.1 wrote them, packs were named by their trials alone: two machines gave one name."""
    written = Path(__file__).parent / "written_by_0_1"
    copy_folder(written, tmp_path / "theirs", ULP, cpu="Another 9000")
    done = merge([written, tmp_path / "theirs"], into)
    assert (done.packs, done.trials, done.confirmed) == (2, 8, 8)
    assert len(list((into / "packs").iterdir())) == 2
