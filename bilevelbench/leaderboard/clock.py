"""The board by the clock: trials that ran one at a time (`run --timed`), with seconds in the place of calls."""

from __future__ import annotations

from dataclasses import replace

from bilevelbench.results.schema import Results

#: The mode of such a board.
TIMED = "timed"


def timed_trials(results: Results) -> set[str]:
    """Ids of the trials that had the machine's other trials out of their way in every pack that holds them."""
    alone, beside = set[str](), set[str]()
    for record in results.records:
        (alone if record.get("timed") is True else beside).update(record.get("trial_ids", []))
    return alone - beside


def by_clock(results: Results) -> Results:
    """The same trials, with what a method's own steps took as their cost; evaluations are not in it.

    So ranks, profiles and tables need no second form. What was asked for stays in `runs`, which tells who uses products.
    """
    curve = results.curve.drop(columns="second_order_samples", errors="ignore")
    seconds = curve["seconds"].astype(float)
    return replace(
        results,
        runs=results.runs.assign(cost=results.runs["seconds"].astype(float)),
        curve=curve.assign(cost=seconds, first_order=seconds, second_order=0.0),
    )
