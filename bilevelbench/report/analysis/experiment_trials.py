"""The trials of an experiment, as its rules ask for them: by method, at their ends, in pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from bilevelbench.errors import suggestion
from bilevelbench.report.text import printable
from bilevelbench.results.status import Status


class Untold(Exception):
    """Why a claim cannot be judged."""


@dataclass(frozen=True, eq=False)
class PlannedTrials:
    """The trials of a figure on one problem; `table` has those planned, with an empty status where one is missing."""

    table: pd.DataFrame
    curve: pd.DataFrame
    labels: dict[str, str]

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.table["method"]))

    def of(self, name: str) -> pd.DataFrame:
        """Trials of a method as labelled, or else by its name; it takes all of them to tell anything."""
        mine = self.table[self.table["method"] == name]
        mine = self.table[self.table["algorithm"] == name] if mine.empty else mine
        if mine.empty:
            raise Untold(f"no trial of {name!r} was asked for{suggestion(name, self.methods)}")
        missing = int((mine["status"] == "").sum())
        if missing:
            raise Untold(f"{missing} of {len(mine)} trials of {name} are missing; the same command runs them")
        broken = mine[mine["status"].isin([status for status in Status if status.broken])]
        if len(broken):
            first = broken.iloc[0]
            reason = f"{first['status']}: {printable(first['message'])}"
            raise Untold(f"{len(broken)} of {len(mine)} trials of {name} failed ({reason})")
        return mine

    def diverged(self, name: str) -> str:
        """`2 of 5 trials diverged`, or nothing."""
        mine = self.of(name)
        lost = int((mine["status"] == Status.DIVERGED).sum())
        return f"{lost} of {len(mine)} trials of {name} diverged" if lost else ""

    def start(self, column: str, method: str) -> pd.Series[float]:
        rows = self._rows(column, method)
        first = rows.dropna(subset=[column]).drop_duplicates("trial_id")
        return first.set_index("trial_id")[column].reindex(self.of(method)["trial_id"])

    def end(self, column: str, method: str, cost: float = math.inf) -> pd.Series[float]:
        """The last value up to a cost; NaN for a trial that diverged."""
        rows = self._rows(column, method)
        last = rows[rows["cost"] <= cost].drop_duplicates("trial_id", keep="last")
        mine = self.of(method)
        sound = mine.loc[mine["status"] != Status.DIVERGED, "trial_id"]
        return last[last["trial_id"].isin(sound)].set_index("trial_id")[column].reindex(mine["trial_id"])

    def ends(self, column: str, methods: Sequence[str]) -> tuple[pd.Series[float], pd.Series[float]]:
        """Start and end of every trial of some methods."""
        start, end = (pd.concat([at(column, m) for m in methods]) for at in (self.start, self.end))
        return start, end

    def common_cost(self, methods: Sequence[str]) -> float:
        """What every trial has spent that did not diverge."""
        tables = [self.of(m) for m in methods]
        sound = pd.concat([t.loc[t["status"] != Status.DIVERGED, "trial_id"] for t in tables])
        ends = self.curve[self.curve["trial_id"].isin(sound)].groupby("trial_id")["cost"].max()
        return float(ends.min()) if len(ends) else math.inf

    def _rows(self, column: str, method: str) -> pd.DataFrame:
        if column not in self.curve:
            raise Untold(f"the curves have no column {column!r}{suggestion(column, self.curve.columns)}")
        rows = self.curve[self.curve["trial_id"].isin(self.of(method)["trial_id"])]
        if rows[column].isna().all():
            raise Untold(f"{column} was never measured for {method}")
        return rows

    def pairs(self, ours: str, theirs: str) -> list[tuple[str, str]]:
        """Trials of two methods that share their seed and their data."""
        both = self.of(ours).merge(self.of(theirs), on=["seed", "data_seed"], suffixes=("", "_theirs"))
        if both.empty:
            raise Untold(f"no trial of {ours} shares its seed and its data with one of {theirs}")
        return list(zip(both["trial_id"], both["trial_id_theirs"], strict=True))

    def coincide(self, column: str, pairs: Sequence[tuple[str, str]]) -> bool:
        """Whether the two trials of every pair show the same numbers from their start to their end."""
        curves = {str(trial): rows[column] for trial, rows in self.curve.groupby("trial_id")}
        empty = pd.Series(dtype=float)
        both = [tuple(curves.get(trial, empty).dropna().to_numpy() for trial in pair) for pair in pairs]
        return all(len(a) > 1 and len(a) == len(b) and bool((a == b).all()) for a, b in both)
