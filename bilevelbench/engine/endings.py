"""Why a trial ends, and the sentence that says so in its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bilevelbench.engine.record import Record
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.instance import FAR
from bilevelbench.results.status import Status

#: A status and its sentence.
Ending = tuple[Status, str]

_TARGETS = {"grad_phi": "|grad phi|", "mean_grad_phi": "mean |grad phi|", "second_order_eps": "second-order accuracy"}


class Endings:
    """The lanes of a pack that are over, by their places in it."""

    def __init__(self, record: Record) -> None:
        self._record, self._pack, self._progress = record, record.pack, record.progress
        self.may_stop = type(self._pack.algorithm).stopped is not Algorithm.stopped

    def refused(self, which: Sequence[int]) -> dict[int, Ending]:
        return dict.fromkeys(which, (Status.BUDGET, "the budget does not cover `init`"))

    def spent(self, which: Sequence[int]) -> dict[int, Ending]:
        """Lanes that met a call which their budget does not cover."""
        meter = self._pack.oracle.meter
        meter.flush()
        cost = meter.cost()
        return {
            i: (Status.BUDGET, f"spent {cost[i]:.10g} of {meter.budgets[i]:.10g}; the next call did not fit")
            for i in which
        }

    def stopped(self, state: Any) -> dict[int, Ending]:
        """Lanes whose method came to its own end."""
        flags = self._progress.timed(self._pack.algorithm.stopped, state)
        if flags is None or not bool(flags.any()):
            return {}
        over = [i for i in range(len(self._record.lanes)) if flags[i].item()]
        return dict.fromkeys(
            over, (Status.STOPPED, f"the method came to its own end after {self._progress.step} steps")
        )

    def diverged(self, which: Sequence[int], state: Any) -> dict[int, Ending]:
        finite = self._finite(state)
        return {i: (Status.DIVERGED, self._divergence(i, state)) for i in which if not finite[i]}

    def done(self) -> dict[int, Ending]:
        """Lanes with all their targets, or at the end of their steps or seconds."""
        step, seconds = self._progress.step, self._progress.seconds
        over: dict[int, Ending] = {}
        for i, lane in enumerate(self._record.lanes):
            budget = lane.trial.budget
            if lane.has_reached_all:
                over[i] = Status.TARGET, self._success(i)
            elif budget.steps is not None and step >= budget.steps:
                over[i] = Status.BUDGET, f"made its {step} steps"
            elif budget.seconds is not None and seconds >= budget.seconds:
                over[i] = Status.TIMEOUT, f"ran for {seconds:.3g} of {budget.seconds:g} seconds"
        return over

    def judged(self, over: dict[int, Ending], state: Any) -> dict[int, Ending]:
        """What the last evaluation says goes first: a trial that ran out may have met its target there, or be lost."""
        finite, out = self._finite(state), {}
        for i, (status, message) in over.items():
            lane = self._record.lanes[i]
            if not finite[i]:
                out[i] = Status.DIVERGED, self._divergence(i, state)
            elif lane.has_reached_all and status in (Status.BUDGET, Status.TIMEOUT):
                out[i] = Status.TARGET, self._success(i)
            else:
                out[i] = status, message + lane.doubt
        return out

    def _finite(self, state: Any) -> list[bool]:
        x, y = self._record.point(state)
        finite: list[bool] = (~self._pack.instance.away(x).squeeze(-1) & torch.isfinite(y).all(-1)).tolist()
        return finite

    def _divergence(self, i: int, state: Any) -> str:
        params = {k: v for k, v in self._record.lanes[i].params.items() if isinstance(v, float)}
        settings = ", ".join(f"{k}={v:g}" for k, v in params.items())
        instance = self._pack.instance
        x, y = (point[i] for point in self._pack.algorithm.point(state))
        what = "x or y is not finite"
        if bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
            limit = float(instance.x_limit.expand(self._pack.oracle.L, 1)[i])
            place = "where phi is flat" if instance.is_flat_beyond else f"that is {FAR:g} (1 + |x0|)"
            what = f"|x| > {limit:g}, {place},"
        return f"{what} at step {self._progress.step}; try smaller steps ({settings})"

    def _success(self, i: int) -> str:
        column, targets = self._record.schedule.target_column, self._record.lanes[i].trial.targets
        return f"{_TARGETS.get(column, column)} <= {min(targets):g} at step {self._progress.step}"
