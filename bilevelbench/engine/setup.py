"""The set-up of a pack: its instance, its methods, and one method for all of its lanes, ready to be stepped."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from bilevelbench.discovery.entry import Entry, make
from bilevelbench.discovery.registry import Registry
from bilevelbench.engine.agents.leader import join
from bilevelbench.engine.outer import OuterOptimizer
from bilevelbench.engine.sanity import check_instance, check_targets, explain
from bilevelbench.errors import CountsDisagree, InvalidInput
from bilevelbench.model.agents import Part
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.constants import Constants
from bilevelbench.model.instance import Instance, closed_forms_hidden
from bilevelbench.model.lanes import PAD, padded, take
from bilevelbench.model.problem import Problem
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.oracle.oracle import Oracle
from bilevelbench.plan.trial import Trial

A = TypeVar("A", bound=Algorithm)


class SetupFailure(Exception):
    """Trials without an instance or without parameters; the text says why."""


class PreparedPack:
    """Methods on an instance, one lane each: every step is made here.

    Build the problem and make the steps inside `one_thread`, which is entered once and not at every step.
    """

    def __init__(
        self,
        instance: Instance,
        methods: Sequence[Algorithm],
        seeds: Sequence[int],
        budgets: Sequence[float] | None = None,
        *,
        wide: bool = False,
        part: Part | None = None,
        outer: OuterOptimizer | None = None,
    ) -> None:
        """`methods` are resolved; a `wide` pack is padded, so that a lane has the bits that it has in every other one."""
        self.instance, self.methods, self.wide, self.outer = instance, list(methods), wide, outer
        order = self._widen(range(len(methods)))
        budgets = budgets or [math.inf] * len(methods)
        self.algorithm = pack_algorithm([methods[i] for i in order], instance.x0.dtype, instance.x0.device)
        self.oracle = Oracle(
            instance,
            self.algorithm.uses,
            [seeds[i] for i in order],
            [budgets[i] for i in order],
            self._real(len(methods), order),
            part,
        )
        self._remember_loops()

    def start(self) -> tuple[Tensor, Tensor]:
        """x0 and y0 in every lane, for the method to change."""
        instance, lanes = self.instance, self.oracle.L
        x0 = instance.x0 if instance.project is None else instance.project(instance.x0.reshape(-1, instance.dx))
        return x0.expand(lanes, instance.dx).clone(), instance.y0.expand(lanes, instance.dy).clone()

    @torch.no_grad()
    def init(self, x0: Tensor | None = None, y0: Tensor | None = None) -> Any:
        """The state before the first step, from the start or from another point."""
        if x0 is None or y0 is None:
            x0, y0 = self.start()
        self.oracle.begin_step(0)
        with closed_forms_hidden:
            return self.algorithm.init(x0, y0, self.oracle)

    @torch.no_grad()
    def step(self, number: int, state: Any) -> Any:
        """Step `number`, counted from one."""
        self.oracle.begin_step(number)
        with closed_forms_hidden:
            new = self.algorithm.step(state, self.oracle)
        if self.outer is not None:
            new = self.algorithm.moved(new, functools.partial(self.outer, state.x))
        project = self.instance.project
        return new if project is None else self.algorithm.moved(new, project)

    def check_counts(self) -> None:
        """What the oracle has charged is what the instance was asked."""
        if not self.oracle.counts_agree:
            raise CountsDisagree(
                f"the meter and the instance's own count differ ({self.oracle.count_differences()}): the method or the "
                "problem calls f or g past the oracle"
            )

    def narrow(self, stay: Sequence[int]) -> Tensor:
        """Only these lanes go on; anything else with lanes has to be taken at the returned index."""
        order = self._widen(stay)
        index = torch.tensor(order)
        self.algorithm = take(self.algorithm, index)
        self.instance = self.oracle.take(order, self._real(len(stay), order))
        self._remember_loops()
        return index

    def some(self, which: Sequence[int]) -> tuple[Instance, Tensor]:
        """The instance of some lanes, padded like a pack, so that no number depends on which other lanes are looked at."""
        index = torch.tensor(self._widen(which))
        return self.instance.take(index), index

    def padding(self, lanes: int) -> Tensor:
        """Where the lanes of this pack are among so many that are not padded."""
        return torch.tensor(self._widen(range(lanes)))

    def apart(self, lanes: Sequence[int]) -> PreparedPack:
        """These lanes without padding, on a meter of their own: nothing that is asked there is charged here."""
        other, index = copy.copy(self), torch.tensor(lanes)
        other.wide, other.algorithm = False, take(self.algorithm, index)
        other.instance = self.instance.take(index).apart()
        other.oracle = Oracle(other.instance, self.algorithm.uses, [self.oracle.seeds[i] for i in lanes])
        other._remember_loops()
        return other

    def _widen(self, lanes: Sequence[int]) -> list[int]:
        return padded(lanes, _pad(self.wide))

    @staticmethod
    def _real(count: int, order: Sequence[int]) -> list[bool]:
        return [place < count for place in range(len(order))]

    def _remember_loops(self) -> None:
        for name in type(self.algorithm).per_lane():
            value = getattr(self.algorithm, name)
            if isinstance(value, Tensor) and value.dtype == torch.int64:
                self.oracle.remember(value)


def prepare(trials: Sequence[Trial], registry: Registry) -> PreparedPack:
    """These trials, which can share a pack, before their first step; with their agents, if they have any."""
    first = trials[0]
    entry = registry.algorithm(first.algorithm.key)
    problem = make(registry.problem(first.problem.key), first.problem.params)
    wide = entry.value.lanes and problem.max_lanes > 1
    try:
        with default_dtype(getattr(torch, first.dtype)):
            instance = build_instance(problem, [trials[i] for i in padded(range(len(trials)), _pad(wide))])
        check_instance(instance)
        instance.constants.problem = problem.name
        methods = make_methods(trials, entry, instance.constants)
        check_targets(first, instance.constants)
        with default_dtype(getattr(torch, first.dtype)):
            part = join(methods[0], instance, first)
    except Exception as error:
        raise SetupFailure(f"could not be set up: {explain(error, type(problem))}") from error
    seeds, budgets = [trial.seed for trial in trials], [trial.budget.most for trial in trials]
    return PreparedPack(instance, methods, seeds, budgets, wide=wide, part=part)


def _pad(wide: bool) -> int:
    return PAD if wide else 1


def pack_algorithm(methods: Sequence[A], dtype: torch.dtype, device: torch.device | None = None) -> A:
    """One object for all lanes: swept fields become (L, 1) tensors. Made without validation, from validated methods."""
    first, cls = methods[0], type(methods[0])
    values: dict[str, Any] = {}
    for name in cls.model_fields:
        column = [getattr(method, name) for method in methods]
        if name in cls.per_lane() and None not in column:
            whole = all(isinstance(value, int) for value in column) and not _is_float(cls, name)
            kind = torch.int64 if whole else dtype
            values[name] = torch.tensor(column, dtype=kind, device=device).reshape(-1, 1)
        elif any(value != column[0] for value in column):
            raise InvalidInput(f"{cls.name}: {name} differs between the lanes of a pack: {column}")
        else:
            values[name] = getattr(first, name)
    return cls.model_construct(**values)  # type: ignore[return-value]  # it is of the class of the first method


def _is_float(cls: type[Algorithm], name: str) -> bool:
    return "float" in str(cls.model_fields[name].annotation)


def make_methods(trials: Sequence[Trial], entry: Entry[type[Algorithm]], constants: Constants) -> list[Algorithm]:
    """A method for each trial; those with the same parameters on the same data share it."""
    made: dict[tuple[str, int], Algorithm] = {}
    apart = constants.per_lane
    keys = [(repr(trial.algorithm.params), i if apart else 0) for i, trial in enumerate(trials)]
    for i, (trial, key) in enumerate(zip(trials, keys, strict=True)):
        if key not in made:
            made[key] = make(entry, trial.algorithm.params).resolve(constants.at(i))
    return [made[key] for key in keys]


def build_instance(problem: Problem, trials: Sequence[Trial]) -> Instance:
    """Data with a lane axis where the problem can stack them, also for a single trial: its bits are then the same."""
    if not problem.stackable():
        return problem.build()
    return problem.build_lanes([type(problem)(**t.problem.params).data_seed for t in trials])
