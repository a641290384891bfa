"""The runner: takes a pack of trials to their ends. The loop and the clock are here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bilevelbench.discovery.registry import Registry
from bilevelbench.engine.endings import Ending, Endings
from bilevelbench.engine.integrity import replaced, restore
from bilevelbench.engine.lane import Lane
from bilevelbench.engine.record import PackResult, Progress, Record, failure_row
from bilevelbench.engine.sanity import check_state, explain
from bilevelbench.engine.setup import PreparedPack, SetupFailure, prepare
from bilevelbench.engine.watch import Watch
from bilevelbench.errors import BudgetExhausted, CompiledDiffers, CountsDisagree, Tampered
from bilevelbench.model.lanes import take
from bilevelbench.model.rounding import one_thread
from bilevelbench.oracle.meter import Tally
from bilevelbench.plan.packs import halves
from bilevelbench.plan.trial import Compile, Trial
from bilevelbench.processes import noticing_ctrl_c
from bilevelbench.results.status import Status

if TYPE_CHECKING:
    from bilevelbench.engine.compiled.compilation import Compilation

_DIVERGENCE_CHECK = 16  # steps between checks for what is not finite


class PackFailed(Exception):
    """A step failed in a pack of several trials: which one is at fault shows only when they run apart."""


@one_thread()  # also while data are built and constants computed: they are part of a trial's numbers
def run_pack(trials: Sequence[Trial], registry: Registry) -> PackResult:
    """The rows of these trials, which can share a pack; whatever happens, each has one."""
    with noticing_ctrl_c() as pressed:
        return _run_pack(trials, registry, pressed)


def _run_pack(
    trials: Sequence[Trial], registry: Registry, pressed: Callable[[], bool], not_compiled: str = ""
) -> PackResult:
    try:
        run = PackRun(trials, prepare(trials, registry), not_compiled=not_compiled)
        result = run.run()
        if trials[0].strangers:
            _check_functions(run.pack)
        return result
    except BaseException as error:  # not only PackFailed: a method may call sys.exit, or be impossible to pack
        if isinstance(error, KeyboardInterrupt) and pressed():
            raise
        if isinstance(error, CompiledDiffers):
            return _run_pack(trials, registry, pressed, str(error))
        if isinstance(error, Tampered):
            restore()
            if len(trials) == 1:
                return failure_row(trials[0], str(error), Status.INVALID)
        if len(trials) == 1:
            said = (
                str(error) if isinstance(error, SetupFailure) else f"could not be run: {type(error).__name__}: {error}"
            )
            return failure_row(trials[0], said.rstrip(": "))
        result = PackResult()
        for half in halves(tuple(trials)):
            result.extend(_run_pack(half, registry, pressed, not_compiled))
        return result


def _check_functions(pack: PreparedPack) -> None:
    names = replaced(pack.oracle, pack.oracle.meter, pack.instance)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise Tampered(f"the plugin replaced {names[0]}{more}: what was counted and measured is not to be used")


@dataclass(frozen=True)
class Begun:
    """A method that is under way: its state, and how many steps it has made."""

    state: Any
    step: int


class PackRun:
    """One pack on its way. Someone who waits for it has a `watch`, and a pack of one trial, which may have `begun`."""

    def __init__(
        self,
        trials: Sequence[Trial],
        pack: PreparedPack,
        watch: Watch | None = None,
        begun: Begun | None = None,
        not_compiled: str = "",
    ) -> None:
        bent = 0 if pack.instance.is_bent else None
        lanes = [Lane(t, method.given(), bent_step=bent) for t, method in zip(trials, pack.methods, strict=True)]
        self.pack, self.watch = pack, watch
        self.progress = Progress(limit=max(trial.budget.seconds or math.inf for trial in trials))
        self.record = Record(lanes, pack, self.progress, watch)
        self.state: Any = None
        self.error: Exception | None = None  # what ended a pack of one trial
        self._endings = Endings(self.record)
        self._compilation = _compilation(trials[0].compile, self.record, not_compiled)
        self._order = [trial.id for trial in trials]
        self._begun = begun
        self._began = False  # `init` is over
        self._next = _Next.of(lanes)
        self._given: tuple[Tensor, Tensor] | None = None  # copies of x and y before the step that is under way
        self._is_guarded = bool(trials[0].strangers)

    @torch.no_grad()
    def run(self) -> PackResult:
        began = time.perf_counter()
        try:
            self._loop()
        except CompiledDiffers:
            raise
        except Exception as error:
            if len(self._order) > 1:
                raise PackFailed from error
            self.error = error
            status = Status.INVALID if isinstance(error, (CountsDisagree, Tampered)) else Status.ERROR
            where = f"in step {self.progress.step + 1}" if self._began else "in `init`"
            told = f"{where}: {explain(error, type(self.pack.algorithm))}"
            self._finish({0: (status, told)}, self.state, evaluate=False)
        except KeyboardInterrupt:
            if self.watch is None:
                raise
            self._interrupt(self.watch)
        finally:
            if self.pack.oracle.network is not None:
                self.pack.oracle.network.end()
        place, result = {trial_id: i for i, trial_id in enumerate(self._order)}, self.record.result
        result.runs.sort(key=lambda row: place[row["trial_id"]])
        result.curve.sort(place)
        result.step_seconds = self.progress.seconds
        result.total_seconds = time.perf_counter() - began
        return result

    def _loop(self) -> None:
        pack, record, progress = self.pack, self.record, self.progress
        if self._begun is not None:
            self.state, progress.step = self._begun.state, self._begun.step
            if self.watch is not None and self.watch.is_interrupted:
                raise KeyboardInterrupt
        elif not self._timed(pack.init):
            self._finish(self._endings.refused(self._everyone), None)
            return
        check_state(pack.algorithm, self.state, pack.oracle, "init")
        self._began = True
        if ghosts := self._ghosts():
            self._finish(self._endings.refused(ghosts), None)
            self._leave(ghosts)
        first = record.lanes[:1]
        self._look(self._everyone)
        self._end(self._endings.done())
        self._tell(*first)
        while record.lanes:
            before, noted = self.state, record.noted
            record.note(before)
            if self._compilation is not None and (done := self._compilation.go_on(before, self._quiet)):
                self.state, steps = done
                progress.step += steps
                progress.width += steps * len(record.lanes)
                self._check()
                continue
            if self._is_guarded:
                x, y = record.point(before)
                self._given = x.clone(), y.clone()
            fitted = self._timed(pack.step, progress.step + 1, before)
            progress.width += len(record.lanes)
            if ghosts := self._ghosts():  # their step is undone: state, and what was noted of the point before it
                self._check_given(before)
                with record.undone(noted):
                    self._finish(self._endings.spent(ghosts), before)
            if not fitted:
                return
            progress.step += 1
            if progress.step == 1:
                check_state(pack.algorithm, self.state, pack.oracle, "step")
            if ghosts:
                self._leave(ghosts)
            self._check()
            self._tell(*first)

    def _quiet(self, cost: Tally) -> int:
        """How many steps of this cost can be made before any but the last of them has to be followed by something."""
        step, meter = self.progress.step, self.pack.oracle.meter
        meter.flush()
        lanes = zip(self.record.lanes, meter.cost().tolist(), cost.cost.tolist(), strict=False)  # without padding
        until_look = min((lane.due - paid) / max(each, 1e-9) for lane, paid, each in lanes)
        steps = min(_DIVERGENCE_CHECK - step % _DIVERGENCE_CHECK, self._next.steps - step, until_look)
        return self.record.unnoted(math.ceil(steps))

    def _check_given(self, before: Any) -> None:
        """The state before a step that is undone becomes the answer, so the step must not have written to it."""
        if self._given is None:
            return
        for name, was, now in zip("xy", self._given, self.record.point(before), strict=True):
            if was.shape != now.shape or not torch.allclose(was, now, rtol=0, atol=0, equal_nan=True):
                raise Tampered(f"`step` wrote to {name} of the state that it was given; make a new tensor instead")

    def _tell(self, *lanes: Lane) -> None:
        """Whoever waits hears of the step, also of the last one, and the clock is looked at."""
        if self.watch is None or not lanes:
            return
        watch, step, (lane,) = self.watch, self.progress.step, lanes
        is_known = lane.seen_step == step and lane.solved and lane.bent_step is None
        phi, grad_phi = (lane.last(name) if is_known else None for name in ("phi", "grad_phi"))
        cost, point = self.pack.oracle.meter.most(), self.pack.algorithm.point(self.state)
        if watch.stepped(step, cost, phi, grad_phi, point):
            watch.is_interrupted = True
            self._end(
                dict.fromkeys(self._everyone, (Status.INTERRUPTED, f"the callback ended the run after {step} steps"))
            )
        elif watch.is_over(self.progress.seconds / max(step, 1)):
            said = f"ran for {watch.elapsed:.3g} of {watch.seconds:g} seconds, and made {step} steps"
            self._end(dict.fromkeys(self._everyone, (Status.TIMEOUT, said)))

    def _interrupt(self, watch: Watch) -> None:
        """Ctrl-C: what there is, without a solve for phi."""
        watch.is_interrupted = True
        if self.record.lanes:
            told = f"interrupted by Ctrl-C after {self.progress.step} steps"
            self._finish({0: (Status.INTERRUPTED, told)}, self.state, solve=False)

    @property
    def _everyone(self) -> range:
        return range(len(self.record.lanes))

    def _ghosts(self) -> list[int]:
        """Lanes that met a call which their budget does not cover."""
        meter = self.pack.oracle.meter
        return [i for i in self._everyone if meter.ghost[i]] if meter.has_ghosts else []

    def _timed(self, work: Callable[..., Any], *arguments: Any) -> bool:
        """Make a step; False if no lane's budget covers it."""
        try:
            state = self.progress.timed(work, *arguments)
        except BudgetExhausted:
            return False
        self.pack.check_counts()
        self.state = state
        return True

    def _check(self) -> None:
        """After each step: cheap comparisons of Python numbers, and the rest only where one of them fires."""
        progress, meter = self.progress, self.pack.oracle.meter
        if self._endings.may_stop:
            self._end(self._endings.stopped(self.state))
        if not self.record.lanes:
            return
        if progress.step % _DIVERGENCE_CHECK == 0:
            self._drop_diverged(self._everyone)
        if not self.record.lanes:
            return
        if meter.most() >= self._next.due:
            meter.flush()
            cost = meter.cost()
            due = self._drop_diverged([i for i, lane in enumerate(self.record.lanes) if cost[i] >= lane.due])
            if due:
                self._look(due)
                self._end(self._endings.done())
        if progress.step >= self._next.steps or progress.seconds >= self._next.seconds:
            self._end(self._endings.done())

    def _look(self, which: Sequence[int]) -> None:
        self.record.look(which, self.state)
        self._next = _Next.of(self.record.lanes)

    def _drop_diverged(self, which: Sequence[int]) -> list[int]:
        """The lanes that go on, by their new places; the others end."""
        gone = self._endings.diverged(which, self.state)
        left = [i for i in self._everyone if i not in gone]
        self._end(gone)
        return [left.index(i) for i in which if i not in gone]

    def _end(self, over: dict[int, Ending]) -> None:
        """Lanes that end with the present state."""
        if over:
            self._finish(over, self.state)
            self._leave(over)

    def _finish(self, over: dict[int, Ending], state: Any, evaluate: bool = True, solve: bool = True) -> None:
        """Write the rows of these lanes."""
        ends: list[dict[str, Any]] = [{} for _ in over]
        if evaluate and state is not None:
            ends = self.record.end_values(list(over), state, solve)
            over = self._endings.judged(over, state)
        self.record.write(over, ends)

    def _leave(self, gone: Collection[int]) -> None:
        """The others go on in a narrower pack."""
        stay = [i for i in self._everyone if i not in gone]
        if stay:
            index = self.pack.narrow(stay)
            self.state = take(self.state, index)
            self.record.narrow(stay, index)
            if self._compilation is not None:
                self._compilation.restart()
        else:
            self.record.lanes = []
        self._next = _Next.of(self.record.lanes)


def _compilation(how: Compile, record: Record, refused: str) -> Compilation | None:
    if how == "never":
        return None
    from bilevelbench.engine.compiled.compilation import Compilation  # not for everyone: it takes a second to import

    return Compilation(how, record, refused)


@dataclass(frozen=True)
class _Next:
    """The first cost, step and second at which anything can happen to some lane."""

    due: float
    steps: float
    seconds: float

    @classmethod
    def of(cls, lanes: Sequence[Lane]) -> _Next:
        budgets = [lane.trial.budget for lane in lanes]
        return cls(
            due=min((lane.due for lane in lanes), default=math.inf),
            steps=min((b.steps for b in budgets if b.steps is not None), default=math.inf),
            seconds=min((b.seconds for b in budgets if b.seconds is not None), default=math.inf),
        )
