"""The record of one trial while it runs: when it is looked at, what was seen, how it ended."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.trial import Trial

CurveRow = dict[str, Any]


@dataclass
class Lane:
    """What the runner knows of a trial beside the tensors."""

    trial: Trial
    params: dict[str, Any]  # of the method, after defaults were resolved
    due: float = 0.0  # cost at which it is looked at next
    best_grad_phi: float = math.inf
    reached: int = 0  # how many of its targets
    seen_step: int = -1
    curve: list[CurveRow] = field(default_factory=list)

    def look(self, row: CurveRow) -> None:
        """Note an evaluation and set the next one: where the cost passes the next power of the schedule's ratio."""
        self.curve.append({"trial_id": self.trial.id, **row})
        self.seen_step = row["step"]
        ratio = self.trial.schedule.ratio
        cost = max(row["cost"], 1.0)
        power = math.floor(math.log(cost) / math.log(ratio) + 1e-9) + 1
        self.due = ratio**power
        if not math.isnan(row["grad_phi"]):
            self.best_grad_phi = min(self.best_grad_phi, row["grad_phi"])
        if self.trial.targets:
            self._reach(row)

    def _reach(self, row: CurveRow) -> None:
        column = self.trial.schedule.target_column
        if column not in row:
            raise InvalidInput(f"a target is held against the curve's column {column!r}{suggestion(column, row)}")
        error = row["grad_phi_error"] if column in ("grad_phi", "mean_grad_phi") else 0.0  # others carry their own
        certified = row[column] + (0.0 if math.isnan(error) else error)
        targets = sorted(self.trial.targets, reverse=True)
        while self.reached < len(targets) and certified <= targets[self.reached]:
            self.reached += 1

    @property
    def has_reached_all(self) -> bool:
        return 0 < len(self.trial.targets) == self.reached

    def run_row(self, status: str, message: str, **columns: Any) -> dict[str, Any]:
        """The trial's row in `runs`."""
        trial = self.trial
        return {
            "trial_id": trial.id,
            "algorithm": trial.algorithm.name,
            "algorithm_params": json.dumps(self.params, sort_keys=True),
            "problem": trial.problem.name,
            "problem_params": json.dumps(trial.problem.params, sort_keys=True),
            "seed": trial.seed,
            "status": status,
            "message": message,
            "dtype": trial.dtype,
            "label": trial.label,
            "plugin": trial.plugin,
            "plugin_version": trial.plugin_version,
            "problem_plugin": trial.problem_plugin,
            "problem_plugin_version": trial.problem_plugin_version,
            "best_grad_phi": self.best_grad_phi if math.isfinite(self.best_grad_phi) else math.nan,
            **columns,
        }
