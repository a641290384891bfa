"""Curves that are one curve: methods that went the same way on every problem, and seeds that changed nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bilevelbench.report.analysis.summary import data_seeds, titled
from bilevelbench.results import reached
from bilevelbench.results.schema import Results

#: Values that differ by a smaller share than this are those of one curve.
SAME = 1e-12

#: What makes two curves one beside the values that are compared.
_SPENT = ("cost", "first_order", "second_order")
_SEEN = ("grad_phi", "phi")
#: Last values in one bin of this width, in logarithms, or in two that touch may be the same; others need no comparison.
_BIN = 1e-9


@dataclass(frozen=True)
class Merged:
    """Methods that coincide, by the one that stands for them: its own name first. Methods alone are not listed."""

    members: Mapping[str, Sequence[str]]
    reasons: Mapping[str, str]

    def of(self, method: str) -> Sequence[str]:
        return self.members.get(method, (method,))

    def label(self, method: str) -> str:
        """`rahgd = prahgd`, or the name of a method that is alone."""
        return " = ".join(self.of(method))

    def sentence(self, method: str, titles: Mapping[str, str] | None = None) -> str:
        """Why they are one row; `titles` are the names to call them by, if not those of plugins."""
        why, names = self.reasons[method], [(titles or {}).get(name, name) for name in self.of(method)]
        return f"{' = '.join(names)} here: their curves coincide on every problem{f', {why}' if why else ''}."

    @property
    def dropped(self) -> set[str]:
        """Those that another one stands for."""
        return {other for members in self.members.values() for other in members[1:]}

    def one_each(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table with a column `method`, without those that another one stands for."""
        return table[~table["method"].isin(self.dropped)]

    def labelled(self, table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(method=[self.label(method) for method in table["method"]])


def curve_numbers(results: Results) -> pd.Series[int]:
    """By trial the number of its curve: the same for trials on one problem that spent and saw the same at every evaluation.

    A trial that failed has not gone the way of one that did not. Without a finite |grad phi| nothing can be compared, and
    the curve is its own.
    """
    curve, runs = results.curve.sort_values(["trial_id", "step"], kind="stable"), titled(results.runs)
    places = curve.groupby("trial_id", sort=False).indices
    spent, seen = (curve[list(names)].to_numpy(dtype=float) for names in (_SPENT, _SEEN))
    nowhere = np.array([], dtype=int)
    known: dict[tuple[object, ...], list[tuple[int, np.ndarray]]] = {}
    numbers: list[int] = []
    for n, (trial, title, failed) in enumerate(zip(runs["trial_id"], runs["title"], reached.failed(runs), strict=True)):
        rows = places.get(trial, nowhere)
        mine = seen[rows]
        finite = mine[np.isfinite(mine[:, 0]), 0]
        if not len(finite):
            numbers.append(n)
            continue
        key, place = (title, failed, spent[rows].tobytes()), _bin(finite[-1])
        near = [one for at in (place - 1, place, place + 1) for one in known.get((*key, at), ())]
        same = [number for number, other in near if np.allclose(mine, other, rtol=SAME, atol=0.0, equal_nan=True)]
        if not same:
            known.setdefault((*key, place), []).append((n, mine))
        numbers.append(same[0] if same else n)
    return pd.Series(numbers, index=pd.Index(runs["trial_id"]), dtype=int)


def coinciding(results: Results, numbers: pd.Series[int]) -> Merged:
    """The methods whose curves coincide in every trial; of those the one with the shortest name stands for all.

    `numbers` are those of `curve_numbers`. A method without any curve coincides with no other.
    """
    runs = titled(results.runs).assign(data_seed=lambda table: data_seeds(table))
    runs["number"] = runs["trial_id"].map(numbers)
    trials: dict[str, Counter[tuple[object, ...]]] = {}  # by method; pandas takes milliseconds for each of thousands
    for method, *trial in runs[["method", "title", "seed", "data_seed", "number"]].itertuples(index=False, name=None):
        trials.setdefault(str(method), Counter())[tuple(trial)] += 1
    ways: dict[frozenset[tuple[object, ...]], list[str]] = {}
    for method in sorted(trials):
        ways.setdefault(frozenset(trials[method].items()), []).append(method)
    found = [sorted(methods, key=lambda name: (len(name), name)) for methods in ways.values() if len(methods) > 1]
    members = {methods[0]: methods for methods in found}
    return Merged(members, {first: _reason(results, runs, methods) for first, methods in members.items()})


def merged(results: Results) -> Merged:
    return coinciding(results, curve_numbers(results))


def _reason(results: Results, runs: pd.DataFrame, methods: Sequence[str]) -> str:
    """Why they coincide, where the curves tell."""
    mine = results.curve[results.curve["trial_id"].isin(runs.loc[runs["method"].isin(methods), "trial_id"])]
    if not (mine["step"] > mine.groupby("trial_id")["step"].transform("min")).any():
        return "none of which goes beyond the start"
    if "kicks" in mine and mine["kicks"].notna().any() and not (mine["kicks"] > 0).any():
        return "since no kick was needed"
    return ""


def _bin(value: float) -> int:
    return math.floor(math.log(value) / _BIN) if value > 0 else 0
