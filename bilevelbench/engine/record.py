"""The record of trials while they run: when they are looked at, what was seen, how they ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from bilevelbench.engine.evaluator import NOT_CONVEX, Evaluation, Evaluator
from bilevelbench.engine.lane import OF_PHI, Block, Curve, Lane
from bilevelbench.engine.pictures import pictures_of
from bilevelbench.engine.sanity import check_extras
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.engine.watch import Watch
from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import keep, take
from bilevelbench.model.noise import Exact
from bilevelbench.oracle.draws import Draws
from bilevelbench.plan.trial import Trial
from bilevelbench.processes import peak_memory, watched
from bilevelbench.results.status import Status

T = TypeVar("T")

#: A method that is watched has to be back after this many times what its clock has left, and some seconds.
PATIENCE, SPARE = 2.0, 3.0

#: What is not claimed where the lower level is not convex.
_CLAIMED = ("phi", "grad_phi", "grad_phi_error", *OF_PHI)


@dataclass
class PackResult:
    runs: list[dict[str, Any]] = field(default_factory=list)
    curve: Curve = field(default_factory=Curve)
    pictures: dict[str, dict[str, str]] = field(default_factory=dict)  # by trial id and title
    step_seconds: float = 0.0  # inside `step`
    total_seconds: float = 0.0  # with evaluations and bookkeeping

    def extend(self, other: PackResult) -> None:
        self.runs += other.runs
        self.curve.extend(other.curve.columns)
        self.pictures |= other.pictures
        self.step_seconds += other.step_seconds
        self.total_seconds += other.total_seconds


@dataclass
class Progress:
    """How far a pack has come."""

    step: int = 0
    seconds: float = 0.0  # inside the code of the method
    width: int = 0  # lanes summed over steps
    limit: float = math.inf  # seconds after which every trial of the pack is over

    def timed(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call the method, on its clock; whoever watches this process is told by when it has to be back."""
        start = time.perf_counter()
        if watched.deadline is not None:
            watched.deadline[0] = time.monotonic() + PATIENCE * max(0.0, self.limit - self.seconds) + SPARE
        try:
            return work(*arguments)
        finally:
            self.seconds += time.perf_counter() - start
            if watched.deadline is not None:
                watched.deadline[0] = math.inf


@dataclass(frozen=True)
class Noted:
    """Of the points before the steps so far: the sum of |grad phi|, and one drawn uniformly among them."""

    grad_sum: Tensor
    kept: tuple[Tensor, Tensor] | None = None


class Record:
    """What is seen of a pack, and the rows that it becomes."""

    def __init__(self, lanes: list[Lane], pack: PreparedPack, progress: Progress, watch: Watch | None = None) -> None:
        self.lanes, self.pack, self.progress, self.watch = lanes, pack, progress, watch
        self.schedule = lanes[0].trial.schedule
        self.result = PackResult()
        self.remarks: Sequence[str] = ()  # what every row has to say of how its steps were made
        self.noted = Noted(torch.zeros(pack.oracle.L, 1, dtype=torch.float64, device="cpu"))
        self.last = self.answer = pack.instance.x0, pack.instance.y0  # of the lanes that ended last
        self._evaluator = self._evaluator_of(pack.instance)
        self._reservoir: Draws | None = None

    def look(self, which: Sequence[int], state: Any) -> None:
        """Evaluate these lanes at their present point and write down what is seen."""
        x, y = self.point(state)
        self._look(which, x, y, state, self._until(last=False))

    def point(self, state: Any) -> tuple[Tensor, Tensor]:
        return self.progress.timed(self.pack.algorithm.point, state)

    def _look(self, which: Sequence[int], x: Tensor, y: Tensor, state: Any, until: float) -> None:
        block, solved = self._seen(which, x, y, state, until)
        self.result.curve.extend({"trial_id": [self.lanes[i].trial.id for i in which], **block})
        for n, i in enumerate(which):
            self.lanes[i].look(block, n, solved)

    def note(self, state: Any) -> None:
        """The point before a step: for the mean over points, and for an answer drawn uniformly among them."""
        drawn = self.pack.algorithm.reports == "random"
        if not (drawn or self.schedule.mean):
            return
        grad_sum, kept = self.noted.grad_sum, self.noted.kept
        x, y = self.point(state)
        if self.schedule.mean:
            grad_sum = grad_sum + self._evaluator.stationarity(x, y).cpu().double()
        if drawn:
            new = self._is_kept(self.progress.step)
            old = kept or (x, y)
            kept = keep(new, x, old[0]), keep(new, y, old[1])
        self.noted = Noted(grad_sum, kept)

    def unnoted(self, most: int) -> int:
        """Steps from here on, at most so many, between which no point is kept for an answer."""
        if self.pack.algorithm.reports != "random":
            return most
        step = self.progress.step
        return next((n for n in range(1, most) if self._is_kept(step + n).any()), most)

    def _is_kept(self, step: int) -> Tensor:
        """(L, 1): where the answer so far is replaced by the point after this step."""
        if self._reservoir is None:
            self._reservoir = Draws(self.pack.oracle.seeds)
        u = self._reservoir.uniform("answer", (), (step,), 1, 32)[0]
        return torch.from_numpy(u * (step + 1) < 1).reshape(-1, 1)

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

    def end_values(self, which: Sequence[int], state: Any, solve: bool = True) -> list[dict[str, Any]]:
        """The last columns of these lanes' rows: what is seen at their answers, and at their last points."""
        x, y = self.last = self.point(state)
        answer_x, answer_y = self.answer = self._answer(state, x, y)
        elsewhere = answer_x is not x
        if unseen := [i for i in which if self.lanes[i].seen_step != self.progress.step]:
            # On a clock the answer goes first; the last point is solved for if a target is to be met there.
            both = self.watch is None or not elsewhere or bool(self.lanes[unseen[0]].trial.targets)
            self._look(unseen, x, y, state, self._until(last=True) if solve and both else 0.0)
        elif self.watch is not None and solve and not elsewhere:
            self._look_again(x, y, state)
        answers: Block | None = None
        if elsewhere:
            answers, solved = self._seen(which, answer_x, answer_y, state, self._until(last=True) if solve else 0.0)
            for i in which:
                self.lanes[i].solved = solved
        out = []
        for n, i in enumerate(which):
            lane = self.lanes[i]
            self._draw(i, answer_x[i], answer_y[i])
            block, place = lane.seen if answers is None else (answers, n)
            final = {name: block[name][place] for name in ("phi", "grad_phi", "grad_phi_error", "g_y")}
            out.append({**final, "last_phi": lane.last("phi"), "last_grad_phi": lane.last("grad_phi")})
        return out

    def _draw(self, i: int, x: Tensor, y: Tensor) -> None:
        if self.pack.instance.pictures is None:
            return
        instance, _ = self.pack.some([i])  # with the data of this lane
        if shown := pictures_of(instance, x, y):
            self.result.pictures[self.lanes[i].trial.id] = shown

    def _look_again(self, x: Tensor, y: Tensor, state: Any) -> None:
        """The answer of a trial on a clock was seen, but not solved for."""
        lane, until = self.lanes[0], self._until(last=True)
        if not lane.solved and lane.bent_step is None and until > 0:
            self.result.curve.drop_last()
            self._look([0], x, y, state, until)

    def _until(self, last: bool) -> float:
        return math.inf if self.watch is None else self.watch.until(last)

    def write(self, endings: Mapping[int, tuple[Status, str]], ends: Sequence[Mapping[str, Any]]) -> None:
        """The rows of lanes that end, with a status and a sentence each."""
        progress, meter = self.progress, self.pack.oracle.meter
        columns = meter.columns()
        shared = {
            "steps": progress.step,
            "seconds": progress.seconds,
            "pack_lanes": progress.width / progress.step if progress.step else float(len(self.lanes)),
            "peak_memory": peak_memory(),
        }
        for end, (i, (status, message)) in zip(ends, endings.items(), strict=True):
            message = "; ".join((message, *meter.remarks(i), *self._doubts(i), *self.remarks))
            counts = {name: float(column[i]) for name, column in columns.items()}
            row = self.lanes[i].run_row(status, message, certificate=self._certificate(i), **shared, **counts, **end)
            self.result.runs.append(row)

    def _certificate(self, i: int) -> str:
        if self.lanes[i].bent_step is not None:
            return NOT_CONVEX
        return self._evaluator.certificate if self.lanes[i].solved else "none"

    def _doubts(self, i: int) -> Iterator[str]:
        """Why a row has no phi."""
        lane = self.lanes[i]
        if lane.bent_step is not None:
            yield (
                f"g has negative curvature in y (seen at step {lane.bent_step}): the lower level is not strongly convex, "
                "so phi is not claimed"
            )
        elif self.watch is not None and not lane.solved:
            yield self.watch.why_unsolved()

    def _seen(self, which: Sequence[int], x: Tensor, y: Tensor, state: Any, until: float) -> tuple[Block, bool]:
        """What there is to see there, and whether phi was solved for."""
        extras = self.progress.timed(self.pack.algorithm.extras, state)
        check_extras(extras, self.pack.oracle.L)
        seen, extras = self._evaluate(which, x, y, extras, until)
        meter, step = self.pack.oracle.meter, self.progress.step
        counts = meter.columns()
        lists: Block = {
            name: [float(counts[name][i]) for i in which] for name in ("cost", "first_order", "second_order")
        }
        if not isinstance(self.pack.instance.noise, Exact):  # where a call is not one sample
            samples = meter.sample_columns()
            lists["second_order_samples"] = [float(samples["second_order_samples"][i]) for i in which]
        tensors = {"phi": seen.phi, "grad_phi": seen.grad_phi, "grad_phi_error": seen.error, "g_y": seen.g_y}
        # what follows the lanes that were asked for is padding; what a method tells never replaces what is measured
        further = {**extras, **seen.further, **tensors}
        lists = {name: t.reshape(-1)[: len(which)].tolist() for name, t in further.items()} | lists
        if self.schedule.mean:
            sums = self.noted.grad_sum.reshape(-1).tolist()
            lists["mean_grad_phi"] = [sums[i] / step if step else math.inf for i in which]
        self._claim(which, seen, lists)
        return {**lists, "step": [step] * len(which), "seconds": [self.progress.seconds] * len(which)}, seen.solved

    def _claim(self, which: Sequence[int], seen: Evaluation, lists: Block) -> None:
        """Nothing that needs y*(x), from the first point on that shows a lower level which is not convex."""
        bent = seen.bent.reshape(-1).tolist()
        for n, i in enumerate(which):
            lane = self.lanes[i]
            if lane.bent_step is None and bent[n]:
                lane.bent_step = self.progress.step
            if lane.bent_step is not None:
                for name in lists.keys() & set(_CLAIMED):
                    lists[name][n] = math.nan

    def _evaluate(
        self, which: Sequence[int], x: Tensor, y: Tensor, extras: dict[str, Tensor], until: float
    ) -> tuple[Evaluation, dict[str, Tensor]]:
        evaluator = self._evaluator
        if len(which) < len(self.lanes):
            some, index = self.pack.some(which)
            evaluator = evaluator if some is self.pack.instance else self._evaluator_of(some)
            x, y, extras = take(x, index), take(y, index), {k: take(v, index) for k, v in extras.items()}
        solve = until > 0 and any(self.lanes[i].bent_step is None for i in which)
        if self.watch is None or not solve:
            return evaluator(x, y, solve), extras
        self.watch.tell(None, "solving the lower level for phi")
        began = time.perf_counter()
        seen = evaluator(x, y, True, until)
        self.watch.evaluated(time.perf_counter() - began, seen.solved)
        return seen, extras

    def _evaluator_of(self, instance: Instance) -> Evaluator:
        return Evaluator(instance, self.schedule.second_order, self.schedule.phi, clocked=self.watch is not None)

    def _answer(self, state: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        algorithm = self.pack.algorithm
        if algorithm.reports == "random":
            return self.noted.kept or (x, y)
        if algorithm.reports == "last":
            return x, y
        own_x, own_y = self.progress.timed(algorithm.answer, state)
        there = torch.isfinite(own_x).all(-1, keepdim=True) & torch.isfinite(own_y).all(-1, keepdim=True)
        return keep(there, own_x, x), keep(there, own_y, y)


def failure_row(trial: Trial, message: str, status: Status = Status.ERROR) -> PackResult:
    """The row of a trial that took no step."""
    return PackResult(runs=[Lane(trial, trial.algorithm.params).run_row(status, message, steps=0)])
