"""The meter: calls and samples of each lane, by query; masks; budgets.

The usual case is a pack in lockstep with every lane on and an exact query at one point. Then a charge is two sums of
Python numbers, which `fast_path.py` makes itself; only a change of the mask moves them into the lanes'
counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from bilevelbench.errors import BudgetExhausted
from bilevelbench.model.queries import COLUMNS, QUERIES, ROW, TOTALS

F64 = npt.NDArray[np.float64]
BOOL = npt.NDArray[np.bool_]

_UNLIMITED = 2.0**53  # the largest cost that a float counts exactly


@dataclass(frozen=True)
class Spent:
    """Calls and samples by query, (queries,)."""

    calls: F64 = field(default_factory=lambda: np.zeros(len(QUERIES)))
    samples: F64 = field(default_factory=lambda: np.zeros(len(QUERIES)))

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.calls + other.calls, self.samples + other.samples)

    @property
    def cost(self) -> float:
        return float(self.samples.sum())


@dataclass(frozen=True, eq=False)
class Tally:
    """What steps have cost: passes by query, and the calls and samples of each lane, (queries, L)."""

    passes: tuple[int, ...]
    calls: F64
    samples: F64

    def __sub__(self, other: Tally) -> Tally:
        passes = tuple(a - b for a, b in zip(self.passes, other.passes, strict=True))
        return Tally(passes, self.calls - other.calls, self.samples - other.samples)

    def times(self, n: int) -> Tally:
        return Tally(tuple(n * each for each in self.passes), n * self.calls, n * self.samples)

    def is_same(self, other: Tally) -> bool:
        alike = np.array_equal(self.calls, other.calls) and np.array_equal(self.samples, other.samples)
        return alike and self.passes == other.passes

    @property
    def cost(self) -> F64:
        """(L,)."""
        total: F64 = self.samples.sum(0)
        return total


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
        self.cuts: dict[str, F64] = {}  # by level: the largest batch that a lane asked for beyond the data, or 0
        self.ghost: BOOL = np.zeros(lanes, dtype=np.bool_)
        self.has_ghosts = False
        self.mask: Tensor | None = None  # (L, 1); None while every lane is on
        # By query, and lists because the oracle's closures add to them in place.
        self.passes = [0] * len(QUERIES)
        self._flushed = [0] * len(QUERIES)  # passes that are in the lanes' counts; the rest is pending
        self._unusual_calls = [0] * len(QUERIES)  # pending calls that are not one exact point
        self._unusual_samples = [0] * len(QUERIES)
        self.left = [0.0]  # one number: what may still be spent before some lane that is on passes its budget
        self._update_slack()

    def charge(self, query: str, points: int, samples: int) -> None:
        """`points` calls of `samples` samples each to every lane that is on, before any work is done."""
        cost, row = points * samples, ROW[query]
        self.left[0] -= cost
        if self.left[0] < 0:
            self.refuse(cost)
        self.passes[row] += points
        self._unusual_calls[row] += points
        self._unusual_samples[row] += cost

    def refuse(self, cost: float) -> None:
        """Some lane cannot pay `cost`, which `left` has lost already. Such lanes become ghosts; all ghosts: the step ends."""
        self.left[0] += cost
        self._refuse(np.full(len(self.budgets), float(cost)))
        self.left[0] -= cost

    def charge_lanes(self, query: str, points: int, samples: F64) -> None:
        """The same with a number of samples for each lane, (L,)."""
        self.flush()
        cost = points * samples
        if (self.cost() + cost > self.budgets)[self._charged()].any():
            self._refuse(cost)
        on, row = self._charged(), ROW[query]
        self.calls[row, on] += points
        self.samples[row, on] += cost[on]
        self.passes[row] += points
        self._flushed[row] += points
        self._update_slack()

    def message(self, size: int) -> None:
        """One round of communication with `size` bytes from each lane that is on."""
        on = self._charged()
        self.rounds[on] += 1
        self.bytes[on] += size

    def note_cut(self, level: str, size: int | Tensor) -> None:
        """A batch larger than the data, in lanes that are on."""
        asked = (
            np.asarray(size if isinstance(size, int) else size.cpu(), dtype=np.float64).reshape(-1) * self._charged()
        )
        beyond = np.where(asked > self._data(level), asked, 0.0)
        self.cuts[level] = np.maximum(self.cuts.get(level, 0.0), beyond)

    def remarks(self, lane: int) -> list[str]:
        """What the row of a lane has to say of its samples."""
        return [
            f"a batch of {asked[lane]:.0f} of {level} was cut to its {self._data(level)} data"
            for level, asked in sorted(self.cuts.items())
            if asked[lane]
        ]

    def _data(self, level: str) -> int:
        return self.whole[f"value_{level}"]

    def switch(self, mask: Tensor | None) -> None:
        """Only these lanes from now on."""
        self.flush()
        self.mask = mask
        self._update_slack()

    def any_on(self) -> bool:
        return self.mask is None or bool(self.mask.any())

    def flush(self) -> None:
        """Move what is pending into the counts of the lanes that are on."""
        if self.passes == self._flushed:
            return
        on = self._charged()
        for query, row in ROW.items():
            pending = self.passes[row] - self._flushed[row]
            if pending:
                self.calls[row, on] += pending
                usual = pending - self._unusual_calls[row]
                self.samples[row, on] += usual * self.whole[query] + self._unusual_samples[row]
                self._flushed[row] = self.passes[row]
                self._unusual_calls[row] = self._unusual_samples[row] = 0
        self._update_slack()

    def cost(self) -> F64:
        """Samples over all columns, (L,): what budgets, schedules and rates use. Call `flush` before."""
        total: F64 = self.samples.sum(0)
        return total

    def most(self) -> float:
        """No lane's cost is above this; it is exact while lanes keep step."""
        return self._most_flushed + (self._slack - self.left[0])

    def columns(self) -> dict[str, F64]:
        """The tables' columns, each (L,)."""
        self.flush()
        out: dict[str, F64] = {name: sum_rows(self.calls, queries) for name, queries in (COLUMNS | TOTALS).items()}
        out["cost"] = self.cost()
        out["rounds"], out["bytes"] = self.rounds, self.bytes
        return out

    def sample_columns(self) -> dict[str, F64]:
        self.flush()
        return {f"{name}_samples": sum_rows(self.samples, queries) for name, queries in (COLUMNS | TOTALS).items()}

    def restart_passes(self) -> None:
        """A new instance counts from zero, and so does the meter beside it."""
        self.flush()
        self.passes[:] = self._flushed[:] = [0] * len(QUERIES)

    def spent(self) -> Spent:
        """By all lanes together."""
        self.flush()
        return Spent(self.calls.sum(1), self.samples.sum(1))

    def add(self, spent: Spent) -> None:
        """What was spent elsewhere to the same end is on the account of every lane."""
        self.flush()
        self.calls += spent.calls[:, None]
        self.samples += spent.samples[:, None]
        self._update_slack()

    def tally(self, lanes: int) -> Tally:
        """All that was charged to the first lanes."""
        self.flush()
        return Tally(tuple(self.passes), self.calls[:, :lanes].copy(), self.samples[:, :lanes].copy())

    def covered(self, step: Tally) -> float:
        """How many such steps every lane can pay."""
        self.flush()
        lanes = len(step.cost)
        left, cost = (self.budgets - self.cost())[:lanes], step.cost
        return float(np.floor(np.divide(left, cost, out=np.full(lanes, np.inf), where=cost > 0)).min())

    def charge_steps(self, spent: Tally) -> None:
        """What steps cost that nobody asked for call by call; the caller knows that it is covered."""
        self.flush()
        lanes = spent.calls.shape[1]
        self.calls[:, :lanes] += spent.calls
        self.samples[:, :lanes] += spent.samples
        self.passes[:] = self._flushed[:] = [a + b for a, b in zip(self.passes, spent.passes, strict=True)]
        self._update_slack()

    def take(self, lanes: Sequence[int], real: Sequence[bool]) -> None:
        """Only these lanes."""
        self.flush()
        index = np.array(lanes, dtype=np.int64)
        self.calls, self.samples = self.calls[:, index], self.samples[:, index]
        self.budgets, self.ghost = self.budgets[index], self.ghost[index]
        self.rounds, self.bytes = self.rounds[index], self.bytes[index]
        self.cuts = {what: asked[index] for what, asked in self.cuts.items()}
        self.real = np.array(real, dtype=np.bool_)
        self.has_ghosts = bool(self.ghost.any())
        self._update_slack()

    def _charged(self) -> BOOL:
        on: BOOL = self.real & ~self.ghost
        if self.mask is not None:
            on &= self.mask.cpu().numpy().reshape(-1)
        return on

    def _update_slack(self) -> None:
        """What is left now that nothing is pending: a whole number, so that sums and differences stay exact."""
        on, cost = self._charged(), self.cost()
        slack = float((self.budgets - cost)[on].min()) if on.any() else _UNLIMITED
        self._slack = self.left[0] = float(np.floor(min(slack, _UNLIMITED)))
        self._most_flushed = float(cost.max())

    def _refuse(self, cost: F64) -> None:
        """Lanes that cannot pay become ghosts: computed, never charged again. All ghosts: the step ends here."""
        self.flush()
        self.ghost |= self._charged() & (self.cost() + cost > self.budgets)
        self.has_ghosts = bool(self.ghost.any())
        if (self.ghost | ~self.real).all():
            raise BudgetExhausted
        self._update_slack()


def sum_rows(counts: F64, queries: Sequence[str]) -> F64:
    total: F64 = counts[[ROW[query] for query in queries]].sum(0)
    return total
