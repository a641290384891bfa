"""facts.json, as models: what the plugins say about themselves, with blanks for what did not travel with the results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from bilevelbench.errors import StoreError, faults
from bilevelbench.untrusted import Refused, read_json

Number = int | float


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Claim(_Part):
    table: int | None = None
    setting: str = ""
    oracle: str = ""
    eps_exp: Number | None = None
    n_exp: Number | None = None
    tilde: bool = False
    log_power: Number = 0
    kappa_exp: Number | None = None
    mean_squared_smooth: bool = False
    extra: str = ""
    reference: str = ""
    footnote: str = ""
    source: str = ""
    kappa_source: str = ""
    log_source: str = ""


class _Parameter(_Part):
    name: str
    default: str | bool | int | float | None = None
    what: str = ""


class _Constant(_Part):
    name: str
    value: Number | None = None
    kind: str = ""


class _Method(_Part):
    family: str = ""
    oracle: str = ""
    text: str = ""
    parameters: list[_Parameter] = []
    claims: list[_Claim] = []
    step_calls: str = ""
    title: str = ""
    paper: str = ""
    references: list[str] = []
    source: str = ""


class _Problem(_Part):
    text: str = ""
    parameters: list[_Parameter] = []
    constants: list[_Constant] = []


class _Facts(_Part):
    methods: dict[str, _Method] = {}
    problems: dict[str, _Problem] = {}
    hvp_ratio: dict[str, Number] = {}
    made: str = ""


def read_facts(path: Path) -> dict[str, Any]:
    """`{"methods": {name: ...}, "problems": {name: ...}, "hvp_ratio": {problem: ...}, "made": ...}`; each may be missing."""
    try:
        return _Facts.model_validate(read_json(path, path.parent)).model_dump()
    except Refused as refused:
        raise StoreError(f"{str(path)!r} {refused}; write it again") from None
    except ValidationError as error:
        raise StoreError(f"{str(path)!r} is not a file of facts: {faults(error)[:300]}; write it again") from None


def merged_facts(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """What both say of one name is as `b` has it; prices of two files have been measured twice, and both say when and where."""
    parts = {part: {**a.get(part, {}), **b[part]} for part in _Facts.model_fields if part != "made"}
    return {**parts, "made": "; ".join(dict.fromkeys(said for said in (a.get("made", ""), b["made"]) if said))}


def method_facts(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    return _Method.model_validate(facts.get("methods", {}).get(name, {})).model_dump()


def problem_facts(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    return _Problem.model_validate(facts.get("problems", {}).get(name, {})).model_dump()
