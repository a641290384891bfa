"""A result folder: packs of trials that are either there and complete, or not there.

    folder/packs/<pack_id>/runs.parquet, curve.parquet, pack.json      written at once, never changed
    folder/runs.parquet, curve.parquet                                 all packs in one table, made by `publish`
    folder/experiments/*.json                                          figures of papers that the trials belong to

A pack is written under a temporary name, fsynced, and renamed. So a killed writer leaves nothing that looks like a
result, several writers may share a folder, and a trial is done when a stored pack holds its id.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.results import (
    RUNS,
    SCHEMA_VERSION,
    Results,
    check_version,
    curve_frame,
    curve_schema,
    curve_table,
    runs_frame,
    runs_table,
    upgrade,
)

EXPERIMENTS = "experiments"
TABLES = ("runs.parquet", "curve.parquet")
ORDER = ["problem", "algorithm", "algorithm_params", "seed", "trial_id"]

_PACK_NAME = re.compile(r"[0-9a-f]{16}")
_STALE_SECONDS = 3600.0  # a live writer's temporary folder is milliseconds old
_CHECKSUM = b',\n"checksum": '  # starts the last line of pack.json; what precedes it is what is summed
_SUSPECT = "suspect"  # left in a pack whose checksum failed: `done` then looks as closely as `load` does


@dataclass(frozen=True)
class Pack:
    """One pack as read and verified."""

    path: Path
    record: dict[str, Any]
    runs: pa.Table
    curve: pa.Table

    @property
    def trial_ids(self) -> list[str]:
        ids: list[str] = self.record["trial_ids"]
        return ids


class CorruptPack(StoreError):
    """Why a pack cannot be read; reading a whole folder turns it into a sentence in `problems`."""


class Store:
    """A folder to write to. `problems` has a sentence for each corrupt pack that the last `done` or `load` met."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
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
        """Store one pack and return its id. Nothing happens if another writer has stored the same trials."""
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
        """Store the bytes of the two tables under the id of the record's `trial_ids`."""
        name = pack_id(record["trial_ids"])
        sums = {file: {"bytes": len(data), "sha256": _sha256(data)} for file, data in zip(TABLES, tables, strict=True)}
        text = _json_bytes({**record, "files": sums})
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
        """Ids of the stored trials. Reads each pack.json and the sizes of the tables; `load` also verifies contents."""
        self.problems = []
        ids: set[str] = set()
        for path in pack_paths(self.folder):
            try:
                suspect = (path / _SUSPECT).exists()
                ids.update(read_pack(path).trial_ids if suspect else read_record(path)["trial_ids"])
            except CorruptPack as error:
                self.problems.append(str(error))
        return ids

    def load(self) -> Results:
        """All packs, verified; a trial that several packs hold is taken from the first by name."""
        packs, corrupt = read_packs(self.folder)
        for path in corrupt:
            with contextlib.suppress(OSError):  # only a hint for `done`
                (path / _SUSPECT).touch()
        self.problems = list(corrupt.values())
        return assemble(packs, self.problems)

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
    folder = Path(folder)
    packs, corrupt = read_packs(folder)
    if packs:
        return assemble(packs, list(corrupt.values()))
    if corrupt:
        first = next(iter(corrupt.values()))
        raise StoreError(f"none of the {len(corrupt)} packs in {str(folder)!r} can be read; the first: {first}")
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


def pack_id(trial_ids: Iterable[str]) -> str:
    """The name of the pack that holds these trials, whatever their order."""
    return _sha256("\n".join(sorted(trial_ids)).encode())[:16]


def pack_paths(folder: Path) -> list[Path]:
    """The packs of a folder by name; temporary and set-aside ones are not among them."""
    try:
        return [folder / "packs" / name for name in sorted(os.listdir(folder / "packs")) if _PACK_NAME.fullmatch(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot read {str(folder)!r}: {error.strerror}; check its permissions") from error


def read_record(path: Path) -> dict[str, Any]:
    """pack.json, verified, with the sizes of the tables beside it."""
    text = _read(path, "pack.json")
    body, _, checksum = text.rpartition(_CHECKSUM)
    try:
        record: dict[str, Any] = json.loads(text)
        version = int(record["schema_version"])
    except (ValueError, TypeError, KeyError) as error:
        raise _corrupt(path, "pack.json", f"is not a pack's JSON ({error!r})") from error
    check_version(version, str(path / "pack.json"))  # before the checksum, which a newer version may make otherwise
    if checksum != f'"{_sha256(body)}"}}\n'.encode():
        raise _corrupt(path, "pack.json", "does not match its checksum")
    if pack_id(record["trial_ids"]) != path.name:
        raise _corrupt(path, "pack.json", f"belongs to pack {pack_id(record['trial_ids'])}")
    for file in TABLES:
        expected = record["files"][file]["bytes"]
        try:
            size = (path / file).stat().st_size
        except OSError as error:
            raise _corrupt(path, file, f"cannot be read ({error.strerror})") from error
        if size != expected:
            raise _corrupt(path, file, f"has {size} bytes where {expected} were written")
    return record


def read_tables(path: Path, record: Mapping[str, Any]) -> list[bytes]:
    """The bytes of the two tables, verified."""
    contents = [_read(path, file) for file in TABLES]
    for file, data in zip(TABLES, contents, strict=True):
        if _sha256(data) != record["files"][file]["sha256"]:
            raise _corrupt(path, file, "does not match its checksum")
    return contents


def read_pack(path: Path) -> Pack:
    """A pack with its tables, their contents verified."""
    record = read_record(path)
    tables = []
    for file, data in zip(TABLES, read_tables(path, record), strict=True):
        try:
            tables.append(pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False))
        except pa.ArrowException as error:
            raise _corrupt(path, file, f"is not a parquet file ({error})") from error
    runs, curve = tables
    schemas = pa.schema(RUNS), curve_schema(curve.column_names)
    for file, table, schema in zip(TABLES, tables, schemas, strict=True):
        if record["schema_version"] == SCHEMA_VERSION and not table.schema.equals(schema):
            raise _corrupt(path, file, f"does not have the columns of schema {SCHEMA_VERSION}")
    return Pack(path, record, runs, curve)


def read_packs(folder: Path) -> tuple[list[Pack], dict[Path, str]]:
    """The readable packs of a folder by name, and a sentence for each of the others."""

    def attempt(path: Path) -> Pack | CorruptPack:
        try:
            return read_pack(path)
        except CorruptPack as error:
            return error

    paths = pack_paths(folder)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # hashing and parquet release the interpreter lock
        outcomes = list(pool.map(attempt, paths))
    packs = [pack for pack in outcomes if isinstance(pack, Pack)]
    return packs, {p: str(error) for p, error in zip(paths, outcomes, strict=True) if isinstance(error, CorruptPack)}


def assemble(packs: Sequence[Pack], problems: list[str]) -> Results:
    """One pair of tables from many packs, in an order that depends on the trials alone."""
    versions = sorted({pack.record["schema_version"] for pack in packs})
    parts = [_concatenate([p for p in packs if p.record["schema_version"] == v], v) for v in versions]
    if not parts:
        return Results(runs_frame([]), curve_frame([]), [], problems)
    runs = pd.concat([runs for runs, _ in parts]) if len(parts) > 1 else parts[0][0]
    curve = pd.concat([curve for _, curve in parts]) if len(parts) > 1 else parts[0][1]

    runs = runs.sort_values("_pack", kind="stable").drop_duplicates("trial_id")
    runs = runs.sort_values(ORDER, kind="stable", ignore_index=True)
    place = pd.Series(np.arange(len(runs)), index=runs["trial_id"]).reindex(curve["trial_id"]).to_numpy(dtype=np.int64)
    ours = runs["_pack"].to_numpy()[place] == curve["_pack"].to_numpy()
    order = np.lexsort((curve["step"].to_numpy(), place))  # stable
    curve = curve.iloc[order[ours[order]]].reset_index(drop=True)

    names = curve_schema([str(name) for name in curve.columns if name != "_pack"]).names
    return Results(runs.drop(columns="_pack"), curve[names], [pack.record for pack in packs], problems)


def to_parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    # Statistics would make a small file half as large again, and nobody asks for them.
    pq.write_table(table, sink, compression="zstd", use_dictionary=True, write_statistics=False)
    data: bytes = sink.getvalue().to_pybytes()
    return data


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


def _corrupt(path: Path, file: str, what: str) -> CorruptPack:
    return CorruptPack(
        f"{str(path / file)!r} {what}; the pack is ignored and the same command runs its trials again "
        f"(delete the folder {str(path)!r} to be rid of this message)"
    )


def _read(path: Path, file: str) -> bytes:
    try:
        return (path / file).read_bytes()
    except OSError as error:
        raise _corrupt(path, file, f"cannot be read ({error.strerror})") from error


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


def _json_bytes(record: Mapping[str, Any]) -> bytes:
    """A line a key, and the checksum last."""
    try:  # with an `indent` json would take its slow encoder
        lines = [f"{json.dumps(str(key))}: {_json(record[key])}" for key in sorted(record) if key != "checksum"]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the record of a pack must be plain JSON values ({error}); convert them first") from error
    body = ("{\n" + ",\n".join(lines)).encode("utf-8")
    return body + _CHECKSUM + f'"{_sha256(body)}"}}\n'.encode()


def _json(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(_finite(value), sort_keys=True, allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no infinity (an unlimited budget): write "inf", which float() and pydantic read back."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
