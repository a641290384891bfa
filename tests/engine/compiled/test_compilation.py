"""Compiled trials: the same counts, the same iterates within rounding, and the interpreted path with a sentence elsewhere.

The quick tests loop over the traced graph, the slow ones compile it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import Bowl, Point, Shrink, alone, cli, packed, plugins, trial
from torch import Tensor

from bilevelbench import Oracle
from bilevelbench.engine.compiled import compilation
from bilevelbench.engine.compiled.native import Program
from bilevelbench.engine.compiled.stretch import Stretch, compiled, replayed
from bilevelbench.engine.compiled.trace import Traced
from bilevelbench.model.queries import COLUMNS, TOTALS
from bilevelbench.plan.trial import Schedule, Trial
from bilevelbench.results.schema import Results

METHODS = {
    "soba": "soba[b=1e-3]",
    "stocbio": "stocbio[eta_x=1e-3,D=3,Q=3]",
    "f2sa": "f2sa[batch=32,T_in=3,lam_power=0.2]",
    "f2ba": "f2ba[eta_x=1e-3,a_y=0.1,a_z=0.1,K=3]",
    "aid_richardson": "aid[solver=richardson,D=3,N=3,eta_x=1e-3]",
}
PROBLEMS = {
    "quadratic_sum": "quadratic_sum[dim_x=20,dim_y=10,n=256,m=256]",
    "logreg_digits": "logreg_digits",
    "noisy": "quadratic[sigma_f=0.1,sigma_g=0.1,sigma_h=0.1]",
}
QUICK = {"f2ba": "quadratic_sum", "soba": "noisy"}
COUNTS = ["status", "steps", "cost", "rounds", *COLUMNS, *TOTALS]


@pytest.fixture
def loops(monkeypatch):
    """Nothing is compiled: the traced graph is called step by step."""
    monkeypatch.setattr(compilation, "compiled", lambda traced, leaves, program: replayed(traced))


def both(method: str, problem: str, seeds: int = 1, **limits: object) -> tuple[Results, Results]:
    """Interpreted and compiled."""
    schedule = Schedule(ratio=1.5, phi=False)
    among = plugins(Bowl, Shrink, Forked, Writes)
    ways = [
        [
            trial(method, problem, seed=seed, schedule=schedule, compile=how, among=among, **limits)
            for seed in range(seeds)
        ]
        for how in ("never", "always")
    ]
    interpreted, in_one_go = (packed(way, among) for way in ways)
    return interpreted, in_one_go


def assert_alike(interpreted: Results, in_one_go: Results, tolerance: float = 1e-9) -> None:
    for name in COUNTS:
        assert list(interpreted.runs[name]) == list(in_one_go.runs[name]), name
    columns = ["step", "cost", "first_order", "second_order"]
    assert interpreted.curve[columns].equals(in_one_go.curve[columns])
    numbers = interpreted.curve.select_dtypes("number").columns.difference([*columns, "seconds", "pack_lanes"])
    for name in numbers:
        np.testing.assert_allclose(in_one_go.curve[name], interpreted.curve[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
def test_counts_are_the_same_and_iterates_within_rounding(loops, method, problem):
    interpreted, in_one_go = both(METHODS[method], PROBLEMS[problem], steps=45)
    assert_alike(interpreted, in_one_go)
    assert "compiled steps" in in_one_go.runs.message[0]
    assert "compiled" not in interpreted.runs.message[0]


#: A compiler takes half a minute for each: two of them always run.
COMPILED = [
    pytest.param(method, problem, marks=pytest.mark.slow if problem == QUICK.get(method) else pytest.mark.long)
    for method in METHODS
    for problem in PROBLEMS
]


@pytest.mark.parametrize(("method", "problem"), COMPILED)
def test_the_same_in_machine_code(method, problem):
    interpreted, in_one_go = both(METHODS[method], PROBLEMS[problem], steps=200)
    assert_alike(interpreted, in_one_go, 1e-7)
    assert "compiled steps" in in_one_go.runs.message[0]


def test_several_lanes_that_end_at_different_costs(loops):
    trials = [
        [
            trial("soba", PROBLEMS["quadratic_sum"], cost=cost, seed=seed, compile=how, schedule=Schedule(ratio=1.3))
            for seed, cost in enumerate((3_000, 9_000.5, 20_000))
        ]
        for how in ("never", "always")
    ]
    assert_alike(*map(packed, trials))


def test_lanes_whose_loops_differ_in_length(loops):
    trials = [
        [trial(f"f2ba[K={K},eta_x=1e-3]", "quadratic", steps=45, compile=how) for K in (2, 5, 3)]
        for how in ("never", "always")
    ]
    interpreted, in_one_go = map(packed, trials)
    assert_alike(interpreted, in_one_go)
    assert interpreted.runs.cost.nunique() == 3
    assert "compiled" in in_one_go.runs.message[0]


def test_a_budget_ends_in_the_same_call(loops):
    interpreted, in_one_go = both("f2ba[K=4,eta_x=1e-3]", "quadratic", cost=1_234)
    assert_alike(interpreted, in_one_go)
    assert in_one_go.runs.cost[0] == 1_234
    assert "compiled steps" in in_one_go.runs.message[0]


class Forked(Shrink):
    """Shrinks by a rate that it chooses by the size of x."""

    name = "forked"

    def step(self, s: Point, oracle: Oracle) -> Point:
        new = super().step(s, oracle)
        return replace(new, x=new.x / 2) if bool((new.x > 0.1).any()) else new


class Writes(Shrink):
    """Changes a tensor of its own in place."""

    name = "writes"

    def step(self, s: Point, oracle: Oracle) -> Point:
        new = super().step(s, oracle)
        x = new.x.clone()
        x *= 0.5
        return replace(new, x=x)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("forked", "what a step does depends on a number that it has computed"),
        ("writes", "a step changes a tensor in place"),
        ("aid[solver=cg]", "what a step does depends on a number that it has computed"),
        ("saba[batch=8]", "its state holds a Table"),
        ("soba[sampling=epoch]", "its samples are drawn in an order"),
    ],
    ids=["forked", "writes", "aid_cg", "saba", "soba_epoch"],
)
def test_what_cannot_be_traced_is_interpreted_and_says_so(loops, method, why):
    problem = PROBLEMS["quadratic_sum"] if method[0] == "s" else "bowl"
    interpreted, in_one_go = both(method, problem, steps=30)
    assert_alike(interpreted, in_one_go, 0.0)
    assert f"not compiled, since {why}" in in_one_go.runs.message[0]
    assert in_one_go.runs.status[0] == "budget"


def off(after: int) -> object:
    """Compiled steps with an error, from step `after` on."""

    def made(traced: Traced, leaves: list[Tensor], program: Program | None) -> Stretch:
        right = replayed(traced)

        def run(first: int, last: int, leaves: list[Tensor]) -> list[Tensor]:
            return [leaf * (1 + 1e-6 * (last > after)) for leaf in right(first, last, leaves)]

        return run

    return made


def test_steps_that_differ_from_the_start_are_not_used(monkeypatch):
    monkeypatch.setattr(compilation, "compiled", off(0))
    interpreted, in_one_go = both("f2ba[eta_x=1e-3]", "quadratic", steps=50)
    assert_alike(interpreted, in_one_go, 0.0)
    assert "compiled and interpreted steps differ by 1e+03 times what is allowed" in in_one_go.runs.message[0]


def test_steps_that_differ_later_are_all_made_again(monkeypatch):
    monkeypatch.setattr(compilation, "compiled", off(70))
    monkeypatch.setattr(compilation, "_EVERY", 4)
    interpreted, in_one_go = both("f2ba[eta_x=1e-3]", "quadratic", steps=200)
    assert_alike(interpreted, in_one_go, 0.0)
    assert "not compiled, since compiled and interpreted steps differ by 1e+03 times" in in_one_go.runs.message[0]


def test_steps_of_another_cost_are_not_used(monkeypatch):
    honest = compilation.trace
    monkeypatch.setattr(compilation, "compiled", lambda traced, leaves, program: replayed(traced))
    monkeypatch.setattr(compilation, "trace", lambda *given: (t := honest(*given)) and replace(t, cost=t.cost.times(2)))
    interpreted, in_one_go = both("f2ba[eta_x=1e-3]", "quadratic", steps=50)
    assert_alike(interpreted, in_one_go, 0.0)
    assert "compiled and interpreted steps do not cost the same" in in_one_go.runs.message[0]


def test_what_cannot_be_compiled_is_interpreted(monkeypatch):
    def fails(traced: Traced, leaves: list[Tensor], program: Program | None) -> Stretch:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compilation, "compiled", fails)
    interpreted, in_one_go = both("f2ba[eta_x=1e-3]", "quadratic", steps=30)
    assert_alike(interpreted, in_one_go, 0.0)
    assert "not compiled, since that fails (RuntimeError: no compiler)" in in_one_go.runs.message[0]


def test_a_method_that_stops_itself_is_interpreted(loops):
    class Stops(Shrink):
        name = "stops_itself"

        def stopped(self, s: Point) -> Tensor:
            return torch.full((len(s.x), 1), s.k >= 20)

    among = plugins(Bowl, Stops)
    (row,) = alone([trial("stops_itself", steps=50, compile="always", among=among)], among).runs.itertuples()
    assert (row.status, row.steps) == ("stopped", 20)
    assert "not compiled, since the method decides after each step whether to stop" in row.message


def never(traced: Traced, leaves: list[Tensor], program: Program | None) -> Stretch:
    raise AssertionError("compiled")


def test_auto_compiles_no_run_that_is_over_soon(monkeypatch):
    monkeypatch.setattr(compilation, "compiled", never)
    (row,) = alone([_auto(steps=100)]).runs.itertuples()
    assert row.message == "made its 100 steps"


def test_auto_compiles_long_runs_of_few_lanes_and_of_many(monkeypatch):
    monkeypatch.setattr(compilation, "compiled", lambda traced, leaves, program: replayed(traced))
    monkeypatch.setattr(compilation, "_LEAST", 0.0)
    monkeypatch.setattr(compilation, "_seconds_each", {True: 0.0, False: 0.0})
    assert "compiled steps" in alone([_auto(steps=60)]).runs.message[0]
    many = packed([_auto(steps=60, seed=seed) for seed in range(5)]).runs.message
    assert all("compiled steps" in message for message in many)


def test_auto_expects_less_of_many_lanes():
    expected = [compilation.saved(lanes) for lanes in (1, 4, 8, 16, 36)]
    # the least that was measured: SOBA, StocBiO, F2SA and F2BA on quadratic_sum, the first three on logreg_digits
    measured = [1 - 1 / faster for faster in (8.1, 2.6, 1.7, 1.38, 1.23)]
    assert all(0.6 * b < a <= b for a, b in zip(expected, measured, strict=True))


def test_auto_knows_that_torch_takes_longer_to_compile(monkeypatch):
    monkeypatch.setattr(compilation, "compiled", never)
    monkeypatch.setattr(compilation, "translated", lambda traced, leaves: None)
    monkeypatch.setattr(compilation, "_LEAST", 0.0)
    monkeypatch.setattr(compilation, "_seconds_each", {True: 0.0, False: 1e3})
    assert alone([_auto(steps=60)]).runs.message[0] == "made its 60 steps"


def test_auto_compiles_nothing_that_takes_longer_than_it_gains(monkeypatch):
    monkeypatch.setattr(compilation, "compiled", never)
    monkeypatch.setattr(compilation, "_LEAST", 0.0)
    monkeypatch.setattr(compilation, "_seconds_each", {True: 1e3, False: 1e3})
    assert alone([_auto(steps=60)]).runs.message[0] == "made its 60 steps"


def _auto(**given: object) -> Trial:
    return trial("f2ba[eta_x=1e-3]", "quadratic", compile="auto", **given)


def test_ids_are_those_from_before_unless_steps_are_compiled():
    one, two = (trial("f2ba", "quadratic", steps=5, **how) for how in ({}, {"compile": "never"}))
    assert one.id == two.id != trial("f2ba", "quadratic", steps=5, compile="always").id


def test_the_command_says_what_was_interpreted(loops, tmp_path):
    command = ["run", "-a", "aid", "-p", "quadratic", "--steps", "20", "--jobs", "0", "-o", tmp_path / "out"]
    code, said, _ = cli(*command, "--compile", "always")
    assert code == 0
    assert "note: the steps of aid on quadratic were interpreted, since what a step does depends on" in " ".join(
        said.split()
    )
    code, _, complaint = cli(*command, "--compile", "sometimes")
    assert (code, "--compile sometimes: choose auto, never, always" in complaint) == (2, True)


@pytest.mark.slow
def test_a_loop_of_any_length_is_one_function():
    made: dict[str, Stretch] = {}

    def kept(traced: Traced, leaves: list[Tensor], program: Program | None) -> Stretch:
        made["plain"], made["compiled"] = replayed(traced), compiled(traced, leaves, program)
        made["leaves"] = leaves  # type: ignore[assignment]
        return made["compiled"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "compiled", kept)
        alone([trial("soba", PROBLEMS["quadratic_sum"], steps=40, compile="always")])
    for last in (1, 2, 17, 100):
        wanted, found = (made[way](0, last, made["leaves"]) for way in ("plain", "compiled"))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
