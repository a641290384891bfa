"""From Python: `run`, `solve`, suites, and how trials are written down."""

from __future__ import annotations

import importlib
import json
import re
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import Bowl, Broken, Shrink, assert_same, breaking
from torch import Tensor

import bilevelbench
from bilevelbench import Distributed, InvalidInput, MissingConstant
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import UnknownName
from bilevelbench.execute import executor
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.suite import Suite
from bilevelbench.plan.trial import Budget, Schedule, Spec, Trial
from bilevelbench.results.schema import Results

# ---- run


def test_names():
    runs = bilevelbench.run("f2ba", "quadratic", steps=3).runs
    assert runs[["algorithm", "problem", "steps", "status"]].values.tolist() == [["f2ba", "quadratic", 3, "budget"]]


def test_every_method_on_every_problem_with_every_seed():
    runs = bilevelbench.run(["f2ba", "aid"], ["quadratic", "tail_anchor"], seeds=2, steps=2).runs
    assert len(runs) == 8
    assert not runs.duplicated(["algorithm", "problem", "seed"]).any()


def test_seeds_as_a_list():
    assert sorted(bilevelbench.run("f2ba", "quadratic", seeds=[7, 3], steps=1).runs.seed) == [3, 7]


def test_grid_in_a_spec():
    runs = bilevelbench.run("f2ba[K=1,2,lam=10,100]", "quadratic[kappa=2]", steps=2).runs
    got = {(p["K"], p["lam"]) for p in map(json.loads, runs.algorithm_params)}
    assert got == {(1, 10), (1, 100), (2, 10), (2, 100)}
    assert set(runs.label) == {f"f2ba[K={K},lam={lam}]" for K in (1, 2) for lam in (10, 100)}


def test_objects_of_installed_classes_are_the_same_trials_as_their_specs():
    method = make(registry().algorithm("f2ba"), {"K": 3})
    problem = make(registry().problem("quadratic"), {"kappa": 2.0})
    by_object = bilevelbench.run(method, problem, steps=2)
    assert_same(by_object, bilevelbench.run("f2ba[K=3]", "quadratic[kappa=2.0]", steps=2))


def test_objects_of_classes_defined_here():
    runs = bilevelbench.run([Shrink(rate=0.25), Shrink(rate=0.1)], Bowl(), steps=5).runs
    assert runs.grad_phi.tolist() == pytest.approx([2 * 0.5**5, 2 * 0.8**5])
    assert set(runs.plugin) == {"this session"}


def test_objects_and_names_mixed():
    runs = bilevelbench.run([Shrink(), "f2ba"], ["quadratic[dim_y=20]", Bowl()], steps=2).runs
    assert sorted(zip(runs.algorithm, runs.problem, strict=True)) == [
        ("f2ba", "bowl"),
        ("f2ba", "quadratic"),
        ("shrink", "bowl"),
        ("shrink", "quadratic"),
    ]


def test_classes_of_a_session_do_not_stay_behind():
    bilevelbench.run(Shrink(), Bowl(), steps=1)
    assert "shrink" not in registry().algorithms
    assert "bowl" not in registry().problems


def test_two_classes_with_one_name_are_refused():
    class Other(Shrink):
        pass

    with pytest.raises(InvalidInput, match="two methods are called 'shrink': your class Other and Shrink"):
        bilevelbench.run([Shrink(), Other()], Bowl(), steps=1)


def test_name_of_an_installed_method_is_refused_for_another_class():
    class Impostor(Shrink):
        name = "f2ba"

    with pytest.raises(InvalidInput, match=r"'f2ba'.*plugin 'bilevelbench'.*rename"):
        bilevelbench.run([Impostor(), "f2ba"], Bowl(), steps=1)


def test_duplicates_are_run_once():
    results = bilevelbench.run(["f2ba", "f2ba", "f2ba[]"], ["quadratic", "quadratic"], steps=3)
    assert len(results.runs) == 1
    assert not results.curve.duplicated(["trial_id", "step"]).any()


def test_targets_and_schedule_and_dtype_reach_the_trials():
    results = bilevelbench.run(
        Shrink(rate=0.25), Bowl(), steps=50, targets=[0.3], schedule=Schedule(ratio=1.01, mean=True), dtype="float32"
    )
    assert results.runs.status.tolist() == ["target"]
    assert results.runs["dtype"].tolist() == ["float32"]
    assert "mean_grad_phi" in results.curve


def test_budget_is_in_calls():
    assert bilevelbench.run(Shrink(), Bowl(), budget=9).runs.cost.tolist() == [9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "set one of budget, steps and seconds"),
        ({"steps": 0}, r"steps = 0: input should be greater than 0"),
        ({"budget": -5.0}, r"budget = -5.0"),
        ({"steps": 3, "dtype": "float16"}, r"dtype = 'float16'"),
        ({"steps": 3, "targets": [-1.0]}, r"targets.0 = -1.0"),
        ({"steps": 3, "seeds": [-1]}, r"seed = -1"),
        ({"steps": 3, "jobs": 2}, r"jobs = 2 needs a folder"),
    ],
)
def test_mistakes_of_the_caller_raise_before_anything_runs(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        bilevelbench.run("f2ba", "quadratic", **arguments)


def test_unknown_method_with_a_suggestion():
    with pytest.raises(UnknownName, match="unknown method 'f2bba'; did you mean 'f2ba'"):
        bilevelbench.run("f2bba", "quadratic", steps=1)


def test_unknown_problem_with_a_suggestion():
    with pytest.raises(UnknownName, match="unknown problem 'quadratik'; did you mean 'quadratic'"):
        bilevelbench.run("f2ba", "quadratik", steps=1)


def test_unknown_parameter_with_a_suggestion():
    with pytest.raises(InvalidInput, match="f2ba has no parameter 'lamb'; did you mean 'lam'"):
        bilevelbench.run("f2ba[lamb=3]", "quadratic", steps=1)


def test_parameter_out_of_range_names_it_and_the_value():
    with pytest.raises(InvalidInput, match="f2ba: lam = -3: input should be greater than 0"):
        bilevelbench.run("f2ba[lam=-3]", "quadratic", steps=1)


# ---- run with a folder


@pytest.fixture
def packs_run(monkeypatch) -> list[list[str]]:
    """The trial ids of each pack that is really run."""
    seen: list[list[str]] = []
    real = executor.run_pack

    def spy(trials, plugins):
        seen.append([t.id for t in trials])
        return real(trials, plugins)

    monkeypatch.setattr(executor, "run_pack", spy)
    return seen


def test_what_is_stored_is_not_run_again(tmp_path, packs_run):
    first = bilevelbench.run("f2ba[lam=10,100]", "quadratic", steps=3, out=tmp_path)
    packs_run.clear()
    again = bilevelbench.run("f2ba[lam=10,100]", "quadratic", steps=3, out=tmp_path)
    assert packs_run == []
    pd.testing.assert_frame_equal(first.runs, again.runs)
    pd.testing.assert_frame_equal(first.curve, again.curve)


def test_only_what_is_new_is_run(tmp_path, packs_run):
    first = bilevelbench.run("f2ba[lam=10,100]", "quadratic", steps=3, out=tmp_path)
    packs_run.clear()
    again = bilevelbench.run("f2ba[lam=10,100,1000]", "quadratic", steps=3, out=tmp_path)
    new = set(again.runs.trial_id) - set(first.runs.trial_id)
    assert [set(ids) for ids in packs_run] == [new]
    assert len(again.runs) == 3


def test_run_that_was_interrupted_goes_on_where_it_stopped(tmp_path, monkeypatch, packs_run):
    spy = executor.run_pack

    def interrupted(trials, plugins):
        if trials[0].algorithm.name == "aid":
            raise KeyboardInterrupt
        return spy(trials, plugins)

    with monkeypatch.context() as patch:
        patch.setattr(executor, "run_pack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bilevelbench.run(["f2ba", "aid"], "quadratic", steps=3, out=tmp_path)
    assert len(packs_run) == 1
    results = bilevelbench.run(["f2ba", "aid"], "quadratic", steps=3, out=tmp_path)
    assert len(packs_run) == 2
    assert set(results.runs.algorithm) == {"f2ba", "aid"}


def test_stored_results_are_those_of_a_run_without_a_folder(tmp_path):
    def ordered(results: Results) -> Results:
        runs = results.runs.sort_values("trial_id", ignore_index=True)
        return Results(runs, results.curve.sort_values(["trial_id", "step"], ignore_index=True), [])

    stored = bilevelbench.run("f2ba[lam=10,100]", "quadratic", steps=3, out=tmp_path)
    assert_same(ordered(stored), ordered(bilevelbench.run("f2ba[lam=10,100]", "quadratic", steps=3)))


def test_label_alone_is_no_new_trial(tmp_path, packs_run):
    bilevelbench.run("f2ba", "quadratic", steps=3, out=tmp_path)
    packs_run.clear()
    bilevelbench.run("f2ba[]", "quadratic", steps=3, out=tmp_path)
    assert packs_run == []


def test_failed_trial_is_stored_too(tmp_path, packs_run):
    class Fails(Shrink):
        name = "fails"

        def step(self, s, oracle):
            raise ValueError("never")

    runs = bilevelbench.run(Fails(), Bowl(), steps=3, out=tmp_path).runs
    assert runs.status.tolist() == ["error"]
    packs_run.clear()
    bilevelbench.run(Fails(), Bowl(), steps=3, out=tmp_path)
    assert packs_run == []


def test_class_of_a_session_that_was_edited_is_a_new_method(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "my_moves.py"

    def moves(step: str) -> Shrink:
        file.write_text(f"from helpers import Shrink\n\nclass Moves(Shrink):\n    name = 'moves'\n\n    {step}\n")
        sys.modules.pop("my_moves", None)
        importlib.invalidate_caches()
        return importlib.import_module("my_moves").Moves()

    first, second = moves("pass"), "def step(self, s, oracle): return s"
    assert len(bilevelbench.run(first, Bowl(), steps=3, out=tmp_path / "out").runs) == 1
    assert len(bilevelbench.run(moves("pass"), Bowl(), steps=3, out=tmp_path / "out").runs) == 1
    assert len(bilevelbench.run(moves(second), Bowl(), steps=3, out=tmp_path / "out").runs) == 2
    sys.modules.pop("my_moves")


# ---- solve

A = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))


def f(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * ((y - 1) ** 2).sum() + 0.5 * (x**2).sum()


def g(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * y @ A @ y - x @ y


#: y* = A⁻¹x, so phi = 1/2 (x_1 - 1)² + 1/2 (x_2/2 - 1)² + 1/2 |x|², least at (1/2, 2/5)
BEST = [0.5, 0.4]


def start(shape=(2,), dtype=torch.float64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def test_solve_finds_the_minimum():
    known = {"mu": 1.0, "L_g": 2.0, "L_f": 1.0, "rho_g": 0.0}
    got = bilevelbench.solve(f, g, start(), start(), "aid", eta_x=0.3, steps=300, target=1e-9, constants=known)
    assert got.status == "target"
    assert got.grad_phi <= 1e-9
    np.testing.assert_allclose(got.x, BEST, atol=1e-8)
    np.testing.assert_allclose(got.y, [0.5, 0.2], atol=1e-8)
    assert got.phi == pytest.approx(0.5 * (0.25 + 0.64 + 0.25 + 0.16))


@pytest.mark.whole
def test_solve_says_that_a_target_cannot_be_certified():
    got = bilevelbench.solve(f, g, start(), start(), algorithm="aid", eta_x=0.3, steps=300, target=1e-2)
    assert got.status == "budget"
    assert got.grad_phi < 1e-9
    assert "no target can be certified here: the problem does not bound the error of grad phi" in got.message
    assert "certified" not in bilevelbench.solve(f, g, start(), start(), eta_x=0.3, steps=3).message


def test_solve_with_all_parameters_needs_no_name_of_a_method():
    got = bilevelbench.solve(f, g, start(), start(), eta_x=0.3, lam=1e4, K=6, steps=60)
    np.testing.assert_allclose(got.x, BEST, atol=1e-3)


def test_solve_keeps_shapes_on_both_sides():
    shapes = []

    def over_matrices(x: Tensor, y: Tensor) -> Tensor:
        shapes.append((tuple(x.shape), tuple(y.shape)))
        return 0.5 * ((y - 1) ** 2).sum() + 0.5 * (x**2).sum()

    got = bilevelbench.solve(
        over_matrices,
        lambda x, y: 0.5 * ((y - x.reshape(3, 2, 1)) ** 2).sum(),
        start((2, 3)),
        start((3, 2, 1)),
        eta_x=0.1,
        steps=3,
    )
    assert got.x.shape == (2, 3)
    assert got.y.shape == (3, 2, 1)
    assert set(shapes) == {((2, 3), (3, 2, 1))}


def test_solve_takes_scalars():
    zero = torch.tensor(0.0, dtype=torch.float64)
    got = bilevelbench.solve(lambda x, y: (y - 1) ** 2, lambda x, y: (y - x) ** 2, zero, zero, eta_x=0.3, K=4, steps=40)
    assert got.x.shape == ()
    assert got.x.item() == pytest.approx(1, abs=1e-2)


def test_solve_leaves_the_start_alone():
    x0, y0 = start().requires_grad_(), start()
    bilevelbench.solve(f, g, x0, y0, eta_x=0.3, steps=3)
    assert (x0.detach() == 0).all()
    assert (y0 == 0).all()
    assert x0.grad is None


def test_solve_counts_calls():
    got = bilevelbench.solve(f, g, start(), start(), "f2ba", K=4, eta_x=0.1, steps=5)
    assert got.steps == 5
    assert got.counts["grad_f_x"] == 5
    assert got.counts["grad_f_y"] == 20
    assert got.counts["grad_g_x"] == 10
    assert got.counts["grad_g_y"] == 40
    assert got.counts["first_order"] == 75
    assert got.counts["second_order"] == 0


def test_solve_within_a_budget_of_calls():
    got = bilevelbench.solve(f, g, start(), start(), "f2ba", K=4, eta_x=0.1, budget=40)
    assert (got.status, got.steps, got.counts["first_order"]) == ("budget", 2, 40)


def test_solve_makes_1000_steps_if_nothing_is_said():
    assert bilevelbench.solve(f, g, start(), start(), Shrink(rate=0.01)).steps == 1000


def test_solve_of_a_method_that_lacks_more_than_an_x_step_names_the_constant_and_the_way_out():
    with pytest.raises(MissingConstant) as caught:
        bilevelbench.solve(f, g, start(), start(), "rahgd", steps=3)
    text = str(caught.value)
    assert "your functions" in text
    assert "constants=" in text
    assert "set the parameter" in text


def test_solve_takes_the_x_step_from_constants():
    got = bilevelbench.solve(f, g, start(), start(), "f2ba", constants={"L_phi": 2.0, "L_g": 3.0}, steps=3)
    assert got.params["eta_x"] == 0.25


def test_solve_estimates_the_lower_curvature():
    got = bilevelbench.solve(f, g, start(), start(), "f2ba", eta_x=0.1, steps=3)
    assert got.params["a_y"] == pytest.approx(1 / (2 * 2), rel=1e-6)


def test_estimate_of_the_curvature_is_not_counted():
    declared = bilevelbench.solve(f, g, start(), start(), constants={"L_gy": 2.0}, eta_x=0.1, steps=3)
    assert declared.counts == bilevelbench.solve(f, g, start(), start(), eta_x=0.1, steps=3).counts


def test_solve_says_that_its_numbers_are_not_certified():
    assert bilevelbench.solve(f, g, start(), start(), eta_x=0.1, steps=3).certificate == "not certified"


def test_solve_with_constants_certifies_its_numbers():
    known = {"mu": 1.0, "L_f": 1.0, "L_g": 3.0, "rho_g": 0.0}
    assert bilevelbench.solve(f, g, start(), start(), constants=known, eta_x=0.1, steps=3).certificate == "bound"


def test_solve_in_float32():
    B = A.float()
    got = bilevelbench.solve(
        f, lambda x, y: 0.5 * y @ B @ y - x @ y, *(start(dtype=torch.float32),) * 2, "aid", eta_x=0.3, steps=50
    )
    assert got.x.dtype == torch.float32
    np.testing.assert_allclose(got.x, BEST, atol=1e-4)


@pytest.mark.parametrize(
    ("x_dtype", "y_dtype"),
    [(torch.float64, torch.float32), (torch.int64, torch.int64), (torch.float16, torch.float16)],
)
def test_solve_refuses_other_dtypes(x_dtype, y_dtype):
    with pytest.raises(InvalidInput, match="give both as float64, or both as float32"):
        bilevelbench.solve(f, g, start(dtype=x_dtype), start(dtype=y_dtype), eta_x=0.1, steps=3)


def test_solve_refuses_f_that_is_no_scalar():
    with pytest.raises(InvalidInput, match=r"f returned a tensor of shape \(2,\); it has to return one number"):
        bilevelbench.solve(lambda x, y: x + y, g, start(), start(), eta_x=0.1, steps=3)


@pytest.mark.parametrize("constants", [None, {"L_gy": 2.0}])
def test_solve_refuses_g_that_is_no_scalar(constants):
    with pytest.raises(InvalidInput, match=r"g returned a tensor of shape \(2,\); it has to return one number"):
        bilevelbench.solve(f, lambda x, y: x + y, start(), start(), constants=constants, eta_x=0.1, steps=3)


def test_solve_refuses_f_that_returns_no_tensor():
    with pytest.raises(InvalidInput, match="f returned float; it has to return a torch tensor"):
        bilevelbench.solve(lambda x, y: 1.0, g, start(), start(), eta_x=0.1, steps=3)


def test_solve_refuses_g_without_curvature():
    with pytest.raises(InvalidInput, match="no curvature"):
        bilevelbench.solve(f, lambda x, y: (x * y).sum(), start(), start(), eta_x=0.1, steps=3)


def test_solve_takes_a_method_as_an_object():
    method = make(registry().algorithm("aid"), {"D": 3, "eta_x": 0.2})
    by_object = bilevelbench.solve(f, g, start(), start(), method, steps=9)
    by_name = bilevelbench.solve(f, g, start(), start(), "aid", D=3, eta_x=0.2, steps=9)
    assert torch.equal(by_object.x, by_name.x)


def test_solve_refuses_parameters_beside_an_object():
    method = make(registry().algorithm("aid"), {"eta_x": 0.2})
    with pytest.raises(InvalidInput, match=r"D.*aid is given as an object"):
        bilevelbench.solve(f, g, start(), start(), method, D=3, steps=9)


def test_solve_names_an_unknown_parameter():
    with pytest.raises(InvalidInput, match="f2ba has no parameter 'lamda'; did you mean 'lam'"):
        bilevelbench.solve(f, g, start(), start(), "f2ba", lamda=3, eta_x=0.1, steps=3)


def test_solve_says_when_the_method_diverges():
    got = bilevelbench.solve(f, g, start(), start(), eta_x=1e100, steps=100)
    assert got.status == "diverged"
    assert "eta_x=1e+100" in got.message


def test_solve_raises_what_a_function_raises():
    with pytest.raises(Broken, match="nobody knows this point") as caught:
        bilevelbench.solve(f, breaking(g, 120), start(), start(), "f2ba", eta_x=0.1, steps=50)
    assert caught.traceback[-1].name == "g_that_breaks"
    assert re.fullmatch(
        r"f2ba failed in step \d+: Broken: nobody.*; errors=\"return\" gives.*", caught.value.__notes__[0]
    )


def test_solve_raises_what_a_method_raises():
    class Clumsy(Shrink):
        name = "clumsy"

        def step(self, s, oracle):
            raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        bilevelbench.solve(f, g, start(), start(), Clumsy(), steps=3)


def test_solve_returns_an_error_if_asked_to():
    got = bilevelbench.solve(f, breaking(g, 120), start(), start(), "f2ba", eta_x=0.1, steps=50, errors="return")
    assert got.status == "error"
    assert "Broken: nobody knows this point" in got.message
    assert got.message.endswith("; the answer is the start: x is x0")
    assert torch.equal(got.x, start())
    with pytest.raises(InvalidInput, match="errors='returns'; did you mean 'return'"):
        bilevelbench.solve(f, g, start(), start(), eta_x=0.1, steps=3, errors="returns")


@pytest.mark.parametrize(
    ("limits", "is_start"),
    [
        ({"budget": 3}, True),
        ({"steps": 2}, False),
        ({"steps": 9, "target": 1e9, "constants": {"mu": 1.0, "L_gy": 2.0}}, True),
    ],
)
def test_solve_says_when_its_answer_is_the_start(limits, is_start):
    got = bilevelbench.solve(f, g, start(), start(), "f2ba", eta_x=0.1, **limits)
    assert torch.equal(got.x, start()) == is_start
    assert ("the answer is the start: x is x0" in got.message) == is_start


@pytest.mark.parametrize("method", ["f2ba", "f2sa", "aid", "itd"])
def test_solve_gives_what_the_plugin_problem_gives(method):
    problem = make(registry().problem("quadratic"), {"dim_x": 4, "dim_y": 6})
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    instance = problem.build()
    torch.set_default_dtype(default)
    known = instance.constants.given
    got = bilevelbench.solve(
        lambda x, y: instance.value_f(x[None], y[None]).reshape(()),
        lambda x, y: instance.value_g(x[None], y[None]).reshape(()),
        instance.x0[0],
        instance.y0[0],
        method,
        constants=known,
        steps=20,
    )
    run = bilevelbench.run(method, problem, steps=20).runs.iloc[0]
    assert got.phi == pytest.approx(run.phi, rel=1e-9)
    assert got.grad_phi == pytest.approx(run.grad_phi, rel=1e-8)
    assert all(got.counts[name] == run[name] for name in got.counts)


# ---- tune


def test_tune_finds_what_the_grid_has():
    tuned = bilevelbench.tune("aid[eta_x=1e-6,1e-3,1e3]", "quadratic[dim_x=4,dim_y=6]", steps=20)
    assert tuned.best["eta_x"] == 1e-3
    table = tuned.table()
    assert len(table) == len(tuned.results.runs) == 3
    assert table["phi"].is_monotonic_increasing
    assert table["eta_x"].iloc[0] == 1e-3
    assert table["phi"].iloc[0] == tuned.score == tuned.results.runs["phi"].min()


def test_tune_draws_from_the_roles_of_a_method():
    tuned = bilevelbench.tune(
        "aid", make(registry().problem("quadratic"), {"dim_x": 4}), settings=5, budget=200, by="grad_phi"
    )
    assert len(tuned.table()) == 5
    assert set(tuned.best) == {"eta_x", "a"}


def test_tune_by_halving_within_a_cost():
    tuned = bilevelbench.tune("aid", "quadratic[dim_x=4,dim_y=6]", settings=9, search="halving", cost=3000, budget=500)
    assert tuned.results.runs["cost"].sum() <= 3000
    assert len(tuned.table()) > 9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"steps": 5, "search": "halving"}, "search = 'halving' shares out a cost"),
        ({"steps": 5, "by": "test_error"}, "is a test metric"),
        ({}, "set one of budget, steps and seconds"),
    ],
)
def test_tune_says_what_is_wrong(arguments, said):
    with pytest.raises(InvalidInput, match=said):
        bilevelbench.tune("aid", "quadratic", **arguments)


# ---- suites

HEAD = "[budget]\nsteps = 5\n"


def suite(tmp_path, text: str) -> Suite:
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return Suite.load(file)


def trials_of(tmp_path, text: str) -> list[Trial]:
    return suite(tmp_path, text).trials(registry())


def test_suite_with_a_grid(tmp_path):
    text = """
    [[algorithm]]
    name = "f2ba"
    params = {lam = [10, 100], K = [1, 2, 3], eta_x = 0.1}
    [[problem]]
    name = "quadratic"
    params = {kappa = [2, 4]}
    """
    trials = trials_of(tmp_path, text + HEAD)
    got = {(t.algorithm.params["lam"], t.algorithm.params["K"], t.problem.params["kappa"]) for t in trials}
    assert len(trials) == len(got) == 12
    assert all(t.algorithm.params["eta_x"] == 0.1 for t in trials)


def test_suite_seeds_as_a_number(tmp_path):
    text = 'seeds = 3\n[[algorithm]]\nname = "f2ba"\n[[problem]]\nname = "quadratic"\n'
    assert [t.seed for t in trials_of(tmp_path, text + HEAD)] == [0, 1, 2]


def test_suite_seeds_as_a_list(tmp_path):
    text = 'seeds = [4, 9]\n[[algorithm]]\nname = "f2ba"\n[[problem]]\nname = "quadratic"\n'
    assert [t.seed for t in trials_of(tmp_path, text + HEAD)] == [4, 9]


def test_suite_data_seeds(tmp_path):
    text = 'data_seeds = 3\n[[algorithm]]\nname = "f2ba"\n[[problem]]\nname = "quadratic"\n'
    assert [t.problem.params["data_seed"] for t in trials_of(tmp_path, text + HEAD)] == [0, 1, 2]


def test_suite_data_seed_of_a_problem_goes_first(tmp_path):
    text = 'data_seeds = 3\n[[algorithm]]\nname = "f2ba"\n[[problem]]\nname = "quadratic"\nparams = {data_seed = 8}\n'
    assert [t.problem.params["data_seed"] for t in trials_of(tmp_path, text + HEAD)] == [8]


def test_suite_budget_and_targets_of_a_problem_go_first(tmp_path):
    text = """
    targets = [0.1]
    algorithm = [{name = "f2ba"}]
    [[problem]]
    name = "quadratic"
    [[problem]]
    name = "tail_anchor"
    budget = {cost = 70}
    targets = []
    """
    first, second = trials_of(tmp_path, text + HEAD)
    assert (first.budget, first.targets) == (Budget(steps=5), (0.1,))
    assert (second.budget, second.targets) == (Budget(cost=70), ())


def test_suite_restricts_a_method_to_problems(tmp_path):
    text = """
    [[algorithm]]
    name = "f2ba"
    problems = ["tail_anchor"]
    [[algorithm]]
    name = "aid"
    [[problem]]
    name = "quadratic"
    [[problem]]
    name = "tail_anchor"
    """
    got = [(t.algorithm.name, t.problem.name) for t in trials_of(tmp_path, text + HEAD)]
    assert got == [("aid", "quadratic"), ("f2ba", "tail_anchor"), ("aid", "tail_anchor")]


def test_suite_of_all_methods_on_all_embedded_problems(tmp_path):
    trials = trials_of(tmp_path, HEAD)
    alone = {n for n, e in registry().algorithms.items() if not issubclass(e.value, Distributed)}  # no agents there
    assert {t.algorithm.name for t in trials} == alone
    assert {t.problem.name for t in trials} == {n for n, e in registry().problems.items() if e.value.embedded}


def test_suite_names_a_trial_once(tmp_path):
    text = 'algorithm = [{name = "f2ba", label = "one"}, {name = "f2ba"}]\nproblem = [{name = "quadratic"}]\n'
    assert [t.label for t in trials_of(tmp_path, text + HEAD)] == ["one"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget = = 3", r"suite .*mine.toml is not valid TOML: .*line 1"),
        (
            HEAD + "setps = 3\n",
            r"suite .*mine.toml: budget: there is no field 'setps' \(setps = 3\); did you mean 'steps'",
        ),
        (
            "titel = 'x'\n" + HEAD,
            r"suite .*mine.toml: .*there is no field 'titel' \(titel = 'x'\); did you mean 'title'",
        ),
        ("title = 'x'\n", r"suite .*mine.toml: budget = .*: field required"),
        ("[budget]\n", r"suite .*mine.toml: budget: a budget needs one of cost, steps and seconds"),
        ("seeds = 0\n" + HEAD, r"suite .*mine.toml: seeds.* = 0"),
        ("algorithm = 'some'\n" + HEAD, r"suite .*mine.toml: algorithm.* = 'some'"),
    ],
)
def test_suite_errors_are_sentences(tmp_path, text, message):
    with pytest.raises(InvalidInput, match=message):
        suite(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('algorithm = [{name = "f2bba"}]\n', "unknown method 'f2bba'; did you mean 'f2ba'"),
        ('problem = [{name = "quadratc"}]\n', "unknown problem 'quadratc'; did you mean 'quadratic'"),
        ('algorithm = [{name = "f2ba", params = {Lam = 3}}]\n', "f2ba has no parameter 'Lam'; did you mean 'lam'"),
        ('problem = [{name = "quadratic", params = {kappa = 0.5}}]\n', "quadratic: kappa = 0.5"),
    ],
)
def test_suite_mistakes_are_found_before_anything_runs(tmp_path, text, message):
    with pytest.raises(bilevelbench.BilevelbenchError, match=message):
        trials_of(tmp_path, text + HEAD)


# ---- the id of a trial

BASE = {
    "algorithm": {"name": "f2ba", "params": {"K": 3, "lam": 10.0}},
    "problem": {"name": "quadratic", "params": {"kappa": 2.0, "reg": 1.0}},
    "budget": {"steps": 5},
    "targets": [0.1],
    "plugin": "p",
    "plugin_version": "1",
    "problem_plugin": "q",
    "problem_plugin_version": "2",
}


def trial_id(**changes) -> str:
    return Trial.model_validate({**BASE, **changes}).id


def test_id_does_not_depend_on_the_order_of_keys():
    backwards = {
        "algorithm": {"params": {"lam": 10.0, "K": 3}, "name": "f2ba"},
        "problem": {"params": {"reg": 1.0, "kappa": 2.0}, "name": "quadratic"},
    }
    assert trial_id(**backwards) == trial_id()


def test_id_does_not_depend_on_the_label():
    assert trial_id(label="mine") == trial_id()


def test_id_survives_json():
    trial = Trial.model_validate(BASE)
    assert Trial.model_validate(json.loads(trial.model_dump_json())).id == trial.id


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": {"name": "f2sa", "params": {"K": 3, "lam": 10.0}}},
        {"algorithm": {"name": "f2ba", "params": {"K": 4, "lam": 10.0}}},
        {"algorithm": {"name": "f2ba", "params": {"K": 3}}},
        {"problem": {"name": "quadratic", "params": {"kappa": 2.0, "reg": 1.5}}},
        {"problem": {"name": "quadratic", "params": {"kappa": 2.0, "reg": 1.0, "data_seed": 1}}},
        {"problem": {"name": "ridge_abalone"}},
        {"seed": 1},
        {"budget": {"steps": 6}},
        {"budget": {"steps": 5, "cost": 100}},
        {"budget": {"steps": 5, "seconds": 100}},
        {"targets": []},
        {"targets": [0.1, 0.01]},
        {"schedule": {"ratio": 1.2}},
        {"schedule": {"mean": True}},
        {"schedule": {"second_order": True}},
        {"dtype": "float32"},
        {"plugin": "other"},
        {"plugin_version": "2"},
        {"problem_plugin": "other"},
        {"problem_plugin_version": "3"},
        {"tuned": "phi"},
        {"compile": "always"},
    ],
    ids=str,
)
def test_id_depends_on_everything_else(change):
    assert trial_id(**change) != trial_id()


def test_every_field_of_a_trial_is_in_that_list():
    changed = {"algorithm", "problem", "seed", "budget", "targets", "schedule", "dtype"}
    changed |= {"plugin", "plugin_version", "problem_plugin", "problem_plugin_version", "tuned", "compile"}
    assert set(Trial.model_fields) == changed | {"label"}


def test_trial_with_an_unknown_field_is_refused():
    with pytest.raises(ValueError, match="sead"):
        Trial.model_validate({**BASE, "sead": 3})


# ---- NAME[param=value]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f2ba", [{}]),
        ("f2ba[]", [{}]),
        (" f2ba [ ] ", [{}]),
        ("f2ba[K=3,lam=10,100,1000]", [{"K": 3, "lam": 10}, {"K": 3, "lam": 100}, {"K": 3, "lam": 1000}]),
        ("f2ba[lam=10,100,K=3]", [{"lam": 10, "K": 3}, {"lam": 100, "K": 3}]),
        ("f2ba[ K = 3 , lam = 10 ,  100 ]", [{"K": 3, "lam": 10}, {"K": 3, "lam": 100}]),
        ("f2ba[a=1,2,b=3,4]", [{"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 2, "b": 3}, {"a": 2, "b": 4}]),
        ("f2ba[a=1,]", [{"a": 1}]),
        ("f2ba[a=-3]", [{"a": -3}]),
        ("f2ba[a=1e-3]", [{"a": 1e-3}]),
        ("f2ba[a=-2.5E+2]", [{"a": -250.0}]),
        ("f2ba[a=.5]", [{"a": 0.5}]),
        ("f2ba[a=true,False]", [{"a": True}, {"a": False}]),
        ("f2ba[a=none,null,None]", [{"a": None}] * 3),
        ("f2ba[a=cg]", [{"a": "cg"}]),
        ("f2ba[a='cg']", [{"a": "cg"}]),
        ('f2ba[a="two words"]', [{"a": "two words"}]),
        ("f2ba[a=x=y]", [{"a": "x=y"}]),
    ],
)
def test_specs_are_read(text, expected):
    assert parse_spec(text) == [Spec(name="f2ba", params=params) for params in expected]


def test_whole_numbers_stay_whole_and_others_do_not():
    (spec,) = parse_spec("f2ba[a=3,b=3.0,c=3e0]")
    assert [type(spec.params[k]) for k in "abc"] == [int, float, float]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f2ba[K=3,K=4]", "sets 'K' twice; write K=value1,value2"),
        ("f2ba[3,K=4]", "'3' stands before any parameter; write param=3"),
        ("f2ba[K=]", "parameter 'K' has no value"),
        ("f2ba[K=,3]", "parameter 'K' has no value"),
        ("f2ba[K=3", "cannot read"),
        ("f2ba]K=3[", "cannot read"),
        ("f2ba[K=3]x", "cannot read"),
        ("[K=3]", "cannot read"),
        ("", "cannot read"),
    ],
)
def test_specs_that_cannot_be_read(text, message):
    with pytest.raises(InvalidInput) as caught:
        parse_spec(text)
    assert message in str(caught.value)


def test_file_names_are_names():
    (spec,) = parse_spec("./some dir/my-method.py:Mine[K=3]")
    assert spec == Spec(name="./some dir/my-method.py:Mine", params={"K": 3})


@pytest.mark.parametrize("text", ["f2ba", "f2ba[K=3,lam=0.1]", "aid[solver=cg,D=2]", "tail_anchor[saddle=true]"])
def test_written_specs_are_read_back(text):
    (spec,) = parse_spec(text)
    assert str(spec) == text
    assert parse_spec(str(spec)) == [spec]


def test_dir_shows_the_public_names():
    names = dir(bilevelbench)
    assert {"run", "solve", "Algorithm", "KnownFailure", "__version__", "hookimpl"} <= set(names)
    assert sorted(bilevelbench.__all__) == names
    assert all(hasattr(bilevelbench, name) for name in names)
