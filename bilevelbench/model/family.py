"""Families of methods: what tables and figures group them by."""

from __future__ import annotations

from typing import Literal, get_args

Family = Literal["penalty", "implicit", "unrolled", "zeroth-order", "other"]
FAMILIES: tuple[Family, ...] = get_args(Family)


def family_of(declared: str) -> Family:
    """What a method declares, or "other" where it declares none of these."""
    return next((family for family in FAMILIES if family == declared), "other")
