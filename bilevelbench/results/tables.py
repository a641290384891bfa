"""The tables of a result folder, from all of its packs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from bilevelbench.errors import StoreError
from bilevelbench.results.compare import disagreements, witnesses
from bilevelbench.results.packs import TABLES, StoredPack, none_readable, read_packs
from bilevelbench.results.parquet import read_parquet
from bilevelbench.results.possible import impossible
from bilevelbench.results.schema import (
    CURVE,
    REAL,
    RUNS,
    SCHEMA_VERSION,
    Results,
    Tables,
    check_version,
    curve_frame,
    curve_schema,
    runs_frame,
    upgrade,
)
from bilevelbench.untrusted import Refused, read_bytes

ORDER = ["problem", "algorithm", "algorithm_params", "seed", "trial_id"]


def load_results(folder: str | Path) -> Results:
    """The results in a folder, from its packs or else from published tables. Writes nothing."""
    folder = Path(folder).absolute()
    packs, corrupt = read_packs(folder)
    if packs:
        return with_warnings(folder, packs, corrupt)
    if corrupt:
        raise none_readable(folder, corrupt)
    missing = [file for file in TABLES if not (folder / file).is_file()]
    if missing:
        what = "is empty" if folder.is_dir() else "does not exist" if not folder.exists() else "is not a folder"
        if folder.is_dir() and any(folder.iterdir()):
            what = f"has neither packs nor {missing[0]}"
        raise StoreError(f"no results: {str(folder)!r} {what}; run `bilevelbench run --all -o {folder}` first")
    return _published(folder)


def _published(folder: Path) -> Results:
    """Tables that came without their packs. They may lack columns: whoever needs one of them says so."""
    try:
        runs = _table(folder, TABLES[0], RUNS)
        version = _version(runs)
        check_version(version, str(folder / TABLES[0]))
        curve = _table(folder, TABLES[1], CURVE, trials=runs.num_rows)
        fault = impossible(runs, curve) if _has(runs, RUNS) and _has(curve, CURVE) else None
    except (Refused, pa.ArrowException) as error:
        raise StoreError(
            f"the published tables in {str(folder)!r} cannot be read ({error}); fetch or publish them again"
        ) from error
    if fault:
        raise StoreError(f"{str(folder / TABLES[0])!r} {fault}; fetch or publish the tables again")
    return Results(*upgrade(runs.to_pandas(), curve.to_pandas(), version), records=[])


def _table(folder: Path, file: str, types: Mapping[str, pa.DataType], trials: int = 0) -> pa.Table:
    """A published table in the types of its columns; those that are not among `types` are numbers."""
    try:
        table = read_parquet(read_bytes(folder / file, folder), trials=trials)
    except Refused as refused:
        raise Refused(f"{file} {refused}") from refused
    for place, name in enumerate(table.column_names):
        table = table.set_column(place, name, table[name].cast(types.get(name, REAL)))
        if table[name].null_count and table[name].type != REAL:
            raise Refused(f"{file} has a row without {name!r}")
    return table


def _version(runs: pa.Table) -> int:
    if "schema_version" not in runs.column_names:
        raise Refused(f"{TABLES[0]} has no column 'schema_version'")
    found: int = max(runs["schema_version"].to_pylist(), default=SCHEMA_VERSION)
    return found


def _has(table: pa.Table, columns: Mapping[str, pa.DataType]) -> bool:
    return columns.keys() <= set(table.column_names)


def assemble(packs: Sequence[StoredPack], warnings: list[str]) -> Results:
    """One pair of tables from many packs, in an order that depends on the trials alone.

    A trial that several packs hold is taken from the first by name; the n-th pack that holds it fills copy n.
    """
    versions = sorted({pack.record["schema_version"] for pack in packs})
    parts = [_concatenate([p for p in packs if p.record["schema_version"] == v], v) for v in versions]
    if not parts:
        return Results(runs_frame([]), curve_frame([]), [], warnings)
    runs = pd.concat([runs for runs, _ in parts]) if len(parts) > 1 else parts[0][0]
    curve = pd.concat([curve for _, curve in parts]) if len(parts) > 1 else parts[0][1]
    runs = runs.sort_values("_pack", kind="stable")
    copy = runs.groupby("trial_id").cumcount()
    (first_runs, first_curve), *copies = (_copy(runs[copy == n], curve) for n in range(int(copy.max()) + 1))
    records = [pack.record for pack in sorted(packs, key=lambda pack: pack.path.name)]
    return Results(first_runs, first_curve, records, warnings, copies)


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


def with_warnings(folder: Path, packs: Sequence[StoredPack], corrupt: Mapping[Path, str]) -> Results:
    """The results of a folder; packs that cannot be read and packs that contradict each other are its warnings."""
    results = assemble(packs, list(corrupt.values()))
    results.warnings.extend(f"{found}; the first is shown" for found in disagreements(witnesses(folder, results)))
    return results


def _concatenate(packs: Sequence[StoredPack], version: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of packs of one schema, upgraded; `_pack` is the name of the pack as a number that sorts alike."""
    names = np.array([int(pack.path.name, 16) for pack in packs], dtype=np.uint64)
    runs = pa.concat_tables([pack.runs for pack in packs], promote_options="default").to_pandas()
    curve = pa.concat_tables([pack.curve for pack in packs], promote_options="default").to_pandas()
    runs["_pack"] = np.repeat(names, [pack.runs.num_rows for pack in packs])
    curve["_pack"] = np.repeat(names, [pack.curve.num_rows for pack in packs])
    return upgrade(runs, curve, version)
