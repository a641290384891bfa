"""Whether the steps of a pack are compiled, how many are made at once, and whether they still are those of the method."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bilevelbench.engine.compiled.native import translated
from bilevelbench.engine.compiled.stretch import Stretch, compiled
from bilevelbench.engine.compiled.trace import Traced, leaves_of, rebuilt, trace
from bilevelbench.engine.record import Record
from bilevelbench.errors import CompiledDiffers, Untraceable
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.lanes import take
from bilevelbench.oracle.meter import Tally
from bilevelbench.plan.trial import Compile
from bilevelbench.results.status import NOT_COMPILED

#: Interpreted steps before it is decided: what is made at the first step only is over, and the clock has seen some.
_BEFORE = 8
#: Every so many stretches the next steps, so many, are interpreted, and compared with compiled ones from the same state.
_EVERY, _COMPARED = 64, 4
#: How far they may be apart, relative to the largest number of a tensor.
_APART = {torch.float64: 1e-9, torch.float32: 1e-4}
#: What `auto` expects: to gain at least so many seconds, or it does not even trace.
_LEAST = 2.0
#: Of L lanes, compiled steps save this over (this + L) of the time, somewhat less than was measured for any method with 1 to 36
#: lanes (docs/decisions/030): the overhead of torch, which is saved, is that of a pack, and the work is that of a lane.
_SAVED_LANES = 5
#: Seconds of compiling for each operation of a step, by our program (True) and by torch's compiler, as measured last: here, or
#: when this was written.
_seconds_each = {True: 0.01, False: 0.1}


def saved(lanes: int) -> float:
    """The part of the time of interpreted steps that compiled ones are expected to save."""
    return _SAVED_LANES / (_SAVED_LANES + lanes)


@dataclass(frozen=True)
class _Comparison:
    """What the state should be after so many interpreted steps, and what the first lanes had paid before them."""

    step: int
    leaves: Sequence[Tensor]
    before: Tally


class Compilation:
    """The compiled steps of a pack. It is asked before each step; as long as it has nothing, steps are interpreted."""

    def __init__(self, how: Compile, record: Record, refused: str = "") -> None:
        """`refused`: why they are not to be compiled, if that is known already."""
        self._how, self._record = how, record
        self._pack, self._progress = record.pack, record.progress
        self._steps = 0
        self._say(refused)
        self.restart()

    def restart(self) -> None:
        """Lanes have left, or nothing has begun: what was compiled is of no use."""
        self._since = self._progress.step, self._progress.seconds
        self._last: tuple[Any, int] | None = None
        self._is_over = bool(self._refused)
        self._traced: Traced | None = None
        self._stretch: Stretch | None = None
        self._comparison: _Comparison | None = None
        self._stretches = 0
        self._made: tuple[Any, Sequence[Tensor]] = (None, ())  # the last state that was made here, and its leaves
        self._padding = self._pack.padding(self._lanes)

    def go_on(self, state: Any, quiet: Callable[[Tally], int]) -> tuple[Any, int] | None:
        """The state after some compiled steps, and their number; None: the next step is interpreted.

        `quiet` says how many steps of a known cost can be made before anything else has to be done.
        """
        if self._is_over or not self._is_ready(state):
            return None
        assert self._traced is not None
        assert self._stretch is not None
        meter, step = self._pack.oracle.meter, self._progress.step
        steps = int(min(quiet(self._traced.cost), meter.covered(self._traced.cost)))
        if steps < 2:
            return None
        self._stretches += 1
        self._steps += steps
        leaves = self._progress.timed(self._stretch, step, step + steps, self._leaves(state))
        self._pack.oracle.charge_steps(self._traced.cost.times(steps))
        self._say()
        new = take(rebuilt(state, leaves), self._padding)
        self._made = new, leaves
        return new, steps

    @property
    def _lanes(self) -> int:
        return len(self._record.lanes)

    def _leaves(self, state: Any) -> Sequence[Tensor]:
        if state is self._made[0]:
            return self._made[1]
        return leaves_of(take(state, torch.arange(self._lanes)))

    def _say(self, refused: str = "") -> None:
        """What the rows say of it."""
        self._refused = refused
        said = [f"{self._steps} compiled steps"] if self._steps else []
        self._record.remarks = [*said, *([f"{NOT_COMPILED}{refused}"] if refused else [])]

    def _give_up(self, why: str = "") -> bool:
        self._is_over = True
        self._say(why)
        return False

    # ------------------------------------------------------------------------------------------------ is it the method?

    def _is_ready(self, state: Any) -> bool:
        if self._stretch is None:
            return self._prepare(state)
        if self._comparison is None:
            return self._stretches % _EVERY > 0 or self._compare(state)
        if self._progress.step < self._comparison.step:
            return False
        return self._agrees(state, self._comparison)

    def _compare(self, state: Any) -> bool:
        """What compiled steps make of this state, to be held against the interpreted ones that come next; False."""
        assert self._stretch is not None
        step = self._progress.step
        leaves = self._stretch(step, step + _COMPARED, self._leaves(state))
        self._comparison = _Comparison(step + _COMPARED, leaves, self._pack.oracle.meter.tally(self._lanes))
        return False

    def _agrees(self, state: Any, wanted: _Comparison) -> bool:
        assert self._traced is not None
        self._comparison, self._stretches = None, self._stretches + 1
        spent = self._pack.oracle.meter.tally(self._lanes) - wanted.before
        if not spent.is_same(self._traced.cost.times(_COMPARED)):
            return self._differs("compiled and interpreted steps do not cost the same")
        apart = max(_apart(a, b) for a, b in zip(wanted.leaves, self._leaves(state), strict=True))
        if apart > 1:
            return self._differs(f"compiled and interpreted steps differ by {apart:.1g} times what is allowed")
        return True

    def _differs(self, how: str) -> bool:
        how = f"{how} at step {self._progress.step}"
        if self._steps:
            raise CompiledDiffers(how)
        return self._give_up(how)

    # ------------------------------------------------------------------------------------------------ is it worth it?

    def _prepare(self, state: Any) -> bool:
        """Trace and compile, once there are two steps to trace; False, since interpreted steps come next in any case."""
        step, (first, seconds) = self._progress.step, self._since
        if step - first < _BEFORE:
            self._last = state, step
            return False
        if why := self._obstacle():
            return self._give_up(why)
        gain = self._steps_left() * (self._progress.seconds - seconds) / (step - first) * saved(self._lanes)
        if self._how == "auto" and gain < _LEAST:
            return self._give_up()
        assert self._last is not None
        before, last = self._last
        try:
            self._traced = trace(self._pack, self._lanes, (before, state), (last + 1, step + 1))
            self._compile(self._leaves(state), gain)
            return self._give_up() if self._stretch is None else self._compare(state)
        except Untraceable as error:
            return self._give_up(str(error))
        except Exception as error:
            return self._give_up(f"that fails ({type(error).__name__}: {error})"[:300])

    def _compile(self, leaves: Sequence[Tensor], gain: float) -> None:
        """Unless it is left to `auto`, and takes longer than it gains."""
        assert self._traced is not None
        operations = len(self._traced.graph.graph.nodes)
        program = translated(self._traced, leaves)
        ours = program is not None
        if self._how == "auto" and gain < _seconds_each[ours] * operations:
            return
        start = time.perf_counter()
        self._stretch = compiled(self._traced, leaves, program)
        _seconds_each[ours] = (time.perf_counter() - start) / operations

    def _obstacle(self) -> str:
        pack, algorithm = self._pack, type(self._pack.algorithm)
        if pack.oracle.network is not None:
            return "its steps are made by agents together"
        if algorithm.stopped is not Algorithm.stopped:
            return "the method decides after each step whether to stop"
        if self._record.schedule.mean:
            return "the mean over all points is asked for"
        if pack.oracle.device.type != "cpu":
            return f"its tensors are on {pack.oracle.device}, and only those of the processor are compiled"
        return ""

    def _steps_left(self) -> float:
        """At least, by what the steps so far took."""
        step, meter = self._progress.step, self._pack.oracle.meter
        meter.flush()
        cost, seconds = meter.cost()[: self._lanes] / step, self._progress.seconds / step
        limits = [
            ((budget.steps or float("inf")) - step, (budget.most - paid * step) / max(paid, 1e-9),
             (budget.seconds or float("inf")) / seconds - step)
            for budget, paid in zip((lane.trial.budget for lane in self._record.lanes), cost, strict=True)
        ]  # fmt: skip
        return float(min(min(each) for each in limits))


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, over what is allowed; infinite where one is finite and the other is not."""
    if torch.equal(one, other) or not one.numel():
        return 0.0
    same = (one == other) | (one.isnan() & other.isnan())
    allowed = _APART.get(other.dtype, 0.0) * other.abs().max().clamp(min=1e-30)
    apart = torch.where(same, torch.zeros_like(one), (one - other).abs() / allowed)
    return float(apart.nan_to_num(nan=float("inf")).max())
