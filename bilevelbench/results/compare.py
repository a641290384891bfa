"""Do two machines agree on a trial? What was asked and what was counted exactly, what was computed up to rounding.

    |a - b| <= relative * max(|a|, |b|) + floor * scale          scale: the largest value that the trial has shown so far

The first part forgives rounding that many steps have carried along; the second what is rounding alone, as |grad phi| near
a solution. Where a trial is run again to verify it, both are small at its start and grow with its steps.

Where a number decides the end of a trial (target, divergence, the method's own rule), the last digits may move
the end by an evaluation: the evaluations that both made must agree. docs/decisions/006-machines.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bilevelbench.results.machine import machine
from bilevelbench.results.packs import pack_id
from bilevelbench.results.schema import COUNT, CURVE, REAL, RUNS, VOLATILE, Results, Tables
from bilevelbench.results.status import Status
from bilevelbench.untrusted import parameters


class Tolerance(NamedTuple):
    """What is forgiven at the start; `growth` times as much more with each step, and at most `most` times as much."""

    relative: float
    floor: float
    growth: float = 0.0
    most: float = 1.0


#: Between machines that have published a trial, by dtype.
TOLERANCES = {"float64": Tolerance(1e-6, 1e-11), "float32": Tolerance(1e-4, 1e-5)}

#: Between a stored trial and the same one run again: docs/decisions/018-verification.md.
GROWING = {"float64": Tolerance(1e-9, 1e-12, 1.0, 1e6), "float32": Tolerance(1e-4, 1e-5, 1.0, 1e2)}

#: The same bits.
EXACT = {"float64": Tolerance(0.0, 0.0)}

#: Endings that a number decides, and all that can stand against one of them.
_BY_NUMBER = (Status.TARGET, Status.STOPPED, Status.DIVERGED)
_REGULAR = tuple(status for status in Status if not status.broken)

#: Whole numbers although they are stored as floats.
_COUNTED = ("cost",)

#: Rows of `runs` have the scale of these columns of `curve`; an error bound has that of what it bounds.
_SCALES = {
    "last_phi": "phi", "last_grad_phi": "grad_phi", "best_grad_phi": "grad_phi", "grad_phi_error": "grad_phi",
}  # fmt: skip

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Witness:
    """One copy of the trials of a folder: its tables, or the `copy`-th of its copies."""

    folder: Path
    results: Results
    copy: int = 0

    @property
    def tables(self) -> Tables:
        return self.results.copies[self.copy - 1] if self.copy else (self.results.runs, self.results.curve)

    def introduced(self, trial_id: str) -> str:
        """The folder, and the processor and the pack where they are known."""
        makers = [record for record in self.results.records if trial_id in record.get("trial_ids", [])]
        if len(makers) <= self.copy:
            return f"{str(self.folder)!r} (published tables, which name no processor)"
        record = makers[self.copy]
        processor = machine(record.get("environment") or {}) or "an unknown processor"
        return f"{str(self.folder)!r} ({processor}, pack {pack_id(record)})"


def witnesses(folder: Path, results: Results) -> list[Witness]:
    return [Witness(folder, results, n) for n in range(len(results.copies) + 1)]


def disagreements(found: Sequence[Witness]) -> Iterator[str]:
    """A sentence for each pair that disagrees on a trial that both hold."""
    for a, b in combinations(found, 2):
        clash = first_difference(a.tables, b.tables)
        if clash is not None:
            trial_id, column = clash
            row = a.tables[0].set_index("trial_id").loc[trial_id]
            yield (
                f"{a.introduced(trial_id)} and {b.introduced(trial_id)} disagree on trial {trial_id!r} "
                f"({row['algorithm']} on {row['problem']}, seed {row['seed']}): the first column that differs is {column}, "
                "by more than rounding; find out which one is right (was a plugin changed without a new version? does "
                "the method branch on the last digits?) and remove the pack of the other"
            )


def first_difference(a: Tables, b: Tables, tolerances: Mapping[str, Tolerance] = TOLERANCES) -> tuple[str, str] | None:
    """(trial id, column with both values) of the first column in which the trials that both hold differ."""
    common = pd.Index(a[0]["trial_id"]).intersection(pd.Index(b[0]["trial_id"]))
    if common.empty:
        return None
    (runs_a, curve_a), (runs_b, curve_b) = ((_select(runs, common), _select(curve, common)) for runs, curve in (a, b))
    if len(runs_a) != len(runs_b):
        repeated = pd.concat([runs_a, runs_b])["trial_id"].value_counts().idxmax()
        return str(repeated), "`runs` itself (one has more rows)"
    found = [tolerances.get(str(dtype), tolerances["float64"]) for dtype in runs_a["dtype"]]
    pairs = _Pairs(runs_a, runs_b, _last_steps(runs_a, curve_a), _last_steps(runs_b, curve_b), found)
    rows = _Rows(pairs, curve_a, curve_b)
    return pairs.difference(rows) or rows.difference()


def _select(frame: pd.DataFrame, trial_ids: pd.Index) -> pd.DataFrame:
    """The rows of these trials in an order that both sides share: a difference may be in the columns that sort `runs`."""
    chosen = frame[frame["trial_id"].isin(trial_ids)]
    return chosen.sort_values("trial_id", kind="stable", ignore_index=True)


def _last_steps(runs: pd.DataFrame, curve: pd.DataFrame) -> NDArray[Any]:
    return curve.groupby("trial_id")["step"].last().reindex(runs["trial_id"], fill_value=-1).to_numpy()


class _Pairs:
    """The rows of `runs` of two sides, trial by trial, and what their ends allow to differ."""

    def __init__(
        self,
        a: pd.DataFrame,
        b: pd.DataFrame,
        ends_a: NDArray[Any],
        ends_b: NDArray[Any],
        tolerances: Sequence[Tolerance],
    ) -> None:
        self.a, self.b, self.tolerances = a, b, tolerances

        def either(*statuses: str) -> Mask:
            return np.asarray(a["status"].isin(statuses) | b["status"].isin(statuses), dtype=bool)

        regular = np.asarray(a["status"].isin(_REGULAR) & b["status"].isin(_REGULAR), dtype=bool)
        self.by_clock = regular & either(Status.TIMEOUT)
        self.by_number = regular & either(*_BY_NUMBER) & ~self.by_clock
        self.lost = either(Status.DIVERGED)
        self.elsewhere: Mask = (self.by_clock | self.by_number) & (ends_a != ends_b)
        self.relative, self.floor = self.forgiven(np.arange(len(a)), a["steps"].to_numpy())

    def forgiven(self, where: NDArray[np.int64], steps: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(relative, floor) of the trials at these places after so many steps."""
        relative, floor, growth, most = np.array(self.tolerances, dtype=float).T[:, where]
        factor = np.minimum(1.0 + growth * steps, most)
        return relative * factor, floor * factor

    def difference(self, rows: _Rows) -> tuple[str, str] | None:
        for name, type_ in RUNS.items():
            if name in VOLATILE or name == "label":  # a label is what a suite calls a trial, not part of what was run
                continue
            if name == "algorithm_params":
                found = self._parameters()
            elif name == "status":
                found = _first(self.a, self.b, name, (self.a[name] != self.b[name]) & ~(self.by_clock | self.by_number))
            elif type_ == REAL and name not in _COUNTED:
                x, y = (side[name].to_numpy(dtype=float) for side in (self.a, self.b))
                scale = rows.largest(_SCALES.get(name, name))
                near = _near(x, y, self.relative, self.floor * scale, self.lost)
                found = _first(self.a, self.b, name, ~near & ~self.elsewhere)
            else:
                free = self.elsewhere if type_ == COUNT or name in _COUNTED else np.zeros_like(self.elsewhere)
                same = (self.a[name] == self.b[name]) | (self.a[name].isna() & self.b[name].isna())
                found = _first(self.a, self.b, name, ~same & ~free)
            if found is not None:
                return found[0], f"`runs.{found[1]}"
        return None

    def _parameters(self) -> tuple[str, str] | None:
        """What was asked for is in the trial's id; this is what the method made of it, on each machine by itself."""
        differs = np.flatnonzero((self.a["algorithm_params"] != self.b["algorithm_params"]).to_numpy())
        for i in differs:
            texts = [str(side["algorithm_params"].iloc[i]) for side in (self.a, self.b)]
            clash = _clash(_parsed(texts[0]), _parsed(texts[1]), self.tolerances[int(i)].relative)
            if clash is not None:
                return str(self.a["trial_id"].iloc[i]), f"algorithm_params` ({clash})"
        return None


class _Rows:
    """The rows of `curve` of two sides, evaluation by evaluation; `where` is the trial's place among the pairs."""

    def __init__(self, pairs: _Pairs, a: pd.DataFrame, b: pd.DataFrame) -> None:
        self.pairs = pairs
        self.places = pd.Series(np.arange(len(pairs.a)), index=pairs.a["trial_id"])
        numbered = [side.assign(_n=side.groupby("trial_id").cumcount()) for side in (a, b)]
        self.lengths = np.array([np.bincount(self._where(side), minlength=len(pairs.a)) for side in numbered])
        both = numbered[0].merge(numbered[1][["trial_id", "_n"]], on=["trial_id", "_n"])
        keys = pd.MultiIndex.from_frame(both[["trial_id", "_n"]])
        self.a, self.b = (
            side.set_index(["trial_id", "_n"], drop=False).loc[keys].reset_index(drop=True) for side in numbered
        )
        self.where = self._where(self.a)

    def _where(self, side: pd.DataFrame) -> NDArray[np.int64]:
        return self.places.reindex(side["trial_id"]).to_numpy(dtype=np.int64)

    def difference(self) -> tuple[str, str] | None:
        pairs = self.pairs
        uneven = np.abs(self.lengths[0] - self.lengths[1])
        uneven = np.where(pairs.by_clock, 0, uneven - pairs.by_number)  # which may go on for one more
        if (uneven > 0).any():
            i = int((uneven > 0).argmax())
            ours, theirs = (int(n) for n in self.lengths[:, i])
            return str(pairs.a["trial_id"].iloc[i]), f"`curve` itself ({ours} evaluations against {theirs})"
        # A trial is also looked at where it ends, which is then not where the other one was looked at.
        last = self.a["_n"].to_numpy() + 1 == self.lengths.min(axis=0)[self.where]
        free = pairs.elsewhere[self.where] & last & (self.a["step"] != self.b["step"]).to_numpy()
        extras = sorted({*self.a.columns, *self.b.columns} - CURVE.keys() - {"_n"})
        relative, floor = pairs.forgiven(self.where, self.a["step"].to_numpy())
        for name in (*CURVE, *extras):
            if name in VOLATILE or name == "trial_id":
                continue
            x, y = self._numbers(name)
            if CURVE.get(name) == COUNT or name in _COUNTED:
                near = (x == y) | (np.isnan(x) & np.isnan(y))
            else:
                scale = self._so_far(_SCALES.get(name, name))
                near = _near(x, y, relative, floor * scale, pairs.lost[self.where])
            if (~near & ~free).any():
                i = int((~near & ~free).argmax())
                at = f"at step {self.a['step'].iloc[i]}"
                return str(
                    self.a["trial_id"].iloc[i]
                ), f"`curve.{name}` ({x[i].item()!r} against {y[i].item()!r}, {at})"
        return None

    def largest(self, column: str) -> NDArray[np.float64]:
        """The scale of a trial at its end; 0 where there is no curve."""
        out = np.zeros(len(self.pairs.a))
        if column in self.a or column in self.b:
            np.maximum.at(out, self.where, self._sizes(column))
        return out

    def _so_far(self, column: str) -> NDArray[Any]:
        """The scale at each evaluation: a trial that grows without bound has no large numbers at its start."""
        return pd.Series(self._sizes(column)).groupby(self.where).cummax().to_numpy()

    def _sizes(self, column: str) -> NDArray[np.float64]:
        x, y = (np.abs(side) for side in self._numbers(column))
        return np.maximum(np.where(np.isfinite(x), x, 0.0), np.where(np.isfinite(y), y, 0.0))

    def _numbers(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        x, y = (side[name].to_numpy() if name in side else np.full(len(side), np.nan) for side in (self.a, self.b))
        return x, y


def _near(
    x: NDArray[np.float64], y: NDArray[np.float64], relative: NDArray[Any], least: NDArray[Any], lost: Mask
) -> Mask:
    """Equal up to rounding; where a trial is lost, one way of not being finite is as good as another."""
    finite = np.isfinite(x) & np.isfinite(y)
    with np.errstate(all="ignore"):
        close = np.abs(x - y) <= relative * np.maximum(np.abs(x), np.abs(y)) + least
    same = (x == y) | (np.isnan(x) & np.isnan(y)) | (lost & ~np.isfinite(x) & ~np.isfinite(y))
    return np.asarray(np.where(finite, close, same), dtype=bool)


def _first(a: pd.DataFrame, b: pd.DataFrame, name: str, differs: Any) -> tuple[str, str] | None:
    found = np.asarray(differs, dtype=bool)
    if not found.any():
        return None
    i = int(found.argmax())
    ours, theirs = (side[name].iloc[i : i + 1].tolist()[0] for side in (a, b))  # plain values, for the sentence
    return str(a["trial_id"].iloc[i]), f"{name}` ({ours!r} against {theirs!r})"


def _parsed(text: str) -> Any:
    given = parameters(text)
    return text if given is None else given


def _clash(a: Any, b: Any, relative: float, name: str = "") -> str | None:
    """The first parameter in which two sets differ, with both values. Whole numbers and words are compared exactly."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            clash = _clash(a.get(key), b.get(key), relative, f"{name}{key} ")
            if clash is not None:
                return clash
        return None
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        clashes = (_clash(*pair, relative, name) for pair in zip(a, b, strict=True))
        return next((clash for clash in clashes if clash is not None), None)
    if isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=relative):
        return None
    return None if a == b and type(a) is type(b) else f"{name}{a!r} against {b!r}"
