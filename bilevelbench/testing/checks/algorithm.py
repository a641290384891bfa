"""What a method has to keep to, one property a function."""

from __future__ import annotations

import gc
import math
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from bilevelbench.engine.record import PackResult
from bilevelbench.errors import BudgetExhausted, InvalidInput, MissingConstant, UndeclaredQuery, faults
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.claim import Claim
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import QUERIES, ROW
from bilevelbench.plan.trial import Budget
from bilevelbench.results.status import Status
from bilevelbench.testing.checks.common import check_documented, check_name, check_name_is_free
from bilevelbench.testing.outcome import Failure, Skip
from bilevelbench.testing.stepper import (
    EXACT,
    SUM,
    Bench,
    plain_toys,
    random_states,
    run,
    tensors,
    told,
    toys,
    unlike,
    variants,
    way_out,
)

_STEPS = 3
_SEARCH = 30.0  # seconds for choices of the parameters
_PATIENCE = 3.0  # seconds for lanes that are run alone


def check_runs(method: Algorithm) -> None:
    """Ten steps on a small problem, exact and noisy, without an error; the meter and the instance's count agree."""
    for problem in toys(method):
        (row,) = run([method], problem, [Budget(steps=10, cost=20_000, seconds=2)]).runs
        if Status(row["status"]).broken:
            raise Failure(f"ten steps on the small problem {problem.name!r}", row["message"], way_out(row["message"]))


def check_claims(method: Algorithm) -> None:
    """Each claim has values of the right kind, a reference, and the oracle that the method asks."""
    for claim in method.claims:
        if not isinstance(claim, Claim):
            raise Failure("a tuple of Claim", repr(claim), "write claims = (Claim(...),)")
        where = f"the claim of table {claim.table}, {claim.setting}"
        try:
            TypeAdapter(Claim).validate_python(vars(claim), strict=False)
        except ValidationError as error:
            raise Failure(f"{where} with values of the right kind", faults(error), "correct it") from None
        for wrong, seen, mend in (
            (not (math.isfinite(claim.eps_exp) and claim.eps_exp > 0), f"eps_exp = {claim.eps_exp}", "eps^-2 is 2"),
            (claim.kappa_exp is not None and claim.kappa_exp < 0, f"kappa_exp = {claim.kappa_exp}", "kappa^4 is 4"),
            (claim.log_power and not claim.tilde, f"log_power = {claim.log_power} and no tilde", "set tilde=True"),
            (claim.table < 1, f"table = {claim.table}", "tables are counted from 1"),
            (not claim.reference, "no reference", "name the paper and the theorem"),
            (
                claim.oracle == "gradient" and not method.first_order(),
                "oracle = 'gradient' beside second-order queries in `uses`",
                "say oracle='HVP', or do not ask for them",
            ),
        ):
            if wrong:
                raise Failure(f"{where} to be well formed", seen, mend)


def check_uses_is_honest(method: Algorithm) -> None:
    """All that is asked is declared, and all that is declared is asked, be it with another choice of the parameters."""
    asked: set[str] = set()
    problems, began = toys(method), time.monotonic()
    for setting, variant in variants(method):
        for problem in problems if variant is method else problems[1:]:
            try:
                asked |= _asked(variant, problem)
            except UndeclaredQuery as error:
                raise Failure("only declared queries", f"{setting}: {error}", way_out(str(error))) from None
            except Exception:
                if variant is method:
                    raise
            if asked >= method.uses:
                return
        if time.monotonic() - began > _SEARCH:
            rest = ", ".join(sorted(method.uses - asked))
            raise Skip(f"{rest} not asked for so far, and trying the other choices of its parameters takes too long")
    idle = sorted(method.uses - asked)
    strange = [name for name in idle if name not in QUERIES and name not in EXACT.build().constants.given]
    raise Failure(
        "every declared query and constant to be asked for at least once",
        f"{', '.join(idle)} declared and never asked, whatever choices the parameters offer",
        f"take {'it' if len(idle) == 1 else 'them'} out of `uses`"
        + (f" ({strange[0]!r} is neither a query nor a known constant: a slip?)" if strange else ""),
    )


def _asked(method: Algorithm, problem: Problem) -> set[str]:
    bench = Bench(method, problem, budget=10_000)
    constants: set[str] = set()
    answer = bench.oracle.constant

    def constant(name: str) -> float | Tensor:
        constants.add(name)
        return answer(name)

    bench.oracle.constant = constant  # type: ignore[method-assign]
    try:
        for _ in bench.states(_STEPS):
            pass
    except BudgetExhausted:
        pass
    return constants | {query for query in QUERIES if bench.oracle.meter.passes[ROW[query]]}


def check_first_order(method: Algorithm) -> None:
    """A method without second-order queries in `uses` makes none."""
    if not method.first_order():
        raise Skip("it declares second-order queries")
    problem, _ = toys(method)
    (row,) = run([method], problem, [Budget(steps=3, cost=20_000)]).runs
    if row["second_order"]:
        raise Failure(
            "no second-order calls of a first-order method", f"{row['second_order']:g}", "declare them in `uses`"
        )


def check_step_is_pure(method: Algorithm) -> None:
    """`init` and `step` leave what they are given as it was: the start, the state, the parameters."""
    bench = Bench(method, toys(method)[1])
    x0, y0 = bench.start()
    with _untouched("init", {"x0": x0, "y0": y0}, bench.method):
        state = bench.init(x0, y0)
    for number in bench.numbers(_STEPS):
        with _untouched("step", dict(tensors(state)), bench.method):
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
    for number in bench.numbers(_STEPS):
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
        for _ in Bench(method, problem).states(_STEPS):
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
    fields = [name for name in fields if _valid(cls, {**given, name: moved(given[name], 4)}, constants)]
    lanes = [{**given, **{name: moved(given[name], i) for name in fields}} for i in range(5)]
    if not all(_valid(cls, lane, constants) for lane in lanes):
        lanes = [given] * 5  # they differ in their seeds all the same
    return [cls.model_validate(lane) for lane in lanes]


def _valid(cls: type[Algorithm], given: dict[str, Any], constants: Any) -> bool:
    try:
        cls.model_validate(given).resolve(constants)
    except (ValidationError, InvalidInput):
        return False
    return True


def check_masks(method: Algorithm) -> None:
    """What a lane was not charged for does not reach its x and y: such answers are NaN, and `keep` drops them."""
    bench = Bench(method, toys(method)[0])
    meter, switched = bench.oracle.meter, [0]
    switch = meter.switch

    def watched(mask: Tensor | None) -> None:
        switched[0] += mask is not None
        switch(mask)

    meter.switch = watched  # type: ignore[method-assign]
    for number, state in enumerate(bench.states(_STEPS)):
        if switched[0] and any(bool(value.isnan().any()) for value in bench.method.point(state)):
            raise Failure(
                "lanes that are off to keep the values that they had",
                f"NaN in x or y after {f'step {number}' if number else '`init`'}",
                "write y = keep(on, new, old) for what is asked under oracle.only, repeat and when; a mask that is changed "
                "in place later changes nothing",
            )


def check_calls(method: Algorithm) -> None:
    """`calls(step)` is what the meter counts, step by step."""
    problem, _ = toys(method)
    bench = Bench(method, problem)
    if bench.resolved.calls(1) is None:
        raise Skip("calls(step) is None: the cost depends on data or chance, or was not declared")
    meter, state = bench.oracle.meter, bench.init(*bench.start())
    for number in bench.numbers(_STEPS + 1):
        meter.flush()
        before = meter.calls[:, 0].copy()
        state = bench.step(number, state)
        meter.flush()
        made = {query: int(meter.calls[ROW[query], 0] - before[ROW[query]]) for query in QUERIES}
        declared = {query: int(n) for query, n in (bench.resolved.calls(number) or {}).items()}
        unknown = sorted(declared.keys() - set(QUERIES))
        if unknown:
            raise Failure("queries in `calls`", f"{unknown[0]!r}", f"a query is one of {', '.join(QUERIES)}")
        for query in QUERIES:
            if made[query] != declared.get(query, 0):
                raise Failure(
                    f"calls({number}) to be what the meter counts",
                    f"{declared.get(query, 0)} declared and {made[query]} made of {query} in step {number}",
                    "correct `calls`, or return None if the number depends on data or chance",
                )


def check_budget(method: Algorithm) -> None:
    """The end of the budget goes through the method to the runner."""
    problem, _ = toys(method)
    bench = Bench(method, problem)
    state = bench.init(*bench.start())
    begun = bench.cost()
    bench.step(1, state)
    spent = bench.cost()
    if spent == begun:
        raise Skip("its first step asks the oracle for nothing")
    bench = Bench(method, problem, budget=spent - 1)
    state = bench.init(*bench.start())
    try:
        bench.step(1, state)
    except BudgetExhausted:
        return
    raise Failure(
        "BudgetExhausted to end a step that the budget does not cover",
        "the step went on and returned a state",
        "catch Exception at most, never BaseException or everything (`except:`)",
    )


def check_keeps_no_reference(method: Algorithm) -> None:
    """Nothing of a run lives on: neither the oracle nor the instance is kept in a state, a class or a module."""
    bench = Bench(method, toys(method)[0])
    kept: list[Any] = list(bench.states(2))  # the states may live, what they were made from may not
    watched: dict[str, weakref.ref[Any]] = {
        "oracle": weakref.ref(bench.oracle),
        "instance": weakref.ref(bench.instance),
    }
    del bench
    gc.collect()
    for name, alive in watched.items():
        if alive() is not None:
            raise Failure(
                f"the {name} to be gone after the run",
                "a reference to it in the state, the class or the module",
                f"keep what the oracle answers, not the {name}: the next run has another one",
            )
    del kept


def check_dtype(method: Algorithm) -> None:
    """A run in float32 stays in float32, one in float64 in float64, on the device of the start."""
    problem, _ = toys(method)
    for dtype in (torch.float32, torch.float64):
        bench = Bench(method, problem, dtype)
        device = bench.instance.x0.device
        for state in bench.states(_STEPS):
            held = [*tensors(state), *tensors(bench.method.point(state), "point")]
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


def check_progress(method: Algorithm) -> None:
    """|grad phi| halves within 300 steps on an easy problem, with these parameters or after a small search."""
    problem, _ = toys(method)
    start = run([method], problem, [Budget(steps=1, cost=20_000)]).curve.columns["grad_phi"][0]
    limit = Budget(steps=300, cost=300_000, seconds=15)  # a machine may be busy
    best = math.inf
    for candidates in ([method], list(_rescaled(method, problem))):
        if not candidates:
            continue
        result = run(candidates, problem, [limit] * len(candidates), seeds=[0] * len(candidates), targets=(start / 2,))
        if any(row["status"] == Status.TARGET for row in result.runs):
            return
        best = min(
            [best, *(row["best_grad_phi"] for row in result.runs if row["best_grad_phi"] == row["best_grad_phi"])]
        )
    raise Failure(
        f"|grad phi| to fall from {start:.3g} to half of that within 300 steps on an easy problem",
        f"{best:.3g} at best, also with each parameter at 10, 0.1 and 0.01 times its value",
        "look at signs and step sizes: the hypergradient is f_x - J H^-1 f_y",
    )


def _rescaled(method: Algorithm, problem: Problem) -> Iterator[Algorithm]:
    constants = problem.build().constants
    given, cls = method.resolve(constants).given(), type(method)
    for name in sorted(cls.per_lane()):
        if isinstance(given[name], float):
            for factor in (10.0, 0.1, 0.01):
                one = {**given, name: factor * given[name]}
                if _valid(cls, one, constants):
                    yield cls.model_validate(one)


def check_presets(method: Algorithm) -> None:
    """`from_theory` and `from_rate`, where there are any, give a method that runs."""
    own = [name for name in ("from_theory", "from_rate") if _overrides(type(method), name)]
    if not own:
        raise Skip("it has no preset")
    for preset in own:
        method_of, problem = _preset(type(method), preset)
        (row,) = run([method_of], problem, [Budget(steps=3, cost=20_000)]).runs
        if Status(row["status"]).broken:
            raise Failure(f"a run with {preset}(constants, 0.1)", row["message"], way_out(row["message"]))


def _preset(cls: type[Algorithm], preset: str) -> tuple[Algorithm, Problem]:
    refusals = []
    for problem in plain_toys(cls):  # some presets are for noise
        try:
            return getattr(cls, preset)(problem.build().constants, 0.1), problem
        except (InvalidInput, MissingConstant) as error:
            refusals.append(str(error))
        except Exception as error:
            raise Failure(
                f"{preset}(constants, 0.1) to give a {cls.__name__}", told(error, cls.model_construct()), "mend it"
            ) from error
    raise Failure(f"{preset} to know parameters for a problem whose constants are all known", refusals[0], "mend it")


def _overrides(cls: type[Algorithm], name: str) -> bool:
    return getattr(cls, name).__func__ is not getattr(Algorithm, name).__func__


def _of(result: PackResult, trial_id: str) -> PackResult:
    part = PackResult(runs=[row for row in result.runs if row["trial_id"] == trial_id])
    ours = [i == trial_id for i in result.curve.columns.get("trial_id", ())]
    part.curve.extend({name: list(compress(column, ours)) for name, column in result.curve.columns.items()})
    return part


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


#: In this order; `runs` first, since a method that does not run fails everywhere.
ALGORITHM_CHECKS = (
    check_name,
    check_name_is_free,
    check_documented,
    check_claims,
    check_runs,
    check_uses_is_honest,
    check_first_order,
    check_step_is_pure,
    check_step_is_repeatable,
    check_global_randomness,
    check_same_seed_same_bits,
    check_lanes,
    check_masks,
    check_calls,
    check_budget,
    check_keeps_no_reference,
    check_dtype,
    check_progress,
    check_presets,
)
