"""The two tidy tables: their columns, types and versions.

`runs` has one row per trial, whatever became of it; `curve` has one row per trial and evaluation. Missing numbers are
NaN, missing counts 0, missing text "".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import pyarrow as pa

from bilevelbench.errors import InvalidInput, StoreError, suggestion
from bilevelbench.model.queries import COLUMNS, TOTALS
from bilevelbench.results.machine import machine
from bilevelbench.results.status import Status

SCHEMA_VERSION = 2

TEXT, COUNT, REAL = pa.large_string(), pa.int64(), pa.float64()  # as pandas has them, so nothing is converted

#: Calls are whole numbers; `cost` is a float, since batches of a million take it past 2**53.
RUNS: dict[str, pa.DataType] = {
    "trial_id": TEXT,
    "algorithm": TEXT,
    "algorithm_params": TEXT,
    "problem": TEXT,
    "problem_params": TEXT,
    "seed": COUNT,
    "status": TEXT,
    "message": TEXT,
    **dict.fromkeys(["steps", *COLUMNS, *TOTALS], COUNT),
    "cost": REAL,
    "rounds": COUNT,
    "bytes": COUNT,
    **dict.fromkeys(["seconds", "peak_memory", "pack_lanes"], REAL),
    **dict.fromkeys(["phi", "grad_phi", "grad_phi_error", "g_y", "last_phi", "last_grad_phi", "best_grad_phi"], REAL),
    **dict.fromkeys(["certificate", "dtype", "label"], TEXT),
    **dict.fromkeys(["plugin", "plugin_version", "problem_plugin", "problem_plugin_version"], TEXT),
    "schema_version": COUNT,
}

#: Problem metrics and the extras of a method add further float columns behind these.
CURVE: dict[str, pa.DataType] = {
    "trial_id": TEXT,
    "step": COUNT,
    "cost": REAL,
    "first_order": COUNT,
    "second_order": COUNT,
    **dict.fromkeys(["seconds", "phi", "grad_phi", "grad_phi_error", "g_y"], REAL),
}

#: What depends on the clock, the machine or the width of a pack.
MEASURED = frozenset({"seconds", "peak_memory", "pack_lanes"})

#: What differs between two runs of one trial, since a message may tell such numbers; every other column is the same.
VOLATILE = MEASURED | {"message"}

_MOST_MESSAGE = 4000  # characters

#: A default would invent the identity of a trial.
_REQUIRED = {"runs": ("trial_id", "algorithm", "problem", "seed", "status"), "curve": ("trial_id", "step")}


#: `runs` and `curve`.
Tables = tuple[pd.DataFrame, pd.DataFrame]


@dataclass(frozen=True, eq=False)  # data frames cannot be compared with ==
class Results:
    """The tables of a result folder, the JSON record of each pack, a sentence for each pack that cannot be read.

    A trial that several packs hold, usually from several machines, has one row in `runs`; `copies` has the others: the
    rows of the second pack that holds it in the first copy, and so on, packs being in the order of `records`.
    """

    runs: pd.DataFrame
    curve: pd.DataFrame
    records: list[dict[str, Any]]
    warnings: list[str] = field(default_factory=list)
    copies: list[Tables] = field(default_factory=list)

    def only(self, trial_ids: Iterable[str]) -> Results:
        """The results of these trials. The records of packs are kept whole, with whatever else a pack holds."""
        ids = set(trial_ids)
        (runs, curve), *copies = (
            (runs[runs["trial_id"].isin(ids)], curve[curve["trial_id"].isin(ids)])
            for runs, curve in ((self.runs, self.curve), *self.copies)
        )
        return replace(self, runs=runs, curve=curve, copies=copies)

    def grouped(self, group_of: Mapping[str, str]) -> dict[str, Results]:
        """What `only` gives of each group of trials, in one pass over the tables for all of them."""
        (runs, curves), *copies = (
            [_groups(table, group_of) for table in tables] for tables in ((self.runs, self.curve), *self.copies)
        )
        return {
            name: replace(
                self,
                runs=runs[name],
                curve=curves.get(name, self.curve.iloc[:0]),
                copies=[
                    (of_runs.get(name, one.iloc[:0]), of_curve.get(name, other.iloc[:0]))
                    for (of_runs, of_curve), (one, other) in zip(copies, self.copies, strict=True)
                ],
            )
            for name in runs
        }

    def without(self, trial_ids: Iterable[str]) -> Results:
        """The results of all other trials."""
        return self.only(set(self.runs["trial_id"]).difference(trial_ids))

    def machines(self) -> dict[str, tuple[str, ...]]:
        """By trial id: the machines that have run it, each once. Published tables alone do not tell any."""
        found: dict[str, dict[str, None]] = {}
        for record in self.records:
            name = machine(record.get("environment") or {})
            for trial_id in record.get("trial_ids", []):
                found.setdefault(trial_id, {})[name] = None
        return {trial_id: tuple(names) for trial_id, names in found.items()}

    def confirmations(self) -> pd.Series[int]:
        """How many machines have run each trial of `runs`, by its id."""
        known = self.machines()
        ids = [str(trial_id) for trial_id in self.runs["trial_id"]]
        return pd.Series([len(known.get(trial_id, ())) for trial_id in ids], index=ids, dtype="int64")


def _groups(table: pd.DataFrame, group_of: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    return {str(name): rows for name, rows in table.groupby(table["trial_id"].map(group_of), sort=False)}


def runs_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per trial, columns in order and typed; a column that `runs` does not have is an error."""
    frame: pd.DataFrame = runs_of(rows).to_pandas()
    return frame


def curve_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per trial and evaluation; columns beyond those of `CURVE` are floats and follow in alphabetical order."""
    frame: pd.DataFrame = curve_of({name: [row.get(name) for row in rows] for name in set().union(*rows)}).to_pandas()
    return frame


def runs_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """`runs_frame` as it is stored."""
    for row in rows:
        for name in row:
            if name not in RUNS:
                raise InvalidInput(f"`runs` has no column {name!r}{suggestion(name, RUNS)}")
    columns = {name: [row.get(name) for row in rows] for name in RUNS}
    columns["message"] = [_short(message) for message in columns["message"]]
    columns["schema_version"] = [row.get("schema_version", SCHEMA_VERSION) for row in rows]
    for status in set(columns["status"]) - {None, "", *Status}:
        raise InvalidInput(f"unknown status {status!r}{suggestion(str(status), map(str, Status))}")
    return _typed("runs", columns, RUNS)


def _short(message: Any) -> Any:
    """A plugin's exception may tell a whole tensor, and with a longer text nobody would read the table."""
    if not isinstance(message, str) or len(message) <= _MOST_MESSAGE:
        return message
    half = _MOST_MESSAGE // 2
    return f"{message[:half]} [{len(message) - 2 * half:,} characters are left out here] {message[-half:]}"


def curve_of(columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """`curve_frame` as it is stored, from columns of equal length."""
    extras = columns.keys() - CURVE.keys()
    return _typed("curve", columns, CURVE | dict.fromkeys(sorted(extras), REAL))


def runs_table(frame: pd.DataFrame) -> pa.Table:
    """A `runs` frame as it is stored."""
    return _table("runs", frame, pa.schema(RUNS))


def curve_table(frame: pd.DataFrame) -> pa.Table:
    """A `curve` frame as it is stored."""
    return _table("curve", frame, curve_schema([str(name) for name in frame.columns]))


def runs_schema(version: int) -> pa.Schema:
    """The columns of `runs` as this schema had them."""
    columns = list(RUNS.items())
    if version < 2:
        columns.insert(list(RUNS).index("cost"), ("samples", REAL))
    return pa.schema(columns)


def curve_schema(names: Sequence[str]) -> pa.Schema:
    """The columns of `CURVE` and then the others of `names`, in alphabetical order."""
    return pa.schema(CURVE | dict.fromkeys(sorted(set(names) - CURVE.keys()), REAL))


Upgrade = Callable[[pd.DataFrame, pd.DataFrame], Tables]


def _without_samples(runs: pd.DataFrame, curve: pd.DataFrame) -> Tables:
    """In schema 1 `samples` was `cost` under another name; a table that only claims to be of schema 1 may have none."""
    return runs.drop(columns="samples", errors="ignore"), curve


#: UPGRADES[n] turns tables of schema n into tables of schema n + 1.
UPGRADES: dict[int, Upgrade] = {1: _without_samples}


def check_version(version: int, where: str = "") -> None:
    """Refuse tables that this version of bilevelbench cannot understand; `where` names the file."""
    prefix = f"{where}: " if where else ""
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{prefix}written by a newer bilevelbench (schema {version}, this one knows {SCHEMA_VERSION}); "
            "upgrade bilevelbench"
        )
    lost = next((v for v in range(version, SCHEMA_VERSION) if v not in UPGRADES), None)
    if lost is not None:
        raise StoreError(
            f"{prefix}written with schema {version}, and nothing upgrades schema {lost} to {lost + 1}; "
            "run the trials again into a new folder"
        )


def upgrade(runs: pd.DataFrame, curve: pd.DataFrame, version: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of schema `version` as tables of `SCHEMA_VERSION`."""
    check_version(version)
    for v in range(version, SCHEMA_VERSION):
        runs, curve = UPGRADES[v](runs, curve)
    if version < SCHEMA_VERSION:
        runs = runs.assign(schema_version=SCHEMA_VERSION)
    return runs, curve


def _typed(table: str, columns: Mapping[str, Sequence[Any]], types: dict[str, pa.DataType]) -> pa.Table:
    length = len(next(iter(columns.values()), ()))
    for name in _REQUIRED[table]:
        values = columns.get(name, [None] * length)
        lacking = [values.index(nothing) for nothing in (None, "") if nothing in values]
        if lacking:
            raise InvalidInput(
                f"row {min(lacking)} of `{table}` has no {name!r}; a trial cannot be identified without it"
            )
    arrays = {
        name: pa.array(_values(table, name, type_, columns.get(name, [None] * length)), type_)
        for name, type_ in types.items()
    }
    return pa.table(arrays)


def _values(table: str, name: str, type_: pa.DataType, values: Sequence[Any]) -> Sequence[str | int | float]:
    kinds = set(map(type, values))
    # The usual cases of a long curve, without a call for each value.
    if type_ == REAL and kinds == {float}:
        return values
    if type_ == COUNT and kinds == {float} and all(map(float.is_integer, values)) and max(map(abs, values)) < 2**53:
        return list(map(int, values))
    if type_ == COUNT and kinds == {int} and max(map(abs, values)) < 2**53:
        return values
    if type_ == TEXT and kinds == {str} and "".join(values).isascii():
        return values
    return [_value(table, name, type_, value) for value in values]


def _value(table: str, name: str, type_: pa.DataType, value: Any) -> str | int | float:
    if type_ == REAL:
        try:
            return float("nan") if value is None else float(value)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"`{table}.{name}` is {value!r}; it must be a number") from error
    if type_ == COUNT:
        try:
            count = 0 if value is None else int(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(f"`{table}.{name}` is {value!r}; it must be a whole number") from error
        if value not in (None, count) or not -(2**63) <= count < 2**63:
            raise InvalidInput(f"`{table}.{name}` is {value!r}; it must be a whole number of at most 64 bits")
        return count
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"`{table}.{name}` is {value!r}; it must be text (parameters are JSON text)")
    # an exception's message may hold lone surrogates (undecodable file names), which no file format takes
    return (value or "").encode("utf-8", "replace").decode("utf-8")


def _table(table: str, frame: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    wrong = sorted({str(name) for name in frame.columns} ^ set(schema.names))
    if wrong:
        raise InvalidInput(
            f"`{table}` does not have the columns of schema {SCHEMA_VERSION} ({wrong[0]!r} is missing or unknown); "
            f"make it with {table}_frame"
        )
    try:  # not Table.from_pandas, which takes longer and adds metadata with the version of pandas
        columns = [pa.array(frame[field.name], field.type, from_pandas=True) for field in schema]
    except (pa.ArrowException, TypeError) as error:
        raise InvalidInput(f"`{table}` has a column of the wrong type ({error}); make it with {table}_frame") from error
    return pa.Table.from_arrays(columns, schema=schema)
