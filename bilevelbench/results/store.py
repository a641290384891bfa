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
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.results.files import cannot_write, remove_stale, replace, sync_folder, write_new
from bilevelbench.results.machine import machine
from bilevelbench.results.packs import (
    TABLES,
    CorruptPack,
    Remembered,
    pack_id,
    pack_paths,
    read_pack,
    read_packs,
    sha256,
    stored_trials,
    to_json,
    to_parquet,
)
from bilevelbench.results.schema import SCHEMA_VERSION, Results, curve_table, runs_table
from bilevelbench.results.tables import with_warnings

EXPERIMENTS = "experiments"

_SUSPECT = "suspect"  # left in a pack whose checksum failed: `done` then looks as closely as `load` does


class Store:
    """A folder to write to. `warnings` has a sentence for each corrupt pack that the last `done` or `load` met.

    One that is to `remember` keeps what it has read in memory: for those who run a few trials and load, again and again.
    """

    def __init__(self, folder: str | Path, remember: bool = False) -> None:
        self.folder = Path(folder).absolute()  # a plugin may change the working directory
        self.packs = self.folder / "packs"
        self.warnings: list[str] = []
        self._remembers = remember
        self._read = Remembered() if remember else read_pack
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
            raise StoreError(cannot_write(self.folder, error)) from error
        for place in (self.packs, self.folder):
            remove_stale(place, ".tmp-*")

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
                write_new(temporary / file, data)
            sync_folder(temporary)
            self._take_name(temporary, self.packs / name)
            sync_folder(self.packs)
        except OSError as error:
            raise StoreError(cannot_write(self.folder, error)) from error
        finally:  # also after Ctrl-C; after the rename there is nothing left to remove
            shutil.rmtree(temporary, ignore_errors=True)
        return name

    def done(self) -> set[str]:
        """Ids of the stored trials. Reads each pack.json and which rows there are; `load` also verifies the curves."""
        self.warnings = []
        ids: set[str] = set()
        for path in pack_paths(self.folder):
            try:
                closely = self._remembers or (path / _SUSPECT).exists()
                ids.update(self._read(path).trial_ids if closely else stored_trials(path))
            except CorruptPack as error:
                self.warnings.append(str(error))
        return ids

    def load(self) -> Results:
        """All packs, verified; a trial that several packs hold is taken from the first by name."""
        packs, corrupt = read_packs(self.folder, self._read)
        for path in corrupt:
            with contextlib.suppress(OSError):  # only a hint for `done`
                (path / _SUSPECT).touch()
        results = with_warnings(self.folder, packs, corrupt)
        self.warnings = results.warnings
        return results

    def publish(self) -> Results:
        """Write the tables of all packs to the folder. The same packs give the same bytes."""
        results = self.load()
        try:
            for file, table in zip(TABLES, (runs_table(results.runs), curve_table(results.curve)), strict=True):
                replace(self.folder / file, to_parquet(table))
            sync_folder(self.folder)
        except OSError as error:
            raise StoreError(cannot_write(self.folder, error)) from error
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
