"""One trial while it runs: its curve so far, when it is looked at next, which of its targets it has met."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.plan.trial import Trial
from bilevelbench.results.packs import json_text
from bilevelbench.results.reached import certified, not_above
from bilevelbench.results.schema import CURVE
from bilevelbench.results.status import Status

#: Some trials at one step, by column: a list each, of equal length.
Block = dict[str, list[Any]]

#: Columns that say how stationary phi is, and whether the error bound of grad phi is still to be added.
OF_PHI = {"grad_phi": True, "mean_grad_phi": True, "second_order_eps": False}

#: What an evaluation measures and counts: no plugin may tell these instead, as a metric or as an extra.
SEEN = frozenset({
    *CURVE, *OF_PHI, "second_order_samples", "min_eigenvalue", "min_eigenvalue_error",
})  # fmt: skip


class Curve:
    """What was seen of trials, by column: a dictionary for each row would cost more than many a step."""

    def __init__(self) -> None:
        self.columns: Block = {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def extend(self, more: Block) -> None:
        """Add rows; None where they lack a column."""
        before, after = len(self), len(next(iter(more.values()), ()))
        for name in dict.fromkeys((*self.columns, *more)):
            self.columns.setdefault(name, [None] * before).extend(more.get(name) or [None] * after)

    def drop_last(self) -> None:
        """Without the last row, which is written anew."""
        for column in self.columns.values():
            column.pop()

    def sort(self, place: Mapping[str, int]) -> None:
        """Trials by their place; the rows of each keep their order."""
        ids = self.columns.get("trial_id", ())
        order = sorted(range(len(self)), key=[place[i] for i in ids].__getitem__)
        self.columns = {name: [column[i] for i in order] for name, column in self.columns.items()}

    def rows(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)]


@dataclass
class Lane:
    """What the runner knows of a trial beside the tensors."""

    trial: Trial
    params: dict[str, Any]  # of the method, after defaults were resolved
    due: float = 0.0  # cost at which it is looked at next
    start: float | None = None  # phi where it was looked at first
    best_grad_phi: float = math.inf  # where phi is not above its start
    reached: int = 0  # how many of its targets
    seen_step: int = -1
    seen: tuple[Block, int] = field(default_factory=lambda: ({}, 0))  # the last evaluation, and its place there
    solved: bool = True  # phi was looked for at the last evaluation
    bent_step: int | None = None  # where g(x, .) showed negative curvature first: from there on phi is not claimed

    def look(self, block: Block, n: int, solved: bool = True) -> None:
        """Take its evaluation and set the next one: where the cost passes the next power of the schedule's ratio."""
        self.seen, self.solved = (block, n), solved
        self.seen_step = block["step"][n]
        ratio = self.trial.schedule.ratio
        cost = max(block["cost"][n], 1.0)
        power = math.floor(math.log(cost) / math.log(ratio) + 1e-9) + 1
        self.due = ratio**power
        if solved:
            grad_phi = block["grad_phi"][n]
            self.start = block["phi"][n] if self.start is None else self.start
            if not math.isnan(grad_phi) and self.is_downhill:
                self.best_grad_phi = min(self.best_grad_phi, grad_phi)
        if self.trial.targets and (solved or self.trial.schedule.target_column not in OF_PHI):
            self._reach()

    def last(self, name: str) -> Any:
        """What the last evaluation saw."""
        block, n = self.seen
        return block[name][n]

    def _reach(self) -> None:
        column = self.trial.schedule.target_column
        if column not in self.seen[0]:
            near = suggestion(column, self.seen[0])
            raise InvalidInput(f"a target is held against the curve's column {column!r}{near}")
        if column in OF_PHI and not self.is_downhill:
            return
        accuracy = certified(self.last(column), self.last("grad_phi_error") if OF_PHI.get(column) else 0.0)
        targets = sorted(self.trial.targets, reverse=True)
        while self.reached < len(targets) and accuracy <= targets[self.reached]:
            self.reached += 1

    @property
    def is_downhill(self) -> bool:
        """Where phi is not above its start."""
        return bool(not_above(self.last("phi"), self.start))

    @property
    def doubt(self) -> str:
        """Why a target could not be met, whatever the method did."""
        if (
            self.trial.targets
            and self.solved
            and OF_PHI.get(self.trial.schedule.target_column)
            and math.isnan(self.last("grad_phi_error"))
        ):
            return "; no target can be certified here: the problem does not bound the error of grad phi"
        return ""

    @property
    def has_reached_all(self) -> bool:
        return 0 < len(self.trial.targets) == self.reached

    def run_row(self, status: Status, message: str, **columns: Any) -> dict[str, Any]:
        """The trial's row in `runs`."""
        trial = self.trial
        return {
            "trial_id": trial.id,
            "algorithm": trial.algorithm.name,
            "algorithm_params": json_text(self.params),
            "problem": trial.problem.name,
            "problem_params": json_text(trial.problem.params),
            "seed": trial.seed,
            "status": status.value,
            "message": message,
            "dtype": trial.dtype,
            "label": trial.label,
            "plugin": trial.plugin,
            "plugin_version": trial.plugin_version,
            "problem_plugin": trial.problem_plugin,
            "problem_plugin_version": trial.problem_plugin_version,
            "best_grad_phi": math.nan if status.failed or math.isinf(self.best_grad_phi) else self.best_grad_phi,
            **columns,
        }
