"""The set-up of a pack: its instance, its methods, and one method for all of its lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from bilevelbench.discovery.entry import Entry, make
from bilevelbench.errors import InvalidInput
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.constants import Constants
from bilevelbench.model.instance import Instance
from bilevelbench.model.problem import Problem
from bilevelbench.plan.trial import Trial

A = TypeVar("A", bound=Algorithm)


def pack_algorithm(methods: Sequence[A], dtype: torch.dtype) -> A:
    """One object for all lanes: swept fields become (L, 1) tensors. Made without validation, from validated methods."""
    first, cls = methods[0], type(methods[0])
    values: dict[str, Any] = {}
    for name in cls.model_fields:
        column = [getattr(method, name) for method in methods]
        if name in cls.per_lane() and None not in column:
            whole = all(isinstance(value, int) for value in column) and not _is_float(cls, name)
            values[name] = torch.tensor(column, dtype=torch.int64 if whole else dtype).reshape(-1, 1)
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
