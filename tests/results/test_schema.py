from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.results import schema
from bilevelbench.results.schema import (
    CURVE,
    RUNS,
    SCHEMA_VERSION,
    Results,
    curve_frame,
    curve_table,
    runs_frame,
    runs_table,
)
from bilevelbench.results.status import Status
from bilevelbench.results.tables import load_results


def row(**values):
    return {"trial_id": "t1", "algorithm": "f2ba", "problem": "quadratic", "seed": 3, "status": "target", **values}


def test_runs_have_their_columns_in_order_with_types():
    frame = runs_frame([row(steps=7.0, phi=1, cost=2.0**60, message=None)])
    assert list(frame.columns) == list(RUNS)
    assert frame["steps"].dtype == np.int64
    assert frame["cost"].dtype == frame["phi"].dtype == np.float64
    assert frame.loc[0, "steps"] == 7
    assert frame.loc[0, "message"] == ""
    assert frame.loc[0, "schema_version"] == SCHEMA_VERSION
    assert np.isnan(frame.loc[0, "grad_phi"])


def test_curve_takes_further_columns_in_alphabetical_order():
    frame = curve_frame([{"trial_id": "t", "step": 0, "restarts": 1}, {"trial_id": "t", "step": 4.0, "accuracy": None}])
    assert list(frame.columns) == [*CURVE, "accuracy", "restarts"]
    assert frame["step"].tolist() == [0, 4]
    assert frame["restarts"].dtype == np.float64
    assert frame["accuracy"].isna().all()


def test_empty_tables_have_the_types_of_full_ones():
    assert (runs_frame([]).dtypes == runs_frame([row()]).dtypes).all()
    assert (curve_frame([]).dtypes == curve_frame([{"trial_id": "t", "step": 0}]).dtypes).all()


def test_tables_keep_infinities_and_large_seeds():
    frame = runs_frame([row(seed=2**63 - 1, phi=float("inf"), last_phi=-np.inf)])
    back = runs_table(frame).to_pandas()
    assert back.equals(frame)
    assert back.loc[0, "seed"] == 2**63 - 1


@pytest.mark.parametrize(
    ("values", "culprit"),
    [
        ({"grad_phy": 1.0}, "did you mean 'grad_phi'"),
        ({"status": "budgt"}, "did you mean 'budget'"),
        ({"steps": 1.5}, "runs.steps` is 1.5"),
        ({"steps": float("nan")}, "runs.steps` is nan"),
        ({"steps": float("inf")}, "runs.steps` is inf"),
        ({"seed": 2**63}, "at most 64 bits"),
        ({"phi": "small"}, "runs.phi` is 'small'"),
        ({"algorithm_params": {"a": 1}}, "JSON text"),
        ({"trial_id": ""}, "has no 'trial_id'"),
        ({"seed": None}, "has no 'seed'"),
    ],
)
def test_wrong_rows_are_named(values, culprit):
    with pytest.raises(InvalidInput, match=culprit):
        runs_frame([row(**values)])


def test_a_message_with_undecodable_characters_is_kept_as_text():
    assert runs_frame([row(message="no file 'a\udc80'")]).loc[0, "message"] == "no file 'a?'"


def test_frames_of_other_columns_or_types_are_refused():
    with pytest.raises(InvalidInput, match="'phi' is missing or unknown"):
        runs_table(runs_frame([row()]).drop(columns="phi"))
    with pytest.raises(InvalidInput, match="wrong type"):
        curve_table(curve_frame([{"trial_id": "t", "step": 0}]).assign(phi="low"))


def test_every_status_has_a_meaning():
    assert set(Status) == {"target", "budget", "timeout", "diverged", "error", "invalid", "stopped", "interrupted"}
    assert all(status.sentence for status in Status)


def test_a_status_is_stored_as_its_text():
    made = [row(trial_id=f"t{n}", status=status) for n, status in enumerate(Status)]
    plain = [{**one, "status": str(one["status"])} for one in made]
    assert runs_table(runs_frame(made)).equals(runs_table(runs_frame(plain)))
    assert [Status(text) for text in runs_frame(plain)["status"]] == list(Status)


def test_only_some_trials_in_the_tables_and_in_every_copy():
    runs = runs_frame([row(trial_id=name) for name in "abc"])
    curve = curve_frame([{"trial_id": name, "step": step} for name in "abc" for step in (0, 1)])
    second = (runs[runs["trial_id"] != "a"], curve[curve["trial_id"] != "a"])
    results = Results(runs, curve, [{"trial_ids": list("abc")}], ["a sentence"], [second])
    some = results.only(["b", "never run"])
    assert [list(table["trial_id"]) for table in (some.runs, some.curve)] == [["b"], ["b", "b"]]
    assert [[list(table["trial_id"]) for table in copy] for copy in some.copies] == [[["b"], ["b", "b"]]]
    assert (some.records, some.warnings) == (results.records, results.warnings)
    assert list(results.without(["b"]).curve["trial_id"]) == ["a", "a", "c", "c"]
    assert results.only(iter("ac")).runs.equals(results.without("b").runs)


def test_groups_of_trials_are_what_only_gives_of_each():
    runs = runs_frame([row(trial_id=name) for name in "abcd"])
    curve = curve_frame([{"trial_id": name, "step": step} for step in (0, 1) for name in "abc"])  # d failed at once
    second = (runs[runs["trial_id"] != "a"], curve[curve["trial_id"] != "a"])
    results = Results(runs, curve, [{"trial_ids": list("abcd")}], ["a sentence"], [second])
    groups = results.grouped({"a": "one", "b": "other", "c": "one", "d": "failed", "never run": "none"})
    assert {name: list(group.runs["trial_id"]) for name, group in groups.items()} == {
        "one": ["a", "c"], "other": ["b"], "failed": ["d"],
    }  # fmt: skip
    for group in groups.values():
        alone = results.only(group.runs["trial_id"])
        assert group.runs.equals(alone.runs)
        assert group.curve.equals(alone.curve)
        for ours, theirs in zip(group.copies, alone.copies, strict=True):
            assert all(one.equals(other) for one, other in zip(ours, theirs, strict=True))
        assert (group.records, group.warnings) == (results.records, results.warnings)


def test_newer_schema_is_refused():
    with pytest.raises(StoreError, match=r"written by a newer bilevelbench \(schema 7, this one knows 2\); upgrade"):
        schema.upgrade(runs_frame([]), curve_frame([]), 7)


def test_older_schema_goes_through_every_upgrade(monkeypatch):
    def to_2(runs, curve):
        return runs.assign(message="two"), curve

    def to_3(runs, curve):
        return runs.assign(message=runs["message"] + ", three"), curve

    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(schema, "UPGRADES", {})
    with pytest.raises(StoreError, match="nothing upgrades schema 1 to 2"):
        schema.upgrade(runs_frame([row()]), curve_frame([]), 1)
    monkeypatch.setattr(schema, "UPGRADES", {1: to_2, 2: to_3})
    runs, _ = schema.upgrade(runs_frame([row()]), curve_frame([]), 1)
    assert runs.loc[0, "message"] == "two, three"
    assert runs.loc[0, "schema_version"] == 3


OFFICIAL = Path(__file__).parents[2] / "leaderboard" / "results" / "official"


def test_published_results_are_read_whatever_their_schema():
    folders = sorted(path.parent for path in OFFICIAL.glob("*/packs"))
    assert folders
    for folder in folders:
        stored = [pq.ParquetFile(path).read().to_pandas() for path in sorted(folder.glob("packs/*/runs.parquet"))]
        before = pd.concat(stored).drop_duplicates("trial_id").set_index("trial_id")
        results = load_results(folder)
        assert results.warnings == []
        assert list(results.runs.columns) == list(RUNS)
        assert set(results.runs["schema_version"]) == {SCHEMA_VERSION}
        after = results.runs.set_index("trial_id")["cost"]
        assert after.to_dict() == before["cost"].to_dict()


def test_reading_results_does_not_import_torch():
    code = (
        "import sys, bilevelbench.results.merge, bilevelbench.results.store, "
        "bilevelbench.execute.environment as e; e.environment();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_table_that_claims_to_be_of_schema_1_need_not_be():
    runs, _ = schema.upgrade(schema.runs_frame([]), schema.curve_frame([]), version=1)
    assert "samples" not in runs


def test_a_long_message_is_cut_in_the_middle():
    """A text beyond the limit of what is read would make the whole pack unreadable."""
    (message,) = runs_frame([row(message="begin " + "\u00e9" * 300_000 + " end")])["message"]
    assert len(message) < 5000
    assert message.startswith("begin ")
    assert "characters are left out here" in message
    assert message.endswith(" end")
