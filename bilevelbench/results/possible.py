"""Numbers that no run can have written: a row that comes from elsewhere is held against these before anyone sees it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bilevelbench.model.queries import QUERIES
from bilevelbench.results.schema import COUNT
from bilevelbench.results.status import Status

_STATUSES = frozenset(map(str, Status))
_FAILED = frozenset(str(status) for status in Status if status.failed)
Numbers = npt.NDArray[np.float64]

_NAMES = ("trial_id", "algorithm", "problem")
_NOT_NEGATIVE = ("seconds", "peak_memory", "grad_phi", "grad_phi_error", "g_y", "last_grad_phi", "best_grad_phi")
_LEVELS = tuple(query.column for query in QUERIES.values() if query.order == 1 and len(query.outputs) > 1)


def impossible(runs: pa.Table, curve: pa.Table) -> str | None:
    """What is wrong with the first row of a pack that cannot be true, as the end of a sentence; None if all can be."""
    return next(_faults(runs, curve), None)


def _faults(runs: pa.Table, curve: pa.Table) -> Iterator[str]:
    ids = runs["trial_id"].to_pylist()
    for name in _NAMES:
        for place, value in enumerate(runs[name].to_pylist()):
            if not value.strip():
                yield f"has a row ({ids[place] or place}) without {name!r}"
    for trial, status in zip(ids, runs["status"].to_pylist(), strict=True):
        if status not in _STATUSES:
            yield f"gives trial {trial} the status {status!r}, which is none of {', '.join(sorted(_STATUSES))}"
    for name in runs.column_names:
        if runs.schema.field(name).type == COUNT:
            yield from _below_zero(runs, name)
    for table in (runs, curve):
        for name in ("cost", *_NOT_NEGATIVE):
            if name in table.column_names:
                yield from _below_zero(table, name)
    yield from _counts(runs)
    yield from _curves(runs, curve)


def _below_zero(table: pa.Table, name: str) -> Iterator[str]:
    values = _numbers(table, name)
    for place in np.flatnonzero(values < 0):
        yield f"says {name} = {values[place]:g} of trial {table['trial_id'][int(place)]}, which cannot be negative"


def _counts(runs: pa.Table) -> Iterator[str]:
    """Gradients are counted by level and together."""
    parts = np.sum([_numbers(runs, name) for name in _LEVELS], axis=0)
    total, cost = _numbers(runs, "first_order"), _numbers(runs, "cost")
    for place in np.flatnonzero((parts != total) | np.isinf(cost)):
        trial = runs["trial_id"][int(place)]
        if np.isinf(cost[place]):
            yield f"says cost = {cost[place]:g} of trial {trial}; a cost is finite"
        else:
            yield f"counts {total[place]:g} gradients of trial {trial} in all and {parts[place]:g} of f and of g"


def _curves(runs: pa.Table, curve: pa.Table) -> Iterator[str]:
    """Along a trial steps and costs never fall, none is beyond its end, and nothing is gained without a call."""
    ids, of_curve = runs["trial_id"], curve["trial_id"]
    found = pc.index_in(of_curve, value_set=ids.cast(of_curve.type))
    for stranger in of_curve.filter(found.is_null()).to_pylist()[:1]:
        yield f"has no row of trial {stranger}, which has a curve"
        return
    place = found.to_numpy()
    order = np.argsort(place, kind="stable")  # a trial's rows together, as they were written
    place = place[order]
    again = place[1:] == place[:-1]
    for name, column in (("steps", "step"), ("cost", "cost")):
        values, ends = _numbers(curve, column)[order], _numbers(runs, name)
        for at in np.flatnonzero(again & (values[1:] < values[:-1]))[:1]:
            yield f"has a curve of trial {ids[int(place[at])]} whose {column} falls"
        for at in np.flatnonzero(values > ends[place])[:1]:
            yield f"has a curve of trial {ids[int(place[at])]} that goes on beyond its {name}"
    grad_phi, free = _numbers(curve, "grad_phi")[order], _numbers(curve, "cost")[order] == 0
    begins = np.flatnonzero(np.diff(place, prepend=-1))  # costs do not fall, so what was free stands at the beginning
    at_start = np.repeat(grad_phi[begins], np.diff(np.r_[begins, len(place)]))
    failed = np.array([status in _FAILED for status in runs["status"].to_pylist()], dtype=bool)
    for at in np.flatnonzero(free & (grad_phi < at_start) & ~failed[place])[:1]:
        yield f"has trial {ids[int(place[at])]} come closer without a single call"


def _numbers(table: pa.Table, name: str) -> Numbers:
    return np.asarray(table[name].to_numpy(), dtype=np.float64)
