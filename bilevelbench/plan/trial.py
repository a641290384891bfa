"""What is to be run, as data: a trial, its budget and its schedule. Frozen; unknown fields are errors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from bilevelbench.errors import InvalidInput, faults, suggestion
from bilevelbench.model.trial_id import trial_id

#: The distribution whose plugins come with the core.
BUILT_IN = "bilevelbench"

#: The plugin of classes that were made in this session and handed over as objects.
SESSION = "this session"


#: What takes fewer calls than this is over before another process has begun with it.
SHORT = 5_000

#: A limit in steps says nothing about calls: a step is taken for ten lower steps of a few gradients each.
CALLS_OF_A_STEP = 50

#: Whether steps are compiled: where that pays, not at all, or wherever it can be done.
Compile = Literal["auto", "never", "always"]


class Frozen(BaseModel):
    """Settings as data; a field that is not known is an error with a suggestion."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        fields = cls.__pydantic_fields__  # `model_fields` is the same, but slower than the rest of this check
        for name in given if isinstance(given, dict) else ():
            if name not in fields:
                near = suggestion(str(name), fields)
                raise ValueError(f"there is no field {name!r} ({name} = {given[name]!r}){near}")
        return given


def beside_the_data(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that make another problem, by name: trials on several data sets are repetitions of one."""
    return {name: value for name, value in sorted(params.items()) if name != "data_seed"}


def bracketed(params: Mapping[str, Any]) -> str:
    """`[K=3,fast=true]`, as `parse_spec` reads it; nothing without parameters."""
    inside = ",".join(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in params.items())
    return f"[{inside}]" if inside else ""


class Spec(Frozen):
    """A plugin's class by name, and its parameters as written; `file` is where a loose one is loaded from."""

    name: str
    params: dict[str, Any] = {}
    file: str = ""

    @property
    def key(self) -> str:
        """What the registry is asked for."""
        return self.file or self.name

    @property
    def variant(self) -> Spec:
        """Without its data seed, in the order of names; as text, the title of a problem in every table."""
        return self.model_copy(update={"params": beside_the_data(self.params)})

    def __str__(self) -> str:
        return self.name + bracketed(self.params)


class Budget(Frozen):
    """Where a trial ends at the latest; `cost` is in samples, which on an exact problem are calls."""

    cost: PositiveFloat | None = None
    steps: PositiveInt | None = None
    seconds: PositiveFloat | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.cost is None and self.steps is None and self.seconds is None:
            raise ValueError("a budget needs one of cost, steps and seconds")
        return self

    @property
    def most(self) -> float:
        """The cost that a trial does not exceed."""
        return math.inf if self.cost is None else self.cost

    @property
    def calls(self) -> float:
        """About how many calls a trial makes at most, to tell short ones from long ones."""
        return min(self.most, math.inf if self.steps is None else CALLS_OF_A_STEP * self.steps)


def checked_budget(budget: float | None = None, steps: int | None = None, seconds: float | None = None) -> Budget:
    """The limits of a trial by the names that a caller gives them: `budget` is the cost."""
    if budget is steps is seconds is None:
        raise InvalidInput("a trial needs a limit; set one of budget, steps and seconds")
    try:
        return Budget(cost=budget, steps=steps, seconds=seconds)
    except ValidationError as error:
        raise InvalidInput(re.sub(r"^cost = ", "budget = ", faults(error))) from None


class Schedule(Frozen):
    """When a trial is looked at: where its cost passes `ratio ** j`, and at its end.

    `mean`: also keep the mean of |grad phi| over all points before the present one; targets are then held against that
    mean, which is the theorem's random iterate. `second_order`: also find the smallest eigenvalue of the Hessian of phi;
    targets are then held against the smallest eps with |grad phi| <= eps and eigenvalue >= -sqrt(rho_phi eps). `on`: hold
    them against another column of the curve. `phi = false`: do not solve the lower level, where that takes longer than the
    method itself; phi and grad_phi are then NaN, as is g_y of a finite sum, and the problem's own metrics are what is seen.
    """

    ratio: float = Field(default=1.1, gt=1)
    mean: bool = False
    second_order: bool = False
    on: str | None = None
    phi: bool = True

    @model_validator(mode="after")
    def _solved(self) -> Self:
        if not self.phi and (self.mean or self.second_order):
            raise ValueError("schedule.mean and schedule.second_order need the hypergradient; leave schedule.phi true")
        return self

    def without_phi(self) -> Schedule:
        return Schedule(**{**self.model_dump(), "phi": False})

    @property
    def target_column(self) -> str:
        if self.on is not None:
            return self.on
        return "second_order_eps" if self.second_order else "mean_grad_phi" if self.mean else "grad_phi"


class Trial(Frozen):
    """One method with one set of parameters on one problem with one seed.

    `seed` drives noise, samples and the method's own draws; the data come from the problem's `data_seed`. The id hashes
    the trial as written together with the plugins' names and versions; nothing else decides whether a result is reused.
    `tuned`: the metric by which `bilevelbench tune` chose its parameters, if it did: tables and boards rank by it.
    `compile`: whether its steps are compiled, which rounds otherwise and is therefore another trial.
    """

    algorithm: Spec
    problem: Spec
    seed: NonNegativeInt = 0
    budget: Budget
    targets: tuple[PositiveFloat, ...] = ()
    schedule: Schedule = Schedule()
    dtype: Literal["float64", "float32"] = "float64"
    plugin: str = ""
    plugin_version: str = ""
    problem_plugin: str = ""
    problem_plugin_version: str = ""
    label: str = ""
    tuned: str = ""
    compile: Compile = "never"

    @model_validator(mode="after")
    def _targets_are_seen(self) -> Self:
        if self.targets and not self.schedule.phi and self.schedule.on is None:
            raise ValueError(
                "targets are held against |grad phi|, which schedule.phi = false leaves out; name a metric of the problem "
                "in schedule.on, or leave out the targets"
            )
        return self

    @property
    def strangers(self) -> frozenset[str]:
        """The plugins that it needs and that did not come with the core: their code is kept apart from everyone else's."""
        return frozenset({self.plugin, self.problem_plugin}) - {BUILT_IN, SESSION}

    @cached_property
    def id(self) -> str:
        return trial_id(self.model_dump(mode="json"))
