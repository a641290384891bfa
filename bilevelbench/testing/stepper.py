"""Ways to run a method for a check: step by step, or through the runner."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import random
import time
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from bilevelbench.discovery.entry import Entry
from bilevelbench.discovery.registry import Registry
from bilevelbench.engine.loop import run_pack
from bilevelbench.engine.record import PackResult
from bilevelbench.engine.sanity import explain
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.errors import BilevelbenchError
from bilevelbench.model.algorithm import Algorithm, Distributed
from bilevelbench.model.lanes import PAD
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import PRODUCTS
from bilevelbench.model.rounding import TOLERANCE, keeps_bits
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.oracle.sample import Table
from bilevelbench.plan.trial import Budget, Spec, Trial
from bilevelbench.results.schema import MEASURED
from bilevelbench.testing.toys import Toy, ToyShared, ToySum

EXACT, NOISY, SUM = Toy(), Toy(sigma=0.1), ToySum()
_PATIENCE = 1.0  # seconds


class Bench(PreparedPack):
    """A method on a toy, one step after the other."""

    def __init__(
        self, method: Algorithm, problem: Problem, dtype: torch.dtype = torch.float64, budget: float = math.inf
    ) -> None:
        lanes = PAD if type(method).lanes else 1
        with default_dtype(dtype):
            instance = problem.build()
        instance.constants.problem = problem.name
        self.resolved = method.resolve(instance.constants)
        super().__init__(instance, [self.resolved] * lanes, range(lanes), [budget] * lanes)

    def numbers(self, steps: int) -> Iterator[int]:
        """1, 2, ..., steps; of slow steps only as many as fit into a second, at least one."""
        began = time.monotonic()
        for number in range(1, steps + 1):
            yield number
            if time.monotonic() - began > _PATIENCE:
                return

    def states(self, steps: int) -> Iterator[Any]:
        """The state after `init`, and after each step."""
        state = self.init()
        yield state
        for number in self.numbers(steps):
            state = self.step(number, state)
            yield state

    def cost(self) -> float:
        """What every lane has spent at least."""
        self.oracle.meter.flush()
        return float(self.oracle.meter.cost().min())


_TOYS: dict[tuple[type[Algorithm], str], tuple[Problem, Problem]] = {}


def toys(method: Algorithm) -> tuple[Problem, Problem]:
    """An exact and a noisy problem that this method can be run on: a method that needs a finite sum gets one."""
    key = type(method), repr(method)
    if key not in _TOYS:
        _TOYS[key] = (SUM, SUM) if _needs_a_sum(method) else plain_toys(type(method))
    return _TOYS[key]


def plain_toys(cls: type[Algorithm]) -> tuple[Problem, Problem]:
    """The same for any method that needs no finite sum; a distributed one gets an agent."""
    return (ToyShared(), ToyShared(sigma=0.1)) if issubclass(cls, Distributed) else (EXACT, NOISY)


def _needs_a_sum(method: Algorithm) -> bool:
    try:
        for _ in Bench(method, EXACT).states(1):
            pass
    except BilevelbenchError as error:
        return "finite sum" in str(error)
    except Exception:  # the check itself will meet it
        pass
    return False


def run(
    methods: Sequence[Algorithm],
    problem: Problem,
    budgets: Sequence[Budget],
    *,
    seeds: Sequence[int] = (),
    targets: tuple[float, ...] = (),
    dtype: typing.Literal["float64", "float32"] = "float64",
) -> PackResult:
    """These trials in one pack, by the runner."""
    cls: Any = type(methods[0])
    registry = Registry()
    registry.algorithms[cls.name] = Entry(cls, "check", "")
    registry.problems[problem.name] = Entry(type(problem), "check", "")
    trials = [
        Trial(
            algorithm=Spec(name=cls.name, params=method.model_dump(mode="json", exclude_unset=True)),
            problem=Spec(name=problem.name, params=problem.model_dump(mode="json", exclude_unset=True)),
            seed=seed,
            budget=budget,
            targets=targets,
            dtype=dtype,
        )
        for method, budget, seed in zip(methods, budgets, seeds or range(len(methods)), strict=True)
    ]
    return run_pack(trials, registry)


_TEN_STEPS: dict[tuple[type[Algorithm], str, Problem], dict[str, Any]] = {}


def ten_steps(method: Algorithm, problem: Problem) -> dict[str, Any]:
    """The row of a short run, which several checks look at."""
    key = type(method), repr(method), problem
    if key not in _TEN_STEPS:
        (_TEN_STEPS[key],) = run([method], problem, [Budget(steps=10, cost=20_000, seconds=2)]).runs
    return _TEN_STEPS[key]


_OF_A_POINT = ("phi", "grad_phi", "g_y", "last_phi", "last_grad_phi")


def unlike(ours: PackResult, theirs: PackResult) -> Iterator[str]:
    """Where two runs of a few steps break the promise of `rounding.py`, in words: bits, or digits where a library rounds."""
    tables = (ours.runs, theirs.runs), (ours.curve.rows(), theirs.curve.rows())
    for a, b in tables:
        yield from differences(a, b) if keeps_bits() else rounding_disagreements(a, b)


def rounding_disagreements(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Iterator[str]:
    """Where two tables differ by more than rounding after a few steps may: what is measured, at the steps that both saw.

    Counts are left out, and with them the steps that are looked at: a loop that ends at a tolerance may end a round later.
    """
    seen = {(row["trial_id"], row.get("step")): row for row in theirs}
    for a in ours:
        b = seen.get((a["trial_id"], a.get("step")), {})
        for column in (c for c in _OF_A_POINT if c in a and c in b):
            left, right = a[column], b[column]
            close = math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
            if not close and not (left != left and right != right):
                yield f"{column}{_step_of(a)} is {left!r} and {right!r}, further apart than {TOLERANCE:g}"


def differences(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Iterator[str]:
    """Where two tables differ in a bit, in words; NaN equals NaN."""
    if len(ours) != len(theirs):
        yield f"{len(ours)} and {len(theirs)} rows"
    for a, b in zip(ours, theirs, strict=False):
        for column in (c for c in a if c not in MEASURED):
            left, right = a[column], b.get(column)
            if left != right and not (left != left and right != right):
                yield f"{column}{_step_of(a)} is {left!r} and {right!r}"


def _step_of(row: dict[str, Any]) -> str:
    return f" at step {row['step']}" if "step" in row else ""


def told(error: BaseException, plugin: BaseModel) -> str:
    """An exception of a plugin as a sentence."""
    if isinstance(error, SystemExit):
        return f"it ended Python with sys.exit({error.code!r})"
    return explain(error, type(plugin))


_WAYS_OUT = {
    "does not require grad": "the oracle's answers are detached, nothing can be differentiated through them: ask for "
    f"{' and '.join(PRODUCTS)}, and declare them in `uses`",
    "copied or pickled": "keep what the oracle answers, not the oracle",
    "past the oracle": "ask the oracle for everything: it is the only door to f and g",
    "`uses` does not declare": "every query and constant that a step asks for has to be declared",
    "memory": "a state keeps the last iterates, not all of them; large arrays belong to the problem",
}


def way_out(message: str) -> str:
    """How to fix what this message complains about."""
    return next((way for sign, way in _WAYS_OUT.items() if sign in message), "fix the line that it names")


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a state, with its place in it."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Table):  # its rows are moved to and fro between tables, each of which reads its own
        yield f"{path}.mean", value.mean
        yield f"{path}.rows", value.rows.clone()
    elif isinstance(value, tuple | list):
        for i, item in enumerate(value):
            yield from tensors(item, f"{path}[{i}]")
    elif isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        for name, item in vars(value).items():
            yield from tensors(item, f"{path}.{name}" if path else name)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from tensors(item, f"{path}[{name!r}]")


def random_states() -> dict[str, Any]:
    """The state of each global random generator, comparable with `==`."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy.random": (kind, np.asarray(keys).tolist(), rest),
        "random": random.getstate(),
    }


@contextlib.contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Global generators at another place inside; as they were, outside."""
    before = torch.get_rng_state(), np.random.get_state(legacy=True), random.getstate()
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def variants(method: Algorithm) -> Iterator[tuple[str, Algorithm]]:
    """The method with each structural choice that it offers, one at a time, and its presets; what is invalid is left out."""
    yield "with these parameters", method
    for name, field in type(method).model_fields.items():
        value = getattr(method, name)
        for choice in _choices(field.annotation):
            if choice != value:
                with contextlib.suppress(Exception):
                    yield f"with {name} = {choice!r}", type(method).model_validate({**method.given(), name: choice})
    for preset in ("from_theory", "from_rate"):
        for problem in (EXACT, NOISY):
            with contextlib.suppress(Exception):
                yield f"with {preset}", getattr(type(method), preset)(problem.build().constants, 0.1)


def _choices(annotation: Any) -> list[Any]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is bool:
        return [True, False]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return list(annotation)
    if origin is typing.Literal:
        return list(arguments)
    if origin is typing.Annotated:
        return _choices(arguments[0])
    if origin in (typing.Union, types.UnionType) and type(None) in arguments:
        inner = [a for a in arguments if a is not type(None)]
        return [None, *(choice for a in inner for choice in _choices(a)), *([1] if _whole(inner) else [1e3, 10.0, 0.1])]
    return []


def _whole(annotations: Sequence[Any]) -> bool:
    return any(a is int or _whole(typing.get_args(a)[:1]) for a in annotations)
