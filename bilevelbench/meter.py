"""The meter: calls and samples of each lane, by query; masks; budgets.

The usual case is a pack in lockstep with every lane on and an exact query at one point. Then a charge is two additions
of Python numbers, which the oracle makes itself (`Oracle._query`); only a change of the mask moves them into the lanes'
books.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from bilevelbench.errors import BudgetExhausted
from bilevelbench.problem import QUERIES

F64 = npt.NDArray[np.float64]
BOOL = npt.NDArray[np.bool_]

_ROW = {query: i for i, query in enumerate(QUERIES)}

#: Columns of the tables, and the queries that each one adds up. A joint query is one call, and one in each block.
COLUMNS: dict[str, tuple[str, ...]] = {
    "grad_f": ("grad_f", "grad_f_x", "grad_f_y"),
    "grad_g": ("grad_g", "grad_g_x", "grad_g_y"),
    "grad_f_x": ("grad_f", "grad_f_x"),
    "grad_f_y": ("grad_f", "grad_f_y"),
    "grad_g_x": ("grad_g", "grad_g_x"),
    "grad_g_y": ("grad_g", "grad_g_y"),
    "hvp": ("hvp_g_yy",),
    "jvp": ("jvp_g_xy",),
    "value": ("value_f", "value_g"),
}


class Meter:
    """`calls` and `samples` are (queries, L); `ghost` lanes have met a call that their budget does not cover."""

    def __init__(self, whole: Mapping[str, int], budgets: Sequence[float], real: Sequence[bool]) -> None:
        lanes = len(budgets)
        self.whole = whole  # samples of one exact call, by query
        self.budgets = np.array(budgets, dtype=np.float64)
        self.real = np.array(real, dtype=np.bool_)  # the others are padding: copies that are never charged
        self.calls: F64 = np.zeros((len(QUERIES), lanes))
        self.samples: F64 = np.zeros((len(QUERIES), lanes))
        self.rounds: F64 = np.zeros(lanes)
        self.bytes: F64 = np.zeros(lanes)
        self.ghost: BOOL = np.zeros(lanes, dtype=np.bool_)
        self.has_ghosts = False
        self.passes = dict.fromkeys(QUERIES, 0)
        self.mask: Tensor | None = None  # (L, 1); None while every lane is on
        self._flushed = dict.fromkeys(QUERIES, 0)  # passes that are in the lanes' books; the rest is pending
        self._unusual_calls = dict.fromkeys(QUERIES, 0)  # pending calls that are not one exact point
        self._unusual_samples = dict.fromkeys(QUERIES, 0)
        self.due = 0.0  # cost of what is pending; a float, which compares with the slack faster than an int
        self._update_slack()

    def charge(self, query: str, points: int, samples: int) -> None:
        """`points` calls of `samples` samples each to every lane that is on, before any work is done."""
        cost = points * samples
        self.due += cost
        if self.due > self.slack:
            self.refuse(cost)
        self.passes[query] += points
        self._unusual_calls[query] += points
        self._unusual_samples[query] += cost

    def refuse(self, cost: float) -> None:
        """Some lane cannot pay `cost`, already in `due`. Such lanes become ghosts; all ghosts: the step ends."""
        self.due -= cost
        self._refuse(np.full(len(self.budgets), float(cost)))
        self.due += cost

    def charge_lanes(self, query: str, points: int, samples: F64) -> None:
        """The same with a number of samples for each lane, (L,)."""
        self.flush()
        cost = points * samples
        if (self.cost() + cost > self.budgets)[self._charged()].any():
            self._refuse(cost)
        on = self._charged()
        self.calls[_ROW[query], on] += points
        self.samples[_ROW[query], on] += cost[on]
        self.passes[query] += points
        self._flushed[query] += points
        self._update_slack()

    def message(self, size: int) -> None:
        """One round of communication with `size` bytes from each lane that is on."""
        on = self._charged()
        self.rounds[on] += 1
        self.bytes[on] += size

    def switch(self, mask: Tensor | None) -> None:
        """Only these lanes from now on."""
        self.flush()
        self.mask = mask
        self._update_slack()

    def any_on(self) -> bool:
        return self.mask is None or bool(self.mask.any())

    def flush(self) -> None:
        """Move what is pending into the books of the lanes that are on."""
        if self.passes == self._flushed:
            return
        on = self._charged()
        for query, row in _ROW.items():
            pending = self.passes[query] - self._flushed[query]
            if pending:
                self.calls[row, on] += pending
                usual = pending - self._unusual_calls[query]
                self.samples[row, on] += usual * self.whole[query] + self._unusual_samples[query]
                self._flushed[query] = self.passes[query]
                self._unusual_calls[query] = self._unusual_samples[query] = 0
        self.due = 0.0
        self._update_slack()

    def cost(self) -> F64:
        """Samples over all columns, (L,): what budgets, schedules and rates use. Call `flush` before."""
        total: F64 = self.samples.sum(0)
        return total

    def most(self) -> float:
        """No lane's cost is above this; it is exact while lanes keep step."""
        return self._most_flushed + self.due

    def columns(self) -> dict[str, F64]:
        """The tables' columns, each (L,)."""
        self.flush()
        out: dict[str, F64] = {name: sum_rows(self.calls, queries) for name, queries in COLUMNS.items()}
        out["first_order"] = out["grad_f"] + out["grad_g"]
        out["second_order"] = out["hvp"] + out["jvp"]
        out["samples"] = self.samples.sum(0)
        out["cost"] = self.cost()
        out["rounds"], out["bytes"] = self.rounds, self.bytes
        return out

    def sample_columns(self) -> dict[str, F64]:
        self.flush()
        return {f"{name}_samples": sum_rows(self.samples, queries) for name, queries in COLUMNS.items()}

    def restart_passes(self) -> None:
        """A new instance has a new second book; ours starts anew beside it."""
        self.flush()
        for query in QUERIES:
            self.passes[query] = self._flushed[query] = 0

    def take(self, lanes: Sequence[int], real: Sequence[bool]) -> None:
        """Only these lanes."""
        self.flush()
        index = np.array(lanes, dtype=np.int64)
        self.calls, self.samples = self.calls[:, index], self.samples[:, index]
        self.budgets, self.ghost = self.budgets[index], self.ghost[index]
        self.rounds, self.bytes = self.rounds[index], self.bytes[index]
        self.real = np.array(real, dtype=np.bool_)
        self.has_ghosts = bool(self.ghost.any())
        self._update_slack()

    def _charged(self) -> BOOL:
        on: BOOL = self.real & ~self.ghost
        if self.mask is not None:
            on &= self.mask.numpy().reshape(-1)
        return on

    def _update_slack(self) -> None:
        """What may still be spent before some lane that is on passes its budget."""
        on, cost = self._charged(), self.cost()
        self.slack = float((self.budgets - cost)[on].min()) if on.any() else float("inf")
        self._most_flushed = float(cost.max())

    def _refuse(self, cost: F64) -> None:
        """Lanes that cannot pay become ghosts: computed, never charged again. All ghosts: the step ends here."""
        self.flush()
        self.ghost |= self._charged() & (self.cost() + cost > self.budgets)
        self.has_ghosts = bool(self.ghost.any())
        if (self.ghost | ~self.real).all():
            raise BudgetExhausted
        self._update_slack()


def sum_rows(book: F64, queries: Sequence[str]) -> F64:
    total: F64 = book[[_ROW[query] for query in queries]].sum(0)
    return total
