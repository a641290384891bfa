from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from machines import OFFICIAL

from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.results import files, packs, schema, store, tables
from bilevelbench.results.schema import curve_frame, runs_frame
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

RECORD = {"trials": [], "environment": {"python": "3.11"}}


def frames(*ids, phi=1.0, **columns):
    same = {
        "algorithm": "f2ba",
        "problem": "quadratic",
        "status": "budget",
        "phi": phi,
        "steps": 2,
        "cost": 2.0,
    } | columns
    runs = [{"trial_id": i, "seed": k, **same} for k, i in enumerate(ids)]
    curve = [{"trial_id": i, "step": s, "cost": s, "phi": phi / (s + 1)} for i in ids for s in range(3)]
    return runs_frame(runs), curve_frame(curve)


def add(where, *ids, **columns):
    return where.add(*frames(*ids, **columns), RECORD)


def pack_id(ids):
    """The name of a pack of these trials that an unknown machine made."""
    return packs.pack_id({"trial_ids": ids, "machine": "", "schema_version": schema.SCHEMA_VERSION})


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def digest(folder):
    return [hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in packs.TABLES]


def leftovers(folder):
    return [path.name for path in folder.rglob(".tmp-*")]


@pytest.fixture
def ours(tmp_path):
    return Store(tmp_path / "results")


# ---- round trip


def test_what_is_added_is_loaded(ours):
    name = add(ours, "b", "a")
    assert name == hashlib.sha256(b"a\nb\n\nschema 2").hexdigest()[:16]
    assert ours.done() == {"a", "b"}
    loaded = ours.load()
    runs, curve = frames("b", "a")
    pd.testing.assert_frame_equal(loaded.runs, runs)  # seeds 0 and 1 sort them as they came
    pd.testing.assert_frame_equal(loaded.curve, curve)
    assert ours.warnings == loaded.warnings == []
    (record,) = loaded.records
    assert record["trials"] == RECORD["trials"]
    assert record["environment"] == RECORD["environment"]
    assert record["created"].endswith("+00:00")
    assert record["schema_version"] == schema.SCHEMA_VERSION
    data = (ours.packs / name / "runs.parquet").read_bytes()
    assert record["files"]["runs.parquet"] == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_files_are_zstd_with_dictionaries_and_no_pickle(ours):
    path = ours.packs / add(ours, "a")
    column = pq.read_metadata(path / "runs.parquet").row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert column.has_dictionary_page
    assert sorted(os.listdir(path)) == ["curve.parquet", "pack.json", "runs.parquet"]


def test_same_rows_give_the_same_bytes(tmp_path):
    paths = [s.packs / add(s, "a", "b") for s in (Store(tmp_path / "1"), Store(tmp_path / "2"))]
    assert digest(paths[0]) == digest(paths[1])


def test_packs_with_different_extras_share_a_table(ours):
    for name in ("z_metric", "accuracy"):
        runs, _ = frames(name)
        ours.add(runs, curve_frame([{"trial_id": name, "step": 0, name: 5}]), RECORD)
    curve = ours.publish().curve
    assert list(curve.columns) == [*schema.CURVE, "accuracy", "z_metric"]
    assert curve["accuracy"].notna().tolist() == [True, False]
    pd.testing.assert_frame_equal(load_results(ours.folder).curve, curve)


def test_a_pack_may_have_no_curve(ours):
    ours.add(frames("a")[0], curve_frame([]), RECORD)
    assert ours.load().curve.empty
    assert ours.done() == {"a"}


def test_an_unlimited_budget_is_still_json(ours):
    path = ours.packs / ours.add(*frames("a"), {"trials": [{"budget": (float("inf"), 1.5)}], "environment": {}})
    text = (path / "pack.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["trials"] == [{"budget": ["inf", 1.5]}]


def test_mistakes_of_the_caller_are_named(ours):
    runs, curve = frames("a")
    with pytest.raises(InvalidInput, match="one row per trial"):
        ours.add(pd.concat([runs, runs]), curve, RECORD)
    with pytest.raises(InvalidInput, match="one row per trial"):
        ours.add(runs_frame([]), curve_frame([]), RECORD)
    with pytest.raises(InvalidInput, match="trial 'b'"):
        ours.add(runs, frames("b")[1], RECORD)
    with pytest.raises(InvalidInput, match="plain JSON"):
        ours.add(runs, curve, {"trials": [object()]})
    assert ours.done() == set()


def test_empty_store_loads_and_publishes_and_opens_again(ours):
    assert ours.load().runs.empty
    assert ours.publish().curve.empty
    add(Store(ours.folder), "a")


# ---- duplicates and order


def test_a_trial_in_two_packs_is_taken_from_the_first_by_name(ours):
    add(ours, "a", "b", phi=1.0)
    add(ours, "b", "c", phi=2.0)
    first = 1.0 if pack_id(["a", "b"]) < pack_id(["b", "c"]) else 2.0
    loaded = ours.load()
    assert sorted(loaded.runs["trial_id"]) == ["a", "b", "c"]
    assert loaded.runs.set_index("trial_id").loc["b", "phi"] == first
    assert loaded.curve.groupby("trial_id").size().to_dict() == {"a": 3, "b": 3, "c": 3}
    assert loaded.curve.query("trial_id == 'b' and step == 0")["phi"].tolist() == [first]


def test_the_same_pack_twice_is_kept_once(ours):
    add(ours, "a", phi=1.0)
    add(ours, "a", phi=2.0)
    assert ours.load().runs["phi"].tolist() == [1.0]
    assert leftovers(ours.folder) == []


def test_publish_does_not_depend_on_packs_or_their_order(tmp_path):
    ids = [f"t{i}" for i in range(6)]
    runs, curve = frames(*ids)

    def published(name, groups):
        s = Store(tmp_path / name)
        for group in groups:
            s.add(runs[runs["trial_id"].isin(group)], curve[curve["trial_id"].isin(group)], RECORD)
        s.publish()
        return digest(s.folder)

    tables = published("one", [ids])
    assert published("many", [[i] for i in reversed(ids)]) == tables
    assert published("mixed", [ids[3:], ids[:4]]) == tables
    assert load_results(tmp_path / "mixed").runs["trial_id"].tolist() == ids


def test_publish_twice_is_idempotent_and_leaves_nothing(ours):
    add(ours, "a")
    ours.publish()
    before = digest(ours.folder)
    ours.publish()
    assert digest(ours.folder) == before
    assert leftovers(ours.folder) == []


# ---- atomicity


@pytest.mark.parametrize("call", ["rename", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_failing_disk_leaves_no_trace(ours, monkeypatch, call, code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    add(ours, "a")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StoreError, match=os.strerror(code)) as caught:
            add(ours, "b")
    assert repr(str(ours.folder)) in str(caught.value)
    assert "run the same command again" in str(caught.value)
    assert ("free some space" in str(caught.value)) == (code == errno.ENOSPC)
    assert leftovers(ours.folder) == []
    assert ours.done() == {"a"}
    add(ours, "b")
    assert ours.done() == {"a", "b"}


@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_a_full_disk_between_two_files(ours, monkeypatch, survivors):
    write, written = files.write_new, []

    def fill(path, data):
        if len(written) == survivors:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        write(path, data)

    monkeypatch.setattr(store, "write_new", fill)
    with pytest.raises(StoreError, match="No space left"):
        add(ours, "a")
    assert ours.done() == set()
    assert leftovers(ours.folder) == []


def test_a_full_disk_keeps_the_published_tables(ours, monkeypatch):
    add(ours, "a")
    ours.publish()
    before = digest(ours.folder)
    add(ours, "b")

    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="free some space"):
        ours.publish()
    assert digest(ours.folder) == before
    assert leftovers(ours.folder) == []


def test_ctrl_c_removes_the_temporary_folder(ours, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        add(ours, "a")
    assert leftovers(ours.folder) == []


WRITER = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/.."]
from test_store import Store, add
store, start = Store(sys.argv[2]), int(sys.argv[3])
for i in range(start, int(sys.argv[4])):
    add(store, f"t{i}", f"u{i}")
    if i == start:
        print("one is written", flush=True)
"""


def writer(folder, start, stop):
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parent), str(folder), str(start), str(stop)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.whole
def test_a_killed_writer_leaves_only_whole_packs(ours):
    kills = 4
    for k in range(kills):
        process = writer(ours.folder, 1000 * k, 10**9)
        process.stdout.readline()
        time.sleep(0.15 + 0.037 * k)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    loaded = Store(ours.folder).load()
    assert loaded.warnings == []
    assert len(loaded.records) >= kills
    assert len(loaded.runs) == 2 * len(loaded.records)
    assert (loaded.curve.groupby("trial_id").size() == 3).all()
    assert set(loaded.runs["trial_id"]) == set(loaded.curve["trial_id"]) == ours.done()
    add(ours, "after")
    assert "after" in ours.done()


@pytest.mark.whole
def test_two_processes_share_a_store(ours):
    processes = [writer(ours.folder, 0, 40), writer(ours.folder, 10, 50)]  # 30 packs are written by both
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(ours.done()) == 100
    assert len(ours.load().records) == 50
    assert sorted(os.listdir(ours.packs)) == sorted(pack_id([f"t{i}", f"u{i}"]) for i in range(50))


def test_only_stale_temporary_folders_are_removed(ours):
    for name, age in (("old", 7200), ("young", 60)):
        path = ours.packs / f".tmp-{name}"
        path.mkdir()
        (path / "runs.parquet").write_text("half")
        os.utime(path, (time.time() - age,) * 2)
    Store(ours.folder)
    assert leftovers(ours.folder) == [".tmp-young"]
    assert ours.done() == set()


@pytest.mark.whole
def test_the_next_writer_of_a_file_removes_what_a_killed_one_has_left(tmp_path):
    code = (
        "import os, pathlib, sys; from bilevelbench.results import files; "
        "files.os.replace = lambda *_: os.kill(os.getpid(), 9); files.replace(pathlib.Path(sys.argv[1]), b'half')"
    )
    path = tmp_path / "page.html"
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    files.replace(tmp_path / "other.html", b"whole")
    assert len(os.listdir(tmp_path)) == 2
    files.replace(path, b"whole")
    assert sorted(os.listdir(tmp_path)) == ["other.html", "page.html"]


# ---- corruption


def truncate(path):
    (path / "curve.parquet").write_bytes((path / "curve.parquet").read_bytes()[:-10])


def cut_json(path):
    (path / "pack.json").write_bytes((path / "pack.json").read_bytes()[:-40])


def edit_json(path):
    text = (path / "pack.json").read_text()
    (path / "pack.json").write_text(text.replace('"3.11"', '"3.12"'))


def list_json(path):
    (path / "pack.json").write_text("[1, 2]\n")


def flip_byte(path):
    flip(path / "runs.parquet", 200)


DAMAGE = {
    "truncated table": (truncate, "curve.parquet"),
    "missing table": (lambda path: (path / "runs.parquet").unlink(), "runs.parquet"),
    "missing record": (lambda path: (path / "pack.json").unlink(), "pack.json"),
    "empty record": (lambda path: (path / "pack.json").write_text(""), "pack.json"),
    "binary record": (lambda path: (path / "pack.json").write_bytes(b"\xff\xfe\x00"), "pack.json"),
    "cut record": (cut_json, "pack.json"),
    "edited record": (edit_json, "pack.json"),
    "other record": (list_json, "pack.json"),
    "flipped byte": (flip_byte, "runs.parquet"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_corrupt_pack_is_reported_and_its_trials_run_again(ours, damage):
    hurt, file = DAMAGE[damage]
    add(ours, "a")
    bad = ours.packs / add(ours, "b", phi=1.0)
    hurt(bad)

    loaded = ours.load()
    assert loaded.runs["trial_id"].tolist() == ["a"]
    assert set(loaded.curve["trial_id"]) == {"a"}
    (problem,) = ours.warnings
    assert str(bad / file) in problem
    assert "runs its trials again" in problem
    assert "delete the folder" in problem
    assert bad.is_dir()

    again = Store(ours.folder)  # as another process would
    assert again.done() == {"a"}
    assert again.warnings == [problem]

    add(again, "b", phi=2.0)
    assert again.done() == {"a", "b"}
    assert again.load().runs["phi"].tolist() == [1.0, 2.0]
    assert again.warnings == []
    aside = ours.packs / f"{bad.name}.corrupt-0"
    assert aside.is_dir()

    hurt(bad)
    again.load()
    add(again, "b", phi=3.0)
    assert (ours.packs / f"{bad.name}.corrupt-1").is_dir()
    assert aside.is_dir()


def test_a_store_that_remembers_reads_each_pack_once(tmp_path, monkeypatch):
    read, read_pack = [], packs.read_pack
    monkeypatch.setattr(packs, "read_pack", lambda path: read.append(path.name) or read_pack(path))
    ours = Store(tmp_path / "results", remember=True)
    names = [add(ours, "a")]
    assert ours.done() == {"a"}
    names.append(add(ours, "b"))
    assert ours.done() == {"a", "b"}
    pd.testing.assert_frame_equal(ours.publish().curve, Store(ours.folder).load().curve)
    assert read == names
    flip_byte(ours.packs / names[0])
    os.utime(ours.packs / names[0] / "runs.parquet", (0, 0))
    assert ours.done() == {"b"}
    assert ours.load().runs["trial_id"].tolist() == ["b"]
    shutil.rmtree(ours.packs / names[1])
    assert ours.done() == set()


def test_a_restored_pack_counts_again(ours, tmp_path):
    bad = ours.packs / add(ours, "a")
    flip_byte(bad)
    ours.load()
    assert ours.done() == set()
    flip_byte(bad)
    assert ours.done() == {"a"}
    assert len(ours.load().runs) == 1


def test_a_renamed_pack_does_not_take_the_place_of_another(ours):
    (ours.packs / add(ours, "a")).rename(ours.packs / pack_id(["b"]))
    assert ours.done() == set()
    assert f"belongs to pack {pack_id(['a'])}" in ours.warnings[0]
    add(ours, "b")
    assert ours.done() == {"b"}


def test_a_file_in_the_place_of_a_pack_is_set_aside(ours):
    (ours.packs / pack_id(["a"])).write_text("?")
    add(ours, "a")
    assert ours.done() == {"a"}
    assert (ours.packs / f"{pack_id(['a'])}.corrupt-0").read_text() == "?"


@pytest.mark.parametrize("version", range(1, schema.SCHEMA_VERSION + 1))
def test_a_table_with_other_columns_is_corrupt(ours, version):
    runs, curve = frames("a")
    tables = [schema.runs_table(runs).drop_columns("phi"), schema.curve_table(curve)]
    ours.place({"trial_ids": ["a"], "schema_version": version}, [packs.to_parquet(table) for table in tables])
    assert ours.load().runs.empty
    assert f"does not have the columns of schema {version}" in ours.warnings[0]


# ---- versions


def newer(where, *ids, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store, "SCHEMA_VERSION", 7)
        return where.packs / add(where, *ids)


def test_a_newer_pack_is_left_out_and_stays_for_those_who_can_read_it(ours, monkeypatch):
    path = newer(ours, "a", monkeypatch=monkeypatch)
    before = (path / "pack.json").read_bytes()
    with pytest.raises(
        StoreError, match=rf"none of the 1 packs .*{path.name}.*newer bilevelbench \(schema 7, this one"
    ):
        load_results(ours.folder)
    assert ours.done() == set()
    add(ours, "a", "b")
    add(ours, "a")  # the same trials as we make them are another pack
    assert ours.done() == {"a", "b"}
    for problems in (ours.warnings, ours.load().warnings, ours.publish().warnings, load_results(ours.folder).warnings):
        (problem,) = problems
        assert (
            f"{path / 'pack.json'}: written by a newer bilevelbench (schema 7, this one knows {schema.SCHEMA_VERSION}); upgrade"
            in problem
        )
        assert "until then the pack is ignored" in problem
    assert (path / "pack.json").read_bytes() == before


def test_packs_of_two_schemas_share_a_table(ours, monkeypatch):
    def to_3(runs, curve):
        return runs.assign(label="upgraded"), curve

    add(ours, "a")
    for module in (schema, tables, store):
        monkeypatch.setattr(module, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(schema, "UPGRADES", {2: to_3})
    add(ours, "b", label="new")
    loaded = ours.load()
    assert loaded.runs["label"].tolist() == ["upgraded", "new"]
    assert loaded.runs["schema_version"].tolist() == [3, 3]
    assert len(loaded.curve) == 6


def test_a_pack_of_schema_1_is_read_without_its_samples(ours):
    runs, curve = frames("a", cost=7.0)
    older = pa.table(runs.assign(samples=runs["cost"], schema_version=1)[schema.runs_schema(1).names])
    tables = [older.cast(schema.runs_schema(1)).replace_schema_metadata(), schema.curve_table(curve)]
    ours.place({"trial_ids": ["a"], "schema_version": 1}, [packs.to_parquet(table) for table in tables])
    add(ours, "b", cost=9.0)
    loaded = ours.load()
    assert ours.warnings == []
    assert list(loaded.runs.columns) == list(schema.RUNS)
    assert loaded.runs["cost"].tolist() == [7.0, 9.0]
    assert loaded.runs["schema_version"].tolist() == [schema.SCHEMA_VERSION] * 2


# ---- folders


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=r"cannot write to the result folder.*choose another folder") as caught:
            Store(folder)
        assert repr(str(folder)) in str(caught.value)


def test_an_unwritable_folder_is_refused_before_the_run(ours, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StoreError, match="choose a folder that you may write to"):
        Store(ours.folder)


def test_no_results_says_what_to_run(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "runs.parquet").write_text("")
    reasons = {
        "empty": "is empty",
        "missing": "does not exist",
        "file": "is not a folder",
        "other": "has neither packs nor curve.parquet",
    }
    for name, reason in reasons.items():
        with pytest.raises(StoreError, match=f"{reason}; run `bilevelbench run --all -o .*{name}` first"):
            load_results(tmp_path / name)
    assert not (tmp_path / "missing").exists()


def test_published_tables_are_readable_without_packs(ours):
    add(ours, "a", "b")
    published = ours.publish()
    shutil.rmtree(ours.packs)
    loaded = load_results(ours.folder)
    pd.testing.assert_frame_equal(loaded.runs, published.runs)
    pd.testing.assert_frame_equal(loaded.curve, published.curve)
    assert loaded.records == []
    with pytest.raises(StoreError, match="published tables without their packs"):
        Store(ours.folder)  # publishing would lose them
    flip(ours.folder / "runs.parquet", -1)
    with pytest.raises(StoreError, match=r"published tables.*cannot be read"):
        load_results(ours.folder)


def test_published_tables_of_a_newer_schema(ours):
    add(ours, "a", schema_version=9)
    ours.publish()
    shutil.rmtree(ours.packs)
    with pytest.raises(StoreError, match=r"runs.parquet: written by a newer bilevelbench \(schema 9"):
        load_results(ours.folder)


def test_reading_writes_nothing_and_reports_problems(ours):
    add(ours, "a")
    flip_byte(ours.packs / add(ours, "b"))
    before = sorted(ours.folder.rglob("*"))
    assert len(load_results(ours.folder).warnings) == 1
    shutil.rmtree(ours.packs / pack_id(["a"]))
    with pytest.raises(StoreError, match=r"none of the 1 packs.*does not match its checksum"):
        load_results(ours.folder)
    assert set(ours.folder.rglob("*")) < set(before)


@pytest.mark.parametrize("packs", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_many_packs(ours, monkeypatch, packs):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # not what is tested here
    runs, curve = frames("x")
    for i in range(packs):
        ours.add(runs.assign(trial_id=f"t{i:03}", seed=i), curve.assign(trial_id=f"t{i:03}"), RECORD)
    assert len(ours.done()) == packs
    loaded = ours.publish()
    assert loaded.runs["seed"].tolist() == list(range(packs))
    assert loaded.curve["step"].tolist() == [0, 1, 2] * packs
    assert pq.read_table(ours.folder / "curve.parquet").num_rows == 3 * packs


# ---- a pack and its rows


def place(where, ids, tables, **record):
    """A pack whose record says what it likes, with sums that are right."""
    head = {"trial_ids": ids, "schema_version": schema.SCHEMA_VERSION, **record}
    return where.packs / where.place(head, [packs.to_parquet(table) for table in tables])


def typed(runs, curve):
    return [schema.runs_table(runs), schema.curve_table(curve)]


@pytest.mark.parametrize(
    ("claimed", "there", "said"),
    [
        (["b", "ghost"], ["b"], "has no row of trial 'ghost', which pack.json lists"),
        (["ghost"], ["b"], "has no row of trial 'ghost', which pack.json lists"),
        (["b"], ["b", "c"], "has rows of trials, which pack.json does not list"),
    ],
)
def test_a_pack_that_claims_other_trials_than_it_has_is_run_again(ours, claimed, there, said):
    add(ours, "a")
    bad = place(ours, claimed, typed(*frames(*there)))
    for read in (ours.done, ours.load, Store(ours.folder).done):
        read()
        again = Store(ours.folder)
        assert again.done() == {"a"}
        (problem,) = again.warnings
        assert f"{str(bad / 'runs.parquet')!r} {said}" in problem
    assert ours.load().runs["trial_id"].tolist() == ["a"]
    add(ours, *claimed)
    assert ours.done() == {"a", *claimed}
    assert ours.warnings == []


def test_a_pack_with_the_curve_of_another_trial_is_left_out(ours):
    add(ours, "a")
    place(ours, ["b"], typed(frames("b")[0], frames("c")[1]))
    assert ours.load().runs["trial_id"].tolist() == ["a"]
    assert "has trial 'c', which the pack does not hold" in ours.warnings[0]
    assert ours.done() == {"a"}  # the pack is known to be damaged now


WRONG = [
    {"environment": 3},
    {"environment": {"packages": [1]}},
    {"commits": ["x"]},
    {"families": "penalty"},
    {"created": 20260101},
    {"merged_from": {}},
    {"total_seconds": "long"},
    {"trials": {"id": "b"}},
    {"trials": [{"algorithm": "f2ba"}]},
    {"trials": [7]},
    {"trials": [{"id": "b", "schedule": "often"}]},
]


def rewritten(path, change):
    """pack.json with other contents and a sum that is right, as a stranger's program may write it."""
    record = json.loads((path / "pack.json").read_text())
    change(record)
    (path / "pack.json").write_bytes(packs.to_json(record))


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_record_of_the_wrong_types_is_left_out(ours, wrong):
    add(ours, "a")
    bad = ours.packs / add(ours, "b")
    rewritten(bad, lambda record: record.update(wrong))
    assert ours.load().runs["trial_id"].tolist() == ["a"]
    assert ours.done() == {"a"}
    assert str(bad / "pack.json") in ours.warnings[0]


@pytest.mark.parametrize("key", ["trial_ids", "files", "schema_version"])
@pytest.mark.parametrize("value", [None, "1", 1.5, [], [3], {}, True, -4])
def test_a_record_that_lacks_what_is_needed_is_left_out(ours, key, value):
    add(ours, "a")
    bad = ours.packs / add(ours, "b")
    rewritten(bad, lambda record: record.pop(key) if value is None else record.update({key: value}))
    assert ours.done() == {"a"}
    assert ours.load().runs["trial_id"].tolist() == ["a"]
    assert str(bad / "pack.json") in ours.warnings[0]


@pytest.mark.parametrize("text", ["[" * 100_000, "3", '"x"', "null", '{"schema_version": 2', '{"schema_version": 2}'])
def test_a_record_that_is_no_record_is_left_out(ours, text):
    add(ours, "a")
    bad = ours.packs / add(ours, "b")
    (bad / "pack.json").write_text(text)
    assert ours.done() == {"a"}
    assert ours.load().runs["trial_id"].tolist() == ["a"]
    assert str(bad / "pack.json") in ours.warnings[0]


def test_a_table_with_holes_is_left_out(ours):
    add(ours, "a")
    runs, curve = typed(*frames("b"))
    at = runs.column_names.index("status")
    place(ours, ["b"], [runs.set_column(at, "status", pa.array([None], runs.schema.field(at).type)), curve])
    assert ours.load().runs["trial_id"].tolist() == ["a"]
    assert "has a row without 'status'" in ours.warnings[0]


# ---- the working directory


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ours = Store("results")
    monkeypatch.chdir(tmp_path / "elsewhere")
    add(ours, "a")
    ours.publish()
    assert load_results(tmp_path / "results").runs["trial_id"].tolist() == ["a"]
    assert os.listdir(tmp_path / "elsewhere") == []


# ---- several machines


def on(cpu, **record):
    return {**RECORD, "environment": {"cpu": cpu, "packages": {"torch": "2", "pandas": "3"}}, **record}


def test_packs_of_two_machines_lie_side_by_side(ours):
    names = [ours.add(*frames("a", "b", phi=phi), on(cpu)) for cpu, phi in (("Left", 1.0), ("Right", 1.0 + 1e-13))]
    ours.add(*frames("c"), on("Left"))
    assert len({*names}) == 2
    loaded = ours.load()
    assert loaded.warnings == []
    assert loaded.runs["trial_id"].tolist() == ["a", "c", "b"]  # by seed
    first = 1.0 if names[0] < names[1] else 1.0 + 1e-13
    assert loaded.runs.set_index("trial_id")["phi"].to_dict() == {"a": first, "b": first, "c": 1.0}
    ((runs, curve),) = loaded.copies
    assert sorted(runs["trial_id"]) == ["a", "b"]
    assert set(runs["phi"]) == {1.0, 1.0 + 1e-13} - {first}
    assert sorted(curve["trial_id"]) == ["a"] * 3 + ["b"] * 3
    assert loaded.confirmations().to_dict() == {"a": 2, "b": 2, "c": 1}
    assert sorted(loaded.machines()["a"]) == ["Left, torch 2", "Right, torch 2"]
    assert loaded.machines()["c"] == ("Left, torch 2",)


def test_a_machine_that_runs_a_trial_twice_confirms_it_once(ours):
    ours.add(*frames("a", "b"), on("Left"))
    ours.add(*frames("b", "c"), on("Left", created="2026-01-01"))
    assert ours.load().confirmations().to_dict() == {"a": 1, "b": 1, "c": 1}
    assert len(ours.load().copies) == 1


def test_packs_that_contradict_each_other_are_a_problem(ours):
    ours.add(*frames("a", phi=1.0), on("Left"))
    ours.add(*frames("a", phi=99_999.0), on("Right"))
    for loaded in (ours.load(), load_results(ours.folder)):
        (problem,) = loaded.warnings
        assert "disagree on trial 'a' (f2ba on quadratic, seed 0)" in problem
        assert "99999.0" in problem
        assert "(Left, torch 2, pack " in problem
        assert "(Right, torch 2, pack " in problem
        assert problem.endswith("the first is shown")


@pytest.mark.parametrize("folder", ["deterministic", "finite_sum", "second_order", "figure1", "figure2", "figure3"])
def test_the_published_results_are_read_whole(folder):
    loaded = load_results(OFFICIAL / folder)
    assert loaded.warnings == loaded.copies == []
    assert len(loaded.runs) == sum(len(record["trial_ids"]) for record in loaded.records) > 0
    assert set(loaded.curve["trial_id"]) == set(loaded.runs["trial_id"])
    assert (loaded.confirmations() == 1).all()
    assert all(name != "" for names in loaded.machines().values() for name in names)
