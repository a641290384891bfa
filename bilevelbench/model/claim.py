"""What a paper claims about a method, as data: the claimed side of the leaderboard's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Who says a number: the paper of the table, in a table, a theorem or its text; nobody, but its proofs give it; or only the
#: paper in `reference`, which is another one.
Source = Literal["paper", "derived", "other paper"]


#: Where a claim holds: exact answers, noise in f alone, noise in both levels, or means over n data.
ClaimedSetting = Literal["deterministic", "partial", "full", "finite_sum"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a method is said to cost in one setting: `n^n_exp eps^-eps_exp kappa^kappa_exp` calls.

    `tilde` hides `log^log_power`. `table` is that of the paper whose tables the leaderboard holds against
    measurements, None for a claim that is in none of them. n counts the data of both levels together.
    `mean_squared_smooth`: the claim also assumes that sample gradients and products are Lipschitz on average, which
    exact differences of additive noise would flatter. `source` is that of `eps_exp` and `n_exp`, `kappa_source` that
    of `kappa_exp` and `log_source` that of `log_power`.
    """

    table: int | None = None
    setting: ClaimedSetting
    oracle: Literal["gradient", "HVP", "value"]
    eps_exp: float
    n_exp: float | None = None
    tilde: bool = False
    log_power: int = 0
    kappa_exp: float | None = None
    mean_squared_smooth: bool = False
    extra: str = ""
    footnote: str = ""
    reference: str = ""
    source: Source = "paper"
    kappa_source: Source = "paper"
    log_source: Source = "paper"

    @property
    def place(self) -> str:
        """`table 2, full`, or the setting alone."""
        return self.setting if self.table is None else f"table {self.table}, {self.setting}"
