"""A gallery of bad plugins: each is caught, by the kit and where it can be by the runner, with the right sentence."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from helpers import is_running
from test_contained import CAUGHT, HARMLESS, NOT_SEEN

from bilevelbench import Distributed, api
from bilevelbench.cli.check import check_plugin
from bilevelbench.discovery.registry import registry
from bilevelbench.results.tables import load_results
from bilevelbench.testing import run_checks

pytestmark = pytest.mark.whole

GALLERY = Path(__file__).parent / "gallery"

#: file -> the check that catches it, and a part of what it says
METHODS = {
    "mutates_input": (
        "step_is_pure",
        "`step` to leave its arguments as they are; saw y written to in place; make a new",
    ),
    "global_randomness": (
        "global_randomness",
        "generators to be left alone; saw that of torch moved; draw from oracle",
    ),
    "undeclared_query": ("runs", "the method asked for 'hvp_g_yy', which its `uses` does not declare"),
    "swallows_budget": ("budget", "BudgetExhausted to end a step that the budget does not cover; saw the step went on"),
    "differentiates_answer": ("runs", "the oracle's answers are detached, nothing can be differentiated through them"),
    "copies_oracle": ("runs", "an oracle cannot be copied or pickled"),
    "pickles_oracle": ("runs", "an oracle cannot be copied or pickled"),
    "keeps_instance": ("keeps_no_reference", "the instance to be gone after the run; saw a reference to it"),
    "asks_instance": ("runs", "the meter and the instance's own count differ (grad_g_y: 0 at the door, 1 below it)"),
    "forward_mode": ("runs", "grad_g_y: y carries a tangent of forward-mode differentiation"),
    "maps_oracle": ("runs", "grad_g_y was asked inside a transform of torch.func (vmap, jvp, grad)"),
    "points_as_lanes": ("runs", "grad_g_y: x has the shape (40, 3); (4, 3) is wanted, one row per lane"),
    "moves_mask": ("masks", "lanes that are off to keep the values that they had; saw NaN in x or y after step 1"),
    "complex_step": ("runs", "grad_g_y: x is torch.complex128 and the problem torch.float64"),
    "free_newton": ("runs", "grad_g_y was asked inside a transform of torch.func (vmap, jvp, grad)"),
    "html_name": ("name", "a name of letters, digits and _ + -, beginning with a letter; saw '<img>'; choose another"),
    "name_clash": ("name_is_free", "'f2ba', which belongs to class F2BA of plugin 'bilevelbench'; rename yours"),
    "hidden_state": ("step_is_repeatable", "saw another x the second time; keep all that changes in the state"),
    "wrong_calls": ("calls", "calls(1) to be what the meter counts; saw 0 declared and 1 made of grad_g_y in step 1"),
    "idle_query": ("uses_is_honest", "saw value_g declared and never asked, whatever choices the parameters offer"),
    "single_precision": (
        "dtype",
        "a run in torch.float64 to stay so; saw m in torch.float32; make tensors like others",
    ),
    "mixes_lanes": ("lanes", "the same bits packed and alone; saw in lane 0"),
    "goes_uphill": ("progress", "|grad phi| to fall from"),
    "false_claim": ("claims", "saw oracle = 'gradient' beside second-order queries in `uses`; say oracle='HVP'"),
    "undocumented": ("documented", "a docstring of the class or its file; saw none; write the equations there"),
}
#: class in problems.py -> the same
PROBLEMS = {
    "WrongHvpSign": (
        "derivatives",
        "hvp_g_yy to be the derivative of g by autograd; saw a relative difference of 2 (it has",
    ),
    "WrongMu": ("strong_convexity", "no eigenvalue of g_yy below mu = 0.9; saw 0.5; lower mu"),
    "WrongMuAt": ("strong_convexity", "no eigenvalue of g_yy below mu_at(x) = "),
    "WrongLipschitz": (
        "lipschitz_gradients",
        "L_f = 0.25 to bound the change of its gradient; saw a change of 1 per unit",
    ),
    "WrongSlope": ("slope_of_f", "|f_y| <= C_f = 2; saw"),
    "WrongConstantName": ("constants", "known names of constants; saw 'mu_g'; correct it; did you mean 'mu'?"),
    "RandomBuild": (
        "build_is_deterministic",
        "generators alone; saw that of torch moved; draw with generator=self.gen",
    ),
    "Detaches": (
        "finite_differences",
        "grad_f_y to be the slope of f along a direction of y, by central differences; saw 0 ",
    ),
    "MixedLanes": ("lanes", "value_g of a lane to be the same in any company; saw another answer for lane 0 of 4"),
    "WrongHypergradient": ("hypergradient", "grad phi to be the slope of phi, by central differences; saw"),
    "WrongCurvature": (
        "hessian_of_phi",
        "Reference.hess_phi to be the derivative of grad_phi, by differences in each coordinate; saw 4",
    ),
    "WrongPoints": ("points", "hvp_g_yy at three stacked points of x to be (3, 4, 3), point by point; saw (4, 3)"),
    "WrongStack": (
        "stacked_data",
        "Reference.phi of data set 0 in a stack to be what `build` gives for it; saw another",
    ),
    "SteepFarAway": ("bounds", "L_f = 1 to hold everywhere; saw"),
    "BiasedRows": ("noise", "the mean of value_g over all blocks of rows to be that of the whole sum; saw a relative"),
    "WrongSolution": ("lower_solution", "g_y(x, y*(x)) = 0; saw |g_y| ="),
}


@functools.cache
def outcomes(name):
    entry = (
        registry().algorithm(str(GALLERY / f"{name}.py"))
        if name in METHODS
        else registry().problem(f"{GALLERY / 'problems.py'}:{name}")
    )
    return {outcome.check: outcome for outcome in run_checks(entry.value)}


@pytest.mark.parametrize(("name", "check", "words"), [(name, *row) for name, row in {**METHODS, **PROBLEMS}.items()])
def test_kit_catches(name, check, words):
    outcome = outcomes(name)[check]
    assert outcome.status == "failed"
    assert words in outcome.message
    assert outcome.message.startswith("expected ")


@pytest.mark.parametrize("name", ["undeclared_query", "copies_oracle", "asks_instance"])
def test_what_does_not_run_is_told_once(name):
    """The other checks that would try it are skipped and say why."""
    failed = [check for check, outcome in outcomes(name).items() if outcome.status == "failed"]
    assert failed == ["runs"]
    assert outcomes(name)["lanes"].message == "'runs' failed"


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("undeclared_query", "error", "in step 1: the method asked for 'hvp_g_yy', which its `uses` does not declare"),
        ("differentiates_answer", "error", "does not require grad"),
        ("copies_oracle", "error", "an oracle cannot be copied or pickled: a copy would be a second, unread meter"),
        ("pickles_oracle", "error", "an oracle cannot be copied or pickled: a copy would be a second, unread meter"),
        ("asks_instance", "invalid", "the method or the problem calls f or g past the oracle"),
        ("swallows_budget", "budget", "spent 31 of 31; the next call did not fit"),
        ("forward_mode", "error", "in step 1: grad_g_y: y carries a tangent of forward-mode differentiation"),
        ("maps_oracle", "error", "in step 1: grad_g_y was asked inside a transform of torch.func (vmap, jvp, grad)"),
        ("points_as_lanes", "error", "in step 1: grad_g_y: x has the shape (40, 20); (4, 20) is wanted"),
        ("moves_mask", "diverged", "x or y is not finite"),
        (
            "complex_step",
            "error",
            "in step 1: grad_g_y: x is torch.complex128 and the problem torch.float64; convert it",
        ),
        ("free_newton", "error", "in step 1: grad_g_y was asked inside a transform of torch.func (vmap, jvp, grad)"),
    ],
)
def test_runner_catches(name, status, words):
    row = api.run(str(GALLERY / f"{name}.py"), "quadratic", budget=31).runs.iloc[0]
    assert row.status == status
    assert words in row.message


def test_a_file_that_cannot_be_imported_is_a_failed_check():
    (outcome,) = check_plugin(str(GALLERY / "import_error.py"))
    assert (outcome.check, outcome.status) == ("loads", "failed")
    assert "ModuleNotFoundError: No module named 'no_such_module_anywhere'; fix the file" in outcome.message


def test_a_class_without_a_step_is_a_failed_check():
    (outcome,) = check_plugin(str(GALLERY / "no_step.py"))
    assert (outcome.check, outcome.status) == ("loads", "failed")
    assert "class NoStep has no `init` and no `step`" in outcome.message


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "infinite_loop",
            {"seconds": 4},
            "within 4 seconds; saw none, 'runs' was going on; look for a loop that does not end",
        ),
        ("huge_memory", {"memory": 1.5}, "memory"),
        ("exits", {}, "ended with exit code 3"),
    ],
)
@pytest.mark.quick_cases(1)
def test_what_no_process_survives(name, options, words):
    """In a worker with limits: the check ends, names the culprit, and says what was not tried."""
    found = {outcome.check: outcome for outcome in check_plugin(str(GALLERY / f"{name}.py"), **options)}
    assert found["name"].status == "passed"
    assert found["runs"].status == "failed"
    assert words in found["runs"].message
    assert found["lanes"].status == "skipped"


def install(folder):
    """Each file of the gallery as a distribution of its own, as pip would leave it."""
    for file in sorted(GALLERY.glob("*.py")):
        text, kind = file.read_text(), "problems" if file.stem == "problems" else "algorithms"
        classes = re.findall(r"^class (\w+)\((?:Algorithm|Problem)\)", text, flags=re.MULTILINE)
        hook = f"@hookimpl\ndef bilevelbench_{kind}():\n    return [{', '.join(classes)}]\n"
        (folder / f"bad_{file.stem}.py").write_text(f"{text}\n\nfrom bilevelbench import hookimpl\n\n{hook}")
        info = folder / f"bad_{file.stem}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: bad-{file.stem.replace('_', '-')}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[bilevelbench]\n{file.stem} = bad_{file.stem}\n")


def _started_with(process, env):
    try:
        return process.environ().get("PYTHONPATH") == env["PYTHONPATH"]
    except psutil.Error:
        return False


def numbers(folder):
    """What a trial that went to its end has counted and measured, by its id; what the clock has ended has no such end."""
    runs = load_results(folder).runs.query("status in ('budget', 'target')").set_index("trial_id")
    return runs[["cost", "first_order", "second_order", "phi", "grad_phi"]]


@pytest.mark.slow
def test_run_all_finishes_with_all_of_them_installed(tmp_path):
    """Every method, good or bad, has its row; of the bad ones nothing else is left, and the good ones have their numbers.

    The page shows the name `<img>` and has no such element from it.
    """
    honest = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TMPDIR": str(tmp_path / "temporary")}
    env = {**os.environ, **honest, "OMP_NUM_THREADS": "1"}
    options = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True, "timeout": 1200}
    # six seconds for five steps: some share the processors with what they have started
    limits = ["--steps", "5", "--seconds", "6", "--memory", "2", "--jobs", "2"]
    command = [sys.executable, "-m", "bilevelbench"]
    (tmp_path / "temporary").mkdir()
    alone = subprocess.run([*command, "run", "--all", "-p", "quadratic", *limits, "-o", "alone"], **options)
    assert alone.returncode == 0, alone.stderr
    install(tmp_path)
    env["PYTHONPATH"] = f"{tmp_path}:{honest['PYTHONPATH']}"
    before = {path.name for path in tmp_path.iterdir()}
    done = subprocess.run([*command, "run", "--all", "-p", "quadratic", *limits, "-o", "out"], **options)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} - before <= {"out", "__pycache__"}
    assert list((tmp_path / "temporary").iterdir()) == []
    one, two = numbers(tmp_path / "alone"), numbers(tmp_path / "out")
    both = one.index.intersection(two.index)
    assert len(both) > 20
    assert one.loc[both].equals(two.loc[both])
    assert "No module named 'no_such_module_anywhere'" in done.stderr
    assert "its method 'f2ba' is left out: plugin 'bilevelbench' has that name already" in done.stderr
    rows = {row.algorithm: row for row in load_results(tmp_path / "out").runs.itertuples()}
    everyone = {name: entry.value for name, entry in registry().algorithms.items()}
    built_in = {  # there are neither agents nor a finite sum
        name for name, cls in everyone.items() if not issubclass(cls, Distributed) and not cls.finite_sum_only
    }
    assert rows.keys() >= built_in | (METHODS.keys() - {"html_name", "name_clash"}) | {"<img>"}
    assert (rows["infinite_loop"].status, rows["infinite_loop"].message[:5]) == ("error", "hung:")
    assert rows["huge_memory"].status == "error"
    assert "exit code 3" in rows["exits"].message
    by_cost = {"changes_returned", "sleeps_in_extras"}  # these are caught under other limits
    attackers = {name: status for name, (status, _) in CAUGHT.items() if name not in by_cost}
    assert {name: rows[name].status for name in attackers} == attackers
    unmolested = {name: rows[name] for name in (*HARMLESS, *NOT_SEEN)}
    assert {name: row.message for name, row in unmolested.items() if row.status not in ("budget", "target")} == {}
    assert not [
        process.pid for process in psutil.process_iter() if _started_with(process, env) and is_running(process.pid)
    ]
    assert {rows[name].status for name in built_in} <= {"budget", "target", "timeout"}
    made = subprocess.run([*command, "report", "out", "--format", "html"], **options)
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "out" / "index.html").read_text()
    assert "&lt;img&gt;" in page
    assert "<img>" not in page


HONEST_NEWTON = '''
"""The Newton method of the gallery with its products declared and asked for: dy of them a step, and they are all on the row."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class HonestNewton(Algorithm):
    name = "honest_newton"
    uses = frozenset({"grad_f", "grad_g_y", "hvp_g_yy"})

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        f_x, _ = oracle.grad_f(s.x, s.y)
        units = torch.eye(oracle.dy, dtype=oracle.dtype).unsqueeze(1).expand(-1, oracle.L, -1)
        H = oracle.hvp_g_yy(s.x, s.y, units).permute(1, 0, 2)
        g_y = oracle.grad_g_y(s.x, s.y)
        return State(s.x - 0.01 * f_x, s.y - torch.linalg.solve(H, g_y.unsqueeze(-1)).squeeze(-1))
'''


def test_a_newton_method_shows_its_true_cost(tmp_path):
    (tmp_path / "newton.py").write_text(HONEST_NEWTON)
    row = api.run(str(tmp_path / "newton.py"), "quadratic[dim_y=7]", steps=5).runs.iloc[0]
    assert row.status == "budget", row.message
    assert (row.grad_f, row.grad_g, row.hvp, row.cost) == (5, 5, 35, 45)
