"""Merge result folders, for instance those that several people send in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.results.compare import Witness, disagreements, witnesses
from bilevelbench.results.files import replace_file
from bilevelbench.results.machine import machine
from bilevelbench.results.packs import StoredPack, none_readable, read_packs, read_tables
from bilevelbench.results.parquet import most_cells
from bilevelbench.results.png import redrawn
from bilevelbench.results.schema import Results
from bilevelbench.results.store import EXPERIMENTS, Store
from bilevelbench.results.tables import assemble
from bilevelbench.untrusted import Refused, read_json, slug


@dataclass(frozen=True)
class MergeReport:
    """What a merge did: `packs` came in, with `trials` that are new and `confirmed` ones that only other machines had run;
    `duplicates` were there from the same machine. `skipped` has a sentence for each pack that cannot be read."""

    packs: int
    trials: int
    duplicates: int
    confirmed: int = 0
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class MergeSource:
    folder: Path
    packs: list[StoredPack]
    results: Results


def merge(folders: Sequence[str | Path], into: str | Path, compact: bool = False) -> MergeReport:
    """Copy the packs of `folders` to the store `into`, which may hold packs already.

    Each machine's pack of a trial is kept once, if all of them agree up to rounding; if two do not, nothing is written.
    What the folders say about figures comes along. Every pack says in `merged_from` which folder it came from first. With
    `compact` the packs of a folder that were made on one day in one environment become one. The tables of the merged store
    are made by `Store(into).publish()`.
    """
    into = Path(into).absolute()
    paths = [path for path in dict.fromkeys(Path(f).resolve() for f in folders) if path != into.resolve()]
    if not paths:
        raise InvalidInput("nothing to merge; name at least one result folder other than the one to merge into")
    skipped: list[str] = []
    sources = [_read(path, skipped, must_hold=path != into) for path in (into, *paths)]
    refuse_disagreement([one for source in sources for one in witnesses(source.folder, source.results)])
    figures = _figures(into, paths, skipped)

    store = Store(into)
    seen = {(trial_id, _maker(pack)) for pack in sources[0].packs for trial_id in pack.trial_ids}
    known = {trial_id for trial_id, _ in seen}
    packs = trials = confirmed = duplicates = 0
    for source in sources[1:]:
        chosen = []
        for pack in source.packs:
            fresh = {(trial_id, _maker(pack)) for trial_id in pack.trial_ids} - seen
            duplicates += len(pack.trial_ids) - len(fresh)
            if fresh:  # a pack is taken whole; loading shows one copy of a trial
                record = {"merged_from": source.folder.name, **pack.record}
                if "pictures" in record:
                    record["pictures"] = redrawn(record["pictures"])
                chosen.append(replace(pack, record=record))
                new = {trial_id for trial_id, _ in fresh} - known
                trials += len(new)
                confirmed += len(fresh) - len(new)
                seen |= fresh
                known |= new
        packs += len(chosen)
        _copy(chosen, store, compact)
    for name, (_, figure) in figures.items():
        text = json.dumps(figure, indent=1, ensure_ascii=False) + "\n"
        replace_file(into / EXPERIMENTS / name, text.encode())
    return MergeReport(packs, trials, duplicates, confirmed, tuple(skipped))


def refuse_disagreement(found: Sequence[Witness]) -> None:
    for sentence in disagreements(found):
        raise StoreError(f"{sentence}; nothing was written")


def _maker(pack: StoredPack) -> str:
    return machine(pack.record.get("environment") or {})


def _copy(packs: Sequence[StoredPack], store: Store, compact: bool) -> None:
    if not compact:
        for pack in packs:
            store.place(pack.record, read_tables(pack.path, pack.record))
        return
    for group in _groups(packs):
        results = assemble(group, [])
        store.add(results.runs, results.curve, _joint_record(group))


def _read(folder: Path, skipped: list[str], must_hold: bool) -> MergeSource:
    packs, corrupt = read_packs(folder)
    if must_hold and not packs:
        if corrupt:
            raise none_readable(folder, corrupt)
        raise StoreError(
            f"{str(folder)!r} has no packs to merge; name a folder that `bilevelbench run -o` wrote "
            "(published tables alone carry no provenance)"
        )
    skipped += corrupt.values()
    return MergeSource(folder, packs, assemble(packs, []))


def _groups(packs: Sequence[StoredPack]) -> list[list[StoredPack]]:
    """Packs that agree in day, environment, origin, whether they were timed, and the commit of each plugin that two share.

    Together they have no more numbers than any reader takes.
    """
    groups: dict[str, list[StoredPack]] = {}
    commits: dict[str, dict[str, Any]] = {}
    cells, trials = Counter[str](), Counter[str]()
    for pack in packs:
        record = pack.record
        made = [record.get("created", "")[:10], record.get("environment"), record["merged_from"], record.get("timed")]
        own = record.get("commits") or {}
        key = json.dumps(made, sort_keys=True)
        size = pack.curve.num_rows * pack.curve.num_columns
        while any(commits.get(key, {}).get(name, commit) != commit for name, commit in own.items()) or (
            key in groups and cells[key] + size > most_cells(trials[key] + len(pack.trial_ids))
        ):
            key += "+"
        cells[key] += size
        trials[key] += len(pack.trial_ids)
        groups.setdefault(key, []).append(pack)
        commits.setdefault(key, {}).update(own)
    return list(groups.values())


def _joint_record(packs: Sequence[StoredPack]) -> dict[str, Any]:
    """What is said of a group of packs; its date is the last one."""
    records = [pack.record for pack in packs]
    return {
        **{name: records[0].get(name) for name in ("environment", "merged_from")},
        "created": max(record.get("created", "") for record in records),
        "trials": list({trial["id"]: trial for record in records for trial in record.get("trials") or []}.values()),
        **{
            name: {k: v for r in records for k, v in (r.get(name) or {}).items()}
            for name in ("commits", "families", "pictures")
        },
        **{name: sum(r.get(name) or 0.0 for r in records) for name in ("step_seconds", "total_seconds")},
        **({"timed": True} if records[0].get("timed") is True else {}),
    }


def _figures(into: Path, folders: Sequence[Path], skipped: list[str]) -> dict[str, tuple[Path, dict[str, Any]]]:
    """What the folders say about their figures, by file name, and which of them says it. The pictures are drawn from that."""
    figures: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in (into, *folders):
        for path in sorted((folder / EXPERIMENTS).glob("*.json")):
            try:
                if slug(path.stem) != path.stem:
                    raise Refused("has a name that is not the same file on every system; rename its figure")
                figure = read_json(path, folder)
            except Refused as refused:
                skipped.append(f"{str(path)!r} {refused}")
                continue
            first, known = figures.setdefault(path.name, (folder, figure))
            if figure != known:
                raise StoreError(
                    f"{str(first)!r} and {str(folder)!r} differ in {EXPERIMENTS}/{path.name}; nothing was merged; "
                    "rename one of the figures and run its suite again"
                )
    return figures
