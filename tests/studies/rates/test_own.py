"""`bilevelbench rates` for anyone's method and problem, and what it says of input that cannot be measured."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from bilevelbench.cli.app import app
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput
from bilevelbench.studies.rates.own import Asked, own_suite
from bilevelbench.studies.rates.plan import plan_row

pytestmark = pytest.mark.whole

METHOD = '''
"""Gradient descent with the exact hypergradient of a problem whose lower level is y = x."""

from dataclasses import dataclass
from typing import Self

from pydantic import PositiveFloat
from torch import Tensor

from bilevelbench import Algorithm, Constants, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class Plain(Algorithm):
    name = "plain"
    uses = frozenset({"grad_f"})
    tuned = {"eta": "upper_step"}
    eta: PositiveFloat = 0.1

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        return State(x0, x0)

    def step(self, s: State, oracle: Oracle) -> State:
        f_x, f_y = oracle.grad_f(s.x, s.x)
        x = s.x - self.eta * (f_x + f_y)
        return State(x, x)
PRESET
'''

PRESET = """
    @classmethod
    def from_rate(cls, constants: Constants, eps: float, scale: float = 1.0) -> Self:
        return cls(eta=eps)
"""

PROBLEM = '''
"""phi(x) = w sqrt(1 + x^2): its gradient falls by a constant rate."""

import torch

from bilevelbench import Instance, Problem, Reference, exact


class Bowl(Problem):
    name = "bowl"
    wide: float = 1.0

    def sweep(self, over, value):
        return {"wide": 1 / value} if over == "narrow" else super().sweep(over, value)

    def build(self):
        w, rng = self.wide, self.generator()
        slope = lambda u: w * u / (1 + u * u).sqrt()
        return Instance(
            f=lambda x, y: w * (1 + y * y).sqrt(),
            g=lambda x, y: 0.5 * (y - x) ** 2,
            x0=3 + torch.rand(1, 1, generator=rng).to(torch.get_default_dtype()),
            y0=torch.zeros(1, 1),
            constants={CONSTANTS},
            reference=Reference(y_star=lambda x: x, phi=lambda x: w * (1 + x * x).sqrt(), grad_phi=slope),
        )
'''


@pytest.fixture
def method(tmp_path):
    def write(preset=PRESET):
        (tmp_path / "plain.py").write_text(METHOD.replace("PRESET", preset))
        return str(tmp_path / "plain.py")

    return write


@pytest.fixture
def problem(tmp_path):
    def write(constants='"mu": exact(1), "L_gy": exact(1)'):
        (tmp_path / "bowl.py").write_text(PROBLEM.replace("CONSTANTS", constants))
        return str(tmp_path / "bowl.py")

    return write


def rates(out, *arguments) -> list[dict]:
    result = CliRunner().invoke(app, ["rates", *arguments, "--json", "--jobs", "0", "-o", str(out)])
    assert result.exit_code == 0, result.output + str(result.exception)
    return json.loads(result.stdout)


def refused(*arguments) -> str:
    result = CliRunner().invoke(app, ["rates", *arguments])
    assert result.exit_code != 0
    return result.output + str(result.exception)


def test_method_and_problem_of_files_without_a_claim_have_a_slope(method, problem, tmp_path):
    """A step of eps and a time of 1/eps: an accuracy costs the logarithm over eps, and the mean rule 1/eps once more."""
    (row,) = rates(tmp_path / "out", "-a", method(), "-p", problem(), "--eps", "0.4:0.05", "--seeds", "2")
    assert (row["method"], row["problem"], row["verdict"], row["claimed"]) == ("plain", "bowl", "no claim", None)
    assert 1.7 < row["measured"] < 2.1
    assert [row["points"][0]["eps"], row["points"][-1]["eps"]] == pytest.approx([0.4, 0.05])
    assert (tmp_path / "out" / "rates.svg").exists()
    page = (tmp_path / "out" / "rates.md").read_text()
    assert "no claim" in page
    assert "95% over seeds only" in page


def test_same_command_runs_nothing_again(method, problem, tmp_path):
    arguments = ("-a", method(), "-p", problem(), "--eps", "0.4:0.2", "--seeds", "2")
    first = rates(tmp_path / "out", *arguments)
    packs = sorted(p.name for p in (tmp_path / "out").rglob("*.json"))
    assert rates(tmp_path / "out", *arguments) == first
    assert sorted(p.name for p in (tmp_path / "out").rglob("*.json")) == packs


def test_claim_of_a_bundled_method_is_drawn_beside_the_slope(problem, tmp_path):
    constants = '"mu": exact(1), "L_gy": exact(1), "L_phi": exact(1)'
    (row,) = rates(tmp_path / "out", "-a", "f2ba", "-p", problem(constants), "--eps", "0.4:0.1", "--seeds", "2")
    assert (row["claimed"], row["target"], row["q"], row["log_free_of"]) == (2, 2, None, "steps")
    assert row["verdict"] == "faster than claimed"  # a bowl is easy


def test_problem_says_how_a_sweep_changes_it(method, problem, tmp_path):
    (row,) = rates(
        tmp_path / "out", "-a", method(), "-p", problem(), "--over", "narrow", "--values", "1:4", "--eps", "0.1",
        "--seeds", "2", "--rule", "hit",
    )  # fmt: skip
    assert row["over"] == "narrow"
    assert row["measured"] > 0.4  # a small gradient moves x slowly
    assert row["claimed"] is None


@pytest.mark.slow  # tests/studies/rates/test_tuned.py has the search alone
def test_tuned_preset_finds_the_step_by_itself(method, problem, tmp_path):
    """Without any preset: the longest steps on w sqrt(1 + x^2) are about 2/w."""
    (row,) = rates(
        tmp_path / "out", "-a", method(""), "-p", problem(), "--preset", "tuned", "--eps", "0.4:0.2", "--seeds", "2"
    )
    assert row["preset"] == "tuned"
    assert row["tuned"].startswith("x-step ")
    factors = [float(text) for text in row["tuned"].split(" times")[0].removeprefix("x-step ").split()]
    assert all(5 < factor < 40 for factor in factors)


def test_suite_file_does_the_same(method, problem, tmp_path):
    suite = tmp_path / "mine.toml"
    suite.write_text(
        f'title = "mine"\nproblem = "{problem()}"\n[[row]]\nmethod = "{method()}"\neps = [0.4, 0.1]\nseeds = 2\n'
        'log_free = "cost"\n'
    )
    (row,) = rates(tmp_path / "out", "--suite", str(suite))
    assert row["method"] == "plain"
    assert row["measured"] > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--eps", "0.2:0.1", "--seeds", "1"], "--seeds 1: an interval needs two seeds or more"),
        (["--eps", "0.2"], "--eps 0.2: give a range, as in --eps 0.2:0.01"),
        (["--eps", "0.2:0.15"], "a factor of 1.33 is too short for a slope"),
        (["--eps", "0.2:-1"], "both ends are finite numbers above 0"),
        ([], "give a range"),
        (["--over", "kapa", "--values", "1:4", "--eps", "0.1"], "problem 'bowl' cannot be swept over 'kapa'; choose from wide"),
        (["--over", "wide", "--values", "1:4", "--eps", "0.1:0.01"], "all runs have one accuracy"),
        (["--over", "wide", "--values", "1:4"], "all runs have one accuracy"),
        (["--values", "1:4", "--eps", "0.2:0.1"], "--values 1:4 goes with --over"),
        (["--eps", "0.2:0.1", "--preset", "theory"], "plain has no theory preset (it has rate)"),
        (["--eps", "0.2:0.1", "--preset", "horizon"], "give --values 128:8192 instead of --eps"),
        (["--eps", "0.2:0.1", "--rule", "best"], "unknown --rule 'best'"),
        (["--eps", "0.2:0.1", "--table", "1"], "--table belongs to the bundled tables"),
    ],
)  # fmt: skip
def test_bad_input_is_a_sentence(arguments, said, method, problem, tmp_path):
    assert said in refused("-a", method(), "-p", problem(), *arguments, "--jobs", "0", "-o", str(tmp_path / "out"))


def test_constant_that_a_preset_lacks_is_named_with_the_preset(problem):
    said = refused("-a", "f2ba", "-p", problem(), "--eps", "0.2:0.05", "--jobs", "0")
    assert "problem 'bowl' declares no constant" in said
    assert "(needed for the rate preset of f2ba)" in said


def test_accuracy_finer_than_the_certificate_is_refused_before_the_run(tmp_path):
    said = refused(
        "-a", "f2ba", "-p", "tail_anchor", "--eps", "0.2:1e-17", "--jobs", "0", "-o", str(tmp_path / "out"),
    )  # fmt: skip
    assert "eps = 1e-17 is finer than |grad phi| of problem 'tail_anchor' is known" in said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('method = "f2ba"\neps = [0.2, 0.1]\nseeds = 1', "row of f2ba: seeds = 1: an interval needs two seeds or more"),
        (
            'method = "f2ba"\neps = [0.2, 1e-17]',
            "is finer than |grad phi| of problem 'tail_anchor' is known",
        ),
        (
            'method = "f2ba"\nsweep = "kapa"\nvalues = [1, 4]\nset_by = "sweep"',
            "problem 'tail_anchor' cannot be swept over 'kapa'",
        ),
        ('method = "f2ba"\neps = [0.2, 0.1]\non = "BOWL"', "(needed for the rate preset of f2ba)"),
        (
            'method = "f2ba"\neps = [0.2, 0.1]\ntimes = { lamm = 2.0 }',
            "the preset sets no number 'lamm'; did you mean 'lam'?",
        ),
    ],
    ids=["one seed", "eps below the certificate", "unknown sweep", "missing constant", "unknown parameter"],
)
def test_bad_row_of_a_suite_file_is_a_sentence(row, said, problem, tmp_path):
    suite = tmp_path / "mine.toml"
    suite.write_text(f'title = "mine"\n[[row]]\n{row}\n'.replace("BOWL", problem()))
    assert said in refused("--suite", str(suite), "--jobs", "0", "-o", str(tmp_path / "out"))


def test_method_without_a_step_to_tune_is_told(method, problem):
    text = METHOD.replace("PRESET", "").replace('tuned = {"eta": "upper_step"}', "")
    with open(method(), "w") as file:
        file.write(text)
    path = file.name
    suite = own_suite(registry(), Asked([path], [problem()], eps="0.2:0.1", seeds=2, preset="tuned"))
    with pytest.raises(InvalidInput, match="plain declares no step of x to tune"):
        plan_row(suite.row[0], suite, registry(), "tuned")


def test_methods_are_needed(problem):
    assert "say which methods to measure" in refused("-p", problem(), "--eps", "0.2:0.1")


@pytest.mark.parametrize(
    ("name", "over", "value", "params"),
    [
        ("tail_anchor", "kappa", 16, {"mu": 0.125}),
        ("tail_anchor", "dim_x", 5, {"anchors": 4}),
        ("quadratic", "kappa", 16, {"kappa": 16}),
        ("washboard", "kappa", 16, {"kappa": 16}),
        ("quadratic_sum", "n", 4096, {"copies": 4}),
        ("quadratic_sum", "dim_x", 7.6, {"dim_x": 8}),
    ],
)
def test_sweep_of_bundled_problems(name, over, value, params):
    assert make(registry().problem(name), {}).sweep(over, value) == params


def test_size_that_a_sum_does_not_have_is_refused():
    with pytest.raises(InvalidInput, match="sweep over multiples of n"):
        make(registry().problem("quadratic_sum"), {}).sweep("n", 1500)


def test_row_s_parameters_go_into_the_preset():
    """Batches and penalty of F2SA-p follow from p: they are not those of p = 2."""
    asked = Asked(["f2sa_p[p=2,3]"], ["tail_anchor[sigma_f=0.3,sigma_g=0.3]"], eps="0.2:0.1", seeds=2)
    suite = own_suite(registry(), asked)
    lam = {}
    for row in suite.row:
        assert row.setting == "full"
        point = plan_row(row, suite, registry(), grid=[0.1])[0]
        lam[point.trial.algorithm.params["p"]] = point.trial.algorithm.params["lam"]
    assert lam[2] == pytest.approx(3 * 0.1 ** (-1 / 2))
    assert lam[3] == pytest.approx(4 * 0.1 ** (-1 / 3))
