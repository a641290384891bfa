"""Which machine computed a trial, as far as its last digits depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Their versions, beside the processor, decide the last digits.
COMPUTING = ("torch", "numpy", "scipy")


def machine(environment: Mapping[str, Any]) -> str:
    """Who computed, as far as the last digits depend on it; empty if nothing is known. Trials run in one thread each."""
    packages = environment.get("packages") or {}
    versions = [f"{name} {packages[name]}" for name in COMPUTING if packages.get(name)]
    return ", ".join(str(part) for part in (environment.get("cpu"), environment.get("machine"), *versions) if part)
