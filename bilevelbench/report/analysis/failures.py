"""Trials that failed: those that failed alike together, each with its sentence."""

from __future__ import annotations

import pandas as pd

from bilevelbench.report.analysis.summary import titled
from bilevelbench.report.text import printable
from bilevelbench.results import reached
from bilevelbench.results.status import NOT_COMPILED

#: At most this many seeds or names are written out.
_NAMED = 8


def failures(runs: pd.DataFrame, *also: str) -> pd.DataFrame:
    """One row for all trials of a method on a problem that failed alike; `also` names columns that tell them apart."""
    lost = _lost(runs)
    alike = ["method", "title", *also, "status", "message"]
    groups = lost.groupby(alike, sort=False)
    seeds = groups["seed"].agg(lambda s: _names(sorted(set(s))))
    return pd.concat([groups.size().rename("trials"), seeds.rename("seeds")], axis=1).reset_index()


def sentences(runs: pd.DataFrame) -> list[str]:
    """What happened to the trials that failed: one sentence for all that say the same."""
    return [
        f"{len(group)} trial{'' if len(group) == 1 else 's'} of {_names(group['method'].unique())} on "
        f"{_names(group['title'].unique())} ended as {status}: {message}"
        for (status, message), group in _lost(runs).groupby(["status", "message"], sort=False)
    ]


def not_compiled(runs: pd.DataFrame) -> list[str]:
    """Which trials were interpreted although they were to be compiled, and why: one sentence for all that say the same."""
    told = titled(runs).assign(why=runs["message"].str.extract(f"{NOT_COMPILED}(.*)", expand=False))
    return [
        f"the steps of {_names(group['method'].unique())} on {_names(group['title'].unique())} were interpreted, since "
        f"{printable(why)}"
        for why, group in told.dropna(subset="why").groupby("why", sort=False)
    ]


def with_sentences(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """A summary with a column for what happened to the trials that failed."""
    groups = dict(iter(titled(runs).groupby(["title", "method", "algorithm"])))
    keys = zip(table["problem"], table["method"], table["algorithm"], strict=True)
    return table.assign(failures=["; ".join(sentences(groups[key])) for key in keys])


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """A table of failures for people."""
    names = {"title": "problem", "status": "ended", "message": "what happened"}
    return table.rename(columns=names)[["method", "problem", "trials", "seeds", "ended", "what happened"]]


def _lost(runs: pd.DataFrame) -> pd.DataFrame:
    lost = titled(runs[reached.failed(runs)])
    return lost.assign(message=[printable(message) or "no message" for message in lost["message"]])


def _names(values: object) -> str:
    names = list(map(str, values))  # type: ignore[call-overload]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
