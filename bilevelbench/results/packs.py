"""A pack on disk: `packs/<pack_id>/` with runs.parquet, curve.parquet and pack.json, read and verified.

pack.json lists the trials, the sizes and sums of the tables, and ends with its own sum. Whatever is wrong with a pack is
a `CorruptPack` with a sentence: what someone else or a newer version wrote must not break the other packs.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.results.parquet import read_parquet
from bilevelbench.results.possible import impossible
from bilevelbench.results.record import record_fault, row_fault
from bilevelbench.results.schema import REAL, check_version, curve_schema, runs_schema
from bilevelbench.untrusted import MOST_BYTES, MOST_JSON, Refused, parsed_json, read_bytes

TABLES = ("runs.parquet", "curve.parquet")

_PACK_NAME = re.compile(r"[0-9a-f]{16}")
_CHECKSUM = b',\n"checksum": '  # starts the last line of pack.json; what precedes it is what is summed


@dataclass(frozen=True)
class StoredPack:
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
    """Why a pack cannot be read; reading a whole folder turns it into a sentence in `warnings`."""


def pack_id(record: Mapping[str, Any]) -> str:
    """The name of a pack: of its trials, whatever their order, and of the machine and the schema that made it.

    So results of two machines lie side by side. Packs without `machine`, as they were first published, are named by
    their trials alone.
    """
    made = [record["machine"], f"schema {record['schema_version']}"] if "machine" in record else []
    return sha256("\n".join([*sorted(record["trial_ids"]), *made]).encode())[:16]


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
        record = {name: value for name, value in parsed_json(text).items() if value is not None}
    except Refused as refused:
        raise _corrupt(path, "pack.json", str(refused)) from refused
    version = record.get("schema_version")
    if type(version) is not int:
        raise _corrupt(path, "pack.json", f"has the schema_version {version!r}, which is not a whole number")
    try:  # before the checksum, which a newer version may make otherwise
        check_version(version, str(path / "pack.json"))
    except StoreError as error:
        raise CorruptPack(f"{error}; until then the pack is ignored, and the same command runs its trials") from None
    if checksum != f'"{sha256(body)}"}}\n'.encode():
        raise _corrupt(path, "pack.json", "does not match its checksum")
    wrong = record_fault(record)
    if wrong:
        raise _corrupt(path, "pack.json", wrong)
    if pack_id(record) != path.name:
        raise _corrupt(path, "pack.json", f"belongs to pack {pack_id(record)}")
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
    return [_verified(path, record, file) for file in TABLES]


def stored_trials(path: Path) -> list[str]:
    """The trials of a pack: as listed, and found to have one row each. Reads pack.json and one column."""
    record = read_record(path)
    rows = _parsed(path, record, TABLES[0], ["trial_id"])
    _hold_against_rows(path, record, rows)
    ids: list[str] = record["trial_ids"]
    return ids


def read_pack(path: Path) -> StoredPack:
    """A pack with its tables, their contents verified."""
    record = read_record(path)
    tables = [_parsed(path, record, file) for file in TABLES]
    runs, curve = tables
    version = record["schema_version"]
    schemas = runs_schema(version), curve_schema(curve.column_names)
    for file, table, schema in zip(TABLES, tables, schemas, strict=True):
        if not table.schema.equals(schema):
            raise _corrupt(path, file, f"does not have the columns of schema {version}")
        empty = [name for name in table.column_names if table[name].null_count and table[name].type != REAL]
        if empty:
            raise _corrupt(path, file, f"has a row without {empty[0]!r}")
    _hold_against_rows(path, record, runs)
    strangers = set(curve["trial_id"].unique().to_pylist()) - set(record["trial_ids"])
    if strangers:
        raise _corrupt(path, TABLES[1], f"has trial {min(strangers)!r}, which the pack does not hold")
    fault = impossible(runs, curve) or row_fault(record.get("trials") or [], runs)
    if fault:
        raise _corrupt(path, TABLES[0], fault)
    return StoredPack(path, record, runs, curve)


class Remembered:
    """Reads packs, and each of them once as long as it has the same files, times and sizes: packs are never changed."""

    def __init__(self) -> None:
        self._packs: dict[Path, tuple[list[tuple[int, int, int]], StoredPack]] = {}

    def __call__(self, path: Path) -> StoredPack:
        try:
            stats = [(path / file).stat() for file in (*TABLES, "pack.json")]
        except OSError:
            return read_pack(path)  # which says what is wrong
        state = [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]
        before, pack = self._packs.get(path, (None, None))
        if pack is None or before != state:
            pack = read_pack(path)
            self._packs[path] = state, pack
        return pack


def read_packs(
    folder: Path, read: Callable[[Path], StoredPack] = read_pack
) -> tuple[list[StoredPack], dict[Path, str]]:
    """The readable packs of a folder by name, and a sentence for each of the others."""

    def attempt(path: Path) -> StoredPack | CorruptPack:
        try:
            return read(path)
        except CorruptPack as error:
            return error

    paths = pack_paths(folder)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # hashing and parquet release the interpreter lock
        outcomes = list(pool.map(attempt, paths))
    packs = [pack for pack in outcomes if isinstance(pack, StoredPack)]
    return packs, {p: str(error) for p, error in zip(paths, outcomes, strict=True) if isinstance(error, CorruptPack)}


def none_readable(folder: Path, corrupt: Mapping[Path, str]) -> StoreError:
    """A folder that has packs, none of which can be read."""
    first = next(iter(corrupt.values()))
    return StoreError(f"none of the {len(corrupt)} packs in {str(folder)!r} can be read; the first: {first}")


def to_parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    # Statistics would make a small file half as large again, and nobody asks for them.
    pq.write_table(table, sink, compression="zstd", use_dictionary=True, write_statistics=False)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def to_json(record: Mapping[str, Any]) -> bytes:
    """One line per key, the checksum last."""
    try:  # with an `indent` json would take its slow encoder
        lines = [f"{json.dumps(str(key))}: {json_text(record[key])}" for key in sorted(record) if key != "checksum"]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the record of a pack must be plain JSON values ({error}); convert them first") from error
    body = ("{\n" + ",\n".join(lines)).encode("utf-8")
    return body + _CHECKSUM + f'"{sha256(body)}"}}\n'.encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def json_text(value: Any) -> str:
    """JSON as anybody reads it, in a record as in a column of a table: numbers that are not finite are texts."""
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


def _verified(path: Path, record: Mapping[str, Any], file: str) -> bytes:
    data = _read(path, file)
    if sha256(data) != record["files"][file]["sha256"]:
        raise _corrupt(path, file, "does not match its checksum")
    return data


def _parsed(path: Path, record: Mapping[str, Any], file: str, columns: list[str] | None = None) -> pa.Table:
    try:
        return read_parquet(_verified(path, record, file), columns, trials=len(record["trial_ids"]))
    except Refused as refused:
        raise _corrupt(path, file, str(refused)) from refused


def _hold_against_rows(path: Path, record: Mapping[str, Any], runs: pa.Table) -> None:
    """A trial that is listed and has no row would never be run, and one that has two would count twice."""
    rows = runs["trial_id"].to_pylist() if "trial_id" in runs.column_names else []
    if sorted(map(str, rows)) == sorted(record["trial_ids"]):
        return
    lacking = sorted(set(record["trial_ids"]) - set(rows))
    what = f"has no row of trial {lacking[0]!r}" if lacking else "has rows of trials"
    raise _corrupt(path, TABLES[0], f"{what}, which pack.json {'lists' if lacking else 'does not list'}")


def _corrupt(path: Path, file: str, what: str) -> CorruptPack:
    return CorruptPack(
        f"{str(path / file)!r} {what}; the pack is ignored and the same command runs its trials again "
        f"(delete the folder {str(path)!r} to get rid of this message)"
    )


def _read(path: Path, file: str) -> bytes:
    """A file of a pack; links may not lead out of the folder of results, which is two above."""
    try:
        return read_bytes(path / file, path.parent.parent, MOST_JSON if file == "pack.json" else MOST_BYTES)
    except Refused as refused:
        raise _corrupt(path, file, str(refused)) from refused
