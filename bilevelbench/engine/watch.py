"""A run that someone waits for (`solve`): its clock, what it spends on evaluations, and whom it tells how far it is.

In a benchmark nothing of a trial may depend on the clock, so there is no watch: every scheduled evaluation solves for phi.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor, enable_grad

from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.plan.trial import Budget, Schedule

#: `auto` spends at most this share of the time on solving for phi, or `FLOOR` seconds if that is more. The answer always has
#: as many seconds: nobody minds them, and a machine that is busy for a moment does not take its phi away.
SHARE, FLOOR = 0.1, 0.5

_SPARE = 3.0  # times what the last evaluation took is left for the final one
_GLANCE = 0.1  # seconds between two looks at a bar

Evaluate = Literal["auto", "never", "end"]
Pace = Evaluate | Literal["always"]
Point = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class StepInfo:
    """What a callback is told after each step. phi and grad_phi are None where phi was not solved for at this step.

    `cost` counts calls, `seconds` since `solve` was called; x and y are copies, in the shape of x0 and y0.
    """

    step: int
    cost: float
    seconds: float
    phi: float | None
    grad_phi: float | None
    x: Any
    y: Any


class CallbackFailed(BaseException):
    """What a callback raised is not the method's fault: a BaseException, so that it does not become an `error`."""


class Watch:
    """`pace` says which evaluations solve for phi; the seconds of `limits` are for the whole, from `began` on.

    `tell` hears how far the run is, as a share and a few words. A callback is given the point in the shape that `shape`
    makes of it, and ends the run by returning True.
    """

    def __init__(
        self,
        limits: Budget,
        pace: Pace = "always",
        began: float | None = None,
        tell: Callable[[float | None, str], None] = lambda share, now: None,
        callback: Callable[[StepInfo], object] | None = None,
        shape: Callable[[Tensor, Tensor], tuple[Any, Any]] = lambda x, y: (x, y),
    ) -> None:
        self.limits, self.pace, self.tell = limits, pace, tell
        self._callback, self._shape = callback, shape
        self.began = time.perf_counter() if began is None else began
        self.seconds = math.inf if limits.seconds is None else limits.seconds
        self.spent = 0.0  # seconds of evaluations
        self.is_interrupted = False
        self._needed: float | None = None  # seconds that the next one will take, as far as anyone knows
        self._slot = 0.0  # when the present one has to be over
        self._late = 0.0  # seconds by which the last one was: it is cut between calls, so this is what one call takes
        self._told = -math.inf
        self._last = ""  # what was known of phi last, in words

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def is_over(self, step: float) -> bool:
        """Whether another step of so many seconds would not fit, with the last evaluation behind it."""
        if math.isinf(self.seconds):
            return False
        left = 0.0 if self.pace == "never" else SHARE * self.seconds
        if self._needed is not None:
            left = min(left, _SPARE * self._needed)
        return self.elapsed + step >= self.seconds - left

    def until(self, last: bool) -> float:
        """When an evaluation that would begin now has to be over; zero if phi is not to be solved for now."""
        if self.pace == "never" or (self.pace == "end" and not last):
            return 0.0
        end = self.began + self.seconds
        if self.pace == "auto":
            end = min(end, time.perf_counter() + self._room(last))
        self._slot = end if end - time.perf_counter() > self._late else 0.0
        return self._slot

    def _room(self, last: bool) -> float:
        """Seconds that `auto` has for an evaluation now."""
        room = max(FLOOR, SHARE * self.elapsed) - self.spent
        if last:
            return max(room, FLOOR)
        room /= 2  # as much is left for the last one
        return room if self._needed is None or room >= self._needed else 0.0

    def evaluated(self, took: float, solved: bool) -> None:
        """An evaluation that was given up is tried again when there is twice the time."""
        self.spent += took
        self._needed = took if solved else 2 * took
        self._late = max(0.0, time.perf_counter() - self._slot)

    def why_unsolved(self) -> str:
        """Why the answer has no phi."""
        if self.pace == "never":
            return 'phi was not evaluated, as evaluate="never" asks'
        if self.is_interrupted:
            return "phi was not evaluated there"
        if self.elapsed >= self.seconds:
            return "phi was not evaluated: the time was up"
        if self.pace == "auto":
            return (
                f"phi was not evaluated: the lower level was not solved within {SHARE:.0%} of the time; "
                'evaluate="end" takes the time that it needs'
            )
        return "phi was not evaluated"

    def stepped(self, step: int, cost: float, phi: float | None, grad_phi: float | None, point: Point) -> bool:
        """A step is made; whether the callback has seen enough."""
        seconds = self.elapsed
        if phi is not None:
            self._last = f", phi = {phi:.4g}, |grad phi| = {grad_phi:.1e} at step {step}"
        if seconds - self._told > _GLANCE:
            self._told = seconds
            self.tell(self._share(step, cost, seconds), f"step {step}{self._last}")
        if self._callback is None:
            return False
        x, y = self._shape(*(tensor.detach().clone() for tensor in point))
        try:
            with enable_grad():  # methods run without; a callback may train a network with this x
                answer: Any = self._callback(StepInfo(step, cost, seconds, phi, grad_phi, x, y))
            return getattr(answer, "item", lambda: answer)() is True  # numpy and torch have a True of their own
        except Exception as error:
            raise CallbackFailed from error

    def _share(self, step: int, cost: float, seconds: float) -> float:
        limits = self.limits
        parts = ((step, limits.steps), (cost, limits.cost), (seconds, limits.seconds))
        return max(done / most for done, most in parts if most is not None)


def pace_of(evaluate: Evaluate | Schedule) -> tuple[Schedule, Pace]:
    """When a run is looked at, and which looks solve for phi."""
    if isinstance(evaluate, Schedule):
        return evaluate, "always" if evaluate.phi else "never"
    if evaluate not in get_args(Evaluate):
        raise InvalidInput(f"evaluate={evaluate!r}{suggestion(str(evaluate), get_args(Evaluate))}; or give a Schedule")
    return Schedule(phi=evaluate != "never"), evaluate
