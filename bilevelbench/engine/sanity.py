"""Mistakes that would otherwise go unnoticed or cause an obscure error: wrong shapes, and what newcomers run into."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from bilevelbench.engine.lane import SEEN
from bilevelbench.errors import BilevelbenchError, InvalidInput, MethodError, MissingConstant, faults
from bilevelbench.model.constants import Constants
from bilevelbench.model.constraints import check_projection
from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import take
from bilevelbench.model.noise import FiniteSum, Rows
from bilevelbench.model.queries import QUERIES, Query
from bilevelbench.oracle.oracle import Oracle
from bilevelbench.plan.trial import Trial

#: What torch says when a per-lane parameter is used like a number.
_PER_LANE_ERRORS = (
    "only integer tensors of a single element",
    "Boolean value of Tensor with more than one value",
    "a Tensor with",
    "only one element tensors can be converted",
    "object cannot be interpreted as an integer",
)

_MOST_COLUMNS, _MOST_LETTERS = 100, 60  # that a plugin adds to the curve, and of the name of each


@torch.no_grad()
def check_instance(instance: Instance) -> None:
    """The start and one pass of each function that the problem brings, over lanes: shapes and dtypes.

    Of a finite sum one row is asked for: a pass over all of them may take longer than a trial of mini-batches.
    """
    if not isinstance(instance, Instance):
        raise InvalidInput(f"`build` returned {type(instance).__name__}, not an Instance")
    for name, start in (("x0", instance.x0), ("y0", instance.y0)):
        if not isinstance(start, Tensor) or start.dim() not in (1, 2):
            raise InvalidInput(f"{name} has to be a tensor of shape (d,), or (L, d) for stacked data")
        if start.dtype != instance.x0.dtype:
            raise InvalidInput(f"{name} is {start.dtype} and x0 {instance.x0.dtype}; make both in the default dtype")
    if fault := _names_fault(instance.metrics):
        raise InvalidInput(f"`metrics` of the problem {fault}")
    if instance.project is not None:
        check_projection(instance.project, instance.x0)
    stacked = max(instance.x0.reshape(-1, instance.dx).shape[0], instance.y0.reshape(-1, instance.dy).shape[0])
    lanes = stacked if stacked > 1 else 3
    x, y = instance.x0.expand(lanes, instance.dx), instance.y0.expand(lanes, instance.dy)
    rows = (Rows(torch.zeros(lanes, 1, dtype=torch.long, device=x.device), torch.ones_like(x[:, :1])),)
    which = rows if isinstance(instance.noise, FiniteSum) else ()
    with instance.uncounted():
        for query in sorted(QUERIES.values(), key=lambda query: query.order):  # a wrong value spoils its derivatives
            if query.order > 0 and query.name not in instance.analytic:
                continue
            arguments = (x, y, torch.ones_like(y)) if query.takes_vector else (x, y)
            answer = instance.functions[query.name](*arguments, *which)
            _check_answer(query, answer, lanes, query.widths(instance.dx, instance.dy), x.dtype)


def check_targets(trial: Trial, constants: Constants) -> None:
    """A second-order target is held against rho_phi, so the problem has to know it."""
    if trial.targets and trial.schedule.target_column == "second_order_eps":
        try:
            _ = constants.rho_phi
        except MissingConstant as missing:
            raise MissingConstant(missing.constant, constants.problem, "rho_phi of a second-order target") from None


def _check_answer(query: Query, answer: Any, lanes: int, widths: tuple[int, ...], dtype: torch.dtype) -> None:
    name = query.level if query.order == 0 else query.name
    blocks = answer if len(widths) > 1 else (answer,)
    if not isinstance(blocks, tuple) or len(blocks) != len(widths):
        raise InvalidInput(
            f"{name} returned {type(answer).__name__}; a joint gradient is a tuple of {len(widths)} tensors"
        )
    for block, width in zip(blocks, widths, strict=True):
        if not isinstance(block, Tensor):
            raise InvalidInput(f"{name} returned {type(block).__name__}, not a tensor")
        if tuple(block.shape) != (lanes, width):
            raise InvalidInput(
                f"{name} returned shape {tuple(block.shape)} for {lanes} lanes; {(lanes, width)} is wanted (reduce the last "
                "axis only, and keep it: `dot(a, b)`)"
            )
        if block.dtype != dtype:
            raise InvalidInput(
                f"{name} returned {block.dtype} for inputs of {dtype}; make the data in torch's default dtype"
            )


def check_state(algorithm: Any, state: Any, oracle: Oracle, where: str) -> None:
    """After `init` and after the first step: a state that can lose lanes, and a point of the right shape."""
    if state is None:
        raise MethodError(f"`{where}` returned None; return the state")
    try:
        take(state, torch.arange(oracle.L))
    except TypeError as error:
        raise MethodError(f"the state of `{where}` cannot be split into lanes: {error}") from None
    try:
        x, y = algorithm.point(state)
    except (AttributeError, TypeError, ValueError) as error:
        raise MethodError(
            f"`{where}` returned {type(state).__name__}, in which `point` finds no x and y ({error}); a state is a frozen "
            "dataclass with x and y, or the method defines `point`"
        ) from None
    for name, value, width in (("x", x, oracle.dx), ("y", y, oracle.dy)):
        if not isinstance(value, Tensor) or tuple(value.shape) != (oracle.L, width):
            seen = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise MethodError(f"after `{where}` {name} is {seen}; ({oracle.L}, {width}) is wanted, one row per lane")
    check_extras(algorithm.extras(state), oracle.L)
    if (stopped := algorithm.stopped(state)) is not None:
        _check_column("stopped", stopped, oracle.L)


def check_extras(extras: Mapping[str, Tensor], lanes: int) -> None:
    """At every evaluation, since a method may answer differently each time: columns of its own, a number for each lane."""
    if fault := _names_fault(extras):
        raise MethodError(f"`extras` of the method {fault}")
    for name, column in extras.items():
        _check_column(name, column, lanes)


def _check_column(name: str, column: Any, lanes: int) -> None:
    if not isinstance(column, Tensor) or tuple(column.shape) != (lanes, 1):
        raise MethodError(f"`{name}` of the method has to be a tensor of shape ({lanes}, 1), one number per lane")


def _names_fault(columns: Mapping[Any, Any]) -> str | None:
    """Why these cannot be further columns of the curve, as the end of a sentence: a table has to be able to hold them."""
    if len(columns) > _MOST_COLUMNS:
        return f"has {len(columns)} columns; at most {_MOST_COLUMNS} are kept"
    for name in columns:
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or len(name) > _MOST_LETTERS:
            return f"has the column {str(name)[:_MOST_LETTERS]!r}; name it with at most {_MOST_LETTERS} letters, digits and _"
        if name in SEEN:
            return f"has the column {name!r}, which is measured and not told; choose another name"
    return None


def explain(error: BaseException, plugin: type | None) -> str:
    """An exception as a sentence: what, where in the plugin's own file, and the way out where we know it."""
    source = getattr(sys.modules.get(plugin.__module__), "__file__", None) if plugin is not None else None
    text = (faults(error) if isinstance(error, ValidationError) else str(error)).strip().replace("\n", " ")
    if not isinstance(error, (MethodError, BilevelbenchError, ValidationError)):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    place = next(
        (f for f in reversed(traceback.extract_tb(error.__traceback__)) if source is not None and f.filename == source),
        None,
    )
    if place is not None:
        text += f" ({Path(place.filename).name}:{place.lineno})"
    if any(sign in text for sign in _PER_LANE_ERRORS):
        text += (
            "; a float or PerLane parameter is an (L, 1) tensor inside `step`: write `for on in oracle.repeat(self.K)`, "
            "`torch.where`, `torch.sqrt` instead of range, if and math"
        )
    return text
