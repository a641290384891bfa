"""What a method can be set to: its own parameters by their roles, or the lists that were written for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.plan.suite import AlgorithmEntry
from bilevelbench.plan.trial import Spec
from bilevelbench.plan.tuning import Grid

#: A value for each dimension, by its name.
Choice = dict[str, Any]


@dataclass(frozen=True)
class Dimension:
    """One value to choose, which all `fields` of the method take; named for their role, or for the field itself."""

    name: str
    fields: tuple[str, ...]
    values: tuple[Any, ...]
    whole: bool = False  # nothing lies between 1 and 2


@dataclass(frozen=True)
class Method:
    """A method to tune: what stays as it is, and what is searched."""

    label: str
    name: str  # as the registry is asked for it
    family: str
    fixed: Mapping[str, Any]
    dimensions: tuple[Dimension, ...]

    @property
    def size(self) -> int:
        return math.prod(len(dimension.values) for dimension in self.dimensions)

    def params(self, choice: Choice) -> dict[str, Any]:
        chosen = {field: choice[d.name] for d in self.dimensions for field in d.fields}
        return {**self.fixed, **chosen}

    def settings(self, trials: int, seed: int) -> list[Choice]:
        """The whole grid in its order, or as many as `trials` of it, drawn without replacement."""
        rows = itertools.product(*(dimension.values for dimension in self.dimensions))
        grid = [dict(zip((d.name for d in self.dimensions), row, strict=True)) for row in rows]
        if len(grid) <= trials:
            return grid
        drawn = np.random.default_rng(seed).choice(len(grid), trials, replace=False)
        return [grid[i] for i in sorted(drawn)]


def method_of(entry: AlgorithmEntry, registry: Registry, grid: Grid) -> Method:
    """Lists of several values are the whole search space; without any, the roles that the class gives its parameters.

    A parameter with one value keeps it, unless its role is one that the suite's grid names.
    """
    cls = registry.algorithm(entry.name).value
    lists = {name: tuple(given) if isinstance(given, list) else (given,) for name, given in entry.params.items()}
    for name in (*lists, *cls.tuned):
        if name not in cls.model_fields:
            raise InvalidInput(f"{cls.name} has no parameter {name!r}{suggestion(name, cls.model_fields)}")
    fixed = {name: values[0] for name, values in lists.items() if len(values) == 1}
    written = tuple(
        Dimension(name, (name,), values, whole="int" in str(cls.model_fields[name].annotation))
        for name, values in lists.items()
        if len(values) > 1
    )
    if not written:
        fixed = {name: value for name, value in fixed.items() if cls.tuned.get(name) not in grid.model_fields_set}
    dimensions = written or _by_role(cls.tuned, fixed, grid)
    if not dimensions:
        raise InvalidInput(
            f"{entry.name} has no tunable parameters here: write lists, {cls.name}[parameter=0.1,1,10], or name the roles "
            'of its parameters in its class, tuned = {"parameter": "upper_step"}'
        )
    return Method(entry.label or str(Spec(name=cls.name, params=fixed)), entry.name, cls.family, fixed, dimensions)


def _by_role(tuned: Mapping[str, str], fixed: Mapping[str, Any], grid: Grid) -> tuple[Dimension, ...]:
    roles: dict[str, list[str]] = {}
    for field, role in tuned.items():
        if field not in fixed:
            roles.setdefault(role, []).append(field)
    return tuple(Dimension(role, tuple(fields), getattr(grid, role)) for role, fields in roles.items())
