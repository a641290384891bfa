"""The page that recommends a method: every number and every sentence about one is made from the published results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd
from fragments import code, table

from bilevelbench.leaderboard.settings import SETTINGS
from bilevelbench.report.analysis.answer import share_a_band

#: How many methods a table of this page shows.
SHOWN = 6

HEAD = """# Which method should I use?

If f and g are two torch functions of your own, you need not choose: [`solve`](solve.md) tries a few methods with a small part
of your budget and continues with the best. If you want to choose a method yourself, read on.

Ask three questions:

1. **Are the values and gradients of f and g exact?** If they are, look at the first table. If f alone is noisy, look at the
   second, and if g is noisy as well, at the third. If you draw mini-batches from a finite data set, look at the one on
   finite sums.
2. **Can you afford products with second derivatives?** Automatic differentiation computes a Hessian-vector product for the
   price of a few gradients, but needs memory for it. If you cannot, take the best method whose oracle is *gradient*.
3. **Do you have to avoid saddle points?** Then look at the last table: there a method has arrived only where no direction of
   clearly negative curvature is left.

"""


def choice_page(
    boards: Mapping[str, pd.DataFrame],
    kinds: Mapping[str, Mapping[str, str]],
    lead: str,
    tuned: Mapping[str, pd.DataFrame],
) -> str:
    """`boards` has the rows of each setting's board, out of the box; `kinds` says which oracle a method needs. `tuned` has
    those of the tuned boards that are published."""
    parts = [HEAD, lead]
    for setting, rows in boards.items():
        known = rows.assign(oracle=[kinds[method]["oracle"] for method in rows["method"]])
        about = SETTINGS[setting]
        parts += [f"\n## {about.name.capitalize()}\n", f"{about.what} {advice(known)}\n", _table(known.head(SHOWN)), ""]
        if setting in tuned:
            parts += [tuned_advice(tuned[setting]), ""]
    return "\n".join(parts)


def advice(rows: pd.DataFrame) -> str:
    """What the board says, in sentences; `rows` come best first."""
    best = rows.iloc[0]
    if best["reached"] == 0 or not math.isfinite(best["relative"]):
        most = rows.sort_values("reached", ascending=False).iloc[0]
        if most["reached"] == 0:
            return "No method of this board reached any accuracy with its default parameters: tune before you choose."
        return (
            f"No method reached half of the goals with its default parameters; {code(most['method'])} reached most, "
            f"{_share(most)}. Tune before you choose."
        )
    said = [f"Begin with {code(best['method'])}: it has the best mean rank and reached {_share(best)}.", *_ties(rows)]
    gradient = rows[rows["oracle"] == "gradient"]
    if best["oracle"] != "gradient" and len(gradient):
        first = gradient.iloc[0]
        said.append(
            f"Of the methods that need only gradients, the first is {code(first['method'])}, which reached {_share(first)}"
            f"{_price(first)}."
        )
    return " ".join(said)


def tuned_advice(rows: pd.DataFrame) -> str:
    """The same for methods whose parameters a search has found."""
    best = rows.iloc[0]
    if best["reached"] == 0:
        return "With tuned parameters no method reached any accuracy either."
    said = (
        "With [tuned parameters](concepts/tuning.md), from a search of the same cost for every method, the best mean rank is "
        f"that of {code(best['method'])}, which reached {_share(best)}."
    )
    return " ".join([said, *_ties(rows)])


def _ties(rows: pd.DataFrame) -> list[str]:
    best = rows.iloc[0]
    tied = [method for method in rows.loc[share_a_band(rows, best["bands"]), "method"] if method != best["method"]]
    named = _listed(tied) if 0 < len(tied) <= 8 else f"{', '.join(map(code, tied[:3]))} and {len(tied) - 3} others"
    return [f"The board cannot tell {named} apart from it."] if tied else []


def _share(row: Any) -> str:
    return f"{row['solved']} of {row['attempts']} goals"


def _price(row: Any) -> str:
    if not math.isfinite(row["relative"]):
        return ""
    return f" at {row['relative']:.2g} times the cost of the best method, in the median"


def _listed(methods: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(map(code, methods[:-1])), code(methods[-1])]))


def _table(rows: pd.DataFrame) -> str:
    cells = [
        (
            f"{row.rank:g} ({row.low:g} to {row.high:g})",
            f'<a href="catalogue/methods/{escape(row.algorithm)}.html">{code(row.method)}</a>',
            row.oracle,
            f"{row.relative:.2g}" if math.isfinite(row.relative) else "not reached",
            f"{100 * row.reached:.0f} %",
            f"{row.failed} of {row.trials}",
        )
        for row in rows.itertuples()
    ]
    return table(("rank (95 %)", "method", "oracle", "cost / best", "reached", "failed trials"), cells)
