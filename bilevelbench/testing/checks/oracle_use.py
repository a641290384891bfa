"""How a method has to treat the oracle: what it asks, what it declares, what it may not keep."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

from torch import Tensor

from bilevelbench.errors import BudgetExhausted, UndeclaredQuery
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import QUERIES, ROW
from bilevelbench.testing.checks.common import STEPS
from bilevelbench.testing.outcome import Failure, Skip
from bilevelbench.testing.stepper import EXACT, Bench, ten_steps, toys, variants, way_out

_SEARCH = 30.0  # seconds for choices of the parameters


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
        for _ in bench.states(STEPS):
            pass
    except BudgetExhausted:
        pass
    return constants | {query for query in QUERIES if bench.oracle.meter.passes[ROW[query]]}


def check_first_order(method: Algorithm) -> None:
    """A method without second-order queries in `uses` makes none."""
    if not method.first_order():
        raise Skip("it declares second-order queries")
    for problem in toys(method):
        row = ten_steps(method, problem)
        if row["second_order"]:
            raise Failure(
                "no second-order calls of a first-order method", f"{row['second_order']:g}", "declare them in `uses`"
            )


def check_masks(method: Algorithm) -> None:
    """What a lane was not charged for does not reach its x and y: such answers are NaN, and `keep` drops them."""
    bench = Bench(method, toys(method)[0])
    meter, switched = bench.oracle.meter, [0]
    switch = meter.switch

    def watched(mask: Tensor | None) -> None:
        switched[0] += mask is not None
        switch(mask)

    meter.switch = watched  # type: ignore[method-assign]
    for number, state in enumerate(bench.states(STEPS)):
        if switched[0] and any(bool(value.isnan().any()) for value in bench.algorithm.point(state)):
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
    for number in bench.numbers(STEPS + 1):
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
    problem, _ = toys(method)
    gc.freeze()  # cycles among what was there before are not looked for: 0.1 s and more, by what the process has imported
    try:
        bench = Bench(method, problem)
        kept: list[Any] = list(bench.states(2))  # the states may live, what they were made from may not
        watched: dict[str, weakref.ref[Any]] = {
            "oracle": weakref.ref(bench.oracle),
            "instance": weakref.ref(bench.instance),
        }
        del bench
        gc.collect()
    finally:
        gc.unfreeze()
    for name, alive in watched.items():
        if alive() is not None:
            raise Failure(
                f"the {name} to be gone after the run",
                "a reference to it in the state, the class or the module",
                f"keep what the oracle answers, not the {name}: the next run has another one",
            )
    del kept
