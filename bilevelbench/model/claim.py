"""What a paper claims about a method, as data: the claimed side of the leaderboard's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Who says a number: the paper of the table, in a table, a theorem or its text; nobody, but its proofs give it; or only the
#: paper in `reference`, which is another one.
Source = Literal["paper", "derived", "other paper"]


@dataclass(frozen=True)
class Claim:
    """`eps^-eps_exp kappa^kappa_exp` calls in one table and setting of the paper; `tilde` hides `log^log_power`.

    `source` is that of `eps_exp`, `kappa_source` that of `kappa_exp` and `log_source` that of `log_power`.
    """

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
    source: Source = "paper"
    kappa_source: Source = "paper"
    log_source: Source = "paper"
