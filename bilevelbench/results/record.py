"""What pack.json says of a pack, as a model: whoever wrote it, what is read from it has the types that readers expect.

Fields that are not known are kept: a newer version may say more. A trial's id is computed again from what it asks, and
every trial that is described has a row in the pack, so that no pack can speak for the trials of another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from bilevelbench.errors import faults
from bilevelbench.model.trial_id import is_its_own
from bilevelbench.untrusted import parameters

#: What a row of `runs` repeats of its trial, beside its name and parameters.
_REPEATED = ("seed", "dtype", "plugin", "plugin_version", "problem_plugin", "problem_plugin_version")
#: What a sentence repeats of a value that somebody else has written.
_SHOWN = 300


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class _Sum(_Part):
    bytes: NonNegativeInt
    sha256: str


class _Files(_Part):
    runs: _Sum = Field(alias="runs.parquet")
    curve: _Sum = Field(alias="curve.parquet")


class _Environment(_Part):
    packages: dict[str, Any] | None = None


class _Named(_Part):
    name: str
    params: dict[str, Any] = {}


class _Trial(_Part):
    """A trial as it was asked for; what may be in it beside this is the business of who runs it again."""

    id: str
    algorithm: _Named
    problem: _Named
    seed: NonNegativeInt
    schedule: dict[str, Any] = {}
    budget: dict[str, Any] = {}
    label: str = ""
    tuned: str | bool = ""  # as schema 1 had it: whether, and not by what
    dtype: str = ""
    plugin: str = ""
    plugin_version: str = ""
    problem_plugin: str = ""
    problem_plugin_version: str = ""


class PackRecord(_Part):
    """pack.json."""

    trial_ids: Annotated[list[str], Field(min_length=1)]
    files: _Files
    trials: list[_Trial] | None = None
    created: str | None = None
    machine: str | None = None
    merged_from: str | None = None
    environment: _Environment | None = None
    commits: dict[str, Any] | None = None
    families: dict[str, Any] | None = None
    pictures: dict[str, Any] | None = None
    step_seconds: float | None = None
    total_seconds: float | None = None
    timed: bool | None = None  # whether no other trial ran beside these

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.trial_ids)) < len(self.trial_ids):
            raise ValueError("trial_ids names a trial twice")
        return self


def record_fault(record: Mapping[str, Any]) -> str | None:
    """What is wrong with pack.json, as the end of a sentence; None if nothing is."""
    try:
        PackRecord.model_validate(record)
        return _foreign(record)
    except ValidationError as error:
        return f"is not the record of a pack ({_cut(faults(error))})"
    except RecursionError:
        return "is nested too deeply"


def _foreign(record: Mapping[str, Any]) -> str | None:
    """A trial that is described and is not in the pack, or is not the one whose id it has."""
    held, seen = set(record["trial_ids"]), set()
    for trial in record.get("trials") or []:
        name = _cut(repr(trial["id"]))
        if trial["id"] not in held:
            return f"describes trial {name}, which the pack does not hold"
        if trial["id"] in seen:
            return f"describes trial {name} twice"
        seen.add(trial["id"])
        if not is_its_own(trial):
            return f"describes trial {name} with contents that have another id"
    return None


def row_fault(trials: Sequence[Mapping[str, Any]], runs: pa.Table) -> str | None:
    """The first row of `runs` that is not about the trial whose id it has, as the end of a sentence."""
    columns = ("trial_id", "algorithm", "problem", "problem_params", *_REPEATED)
    rows = {row["trial_id"]: row for row in runs.select(columns).to_pylist()}
    for trial in trials:
        row, asked = rows[trial["id"]], {name: trial.get(name, "") for name in _REPEATED}
        asked |= {"algorithm": trial["algorithm"]["name"], "problem": trial["problem"]["name"]}
        for name, value in asked.items():
            if row[name] != value:
                return (
                    f"says {name} = {_cut(repr(row[name]))} of trial {trial['id']}, which asks for {_cut(repr(value))}"
                )
        if parameters(row["problem_params"]) != trial["problem"].get("params", {}):
            return f"says problem_params = {_cut(row['problem_params'])} of trial {trial['id']}, which asks for others"
    return None


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
