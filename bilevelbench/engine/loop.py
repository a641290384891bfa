"""The runner: takes a pack of trials to their ends. The loop, the clock, the budgets and the stopping are all here."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import Registry
from bilevelbench.engine.agents.leader import join
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.engine.record import Block, Lane, PackResult
from bilevelbench.engine.sanity import check_instance, check_state, check_targets, explain
from bilevelbench.engine.setup import build_instance, make_methods, pack_algorithm
from bilevelbench.errors import BooksDisagree, BudgetExhausted
from bilevelbench.model.agents import Part
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.instance import FAR, Instance
from bilevelbench.model.lanes import PAD, keep, norm, padded, take
from bilevelbench.model.noise import Exact
from bilevelbench.model.rounding import one_thread
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.oracle.draws import Draws
from bilevelbench.oracle.oracle import Oracle
from bilevelbench.plan.trial import Trial
from bilevelbench.processes import peak_memory

_DIVERGENCE_CHECK = 16  # steps between checks for what is not finite


class PackFailed(Exception):
    """A step failed in a pack of several trials: nobody knows whose fault it is until they run apart."""


@one_thread()  # also while data are built and constants computed: they are part of a trial's numbers
def run_pack(trials: Sequence[Trial], registry: Registry) -> PackResult:
    """The rows of these trials, which can share a pack; whatever happens, each has one."""
    try:
        return _prepare(trials, registry).run()
    except PackFailed:
        middle = len(trials) // 2
        result = run_pack(trials[:middle], registry)
        result.extend(run_pack(trials[middle:], registry))
        return result


def _prepare(trials: Sequence[Trial], registry: Registry) -> PackRun | SetupFailure:
    dtype = getattr(torch, trials[0].dtype)
    entry = registry.algorithm(trials[0].algorithm.key)
    problem = make(registry.problem(trials[0].problem.key), trials[0].problem.params)
    wide = entry.value.lanes and problem.max_lanes > 1
    order = padded(range(len(trials)), PAD if wide else 1)
    try:
        with default_dtype(dtype):
            instance = build_instance(problem, [trials[i] for i in order])
        check_instance(instance)
        instance.constants.problem = problem.name
        methods = make_methods(trials, entry, instance.constants)
        check_targets(trials[0], instance.constants)
        with default_dtype(dtype):
            part = join(methods[0], instance, trials[0])
    except Exception as error:
        if len(trials) > 1:
            raise PackFailed from error
        return SetupFailure(trials[0], f"could not be set up: {explain(error, _file(type(problem)))}")
    lanes = [Lane(trial, method.given()) for trial, method in zip(trials, methods, strict=True)]
    return PackRun(lanes, pack_algorithm([methods[i] for i in order], dtype), instance, order, wide, part)


@dataclass
class SetupFailure:
    """A trial that has no instance or no parameters: a row all the same."""

    trial: Trial
    message: str

    def run(self) -> PackResult:
        return PackResult(runs=[Lane(self.trial, self.trial.algorithm.params).run_row("error", self.message, steps=0)])


class PackRun:
    """One pack on its way."""

    def __init__(
        self,
        lanes: list[Lane],
        algorithm: Algorithm,
        instance: Instance,
        order: list[int],
        wide: bool,
        part: Part | None = None,
    ) -> None:
        self.lanes, self.algorithm, self.instance, self.wide = lanes, algorithm, instance, wide
        self.alone = len(lanes) == 1
        self.order = [lane.trial.id for lane in lanes]
        self.schedule = lanes[0].trial.schedule
        self.evaluator = self._evaluator(instance)
        trials = [lanes[i].trial for i in order]
        self.real = [place < len(lanes) for place in range(len(order))]
        budgets = [math.inf if t.budget.cost is None else t.budget.cost for t in trials]
        self.oracle = Oracle(instance, algorithm.uses, [t.seed for t in trials], budgets, self.real, part)
        self._remember_loops()
        self.state: Any = None
        self.began = False  # `init` is over
        self.step = 0
        self.seconds = 0.0
        self.width = 0  # lanes summed over steps
        self.result = PackResult()
        self.last = self.answer = instance.x0, instance.y0  # of the lanes that ended last
        self.kept: tuple[Tensor, Tensor] | None = None  # the random iterate, if that is the answer
        self.grad_sum = torch.zeros(len(order), 1, dtype=torch.float64)
        self.error: Exception | None = None  # what ended a pack of one trial
        self._reservoir: Draws | None = None
        self._next = _Next.of(lanes)
        self._may_stop = type(algorithm).stopped is not Algorithm.stopped

    # ------------------------------------------------------------------------------------------------ the loop

    @torch.no_grad()
    def run(self) -> PackResult:
        began = time.perf_counter()
        try:
            self._loop()
        except Exception as error:
            if not self.alone:
                raise PackFailed from error
            self.error = error
            status = "invalid" if isinstance(error, BooksDisagree) else "error"
            where = f"in step {self.step + 1}" if self.began else "in `init`"
            told = f"{where}: {explain(error, _file(type(self.algorithm)))}"
            self._finish({0: (status, told)}, self.state, evaluate=False)
        finally:
            if self.oracle.network is not None:
                self.oracle.network.end()
        place = {trial_id: i for i, trial_id in enumerate(self.order)}
        self.result.runs.sort(key=lambda row: place[row["trial_id"]])
        self.result.curve.sort(place)
        self.result.step_seconds = self.seconds
        self.result.total_seconds = time.perf_counter() - began
        return self.result

    def _loop(self) -> None:
        instance, oracle = self.instance, self.oracle
        x0 = instance.x0.expand(oracle.L, instance.dx).clone()
        y0 = instance.y0.expand(oracle.L, instance.dy).clone()
        refused = "budget", "the budget does not cover `init`"
        if not self._timed(0, self.algorithm.init, x0, y0):
            self._finish(dict.fromkeys(range(len(self.lanes)), refused), None)
            return
        check_state(self.algorithm, self.state, oracle, "init")
        self.began = True
        if ghosts := self._ghosts():
            self._finish(dict.fromkeys(ghosts, refused), None)
            self._leave(ghosts, self.state)
        self._look(range(len(self.lanes)))
        self._leave_if_done()
        while self.lanes:
            before, noted = self.state, (self.grad_sum, self.kept)
            if self.algorithm.reports == "random" or self.schedule.mean:
                self._note_point()
            fitted = self._timed(self.step + 1, self.algorithm.step, before)
            self.width += len(self.lanes)
            if ghosts := self._ghosts():  # their step is undone: state, and what was noted of the point before it
                now = self.grad_sum, self.kept
                self.grad_sum, self.kept = noted
                self._finish({i: self._spent(i) for i in ghosts}, before)
                self.grad_sum, self.kept = now
            if not fitted:
                return
            self.step += 1
            if self.step == 1:
                check_state(self.algorithm, self.state, oracle, "step")
            if ghosts:
                self._leave(ghosts, self.state)
            self._check()

    def _ghosts(self) -> list[int]:
        """Lanes that met a call which their budget does not cover."""
        meter = self.oracle.meter
        return [i for i in range(len(self.lanes)) if meter.ghost[i]] if meter.has_ghosts else []

    def _timed(self, step: int, work: Callable[..., Any], *arguments: Any) -> bool:
        """Make a step; False if no lane's budget covers it."""
        self.oracle.begin_step(step)
        start = time.perf_counter()
        try:
            state = work(*arguments, self.oracle)
        except BudgetExhausted:
            return False
        finally:
            self.seconds += time.perf_counter() - start
        if not self.oracle.books_agree:
            raise BooksDisagree(
                f"the meter and the instance's own count differ ({self.oracle.books()}): the method or the problem calls "
                "f or g past the oracle"
            )
        self.state = state
        return True

    def _check(self) -> None:
        """After each step: cheap comparisons of Python numbers, and the rest only where one of them fires."""
        step, meter = self.step, self.oracle.meter
        if self._may_stop:
            self._stop_by_method()
            if not self.lanes:
                return
        if step % _DIVERGENCE_CHECK == 0:
            self._drop_diverged(range(len(self.lanes)))
        if not self.lanes:
            return
        if meter.most() >= self._next.due:
            meter.flush()
            cost = meter.cost()
            due = [i for i, lane in enumerate(self.lanes) if cost[i] >= lane.due]
            due = self._drop_diverged(due)
            if due:
                self._look(due)
                self._leave_if_done()
        if step >= self._next.steps or self.seconds >= self._next.seconds:
            self._leave_if_done()

    # ------------------------------------------------------------------------------------------------ looking

    def _look(self, which: Sequence[int] | range) -> None:
        """Evaluate these lanes at their present point and note what is seen."""
        x, y = self.algorithm.point(self.state)
        self._note(which, x, y, self.state)
        self._next = _Next.of(self.lanes)

    def _note(self, which: Sequence[int] | range, x: Tensor, y: Tensor, state: Any) -> None:
        block = self._seen(which, x, y, state)
        self.result.curve.extend({"trial_id": [self.lanes[i].trial.id for i in which], **block})
        for n, i in enumerate(which):
            self.lanes[i].look(block, n)

    def _seen(self, which: Sequence[int] | range, x: Tensor, y: Tensor, state: Any) -> Block:
        seen, extras = self._evaluate(which, x, y, self.algorithm.extras(state))
        counts = self.oracle.meter.columns()
        lists: Block = {
            name: [float(counts[name][i]) for i in which] for name in ("cost", "first_order", "second_order")
        }
        if not isinstance(self.instance.noise, Exact):  # where a call is not one sample
            samples = self.oracle.meter.sample_columns()
            lists["second_order_samples"] = [
                float(samples["hvp_samples"][i] + samples["jvp_samples"][i]) for i in which
            ]
        tensors = {"phi": seen.phi, "grad_phi": seen.grad_phi, "grad_phi_error": seen.error, "g_y": seen.g_y}
        # what follows the lanes that were asked for is padding
        lists |= {
            name: t.reshape(-1)[: len(which)].tolist() for name, t in {**tensors, **seen.further, **extras}.items()
        }
        if self.schedule.mean:
            sums = self.grad_sum.reshape(-1).tolist()
            lists["mean_grad_phi"] = [sums[i] / self.step if self.step else math.inf for i in which]
        return {"step": [self.step] * len(which), "seconds": [self.seconds] * len(which), **lists}

    def _evaluator(self, instance: Instance) -> Evaluator:
        return Evaluator(instance, self.schedule.second_order, self.schedule.phi)

    def _evaluate(self, which: Sequence[int] | range, x: Tensor, y: Tensor, extras: dict[str, Tensor]) -> Any:
        """Of some lanes, padded like a pack, so that the numbers do not depend on who else is looked at."""
        if len(which) == len(self.lanes):
            return self.evaluator(x, y), extras
        index = torch.tensor(padded(list(which), PAD if self.wide else 1))
        some = self.instance.take(index)
        evaluator = self.evaluator if some is self.instance else self._evaluator(some)
        return evaluator(take(x, index), take(y, index)), {k: take(v, index) for k, v in extras.items()}

    def _note_point(self) -> None:
        """The point before a step: for the mean over points, and for an answer drawn uniformly among them."""
        x, y = self.algorithm.point(self.state)
        if self.schedule.mean:
            self.grad_sum = self.grad_sum + norm(self.evaluator.grad_phi(x, y)).double()
        if self.algorithm.reports == "random":
            if self._reservoir is None:
                self._reservoir = Draws(self.oracle.seeds)
            u = self._reservoir.uniform("answer", (), (self.step,), 1, 32)[0]
            new = torch.from_numpy(u * (self.step + 1) < 1).reshape(-1, 1)
            old = self.kept or (x, y)
            self.kept = keep(new, x, old[0]), keep(new, y, old[1])

    # ------------------------------------------------------------------------------------------------ ending

    def _stop_by_method(self) -> None:
        flags = self.algorithm.stopped(self.state)
        if flags is None or not bool(flags.any()):
            return
        over = [i for i in range(len(self.lanes)) if flags[i].item()]
        self._end(dict.fromkeys(over, ("stopped", f"the method came to its own end after {self.step} steps")))

    def _drop_diverged(self, which: Sequence[int] | range) -> list[int]:
        """The lanes that go on, by their new places; the others end as `diverged`."""
        finite = self._finite(self.state)
        gone = [i for i in which if not finite[i]]
        stay = [i for i in which if finite[i]]
        if gone:
            left = [i for i in range(len(self.lanes)) if i not in set(gone)]
            self._end({i: ("diverged", self._divergence(i, self.state)) for i in gone})
            return [left.index(i) for i in stay]
        return stay

    def _finite(self, state: Any) -> list[bool]:
        x, y = self.algorithm.point(state)
        return (~self.instance.away(x).squeeze(-1) & torch.isfinite(y).all(-1)).tolist()

    def _divergence(self, i: int, state: Any) -> str:
        params = {k: v for k, v in self.lanes[i].params.items() if isinstance(v, float)}
        settings = ", ".join(f"{k}={v:g}" for k, v in params.items())
        x, y = (point[i] for point in self.algorithm.point(state))
        what = "x or y is not finite"
        if bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
            limit = float(self.instance.x_limit.expand(len(self.real), 1)[i])
            place = "where phi is flat" if self.instance.is_flat_beyond else f"that is {FAR:g} (1 + |x0|)"
            what = f"|x| > {limit:g}, {place},"
        return f"{what} at step {self.step}; try smaller steps ({settings})"

    def _success(self, i: int) -> str:
        names = {
            "grad_phi": "|grad phi|",
            "mean_grad_phi": "mean |grad phi|",
            "second_order_eps": "second-order accuracy",
        }
        column = self.schedule.target_column
        return f"{names.get(column, column)} <= {min(self.lanes[i].trial.targets):g} at step {self.step}"

    def _spent(self, i: int) -> tuple[str, str]:
        self.oracle.meter.flush()
        spent, budget = self.oracle.meter.cost()[i], self.oracle.meter.budgets[i]
        return "budget", f"spent {spent:.10g} of {budget:.10g}; the next call did not fit"

    def _leave_if_done(self) -> None:
        over: dict[int, tuple[str, str]] = {}
        for i, lane in enumerate(self.lanes):
            budget = lane.trial.budget
            if lane.has_reached_all:
                over[i] = "target", self._success(i)
            elif budget.steps is not None and self.step >= budget.steps:
                over[i] = "budget", f"made its {self.step} steps"
            elif budget.seconds is not None and self.seconds >= budget.seconds:
                over[i] = "timeout", f"ran for {self.seconds:.3g} of {budget.seconds:g} seconds"
        if over:
            self._end(over)

    def _end(self, over: dict[int, tuple[str, str]]) -> None:
        """Lanes that end with the present state."""
        self._finish(over, self.state)
        self._leave(list(over), self.state)

    def _finish(self, over: dict[int, tuple[str, str]], state: Any, evaluate: bool = True) -> None:
        """Write the rows of these lanes."""
        meter, which = self.oracle.meter, list(over)
        columns = meter.columns()
        shared = {
            "steps": self.step,
            "seconds": self.seconds,
            "pack_lanes": self.width / max(self.step, 1) if self.step else float(len(self.lanes)),
            "peak_memory": peak_memory(),
            "certificate": self.evaluator.certificate,
        }
        ends: list[dict[str, Any]] = [{} for _ in which]
        if evaluate and state is not None:
            ends = self._end_values(which, state)
            over = self._judged(over, state)
        for end, i in zip(ends, which, strict=True):
            status, message = over[i]
            message = "; ".join((message, *meter.remarks(i)))
            counts = {name: float(column[i]) for name, column in columns.items()}
            self.result.runs.append(self.lanes[i].run_row(status, message, **shared, **counts, **end))

    def _judged(self, over: dict[int, tuple[str, str]], state: Any) -> dict[int, tuple[str, str]]:
        """What the last evaluation says goes first: a trial that ran out may have met its target there, or be lost."""
        finite, out = self._finite(state), {}
        for i, (status, message) in over.items():
            if not finite[i]:
                out[i] = "diverged", self._divergence(i, state)
            elif self.lanes[i].has_reached_all and status in ("budget", "timeout"):
                out[i] = "target", self._success(i)
            else:
                out[i] = status, message + self.lanes[i].doubt
        return out

    def _end_values(self, which: list[int], state: Any) -> list[dict[str, Any]]:
        x, y = self.algorithm.point(state)
        unseen = [i for i in which if self.lanes[i].seen_step != self.step]
        if unseen:
            self._note(unseen, x, y, state)
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

    def _answer(self, state: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.algorithm.reports == "random":
            return self.kept or (x, y)
        if self.algorithm.reports == "last":
            return x, y
        own_x, own_y = self.algorithm.answer(state)
        there = torch.isfinite(own_x).all(-1, keepdim=True) & torch.isfinite(own_y).all(-1, keepdim=True)
        return keep(there, own_x, x), keep(there, own_y, y)

    def _leave(self, gone: Sequence[int], state: Any) -> None:
        """The others go on in a narrower pack."""
        stay = [i for i in range(len(self.lanes)) if i not in set(gone)]
        self.lanes = [self.lanes[i] for i in stay]
        self._next = _Next.of(self.lanes)
        if not stay:
            return
        order = padded(stay, PAD if self.wide else 1)
        self.real = [place < len(stay) for place in range(len(order))]
        index = torch.tensor(order)
        self.state = take(state, index)
        self.algorithm = take(self.algorithm, index)
        self.instance = self.oracle.take(order, self.real)
        self.evaluator = self._evaluator(self.instance)
        self.grad_sum = take(self.grad_sum, index)
        self.kept = take(self.kept, index)
        self._reservoir = None
        self._remember_loops()

    def _remember_loops(self) -> None:
        for name in type(self.algorithm).per_lane():
            value = getattr(self.algorithm, name)
            if isinstance(value, Tensor) and value.dtype == torch.int64:
                self.oracle.remember(value)


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


def _file(cls: type) -> str | None:
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None)
