"""The record of a trial, and the curve that it goes into."""

from __future__ import annotations

from bilevelbench.engine.lane import Curve


def test_blocks_are_put_below_each_other_and_what_they_lack_is_none():
    curve = Curve()
    assert len(curve) == 0
    assert curve.rows() == []
    curve.extend({"trial_id": ["a", "b"], "step": [0, 0]})
    curve.extend({"trial_id": ["b"], "step": [1], "phi": [2.0]})
    curve.extend({})
    assert curve.rows() == [
        {"trial_id": "a", "step": 0, "phi": None},
        {"trial_id": "b", "step": 0, "phi": None},
        {"trial_id": "b", "step": 1, "phi": 2.0},
    ]


def test_trials_are_sorted_by_place_and_their_rows_keep_their_order():
    curve = Curve()
    curve.extend({"trial_id": ["a", "b", "a", "b"], "step": [0, 0, 1, 1]})
    curve.sort({"b": 0, "a": 1})
    assert curve.columns == {"trial_id": ["b", "b", "a", "a"], "step": [0, 1, 0, 1]}
    empty = Curve()
    empty.sort({"b": 0})
    assert empty.columns == {}
