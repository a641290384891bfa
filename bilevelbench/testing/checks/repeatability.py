"""What the numbers of a method may depend on: its parameters, its seed and its dtype, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from bilevelbench.engine.record import PackResult
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.problem import Problem
from bilevelbench.plan.trial import Budget
from bilevelbench.results.status import Status
from bilevelbench.testing.checks.common import STEPS, is_valid
from bilevelbench.testing.outcome import Failure, Skip
from bilevelbench.testing.stepper import SUM, Bench, random_states, run, tensors, toys, unlike, way_out

_PATIENCE = 3.0  # seconds for lanes that are run alone


def check_step_is_pure(method: Algorithm) -> None:
    """`init` and `step` leave what they are given as it was: the start, the state, the parameters."""
    bench = Bench(method, toys(method)[1])
    x0, y0 = bench.start()
    with _untouched("init", {"x0": x0, "y0": y0}, bench.algorithm):
        state = bench.init(x0, y0)
    for number in bench.numbers(STEPS):
        with _untouched("step", dict(tensors(state)), bench.algorithm):
            new = bench.step(number, state)
        state = new


@contextmanager
def _untouched(where: str, given: dict[str, Tensor], method: Algorithm) -> Iterator[None]:
    """A Failure if one of these tensors, or of the method's parameters, is written to inside."""
    given = {**given, **{f"self.{name}": tensor for name, tensor in tensors(method)}}
    before = {name: (tensor._version, tensor.clone()) for name, tensor in given.items()}
    yield
    for name, tensor in given.items():
        version, value = before[name]
        if tensor._version != version or not _same(tensor, value):
            raise Failure(
                f"`{where}` to leave its arguments as they are",
                f"{name} written to in place",
                "make a new tensor: y = y - a * g_y instead of y -= a * g_y, y.sub_(...) or y[...] = ...",
            )


def check_step_is_repeatable(method: Algorithm) -> None:
    """The same step from the same state twice gives the same bits: nothing is hidden outside of the state."""
    bench = Bench(method, toys(method)[1])
    state = bench.init(*bench.start())
    sampler = bench.oracle._sampler
    for number in bench.numbers(STEPS):
        passed = dict(sampler._passed)
        first = bench.step(number, state)
        sampler._passed = passed  # shuffled passes are the oracle's memory, not the method's
        again = dict(tensors(bench.step(number, state)))
        for name, value in tensors(first):
            if name not in again or not _same(value, again[name]):
                raise Failure(
                    "the same step from the same state to give the same bits",
                    f"another {name} the second time",
                    "keep all that changes in the state, and draw from oracle.normal, oracle.uniform and oracle.sample_g",
                )
        state = first


def check_global_randomness(method: Algorithm) -> None:
    """The generators of torch, numpy and random are not touched: draws come from the oracle."""
    before = random_states()
    for problem in toys(method):
        for _ in Bench(method, problem).states(STEPS):
            pass
    after = random_states()
    touched = [name for name in before if before[name] != after[name]]
    if touched:
        raise Failure(
            "the global random generators to be left alone",
            f"that of {' and '.join(touched)} moved",
            "draw from oracle.normal(d) and oracle.uniform(d), which belong to the trial's seed",
        )


def check_same_seed_same_bits(method: Algorithm) -> None:
    """The same trial twice, on its own, gives the same table."""
    problem = toys(method)[1]
    first, second = (run([method], problem, [Budget(steps=3, cost=20_000)], seeds=[3]) for _ in range(2))
    for difference in unlike(first, second):
        raise Failure(
            "two runs of one trial with equal bits",
            difference,
            "draw from the oracle only, and let nothing depend on time, order of sets or earlier runs",
        )


def check_lanes(method: Algorithm) -> None:
    """A trial in a pack of five has the bits that it has alone, also while others leave the pack.

    Where a library rounds by the pack (`bilevelbench doctor` knows), it has the digits that are promised instead.
    """
    if not type(method).lanes:
        raise Skip("it declares lanes = False and is run one trial at a time")
    problem = toys(method)[1]
    methods = _swept(method, problem)
    budgets = [Budget(steps=2 + i, cost=20_000) for i in range(len(methods))]
    packed = run(methods, problem, budgets)
    lost = [row["message"] for row in packed.runs if Status(row["status"]).broken]
    if lost:
        raise Failure("five trials in one pack", lost[0], way_out(lost[0]))
    if packed.runs[0]["pack_lanes"] <= 1:
        raise Failure(
            "five trials in one pack",
            "the pack fell apart: a step fails with several lanes, and only then",
            "parameters are (L, 1) tensors and the lane is the axis before the last; or declare lanes = False",
        )
    began = time.monotonic()
    for i, one in enumerate(methods):
        if time.monotonic() - began > _PATIENCE:
            break
        alone = run([one], problem, [budgets[i]], seeds=[i])
        mine = alone.runs[0]["trial_id"]
        for difference in unlike(_of(packed, mine), alone):
            raise Failure(
                "the same bits packed and alone",
                f"in lane {i} {difference}",
                "reduce the last axis only (dot, norm), sum points with over_points, branch with torch.where and "
                "oracle.when, and avoid torch.pow, sigmoid and cosh; or declare lanes = False",
            )


def _swept(method: Algorithm, problem: Problem) -> list[Algorithm]:
    """Five lanes that differ in everything that may differ between lanes and can be moved a little."""
    constants = problem.build().constants
    resolved = method.resolve(constants)
    given, cls = resolved.given(), type(method)

    def moved(value: Any, i: int) -> Any:
        return value + i if isinstance(value, int) else value * (1 - 0.1 * i)

    fields = [
        name
        for name in sorted(cls.per_lane())
        if isinstance(given[name], int | float) and not (isinstance(given[name], int) and problem is SUM)
    ]
    fields = [name for name in fields if is_valid(cls, {**given, name: moved(given[name], 4)}, constants)]
    lanes = [{**given, **{name: moved(given[name], i) for name in fields}} for i in range(5)]
    if not all(is_valid(cls, lane, constants) for lane in lanes):
        lanes = [given] * 5  # they differ in their seeds all the same
    return [cls.model_validate(lane) for lane in lanes]


def check_dtype(method: Algorithm) -> None:
    """A run in float32 stays in float32, one in float64 in float64, on the device of the start."""
    problem, _ = toys(method)
    for dtype in (torch.float32, torch.float64):
        bench = Bench(method, problem, dtype)
        device = bench.instance.x0.device
        for state in bench.states(STEPS):
            held = [*tensors(state), *tensors(bench.algorithm.point(state), "point")]
            for name, value in held:
                if value.is_floating_point() and value.dtype != dtype:
                    raise Failure(
                        f"a run in {dtype} to stay so",
                        f"{name} in {value.dtype}",
                        "make tensors like others (torch.zeros_like(x)) or with dtype=oracle.dtype",
                    )
                if value.device != device:
                    raise Failure(
                        f"tensors on {device}", f"{name} on {value.device}", "make tensors with device=oracle.device"
                    )


def _of(result: PackResult, trial_id: str) -> PackResult:
    part = PackResult(runs=[row for row in result.runs if row["trial_id"] == trial_id])
    ours = [i == trial_id for i in result.curve.columns.get("trial_id", ())]
    part.curve.extend({name: list(compress(column, ours)) for name, column in result.curve.columns.items()})
    return part


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
