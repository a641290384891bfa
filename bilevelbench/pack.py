"""Packs: trials that run in lockstep, one lane each, because they differ only in what may differ between lanes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from bilevelbench.algorithm import Algorithm
from bilevelbench.errors import InvalidInput
from bilevelbench.registry import Registry, make
from bilevelbench.trial import Trial

A = TypeVar("A", bound=Algorithm)


def plan(trials: Sequence[Trial], registry: Registry) -> list[tuple[Trial, ...]]:
    """Trials grouped into packs, each no wider than its problem and method allow; the order of first appearance is kept."""
    groups: dict[str, list[Trial]] = {}
    widths: dict[str, int] = {}
    keys: dict[Any, str] = {}  # of trials that differ in what no key looks at, such as the seeds of a long sweep
    for trial in trials:
        algorithm = registry.algorithm(trial.algorithm.key).value
        problem = registry.problem(trial.problem.key).value
        alike = (
            trial.algorithm.key, repr(trial.algorithm.params), trial.plugin_version, trial.problem.key,
            repr(trial.problem.params), trial.problem_plugin_version, trial.dtype, trial.schedule,
        )  # fmt: skip
        key = keys[alike] if alike in keys else keys.setdefault(alike, pack_key(trial, registry))
        groups.setdefault(key, []).append(trial)
        widths[key] = problem.max_lanes if algorithm.lanes else 1
    return [
        tuple(group[start : start + widths[key]])
        for key, group in groups.items()
        for start in range(0, len(group), widths[key])
    ]


def pack_key(trial: Trial, registry: Registry) -> str:
    """Equal for trials that can share a pack: same classes, structural fields, problem, dtype and schedule."""
    algorithm = registry.algorithm(trial.algorithm.key)
    problem = registry.problem(trial.problem.key)
    lane_fields = algorithm.value.per_lane()
    fields = make(algorithm, trial.algorithm.params).given()
    structural = {k: v for k, v in fields.items() if k not in lane_fields or v is None}
    data = dict(trial.problem.params)
    if problem.value.stackable():
        data.pop("data_seed", None)
    parts = [
        trial.algorithm.name, trial.plugin_version, structural, trial.problem.name, trial.problem_plugin_version, data,
        trial.dtype, trial.schedule.model_dump(),
    ]  # fmt: skip
    return json.dumps(parts, sort_keys=True, default=repr)


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
