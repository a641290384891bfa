"""Merge result folders, for instance those that several people send in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.results import VOLATILE, Results
from bilevelbench.store import EXPERIMENTS, Pack, Store, assemble, read_packs, read_tables, replace_file


@dataclass(frozen=True)
class MergeReport:
    """What a merge did; `skipped` has a sentence for each corrupt pack that was left out."""

    packs: int
    trials: int
    duplicates: int
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    folder: Path
    packs: list[Pack]
    results: Results


def merge(
    folders: Sequence[str | Path], into: str | Path, skip_corrupt: bool = False, compact: bool = False
) -> MergeReport:
    """Copy the packs of `folders` to the store `into`, which may hold packs already.

    A trial that several folders hold is merged once if its content agrees in all but time, memory and message; if not,
    nothing is written. What they say about figures comes along. Every pack says in `merged_from` which folder it came
    from first. With `compact` the packs of a folder that were made on one day in one environment become one. The tables of
    the merged store are made by `Store(into).publish()`.
    """
    into = Path(into)
    paths = list({Path(f).resolve(): Path(f) for f in folders if Path(f).resolve() != into.resolve()}.values())
    if not paths:
        raise InvalidInput("nothing to merge; name at least one result folder other than the one to merge into")
    skipped: list[str] = []
    sources = [_read(path, skip_corrupt, skipped, must_hold=path != into) for path in (into, *paths)]
    for i, source in enumerate(sources):
        for earlier in sources[:i]:
            refuse_clash(earlier, source)

    figures = _figures(into, paths)

    store = Store(into)
    seen = set(sources[0].results.runs["trial_id"])
    packs = trials = duplicates = 0
    for source in sources[1:]:
        chosen = []
        for pack in source.packs:
            new = set(pack.trial_ids) - seen
            duplicates += len(pack.trial_ids) - len(new)
            if new:  # a pack is taken whole; loading drops the trials that another pack holds
                record = {"merged_from": source.folder.resolve().name, **pack.record}
                chosen.append(replace(pack, record=record))
                trials += len(new)
                seen |= new
        packs += len(chosen)
        if compact:
            for group in _groups(chosen):
                results = assemble(group, [])
                store.add(results.runs, results.curve, _joint_record(group))
        else:
            for pack in chosen:
                store.place(pack.record, read_tables(pack.path, pack.record))
    for name, (_, content) in figures.items():
        replace_file(into / EXPERIMENTS / name, content)
    return MergeReport(packs, trials, duplicates, tuple(skipped))


def _read(folder: Path, skip_corrupt: bool, skipped: list[str], must_hold: bool) -> Source:
    packs, corrupt = read_packs(folder)
    if corrupt and not skip_corrupt:
        first = next(iter(corrupt.values()))
        raise StoreError(
            f"{str(folder)!r} has {len(corrupt)} corrupt pack(s): {first}; mend the folder or merge without them "
            "(skip_corrupt)"
        )
    skipped += corrupt.values()
    if must_hold and not packs and not corrupt:
        raise StoreError(
            f"{str(folder)!r} has no packs to merge; name a folder that `bilevelbench run -o` wrote "
            "(published tables alone carry no provenance)"
        )
    return Source(folder, packs, assemble(packs, []))


def _groups(packs: Sequence[Pack]) -> list[list[Pack]]:
    """Packs that agree in day, environment, origin and, for each plugin that two of them share, its commit."""
    groups: dict[str, list[Pack]] = {}
    commits: dict[str, dict[str, Any]] = {}
    for pack in packs:
        record = pack.record
        made = [record.get("created", "")[:10], record.get("environment"), record["merged_from"]]
        own = record.get("commits") or {}
        key = json.dumps(made, sort_keys=True)
        while any(commits.get(key, {}).get(name, commit) != commit for name, commit in own.items()):
            key += "+"
        groups.setdefault(key, []).append(pack)
        commits.setdefault(key, {}).update(own)
    return list(groups.values())


def _joint_record(packs: Sequence[Pack]) -> dict[str, Any]:
    """What is said of a group of packs; its date is the last one."""
    records = [pack.record for pack in packs]
    return {
        **{name: records[0].get(name) for name in ("environment", "merged_from")},
        "created": max(record.get("created", "") for record in records),
        "trials": [trial for record in records for trial in record.get("trials", [])],
        **{name: {k: v for r in records for k, v in (r.get(name) or {}).items()} for name in ("commits", "families")},
        **{name: sum(r.get(name) or 0.0 for r in records) for name in ("step_seconds", "total_seconds")},
    }


def _figures(into: Path, folders: Sequence[Path]) -> dict[str, tuple[Path, bytes]]:
    """What the folders say about their figures, by file name, and which of them says it."""
    figures: dict[str, tuple[Path, bytes]] = {}
    for folder in (into, *folders):
        for path in sorted((folder / EXPERIMENTS).glob("*.json")):
            content = path.read_bytes()
            first, known = figures.setdefault(path.name, (folder, content))
            if content != known:
                raise StoreError(
                    f"{str(first)!r} and {str(folder)!r} have another {EXPERIMENTS}/{path.name} each; nothing was merged; "
                    "rename one of the figures and run its suite again"
                )
    return figures


def refuse_clash(a: Source, b: Source) -> None:
    common = pd.Index(a.results.runs["trial_id"]).intersection(pd.Index(b.results.runs["trial_id"]))
    if common.empty:
        return
    clash = _first_difference("runs", _select(a.results.runs, common), _select(b.results.runs, common))
    clash = clash or _first_difference("curve", _select(a.results.curve, common), _select(b.results.curve, common))
    if clash is None:
        return
    trial_id, column = clash
    row = a.results.runs.set_index("trial_id").loc[trial_id]
    raise StoreError(
        f"{str(a.folder)!r} and {str(b.folder)!r} disagree on trial {trial_id!r} ({row['algorithm']} on "
        f"{row['problem']}, seed {row['seed']}): the first column that differs is {column}; nothing was merged; find "
        "out which one is right (was a plugin changed without a new version?) and remove the pack of the other"
    )


def _select(frame: pd.DataFrame, trial_ids: pd.Index) -> pd.DataFrame:
    """The rows of these trials in an order that both sides share: a clash may be in the columns that sort `runs`."""
    chosen = frame[frame["trial_id"].isin(trial_ids)]
    return chosen.sort_values("trial_id", kind="stable", ignore_index=True)


def _first_difference(table: str, a: pd.DataFrame, b: pd.DataFrame) -> tuple[str, str] | None:
    """(trial id, column) of the first column in which two tables of the same trials differ, NaN being equal to NaN."""
    counts = a["trial_id"].value_counts().sub(b["trial_id"].value_counts(), fill_value=0)
    uneven = sorted(str(trial_id) for trial_id in counts.index[counts != 0])
    if uneven:
        return uneven[0], f"`{table}` itself (one has more rows)"
    for name in dict.fromkeys([*a.columns, *b.columns]):
        if name in VOLATILE or name == "label":  # a label is what a suite calls a trial, not part of what was run
            continue
        left, right = (f[name] if name in f else pd.Series(np.nan, index=f.index) for f in (a, b))
        differs = ((left != right) & ~(left.isna() & right.isna())).to_numpy()
        if differs.any():
            i = int(differs.argmax())
            ours, theirs = (
                side.iloc[i : i + 1].tolist()[0] for side in (left, right)
            )  # plain values, for the sentence
            return str(a["trial_id"].iloc[i]), f"`{table}.{name}` ({ours!r} against {theirs!r})"
    return None
