"""What a method can be set to: its own parameters by their roles, or the lists that were written for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.model.algorithm import Algorithm
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

    @property
    def spans(self) -> bool:
        """Whether there is something between its values."""
        numbers = [v for v in self.values if isinstance(v, int | float) and not isinstance(v, bool)]
        return len(numbers) == len(self.values) and 0 < min(numbers) < max(numbers)

    def draw(self, rng: np.random.Generator) -> Any:
        """Evenly on a log scale between its smallest and its largest value; words are chosen among."""
        if not self.spans:
            return self.values[int(rng.integers(len(self.values)))]
        drawn = math.exp(rng.uniform(math.log(min(self.values)), math.log(max(self.values))))
        return round(drawn) if self.whole else float(f"{drawn:.4g}")


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
        """With nothing chosen the method's own."""
        chosen = {field: choice[d.name] for d in self.dimensions if d.name in choice for field in d.fields}
        return {**self.fixed, **chosen}

    def settings(self, trials: int, seed: int) -> list[Choice]:
        """The whole grid in its order, or as many as `trials` of it, drawn without replacement."""
        grid = self._grid()
        if len(grid) <= trials:
            return grid
        drawn = np.random.default_rng(seed).choice(len(grid), trials, replace=False)
        return [grid[i] for i in sorted(drawn)]

    def further(self, tried: list[Choice], seed: int) -> Iterator[Choice]:
        """What is left of the grid, in a drawn order, and then draws between its values, for ever if there are any."""
        rng = np.random.default_rng(seed)
        rest = [choice for choice in self._grid() if choice not in tried]
        yield from (rest[i] for i in rng.permutation(len(rest)))
        while any(dimension.spans for dimension in self.dimensions):
            yield {dimension.name: dimension.draw(rng) for dimension in self.dimensions}

    def _grid(self) -> list[Choice]:
        rows = itertools.product(*(dimension.values for dimension in self.dimensions))
        return [dict(zip((d.name for d in self.dimensions), row, strict=True)) for row in rows]


def method_of(entry: AlgorithmEntry, registry: Registry, grid: Grid) -> Method:
    """Lists of several values are the whole search space; without any, the roles that the class gives its parameters.

    A parameter with one value keeps it, unless its role is one that the suite's grid names. A method whose parameters have no
    roles has no dimensions: it is run as it is.
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
    dimensions = written or _by_role(cls, fixed, grid)
    if not dimensions and cls.tuned:
        raise InvalidInput(
            f"{entry.name} has no tunable parameters here: write lists, {cls.name}[parameter=0.1,1,10], or name the roles "
            'of its parameters in its class, tuned = {"parameter": "upper_step"}'
        )
    return Method(entry.label or str(Spec(name=cls.name, params=fixed)), entry.name, cls.family, fixed, dimensions)


def _by_role(cls: type[Algorithm], fixed: Mapping[str, Any], grid: Grid) -> tuple[Dimension, ...]:
    roles: dict[str, list[str]] = {}
    for field, role in cls.tuned.items():
        if field not in fixed and getattr(grid, role) is not None:
            roles.setdefault(role, []).append(field)
    return tuple(
        Dimension(role, tuple(fields), getattr(grid, role), whole=role == "batch") for role, fields in roles.items()
    )
