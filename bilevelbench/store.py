"""A result folder: packs of trials that are either there and complete, or not there.

    folder/packs/<pack_id>/runs.parquet, curve.parquet, pack.json      written at once, never changed
    folder/runs.parquet, curve.parquet                                 all packs in one table, made by `publish`
    folder/experiments/*.json                                          figures of papers that the trials belong to

A pack is written under a temporary name, fsynced, and renamed. So a killed writer leaves nothing that looks like a
result, several writers may share a folder, and a trial is done when a stored pack holds its id. Packs of several
machines may hold the same trial: one of them is shown, the others are `copies` that confirm it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bilevelbench.compare import disagreements, witnesses
from bilevelbench.environment import machine
from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.packfile import (
    TABLES,
    CorruptPack,
    Pack,
    none_readable,
    pack_id,
    pack_paths,
    read_pack,
    read_packs,
    sha256,
    stored_trials,
    to_json,
    to_parquet,
)
from bilevelbench.results import (
    SCHEMA_VERSION,
    Results,
    Tables,
    check_version,
    curve_frame,
    curve_schema,
    curve_table,
    runs_frame,
    runs_table,
    upgrade,
)

EXPERIMENTS = "experiments"
ORDER = ["problem", "algorithm", "algorithm_params", "seed", "trial_id"]

_STALE_SECONDS = 3600.0  # a live writer's temporary folder is milliseconds old
_SUSPECT = "suspect"  # left in a pack whose checksum failed: `done` then looks as closely as `load` does


class Store:
    """A folder to write to. `problems` has a sentence for each corrupt pack that the last `done` or `load` met."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()  # a plugin may change the working directory
        self.packs = self.folder / "packs"
        self.problems: list[str] = []
        if _rows(self.folder / "runs.parquet") and not pack_paths(self.folder):
            raise StoreError(
                f"{str(self.folder)!r} holds published tables without their packs, which new results would overwrite; "
                "choose another folder, or move runs.parquet and curve.parquet away"
            )
        try:
            self.packs.mkdir(parents=True, exist_ok=True)
            if not os.access(self.packs, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise StoreError(_cannot_write(self.folder, error)) from error
        self._remove_stale()

    def add(self, runs: pd.DataFrame, curve: pd.DataFrame, record: Mapping[str, Any]) -> str:
        """Store one pack and return its id. Nothing happens if this machine has stored the same trials before."""
        return self.add_tables(runs_table(runs), curve_table(curve), record)

    def add_tables(self, runs: pa.Table, curve: pa.Table, record: Mapping[str, Any]) -> str:
        """The same for `runs_of` and `curve_of`, which need not become frames on their way."""
        ids: list[str] = runs["trial_id"].to_pylist()
        if not ids or len(set(ids)) < len(ids):
            raise InvalidInput(f"a pack has one row per trial, got the ids {ids}; store the repeated ones once")
        strangers = set(curve["trial_id"].unique().to_pylist()) - set(ids)
        if strangers:
            raise InvalidInput(f"the curve has trial {min(strangers)!r}, which `runs` does not; store both in one pack")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        head = {"created": now, **record, "schema_version": SCHEMA_VERSION, "trial_ids": sorted(ids)}
        return self.place(head, [to_parquet(runs), to_parquet(curve)])

    def place(self, record: Mapping[str, Any], tables: Sequence[bytes]) -> str:
        """Store the bytes of the two tables under the id of the record's trials and machine."""
        record = {**record, "machine": machine(record.get("environment") or {})}
        name = pack_id(record)
        sums = {file: {"bytes": len(data), "sha256": sha256(data)} for file, data in zip(TABLES, tables, strict=True)}
        text = to_json({**record, "files": sums})
        temporary = self.packs / f".tmp-{os.getpid()}-{secrets.token_hex(8)}"
        try:
            temporary.mkdir()
            for file, data in zip((*TABLES, "pack.json"), (*tables, text), strict=True):
                _write(temporary / file, data)
            _sync_folder(temporary)
            self._take_name(temporary, self.packs / name)
            _sync_folder(self.packs)
        except OSError as error:
            raise StoreError(_cannot_write(self.folder, error)) from error
        finally:  # also after Ctrl-C; after the rename there is nothing left to remove
            shutil.rmtree(temporary, ignore_errors=True)
        return name

    def done(self) -> set[str]:
        """Ids of the stored trials. Reads each pack.json and which rows there are; `load` also verifies the curves."""
        self.problems = []
        ids: set[str] = set()
        for path in pack_paths(self.folder):
            try:
                suspect = (path / _SUSPECT).exists()
                ids.update(read_pack(path).trial_ids if suspect else stored_trials(path))
            except CorruptPack as error:
                self.problems.append(str(error))
        return ids

    def load(self) -> Results:
        """All packs, verified; a trial that several packs hold is taken from the first by name."""
        packs, corrupt = read_packs(self.folder)
        for path in corrupt:
            with contextlib.suppress(OSError):  # only a hint for `done`
                (path / _SUSPECT).touch()
        results = _told(self.folder, packs, corrupt)
        self.problems = results.problems
        return results

    def publish(self) -> Results:
        """Write the tables of all packs to the folder. The same packs give the same bytes."""
        results = self.load()
        try:
            for file, table in zip(TABLES, (runs_table(results.runs), curve_table(results.curve)), strict=True):
                _replace(self.folder / file, to_parquet(table))
            _sync_folder(self.folder)
        except OSError as error:
            raise StoreError(_cannot_write(self.folder, error)) from error
        return results

    def _take_name(self, temporary: Path, final: Path) -> None:
        for _ in range(100):  # each turn is lost only to another writer of the same pack
            try:
                os.rename(temporary, final)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            try:
                read_pack(final)
                return
            except CorruptPack:
                _set_aside(final)
        raise OSError(errno.EBUSY, f"pack {final.name} keeps changing under another writer")

    def _remove_stale(self) -> None:
        for path in (*self.packs.glob(".tmp-*"), *self.folder.glob(".tmp-*")):
            with contextlib.suppress(OSError):  # another opener was faster
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def load_results(folder: str | Path) -> Results:
    """The results in a folder, from its packs or else from published tables. Writes nothing."""
    folder = Path(folder).absolute()
    packs, corrupt = read_packs(folder)
    if packs:
        return _told(folder, packs, corrupt)
    if corrupt:
        raise none_readable(folder, corrupt)
    missing = [file for file in TABLES if not (folder / file).is_file()]
    if missing:
        what = "is empty" if folder.is_dir() else "does not exist" if not folder.exists() else "is not a folder"
        if folder.is_dir() and any(folder.iterdir()):
            what = f"has neither packs nor {missing[0]}"
        raise StoreError(f"no results: {str(folder)!r} {what}; run `bilevelbench run --all -o {folder}` first")
    try:
        runs, curve = (pq.ParquetFile(folder / file).read() for file in TABLES)
        versions = runs.column("schema_version").to_pylist() or [SCHEMA_VERSION]
    except (OSError, KeyError, pa.ArrowException) as error:
        raise StoreError(
            f"the published tables in {str(folder)!r} cannot be read ({error}); fetch or publish them again"
        ) from error
    check_version(max(versions), str(folder / "runs.parquet"))
    return Results(*upgrade(runs.to_pandas(), curve.to_pandas(), max(versions)), records=[])


def replace_file(path: Path, data: bytes) -> None:
    """Write a file of a result folder at once: a reader finds the old one or the new one, whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, data)
        _sync_folder(path.parent)
    except OSError as error:
        raise StoreError(_cannot_write(path.parent, error)) from error


def assemble(packs: Sequence[Pack], problems: list[str]) -> Results:
    """One pair of tables from many packs, in an order that depends on the trials alone.

    A trial that several packs hold is taken from the first by name; the n-th pack that holds it fills copy n.
    """
    versions = sorted({pack.record["schema_version"] for pack in packs})
    parts = [_concatenate([p for p in packs if p.record["schema_version"] == v], v) for v in versions]
    if not parts:
        return Results(runs_frame([]), curve_frame([]), [], problems)
    runs = pd.concat([runs for runs, _ in parts]) if len(parts) > 1 else parts[0][0]
    curve = pd.concat([curve for _, curve in parts]) if len(parts) > 1 else parts[0][1]
    runs = runs.sort_values("_pack", kind="stable")
    copy = runs.groupby("trial_id").cumcount()
    (first_runs, first_curve), *copies = (_copy(runs[copy == n], curve) for n in range(int(copy.max()) + 1))
    records = [pack.record for pack in sorted(packs, key=lambda pack: pack.path.name)]
    return Results(first_runs, first_curve, records, problems, copies)


def _copy(runs: pd.DataFrame, curve: pd.DataFrame) -> Tables:
    """These rows of `runs`, each of another trial, and what belongs to them."""
    runs = runs.sort_values(ORDER, kind="stable", ignore_index=True)
    places = pd.Series(np.arange(len(runs)), index=runs["trial_id"]).reindex(curve["trial_id"], fill_value=-1)
    place = places.to_numpy(dtype=np.int64)
    ours = (place >= 0) & (runs["_pack"].to_numpy()[place] == curve["_pack"].to_numpy())
    order = np.lexsort((curve["step"].to_numpy(), place))  # stable
    curve = curve.iloc[order[ours[order]]].reset_index(drop=True)
    names = curve_schema([str(name) for name in curve.columns if name != "_pack"]).names
    return runs.drop(columns="_pack"), curve[names]


def _told(folder: Path, packs: Sequence[Pack], corrupt: Mapping[Path, str]) -> Results:
    """The results of a folder; packs that cannot be read and packs that contradict each other are its problems."""
    results = assemble(packs, list(corrupt.values()))
    results.problems.extend(f"{found}; the first is shown" for found in disagreements(witnesses(folder, results)))
    return results


def _concatenate(packs: Sequence[Pack], version: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of packs of one schema, upgraded; `_pack` is the name of the pack as a number that sorts alike."""
    names = np.array([int(pack.path.name, 16) for pack in packs], dtype=np.uint64)
    runs = pa.concat_tables([pack.runs for pack in packs], promote_options="default").to_pandas()
    curve = pa.concat_tables([pack.curve for pack in packs], promote_options="default").to_pandas()
    runs["_pack"] = np.repeat(names, [pack.runs.num_rows for pack in packs])
    curve["_pack"] = np.repeat(names, [pack.curve.num_rows for pack in packs])
    return upgrade(runs, curve, version)


def _set_aside(final: Path) -> None:
    """Corrupt packs are kept: someone may want to know what happened to them."""
    n = 0
    while final.with_name(f"{final.name}.corrupt-{n}").exists():
        n += 1
    with contextlib.suppress(FileNotFoundError):  # another writer was faster
        os.rename(final, final.with_name(f"{final.name}.corrupt-{n}"))


def _rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows) if path.is_file() else 0
    except (OSError, pa.ArrowException):
        return 1  # unreadable, but someone's


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".tmp-{secrets.token_hex(8)}-{path.name}")
    try:
        _write(temporary, data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    """Make names durable, not only contents."""
    if os.name == "nt":  # which cannot open a folder
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_WAY_OUT = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EACCES: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that you may write to",
    errno.ENOTDIR: "choose another folder, a file is in the way",
    errno.EEXIST: "choose another folder, a file is in the way",
}


def _cannot_write(folder: Path, error: OSError) -> str:
    way_out = _WAY_OUT.get(error.errno or 0, "mend that or choose another folder")
    return (
        f"cannot write to the result folder {str(folder)!r}: {error.strerror or error}; {way_out} and run the same "
        "command again (what is stored stays)"
    )
