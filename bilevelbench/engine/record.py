"""The record of trials while they run: when they are looked at, what was seen, how they ended."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import keep, norm, take
from bilevelbench.model.noise import Exact
from bilevelbench.oracle.draws import Draws
from bilevelbench.plan.trial import Trial
from bilevelbench.processes import peak_memory
from bilevelbench.results.reached import certified, not_above
from bilevelbench.results.status import Status

#: Some trials at one step, by column: a list each, of equal length.
Block = dict[str, list[Any]]

#: Columns that say how stationary phi is, and whether the error bound of grad phi is still to be added.
_OF_PHI = {"grad_phi": True, "mean_grad_phi": True, "second_order_eps": False}


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

    def look(self, block: Block, n: int) -> None:
        """Take its evaluation and set the next one: where the cost passes the next power of the schedule's ratio."""
        self.seen = block, n
        self.seen_step = block["step"][n]
        ratio = self.trial.schedule.ratio
        cost = max(block["cost"][n], 1.0)
        power = math.floor(math.log(cost) / math.log(ratio) + 1e-9) + 1
        self.due = ratio**power
        grad_phi = block["grad_phi"][n]
        self.start = block["phi"][n] if self.start is None else self.start
        if not math.isnan(grad_phi) and self.is_downhill:
            self.best_grad_phi = min(self.best_grad_phi, grad_phi)
        if self.trial.targets:
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
        if column in _OF_PHI and not self.is_downhill:
            return
        accuracy = certified(self.last(column), self.last("grad_phi_error") if _OF_PHI.get(column) else 0.0)
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
            and _OF_PHI.get(self.trial.schedule.target_column)
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
            "algorithm_params": json.dumps(self.params, sort_keys=True),
            "problem": trial.problem.name,
            "problem_params": json.dumps(trial.problem.params, sort_keys=True),
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


@dataclass
class PackResult:
    runs: list[dict[str, Any]] = field(default_factory=list)
    curve: Curve = field(default_factory=Curve)
    step_seconds: float = 0.0  # inside `step`
    total_seconds: float = 0.0  # with evaluations and bookkeeping

    def extend(self, other: PackResult) -> None:
        self.runs += other.runs
        self.curve.extend(other.curve.columns)
        self.step_seconds += other.step_seconds
        self.total_seconds += other.total_seconds


@dataclass
class Progress:
    """How far a pack has come."""

    step: int = 0
    seconds: float = 0.0  # inside `init` and `step`
    width: int = 0  # lanes summed over steps


@dataclass(frozen=True)
class Noted:
    """Of the points before the steps so far: the sum of |grad phi|, and one drawn uniformly among them."""

    grad_sum: Tensor
    kept: tuple[Tensor, Tensor] | None = None


class Record:
    """What is seen of a pack, and the rows that it becomes."""

    def __init__(self, lanes: list[Lane], pack: PreparedPack, progress: Progress) -> None:
        self.lanes, self.pack, self.progress = lanes, pack, progress
        self.schedule = lanes[0].trial.schedule
        self.result = PackResult()
        self.noted = Noted(torch.zeros(pack.oracle.L, 1, dtype=torch.float64))
        self.last = self.answer = pack.instance.x0, pack.instance.y0  # of the lanes that ended last
        self._evaluator = self._evaluator_of(pack.instance)
        self._reservoir: Draws | None = None

    def look(self, which: Sequence[int], state: Any) -> None:
        """Evaluate these lanes at their present point and write down what is seen."""
        x, y = self.pack.algorithm.point(state)
        block = self._seen(which, x, y, state)
        self.result.curve.extend({"trial_id": [self.lanes[i].trial.id for i in which], **block})
        for n, i in enumerate(which):
            self.lanes[i].look(block, n)

    def note(self, state: Any) -> None:
        """The point before a step: for the mean over points, and for an answer drawn uniformly among them."""
        drawn = self.pack.algorithm.reports == "random"
        if not (drawn or self.schedule.mean):
            return
        grad_sum, kept = self.noted.grad_sum, self.noted.kept
        x, y = self.pack.algorithm.point(state)
        if self.schedule.mean:
            grad_sum = grad_sum + norm(self._evaluator.grad_phi(x, y)).double()
        if drawn:
            if self._reservoir is None:
                self._reservoir = Draws(self.pack.oracle.seeds)
            step = self.progress.step
            u = self._reservoir.uniform("answer", (), (step,), 1, 32)[0]
            new = torch.from_numpy(u * (step + 1) < 1).reshape(-1, 1)
            old = kept or (x, y)
            kept = keep(new, x, old[0]), keep(new, y, old[1])
        self.noted = Noted(grad_sum, kept)

    @contextmanager
    def undone(self, noted: Noted) -> Iterator[None]:
        """For lanes whose last step is undone: what was noted is as it was before that step."""
        now, self.noted = self.noted, noted
        try:
            yield
        finally:
            self.noted = now

    def narrow(self, stay: Sequence[int], index: Tensor) -> None:
        """Only these lanes go on, at these places of the pack."""
        self.lanes = [self.lanes[i] for i in stay]
        self._evaluator = self._evaluator_of(self.pack.instance)
        self.noted = take(self.noted, index)
        self._reservoir = None

    def end_values(self, which: Sequence[int], state: Any) -> list[dict[str, Any]]:
        """The last columns of these lanes' rows: what is seen at their answers, and at their last points."""
        x, y = self.pack.algorithm.point(state)
        if unseen := [i for i in which if self.lanes[i].seen_step != self.progress.step]:
            self.look(unseen, state)
        self.last = x, y
        answer_x, answer_y = self.answer = self._answer(state, x, y)
        answers = self._seen(which, answer_x, answer_y, state) if answer_x is not x else None
        out = []
        for n, i in enumerate(which):
            lane = self.lanes[i]
            block, place = lane.seen if answers is None else (answers, n)
            final = {name: block[name][place] for name in ("phi", "grad_phi", "grad_phi_error", "g_y")}
            out.append({**final, "last_phi": lane.last("phi"), "last_grad_phi": lane.last("grad_phi")})
        return out

    def write(self, endings: Mapping[int, tuple[Status, str]], ends: Sequence[Mapping[str, Any]]) -> None:
        """The rows of lanes that end, with a status and a sentence each."""
        progress, meter = self.progress, self.pack.oracle.meter
        columns = meter.columns()
        shared = {
            "steps": progress.step,
            "seconds": progress.seconds,
            "pack_lanes": progress.width / progress.step if progress.step else float(len(self.lanes)),
            "peak_memory": peak_memory(),
            "certificate": self._evaluator.certificate,
        }
        for end, (i, (status, message)) in zip(ends, endings.items(), strict=True):
            message = "; ".join((message, *meter.remarks(i)))
            counts = {name: float(column[i]) for name, column in columns.items()}
            self.result.runs.append(self.lanes[i].run_row(status, message, **shared, **counts, **end))

    def _seen(self, which: Sequence[int], x: Tensor, y: Tensor, state: Any) -> Block:
        seen, extras = self._evaluate(which, x, y, self.pack.algorithm.extras(state))
        meter, step = self.pack.oracle.meter, self.progress.step
        counts = meter.columns()
        lists: Block = {
            name: [float(counts[name][i]) for i in which] for name in ("cost", "first_order", "second_order")
        }
        if not isinstance(self.pack.instance.noise, Exact):  # where a call is not one sample
            samples = meter.sample_columns()
            lists["second_order_samples"] = [float(samples["second_order_samples"][i]) for i in which]
        tensors = {"phi": seen.phi, "grad_phi": seen.grad_phi, "grad_phi_error": seen.error, "g_y": seen.g_y}
        # what follows the lanes that were asked for is padding
        lists |= {
            name: t.reshape(-1)[: len(which)].tolist() for name, t in {**tensors, **seen.further, **extras}.items()
        }
        if self.schedule.mean:
            sums = self.noted.grad_sum.reshape(-1).tolist()
            lists["mean_grad_phi"] = [sums[i] / step if step else math.inf for i in which]
        return {"step": [step] * len(which), "seconds": [self.progress.seconds] * len(which), **lists}

    def _evaluate(self, which: Sequence[int], x: Tensor, y: Tensor, extras: dict[str, Tensor]) -> Any:
        if len(which) == len(self.lanes):
            return self._evaluator(x, y), extras
        some, index = self.pack.some(which)
        evaluator = self._evaluator if some is self.pack.instance else self._evaluator_of(some)
        return evaluator(take(x, index), take(y, index)), {k: take(v, index) for k, v in extras.items()}

    def _evaluator_of(self, instance: Instance) -> Evaluator:
        return Evaluator(instance, self.schedule.second_order, self.schedule.phi)

    def _answer(self, state: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        algorithm = self.pack.algorithm
        if algorithm.reports == "random":
            return self.noted.kept or (x, y)
        if algorithm.reports == "last":
            return x, y
        own_x, own_y = algorithm.answer(state)
        there = torch.isfinite(own_x).all(-1, keepdim=True) & torch.isfinite(own_y).all(-1, keepdim=True)
        return keep(there, own_x, x), keep(there, own_y, y)


def failure_row(trial: Trial, message: str) -> PackResult:
    """The row of a trial that took no step."""
    return PackResult(runs=[Lane(trial, trial.algorithm.params).run_row(Status.ERROR, message, steps=0)])
