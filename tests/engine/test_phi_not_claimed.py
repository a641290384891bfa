"""Benchmark runs in which phi is not solved for, not claimed, or measured inside a set."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import Shrink
from test_cli import cli

import bilevelbench
from bilevelbench import Box, Instance, InvalidInput, Problem, Schedule, dot
from bilevelbench.report.analysis.summary import certificates, readable, summary
from bilevelbench.results.tables import load_results


class Dip(Problem):
    """g = 1/2 yᵀy - d y_1² - xᵀy, f = 1/2 |y|² + 1/2 |x|²: not convex for d above 1/2."""

    name = "dip"
    depth: float = 0.0

    def build(self) -> Instance:
        return Instance(
            f=lambda x, y: 0.5 * dot(y, y) + 0.5 * dot(x, x),
            g=lambda x, y: 0.5 * dot(y, y) - self.depth * y[..., :1] ** 2 - dot(x, y),
            x0=torch.ones(1, 2),
            y0=torch.ones(1, 2),
        )


class Untried(Dip):
    name = "untried"
    solves_phi = False


class Boxed(Dip):
    name = "boxed"

    def build(self) -> Instance:
        instance = super().build()
        instance.project = Box(0.5, 2.0)
        return instance


def test_a_lower_level_that_is_not_convex_is_a_remark_in_its_row_alone():
    """Two trials in one run, one of them convex."""
    runs = bilevelbench.run(Shrink(), [Dip(depth=0.0), Dip(depth=2.0)], steps=5).runs
    assert runs["certificate"].tolist() == ["not certified", "not convex"]
    assert runs["status"].tolist() == ["budget", "budget"]
    assert runs["phi"].notna().tolist() == [True, False]
    assert "g has negative curvature in y (seen at step 0)" in runs["message"][1]
    assert "curvature" not in runs["message"][0]


def test_what_is_not_claimed_is_not_certified_in_tables():
    results = bilevelbench.run(Shrink(), Dip(depth=2.0), steps=5)
    assert readable(summary(results))["cost to 0.1"].tolist() == ["not certified"]
    assert certificates(results.runs) == "The gradient norms are not certified, and no accuracy counts as reached."


def test_a_problem_may_say_that_nobody_solves_its_lower_level(monkeypatch):
    monkeypatch.setattr("bilevelbench.engine.evaluator.Evaluator._newton", lambda *_: pytest.fail("it was solved"))
    runs = bilevelbench.run(Shrink(), Untried(), steps=5).runs
    assert runs["certificate"].tolist() == ["none"]
    assert math.isnan(runs["phi"][0])
    with pytest.raises(InvalidInput, match=r"targets are held against \|grad phi\|"):
        bilevelbench.run(Shrink(), Untried(), steps=5, targets=[0.1])
    with pytest.raises(InvalidInput, match="need the hypergradient"):
        bilevelbench.run(Shrink(), Untried(), steps=5, schedule=Schedule(mean=True))


def test_run_without_phi(tmp_path):
    code, _, _ = cli(
        "run", "-a", "f2ba[eta_x=0.1]", "-p", "logcosh", "--steps", 2, "--no-phi", "--jobs", 0, "-o", tmp_path
    )
    runs = load_results(tmp_path).runs
    assert code == 0
    assert runs["certificate"].tolist() == ["none"]
    assert runs["phi"].isna().all()
    code, _, err = cli("run", "-a", "f2ba", "-p", "logcosh", "--steps", 2, "--no-phi", "--target", 0.1, "-o", tmp_path)
    assert code == 2
    assert "--target 0.1 is held against |grad phi|, which --no-phi leaves out" in err


def test_suites_without_phi_lose_their_targets():
    from bilevelbench.cli.options import suites_of, without_phi
    from bilevelbench.discovery.registry import registry

    (plan,) = suites_of(registry(), [], [], True, None)
    trials = without_phi(plan, []).trials(registry())
    assert trials
    assert {trial.schedule.phi for trial in trials} == {False}
    assert {trial.targets for trial in trials} == {()}


def test_a_problem_in_a_set():
    results = bilevelbench.run("aid[eta_x=0.25,a=0.5]", Boxed(), steps=30)
    (row,) = results.runs.to_dict("records")
    assert row["certificate"] == "not certified; gradient mapping"
    assert row["phi"] == pytest.approx(0.5 * 2 * 0.25 * 2)  # phi = |x|² at (1/2, 1/2): f = 1/2 |x|² + 1/2 |x|²
    assert row["grad_phi"] == pytest.approx(0.0, abs=1e-12)
    assert "x is confined to a set" in certificates(results.runs)
    assert "not certified" in certificates(results.runs)


def test_a_problem_whose_projection_leaves_its_set_could_not_be_set_up():
    class Leaves(Dip):
        name = "leaves"

        def build(self) -> Instance:
            instance = super().build()
            instance.project = lambda x: x + 1
            return instance

    runs = bilevelbench.run(Shrink(), Leaves(), steps=3).runs
    assert runs["status"].tolist() == ["error"]
    assert "the projection leaves its set" in runs["message"][0]
