"""What an instance answers, and so what an oracle can be asked: one table, which everything else follows.

A new kind of query is a line here and a line in `Oracle`, for the type checker. A gradient or a product that a problem
does not bring is made by `derivatives.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["f", "g"]
Output = Literal["value", "x", "y"]


@dataclass(frozen=True, slots=True)
class Query:
    """One question about f or g at (x, y); one of second order takes a vector v of y's shape as well."""

    name: str
    level: Level
    order: Literal[0, 1, 2]  # a value, a gradient, the product of second derivatives with v
    outputs: tuple[Output, ...]  # an answer is (*points, L, .) for each: a number, or as wide as x or y
    column: str  # of `runs`

    @property
    def takes_vector(self) -> bool:
        return self.order == 2

    def counts_in(self, other: Query) -> bool:
        """Whether a call counts in the column of `other`. A joint query is one call, and one in each of its blocks."""
        alike = self.order == other.order > 0 and self.level == other.level
        return self.column == other.column or (alike and not set(self.outputs).isdisjoint(other.outputs))

    def widths(self, dx: int, dy: int) -> tuple[int, ...]:
        """The last axis of each tensor of an answer."""
        of = {"value": 1, "x": dx, "y": dy}
        return tuple(of[output] for output in self.outputs)


#: By name, in the order of the columns of `runs`.
QUERIES: dict[str, Query] = {
    query.name: query
    for query in (
        Query("grad_f", "f", 1, ("x", "y"), "grad_f"),
        Query("grad_g", "g", 1, ("x", "y"), "grad_g"),
        Query("grad_f_x", "f", 1, ("x",), "grad_f_x"),
        Query("grad_f_y", "f", 1, ("y",), "grad_f_y"),
        Query("grad_g_x", "g", 1, ("x",), "grad_g_x"),
        Query("grad_g_y", "g", 1, ("y",), "grad_g_y"),
        Query("hvp_g_yy", "g", 2, ("y",), "hvp"),
        Query("jvp_g_xy", "g", 2, ("x",), "jvp"),
        Query("vp_g", "g", 2, ("x", "y"), "second_order"),  # (J v, H v): one pass
        Query("value_f", "f", 0, ("value",), "value"),
        Query("value_g", "g", 0, ("value",), "value"),
    )
}

#: A query's place in the lists of passes, calls and samples.
ROW = {name: row for row, name in enumerate(QUERIES)}

#: Gradients and products over all columns. Values are neither.
TOTALS: dict[str, tuple[str, ...]] = {
    name: tuple(query.name for query in QUERIES.values() if query.order == order)
    for name, order in (("first_order", 1), ("second_order", 2))
}

#: The other columns of `runs`, and the queries that each one adds up.
COLUMNS: dict[str, tuple[str, ...]] = {
    of.column: tuple(query.name for query in QUERIES.values() if query.counts_in(of))
    for of in QUERIES.values()
    if of.column not in TOTALS
}

PRODUCTS = TOTALS["second_order"]
