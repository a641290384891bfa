"""Rows that no run can have written are left out with a sentence, whoever sent them."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bilevelbench.errors import StoreError
from bilevelbench.results.possible import impossible
from bilevelbench.results.schema import curve_of, runs_of
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

HONEST = {
    "trial_id": "t", "algorithm": "f2ba", "problem": "quadratic", "seed": 0, "status": "budget", "steps": 2,
    "grad_f": 4, "grad_f_x": 2, "grad_f_y": 2, "grad_g": 6, "grad_g_x": 2, "grad_g_y": 4, "first_order": 10,
    "cost": 10.0, "grad_phi": 1.0, "seconds": 0.1,
}  # fmt: skip
POINTS = {"trial_id": ["t"] * 3, "step": [0, 1, 2], "cost": [0.0, 5.0, 10.0], "grad_phi": [4.0, 2.0, 1.0]}


def fault(points=(), **row):
    return impossible(runs_of([HONEST | row]), curve_of(POINTS | dict(points)))


def test_an_honest_row_is_possible():
    assert fault() is None
    assert fault(status="diverged", grad_phi=None, cost=10.0) is None
    assert impossible(runs_of([]), curve_of({"trial_id": [], "step": []})) is None


def test_a_method_that_stays_where_it_is_may_do_so_for_nothing():
    free = {"cost": [0.0, 0.0, 0.0], "grad_phi": [4.0, 4.0, 4.0]}
    nothing = dict.fromkeys(["grad_f", "grad_f_x", "grad_f_y", "grad_g", "grad_g_x", "grad_g_y", "first_order"], 0)
    assert fault(free, cost=0.0, **nothing) is None


@pytest.mark.parametrize(
    ("row", "points", "words"),
    [
        ({"cost": -100.0}, {"cost": [-300.0, -200.0, -100.0]}, "says cost = -100 of trial t, which cannot be negative"),
        ({}, {"cost": [0.0, -5.0, 10.0]}, "says cost = -5 of trial t"),
        ({"cost": float("inf")}, {}, "says cost = inf of trial t; a cost is finite"),
        ({"grad_g_y": -1}, {}, "says grad_g_y = -1"),
        ({"steps": -1}, {}, "says steps = -1"),
        ({"grad_phi": -1.0}, {}, "says grad_phi = -1"),
        ({"first_order": 3}, {}, "counts 3 gradients of trial t in all and 10 of f and of g"),
        ({"algorithm": "  "}, {}, "has a row (t) without 'algorithm'"),
        ({}, {"cost": [0.0, 10.0, 5.0]}, "has a curve of trial t whose cost falls"),
        ({}, {"step": [0, 2, 1]}, "has a curve of trial t whose step falls"),
        ({"cost": 9.0}, {}, "has a curve of trial t that goes on beyond its cost"),
        ({"steps": 1}, {}, "has a curve of trial t that goes on beyond its steps"),
        (
            {},
            {"cost": [0.0, 0.0, 10.0], "grad_phi": [4.0, 1e-300, 1.0]},
            "has trial t come closer without a single call",
        ),
    ],
)
def test_what_cannot_be_is_said(row, points, words):
    assert words in fault(points, **row)


def test_an_unknown_status_is_said():
    runs = runs_of([HONEST])
    place = runs.column_names.index("status")
    forged = runs.set_column(place, "status", pa.array(["victory"], runs.schema.field("status").type))
    assert "gives trial t the status 'victory', which is none of budget, " in impossible(forged, curve_of(POINTS))


def test_such_a_pack_is_left_out_and_the_others_stay(tmp_path):
    store, tables = Store(tmp_path), (runs_of, curve_of)
    for name, cost in (("good", 10.0), ("bad", -10.0)):
        points = POINTS | {"trial_id": [name] * 3, "cost": [0.0, 0.0, cost]}
        points |= {"grad_phi": [4.0] * 3}
        store.add(tables[0]([HONEST | {"trial_id": name, "cost": cost}]).to_pandas(), tables[1](points).to_pandas(), {})
    results = load_results(tmp_path)
    assert results.runs["trial_id"].tolist() == ["good"]
    assert "says cost = -10 of trial bad" in results.warnings[0]


def test_published_tables_are_held_against_the_same(tmp_path):
    pq.write_table(runs_of([HONEST | {"cost": 3.0}]), tmp_path / "runs.parquet")
    pq.write_table(curve_of(POINTS), tmp_path / "curve.parquet")
    with pytest.raises(StoreError, match="has a curve of trial t that goes on beyond its cost; fetch or publish"):
        load_results(tmp_path)


def test_published_curves_belong_to_rows(tmp_path):
    pq.write_table(runs_of([HONEST]), tmp_path / "runs.parquet")
    pq.write_table(curve_of(POINTS | {"trial_id": ["t", "t", "ghost"]}), tmp_path / "curve.parquet")
    with pytest.raises(StoreError, match="has no row of trial ghost, which has a curve"):
        load_results(tmp_path)


def test_published_columns_of_another_type_are_a_sentence(tmp_path):
    runs = runs_of([HONEST])
    words = runs.set_column(runs.column_names.index("cost"), "cost", pa.array(["much"]))
    pq.write_table(words, tmp_path / "runs.parquet")
    pq.write_table(curve_of(POINTS), tmp_path / "curve.parquet")
    with pytest.raises(StoreError, match=r"cannot be read \(.*; fetch or publish them again"):
        load_results(tmp_path)


def test_many_trials_are_looked_at_together():
    """In one go: a look at every row for every trial would take minutes."""
    many = 20_000
    ids = [f"t{i}" for i in range(many)]
    runs = runs_of([HONEST | {"trial_id": name} for name in ids])
    points = {"trial_id": [n for n in ids for _ in range(3)]}
    points |= {name: POINTS[name] * many for name in ("step", "cost", "grad_phi")}
    assert impossible(runs, curve_of(points)) is None
    points["cost"][-2], points["grad_phi"][-2] = 0.0, 1e-300
    assert impossible(runs, curve_of(points)) == f"has trial {ids[-1]} come closer without a single call"


# ---- sizes


def test_a_small_file_of_many_rows_is_not_unpacked(tmp_path):
    many = 3_000_000
    rows = {"trial_id": pa.array(["t"] * many, pa.large_string()), **{n: pa.nulls(many) for n in "abcdefgh"}}
    pq.write_table(pa.table(rows), tmp_path / "curve.parquet", compression="zstd")
    pq.write_table(runs_of([HONEST]), tmp_path / "runs.parquet")
    assert (tmp_path / "curve.parquet").stat().st_size < 100_000
    with pytest.raises(StoreError, match="3,000,000 rows of 9 columns; at most 20,000,000 numbers are read"):
        load_results(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_place_of_a_file_does_not_wait(tmp_path):
    name = Store(tmp_path).add(runs_of([HONEST]).to_pandas(), curve_of(POINTS).to_pandas(), {})
    record = tmp_path / "packs" / name / "pack.json"
    record.unlink()
    os.mkfifo(record)
    with pytest.raises(StoreError, match=r"pack\.json' is not a file; the pack is ignored"):
        load_results(tmp_path)


def test_a_schema_of_long_ago_is_refused_at_once(tmp_path):
    pq.write_table(runs_of([HONEST | {"schema_version": -(10**12)}]), tmp_path / "runs.parquet")
    pq.write_table(curve_of(POINTS), tmp_path / "curve.parquet")
    with pytest.raises(StoreError, match="nothing upgrades schema -1000000000000"):
        load_results(tmp_path)
