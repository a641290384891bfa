"""The id of a trial: a hash of what was asked, by one rule for those who plan trials and those who read them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

#: What a trial says beside what was asked.
_BESIDE = ("id", "label")
#: What makes no other trial by being there with this value: trials had ids before they had these fields.
_USUAL = {"tuned": ("", False), "compile": ("never",)}
#: How JSON, which has no such numbers, writes those that are not finite.
_NOT_FINITE = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


def trial_id(asked: Mapping[str, Any]) -> str:
    """Of a trial as JSON values: its label, the places of loose files and fields of the usual value make no other trial."""
    rest = {n: value for n, value in asked.items() if n not in _BESIDE and value not in _USUAL.get(n, ())}
    for named in ("algorithm", "problem"):
        rest[named] = {name: value for name, value in asked[named].items() if name != "file"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_its_own(asked: Mapping[str, Any]) -> bool:
    """Whether a stored trial has the id that what it asks gives it."""
    return asked["id"] in (trial_id(asked), trial_id(_with_numbers(asked)))


def _with_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
