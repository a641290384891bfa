"""What a paper claims about a method, as data: the claimed side of the leaderboard's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Claim:
    """`eps^-eps_exp kappa^kappa_exp` calls in one table and setting of the paper; `tilde` hides `log^log_power`."""

    table: int
    setting: Literal["deterministic", "partial", "full"]
    oracle: Literal["gradient", "HVP"]
    eps_exp: float
    tilde: bool = False
    log_power: int = 0
    kappa_exp: float | None = None
    extra: str = ""
    footnote: str = ""
    reference: str = ""
    source: Literal["paper", "code", "derived", "memory"] = "paper"
