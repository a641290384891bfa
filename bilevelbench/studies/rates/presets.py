"""The parameters of a method at one place of a row's grid."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from bilevelbench.discovery.entry import Entry, make
from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import BilevelbenchError, InvalidInput, MissingConstant, suggestion
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.constants import Constants
from bilevelbench.model.instance import Instance
from bilevelbench.model.problem import Problem
from bilevelbench.model.rounding import one_thread
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.studies.rates.suite import Preset, RateRow, RateSuite, Weakened

_MADE_BY = {"rate": "from_rate", "theory": "from_theory", "horizon": "from_horizon"}


def problem_at(row: RateRow, suite: RateSuite, registry: Registry, value: float) -> tuple[str, dict[str, Any]]:
    """The row's problem, by name and parameters, at this value of what is swept."""
    name, params = suite.problem_of(row)
    over = "eps" if row.made_for_eps else row.sweep
    if over is not None:
        made: Problem = make(registry.problem(name), params)
        params = {**params, **made.sweep(over, value)}
    return name, params


def constants_of(registry: Registry, problem: str, params: dict[str, Any]) -> Constants:
    return _constants(registry.problem(problem), json.dumps(params, sort_keys=True))


@functools.lru_cache(maxsize=64)  # a search tries many x-steps on one problem
def _constants(entry: Entry[type[Problem]], params: str) -> Constants:
    made: Problem = make(entry, json.loads(params))
    constants = built(made).constants
    constants.problem = made.name
    return constants


def built(problem: Problem) -> Instance:
    """As a trial in float64 has it."""
    with default_dtype(torch.float64), one_thread():
        return problem.build()


def preset_of(row: RateRow, asked: Preset) -> Preset:
    """A row's own preset wins over the one that was asked for; horizons have theirs."""
    return "horizon" if row.rule == "horizon" else row.preset or asked


def chosen_at(
    row: RateRow, suite: RateSuite, registry: Registry, value: float, preset: Preset, factor: float = 1.0
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Name and parameters of the problem at this value of the grid, and the method's parameters there."""
    name, params = problem_at(row, suite, registry, value)
    cls, eps = registry.algorithm(row.method).value, value if row.sweep is None else row.at_eps
    return name, params, chosen(cls, constants_of(registry, name, params), eps, row, preset, factor)


def chosen(
    cls: type[Algorithm],
    constants: Constants,
    value: float,
    row: RateRow,
    preset: Preset,
    factor: float = 1.0,
) -> dict[str, Any]:
    """The parameters; `value` is the accuracy or the horizon, `factor` multiplies the x-steps."""
    try:
        made = _made(cls, constants, value, row, preset)
    except MissingConstant as missing:
        raise MissingConstant(missing.constant, constants.problem, f"the {preset} preset of {cls.name}") from None
    own = {name: v for name, v in row.params.items() if name in cls.model_fields or not _taken(cls, preset, name)}
    params = {name: v for name, v in made.given().items() if v is not None} | own
    if preset == "tuned":
        params |= {name: factor * params[name] for name in upper_steps(cls)}
    return params | _multiplied(params, row.times)


def weaker(params: Mapping[str, Any], weakened: Weakened, first: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters without a part of the preset; `first` are those at the start of the grid."""
    growth = {name: _growth(params, first, name, power) for name, power in weakened.powers.items()}
    return {**params, **_multiplied(params, weakened.times | growth), **weakened.params}


def _growth(params: Mapping[str, Any], first: Mapping[str, Any], name: str, power: float) -> float:
    """What is left of a parameter's growth since the start of the grid if that is raised to a power."""
    if name not in params or name not in first:
        return 1.0
    try:
        return float((params[name] / first[name]) ** (power - 1))
    except (ArithmeticError, TypeError) as error:
        raise InvalidInput(f"powers: {name} = {first[name]!r} to {params[name]!r} has no growth: {error}") from None


def upper_steps(cls: type[Algorithm]) -> list[str]:
    """The parameters that preset `tuned` searches."""
    names = [name for name, role in cls.tuned.items() if role == "upper_step"]
    if not names:
        raise InvalidInput(
            f"{cls.name} declares no step of x to tune; say which of its parameters it is, as in "
            'tuned = {"eta_x": "upper_step"}, or take another --preset'
        )
    return names


def _made(cls: type[Algorithm], constants: Constants, value: float, row: RateRow, preset: Preset) -> Algorithm:
    there = [name for name, by in _MADE_BY.items() if getattr(cls, by).__func__ is not getattr(Algorithm, by).__func__]
    if preset == "tuned":
        if row.tuned_base not in there:
            return cls.model_validate(row.params).resolve(constants)
        return _called(cls, row.tuned_base, constants, value, row).resolve(constants)
    if preset not in there:
        has = f"it has {' and '.join(there)}" if there else "it has none"
        raise InvalidInput(
            f"{cls.name} has no {preset} preset ({has}); write its classmethod `{_MADE_BY[preset]}`, or take another "
            "--preset: tuned searches the x-step and needs none"
        )
    return _called(cls, preset, constants, round(value) if preset == "horizon" else value, row)


def _called(cls: type[Algorithm], preset: str, constants: Constants, value: float, row: RateRow) -> Algorithm:
    """What the row sets goes into the preset as far as it takes it: other choices may follow from that."""
    function = getattr(cls, _MADE_BY[preset])
    takes = inspect.signature(function).parameters
    given = {name: v for name, v in row.params.items() if name in takes}
    if "scale" in takes:
        given["scale"] = row.scale
    try:
        made: Algorithm = function(constants, value, **given)
    except BilevelbenchError:
        raise
    except (ArithmeticError, TypeError, ValueError) as error:
        told = ", ".join(f"{name} = {v!r}" for name, v in given.items())
        raise InvalidInput(f"the {preset} preset of {cls.name} cannot do with {told or value}: {error}") from None
    return made


def _taken(cls: type[Algorithm], preset: Preset, name: str) -> bool:
    """Whether the preset takes this as an argument."""
    return preset in _MADE_BY and name in inspect.signature(getattr(cls, _MADE_BY[preset])).parameters


def _multiplied(params: Mapping[str, Any], times: Mapping[str, float]) -> dict[str, Any]:
    """What takes the place of a whole number is rounded up."""
    return {name: _product(params, name, by) for name, by in times.items()}


def _product(params: Mapping[str, Any], name: str, by: float) -> float:
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        numbers = [key for key, given in params.items() if isinstance(given, int | float)]
        raise InvalidInput(f"times, powers: the preset sets no number {name!r}{suggestion(name, numbers)}")
    try:
        return math.ceil(by * value) if isinstance(value, int) else float(by * value)
    except ArithmeticError as error:
        raise InvalidInput(f"times, powers: {by:g} times {name} = {value!r} is no number: {error}") from None
