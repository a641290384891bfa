"""Experiments: each rule on tables made by hand, the figure and its sentences in every format, and figure 1 itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from bilevelbench_problems import RidgeAbalone
from helpers import Reader, packed, trial
from pydantic import ValidationError
from scipy.optimize import minimize_scalar

from bilevelbench.cli import run as run_cli
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput, StoreError, UnknownName
from bilevelbench.leaderboard.build import build, write_site
from bilevelbench.leaderboard.collect import Material
from bilevelbench.plan.figure import PaperFigure
from bilevelbench.plan.suite import Suite, load_suites
from bilevelbench.report import booktabs
from bilevelbench.report.analysis import verdicts
from bilevelbench.report.analysis.confidence import mean_interval, wilson
from bilevelbench.report.analysis.verdicts import Experiment, ExperimentOutcome, find_outcomes, judge, outcome, record
from bilevelbench.report.contents import read_report
from bilevelbench.report.figures.experiment import experiment_figure
from bilevelbench.report.formats import csv, latex, md
from bilevelbench.report.write import write_report
from bilevelbench.results.schema import Results, curve_frame, runs_frame
from bilevelbench.results.store import Store

pytestmark = pytest.mark.whole  # whole experiments

NASTY = "<script>alert(1)</script> $x_{$ \"q\" & 'p'"

FALLS = {"rule": "falls", "claim": "it falls", "columns": ["grad_phi"], "lower": ["phi"], "factor": 100}
RANKING = {"rule": "ranking", "claim": "a beats b and c", "column": "loss", "better": ["a"], "worse": ["b", "c"]}
APART = {"rule": "separation", "claim": "a is apart", "column": "w", "low": ["a"], "high": ["b"], "below": 0.05,
         "above": 0.3}  # fmt: skip


def figure(*checks, panels=({"y": "grad_phi"},), **more):
    given = {"name": "fig", "title": "Figure 9", "claim": "as they say", "panel": panels, "check": checks} | more
    return PaperFigure.model_validate(given)


def made(checks, trials, missing=(), **more):
    """An experiment and its results: each trial is (method, {column: values}), with run columns beside the columns.

    Step n has cost 10 n unless `cost` is among the columns. Trials whose number is in `missing` were planned and not run.
    The trials of a method on a problem have the seeds 0, 1, ..., and are paired by them.
    """
    runs, curve, planned = [], [], []
    count: Counter[tuple[str, str]] = Counter()
    for n, (method, columns) in enumerate(trials):
        given = dict(columns)
        row = {"problem": "p", "status": "budget", "message": ""}
        row |= {key: given.pop(key) for key in list(given) if key in (*row, "problem_params")}
        seed = count[method, row["problem"]]
        count[method, row["problem"]] += 1
        row |= {"trial_id": f"t{n}", "algorithm": f"algorithm_{method}", "label": method, "seed": seed}
        planned.append({"id": f"t{n}", "method": method, "algorithm": row["algorithm"], "problem": row["problem"]})
        if n in missing:
            continue
        steps = max(map(len, given.values()), default=0)
        runs.append(row | {"steps": steps})
        for step in range(steps):
            there = {key: values[step] for key, values in given.items() if step < len(values)}
            curve.append({"trial_id": f"t{n}", "step": step, "cost": 10.0 * step} | there)
    one = Experiment.model_validate({"figure": figure(*checks, **more).model_dump(), "trials": planned})
    return one, Results(runs_frame(runs), curve_frame(curve), [])


def all_verdicts(check, trials, **more):
    return judge(*made([check], trials, **more))


def verdict(check, trials, **more):
    (found,) = all_verdicts(check, trials, **more)
    return found


# ---- falls


def test_falls_by_the_smallest_factor_of_all_trials():
    trials = [
        ("a", {"grad_phi": [np.nan, 10, 0.01], "phi": [5, 4, 3]}),
        ("a", {"grad_phi": [30, 50, 0.1], "phi": [2, 9, 1]}),
    ]
    found = verdict(FALLS, trials)
    assert found.word == "reproduced"
    assert found.reason == (
        "grad_phi falls 100-fold in 2 of 2 trials (from 20 to 0.055 in the median, by a factor of 300 at least); "
        "phi falls in 2 of 2 trials (from 3.500 by 1.5 in the median)"
    )
    assert found.sentence == f"Reproduced: {found.reason}."
    assert verdict(FALLS | {"factor": 301}, trials).word == "not reproduced"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        pytest.param({"grad_phi": [10, 1], "phi": [2, 1]}, "grad_phi falls 100-fold in 0 of 1", id="too little"),
        pytest.param({"grad_phi": [10, 0.01], "phi": [2, 2]}, "phi falls in 0 of 1 trials", id="phi as high"),
        pytest.param({"grad_phi": [10, 0.01], "phi": [2, np.nan]}, "phi falls in 0 of 1 trials", id="no end"),
        pytest.param(
            {"grad_phi": [10, 0.01], "phi": [2, 1], "status": "diverged"}, "1 of 1 trials of a diverged", id="diverged"
        ),
    ],
)  # fmt: skip
def test_what_does_not_fall(columns, said):
    found = verdict(FALLS, [("a", columns)])
    assert found.word == "not reproduced"
    assert said in found.reason


def test_a_norm_that_reaches_zero_has_fallen():
    assert "by a factor of ∞ at least" in verdict(FALLS, [("a", {"grad_phi": [1, 0], "phi": [2, 1]})]).reason


def ended(*pairs):
    return [("a", {"grad_phi": list(pair), "phi": list(pair)}) for pair in pairs]


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        # a factor is rounded down, or the sentence would state more than there is
        (ended((299.7, 1)), "falls 100-fold in 1 of 1 trials (from 300 to 1 in the median, by a factor of 290 at least)"),
        (ended((99.96, 1)), "falls 100-fold in 0 of 1 trials (from 100 to 1 in the median, by a factor of 99 at least)"),
        (ended((1, 2)), "falls 100-fold in 0 of 1 trials (from 1 to 2 in the median, by a factor of 0.50 at least)"),
        (ended((1, 2)), "phi falls in 0 of 1 trials (from 1 up by 1 in the median)"),
        (ended((5, 5)), "phi falls in 0 of 1 trials (from 5 by 0 in the median)"),
        # medians are over the same trials, and say over how many
        (
            ended((10, 0.1), (1000, np.nan), (2000, np.nan)),
            "falls 100-fold in 1 of 3 trials (from 10 to 0.10 in the median, by a factor of 100 at least, of 1 that have",
        ),
        (ended((10, 0.1), (1000, np.nan)), "phi falls in 1 of 2 trials (from 10 by 9.9 in the median, of 1 that have an end)"),
        (ended((3, np.nan)), "phi falls in 0 of 1 trials (none has an end)"),
        (ended((3, np.nan)), "falls 100-fold in 0 of 1 trials (none has an end)"),
    ],
)  # fmt: skip
def test_sentence_of_what_falls_is_true_also_where_it_does_not(trials, said):
    assert said in verdict(FALLS, trials).reason


# ---- ranking

PAIR = RANKING | {"worse": ["b"]}


def losses(a, b, c=(), **more):
    return [(m, {"loss": [1.0, end], **more}) for m, ends in (("a", a), ("b", b), ("c", c)) for end in ends]


def test_ranking_is_by_the_interval_of_paired_differences():
    found = verdict(PAIR, losses(a=[0.1, 0.2, 0.3], b=[0.2, 0.31, 0.42]))
    assert (found.word, found.seeds, found.problem) == ("reproduced", 3, "p")
    # differences 0.10, 0.11, 0.12: the mean is 0.11, and Student's 4.303 times 0.01/sqrt(3) is 0.0248
    assert found.reason.endswith("a is ahead by 0.11 [0.085, 0.13] in 3 pairs of trials")
    assert found.ours.startswith("a 0.2000 [")
    assert found.theirs.startswith("b 0.3100 [")
    assert f"mean loss at the end, lowest is best: {found.ours} against {found.theirs}; " in found.reason
    assert found.sentence == f"Reproduced: {found.reason}."


@pytest.mark.parametrize(
    ("a", "b", "word", "said"),
    [
        pytest.param([0.1, 0.2, 0.3], [0.2, 0.31, 0.42], "reproduced", "a is ahead by 0.11", id="ahead in each pair"),
        pytest.param([0.2, 0.31, 0.42], [0.1, 0.2, 0.3], "not reproduced", "a is behind by 0.11 [0.085, 0.13]", id="behind"),
        pytest.param([0.1, 0.5, 0.2], [0.3, 0.3, 0.3], "tied", "b less a is 0.033 [", id="now ahead, now behind"),
        pytest.param([0.1, 0.2, 9.0], [0.3, 0.25, 0.4], "tied", "which may be 0", id="one trial decides"),
        pytest.param([0.3, 0.3], [0.3, 0.3], "confounded", "they are one method", id="the same curves"),
        pytest.param([0.1], [0.2], "cannot be told", "one pair of trials says nothing about chance", id="one pair"),
    ],
)  # fmt: skip
def test_every_word_of_a_ranking(a, b, word, said):
    found = verdict(PAIR, losses(a=a, b=b))
    assert found.word == word
    assert said in found.reason


def test_highest_may_be_best():
    highest = PAIR | {"best": "highest"}
    assert verdict(highest, losses(a=[0.95, 0.9, 0.92], b=[0.3, 0.28, 0.31])).word == "reproduced"
    assert verdict(highest, losses(a=[0.3, 0.28, 0.31], b=[0.95, 0.9, 0.92])).word == "not reproduced"


def test_curves_that_end_alike_are_tied_and_not_confounded():
    trials = [(m, {"loss": [1.0, on_the_way, 0.3]}) for m, on_the_way in (("a", 0.5), ("b", 0.6)) for _ in range(3)]
    assert verdict(PAIR, trials).word == "tied"
    one_pair_differs = [
        ("a", {"loss": [1, 0.3]}),
        ("a", {"loss": [1, 0.3]}),
        ("b", {"loss": [1, 0.3]}),
        ("b", {"loss": [1, 0.3 + 1e-12]}),
    ]
    assert verdict(PAIR, one_pair_differs).word == "tied"
    assert verdict(PAIR, [*one_pair_differs[:3], ("b", {"loss": [1, 0.3]})]).word == "confounded"


def test_every_rival_has_its_row():
    found = all_verdicts(RANKING, losses(a=[0.4, 0.41], b=[0.3, 0.31], c=[0.9, 0.91]))
    assert [(v.word, v.theirs[0], v.seeds) for v in found] == [("not reproduced", "b", 2), ("reproduced", "c", 2)]
    table = verdicts.frame([outcome(*made([RANKING], losses(a=[0.4], b=[0.3], c=[0.9])), Path("nowhere"))])
    assert list(table.columns) == ["figure", "claim", "problem", "ours", "theirs", "seeds", "verdict", "by"]
    assert list(table["theirs"]) == ["b 0.3000", "c 0.9000"]


def test_a_trial_that_diverged_is_worst_and_is_told():
    """Four pairs of four are more than chance (Wilson's interval is above 1/2), three of three are not."""
    trials, lost = losses(a=[0.5, 0.4, 0.45, 0.41], b=[]), ("b", {"loss": [1.0, 0.1], "status": "diverged"})
    for check, expected in ((PAIR, "reproduced"), (PAIR | {"better": ["b"], "worse": ["a"]}, "not reproduced")):
        found = verdict(check, [*trials, *[lost] * 4])
        assert found.word == expected
        assert "b none (4 of 4 trials of b diverged)" in found.reason
    found = verdict(PAIR, [*trials[:3], *[lost] * 3])
    assert (found.word, found.reason.rpartition("; ")[2]) == (
        "tied", "a is ahead in 3 of 3 pairs of trials and behind in 0, which may be chance",
    )  # fmt: skip
    assert verdict(PAIR, [*trials, *[lost] * 3, ("b", {"loss": [1.0, 0.1]})]).word == "tied"
    assert verdict(PAIR, [trials[0], lost]).word == "cannot be told"
    assert verdict(PAIR | {"best": "highest"}, [*trials, *[lost] * 4]).word == "reproduced"
    both = [("a", {"loss": [1, 2], "status": "diverged"})] * 2
    assert verdict(PAIR, [*both, lost, lost]).word == "tied"


def test_at_equal_cost_a_longer_run_is_cut():
    def at(a, b):
        return [
            (m, {"loss": [value + 1e-3 * n for value in curve]}) for n in (0, 1) for m, curve in (("a", a), ("b", b))
        ]

    longer = at([1, 0.5, 0.1, 0.01], [1, 0.2, 0.15])
    assert "a 0.01050" in verdict(PAIR, longer).ours
    found = verdict(PAIR | {"at": "equal_cost"}, longer)
    assert found.reason.startswith("mean loss at equal cost, lowest is best: a 0.1005 [")
    assert found.word == "reproduced"
    assert verdict(PAIR | {"at": "equal_cost"}, at([1, 0.5, 0.1, 0.01], [1, 0.2])).word == "not reproduced"


def test_trials_without_a_partner_tell_nothing():
    one, results = made([PAIR], losses(a=[0.1, 0.1], b=[0.3, 0.3]))
    runs = results.runs.assign(seed=range(4))
    found = judge(one, Results(runs, results.curve, []))[0]
    assert (found.word, found.reason) == ("cannot be told", "no trial of a shares its seed and its data with one of b")


# ---- separation


def weights(a, b, **more):
    return [(m, {"w": [0.5, end], **more}) for m, ends in (("a", a), ("b", b)) for end in ends]


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        pytest.param([0.01] * 10, [0.4] * 10, "reproduced", id="always and never"),
        pytest.param([0.01] * 9 + [1.0], [0.4] * 10, "reproduced", id="nearly always"),
        pytest.param([0.01] * 3, [0.4] * 3, "tied", id="three seeds are too few"),
        pytest.param([0.01] * 6 + [1.0] * 4, [0.4] * 6 + [0.01] * 4, "tied", id="intervals overlap"),
        pytest.param([0.01] * 10, [0.02] * 10, "tied", id="both find it"),
        pytest.param([0.05] * 10, [0.4] * 10, "not reproduced", id="ours is not below"),
        pytest.param([0.01] * 10, [0.3] * 10, "not reproduced", id="theirs is not above"),
        pytest.param([0.9] * 10, [0.01] * 10, "not reproduced", id="the other way round"),
        pytest.param([0.4] * 10, [0.4] * 10, "confounded", id="the same curves"),
        pytest.param([0.01] * 10, [np.nan] * 10, "cannot be told", id="no values"),
    ],
)
def test_every_word_of_a_separation(a, b, word):
    assert verdict(APART, weights(a, b)).word == word


def test_separation_tells_probabilities_with_wilsons_intervals():
    found = verdict(APART, weights([0.01] * 7 + [1.0, 1.0], [0.4] * 8 + [0.01]))
    # 7 of 9: (0.7778 + 0.2134)/(1 + 0.4268) -+ ...: [0.45, 0.94]
    assert found.ours == "a: 7 of 9 trials below 0.05, probability [0.45, 0.94]"
    assert found.theirs == "b: 1 of 9 trials below 0.05, probability [0.02, 0.43]; 8 of 9 above 0.3"
    assert found.seeds == 9
    assert found.reason == (
        "median w at the end: a 0.01000 (7 of 9 trials below 0.05, probability [0.45, 0.94]) against "
        "b 0.4000 (1 of 9 trials below 0.05, probability [0.02, 0.43]; 8 of 9 above 0.3)"
    )


@pytest.mark.parametrize("hits", range(11))
def test_wilsons_interval_solves_its_equation(hits):
    """Its ends are the probabilities p with |share - p| = z sqrt(p (1 - p)/n)."""
    for end in wilson(hits, 10):
        assert abs(hits / 10 - end) == pytest.approx(1.959964 * (end * (1 - end) / 10) ** 0.5, abs=1e-7)


def test_the_interval_of_a_mean_is_students():
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), rel=1e-6)


def test_separation_says_above_only_of_what_is_above():
    found = verdict(APART, weights([0.01] * 10, [0.01812] * 10))
    assert "b 0.01812 (10 of 10 trials below 0.05, probability [0.72, 1.00]; 0 of 10 above 0.3)" in found.reason


def test_a_rival_without_values_is_not_said_to_have_diverged():
    found = verdict(APART, weights([0.01] * 2, [np.nan] * 2))
    assert found.word == "cannot be told"
    assert found.reason == "w was never measured for b" or "too few trials of b have a value" in found.reason


def test_a_rival_that_diverged_is_not_above():
    lost = ("b", {"w": [0.5, 0.9], "status": "diverged"})
    found = verdict(APART, [*weights([0.01] * 2, []), lost, lost])
    assert found.word == "cannot be told"
    assert found.reason == "2 of 2 trials of b diverged, which is neither above nor below 0.3"


def test_every_problem_has_its_row():
    def at(p, a):
        return weights([a] * 10, [0.5] * 10, problem=p)

    found = all_verdicts(APART, [*at("p", 0.01), *at("q", 0.2)])
    assert [(v.problem, v.word) for v in found] == [("p", "reproduced"), ("q", "not reproduced")]
    assert found[0].reason.startswith("on p, median w")
    assert "on q, median w at the end: a 0.20" in found[1].reason
    broken = at("q", 0.01)[:10]
    assert [v.word for v in all_verdicts(APART, [*at("p", 0.01), *broken])] == ["reproduced", "cannot be told"]


# ---- cannot be told


@pytest.mark.parametrize(
    ("trials", "missing", "said"),
    [
        pytest.param(losses(a=[1, 1, 1], b=[1], c=[0.9]), (0, 2), "2 of 3 trials of a are missing; the same", id="missing"),
        pytest.param(losses(a=[1], b=[], c=[0.9]), (), "no trial of 'b' was asked for; choose from a, c", id="no method"),
        pytest.param([*losses(a=[1], b=[1], c=[0.9]), ("c", {"status": "error", "message": "it\nbroke"})], (),
                     "1 of 2 trials of c failed (error: it broke)", id="error"),
        pytest.param([("a", {"los": [1]}), ("b", {"los": [1]}), ("c", {"los": [1]})], (),
                     "the curves have no column 'loss'; did you mean 'los'?", id="no column"),
        pytest.param([("a", {"loss": [np.nan]}), ("b", {"loss": [1]}), ("c", {"loss": [1]})], (),
                     "loss was never measured for a", id="nan"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_names_the_reason(trials, missing, said):
    found = all_verdicts(RANKING, trials, missing=missing)
    assert any(v.word == "cannot be told" and said in v.reason and v.seeds == 0 for v in found)


def test_a_method_goes_by_its_label_or_its_algorithm():
    found = verdict(PAIR | {"better": ["algorithm_a"]}, losses(a=[0.1, 0.11], b=[0.2, 0.21]))
    assert found.word == "reproduced"


# ---- mistakes in a suite


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"check": [{"rule": "wins", "claim": "c"}]}, "'wins'.* does not match any of the expected tags: 'falls', 'ranking'"),
        ({"check": []}, "at least 1 item"),
        ({"panel": [{"y": "phi", "x": "hours"}]}, "'step', 'cost', 'seconds' or 'first_order'"),
        ({"panel": [{"y": "phi", "colour": "red"}]}, "no field 'colour'"),
        ({"panel": [{"y": "phi", "line": {"label": "l"}}]}, "a value or a column"),
        ({"name": "../up"}, "should match pattern"),
        ({"titel": "t"}, r"no field 'titel' \(titel = 't'\); did you mean 'title'"),
    ],
)  # fmt: skip
def test_mistakes_in_a_figure_are_sentences(change, said):
    with pytest.raises(ValidationError, match=said):
        figure(FALLS, **change)


def test_a_suite_with_a_mistake_in_its_figure_names_the_file(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        '[budget]\nsteps = 1\n[figure]\nname = "f"\ntitle = "t"\nclaim = "c"\n[[figure.panel]]\ny = "phi"\n'
    )
    with pytest.raises(InvalidInput, match=r"suite .*s\.toml: figure\.check = "):
        Suite.load(path)


SMALL = """
problem = [{{ name = "quadratic", params = {{ dim_x = 2, dim_y = 3 }} }}]
algorithm = [{{ name = "f2ba", label = "F2BA" }}, {{ name = "aid" }}]
[budget]
steps = 5
[figure]
name = "{name}"
title = "Figure {name}"
claim = "as they say"
panel = [{{ y = "grad_phi", line = {{ label = "start", column = "grad_phi" }} }}]
check = [
  {{ rule = "falls", claim = "it falls", columns = ["grad_phi"], factor = 1.01, methods = ["F2BA"] }},
  {{ rule = "ranking", claim = "F2BA beats SOBA", column = "phi", better = ["F2BA"], worse = ["soba"] }},
]
"""


@pytest.fixture
def collection(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(SMALL.format(name=name))
    (tmp_path / "both.toml").write_text('title = "both"\ninclude = ["one.toml", "two.toml"]\n')
    return tmp_path / "both.toml"


def test_a_suite_may_include_others(collection):
    suites = load_suites(collection, registry())
    assert [suite.figure.name for suite in suites] == ["one", "two"]
    assert [suite.figure.name for suite in load_suites(collection.with_name("one.toml"), registry())] == ["one"]
    more = collection.with_name("more.toml")
    more.write_text('include = ["both.toml", "one.toml"]')
    assert [suite.figure.name for suite in load_suites(more, registry())] == ["one", "two", "one"]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ('include = ["gone"]', UnknownName, "unknown suite 'gone'"),
        ('include = ["gone.toml"]', InvalidInput, "gone.toml' does not exist"),
        ("include = []", InvalidInput, "at least 1 item"),
        ('include = ["quick"]\nseeds = 3', InvalidInput, "no field 'seeds'"),
        ('include = ["both.toml"]', InvalidInput, "both.toml includes itself; take it out of `include`"),
    ],
)
def test_collections_that_cannot_be_used(collection, text, error, said):
    collection.write_text(text)
    with pytest.raises(error, match=said):
        load_suites(collection, registry())


def test_the_paper_is_its_three_figures():
    said = tomllib.loads(registry().suite("paper").read_text())
    assert said["include"] == ["figure1", "figure2", "figure2_lam1000", "figure3"]
    assert "bilevelbench tune --suite figure2" in said["description"]


# ---- in a folder


def stored(folder, *experiment_and_results):
    one, results = experiment_and_results
    Store(folder).add(results.runs, results.curve, {"environment": {"cpu": NASTY}})
    record(one, folder)
    return folder


@pytest.fixture
def nasty(tmp_path):
    """A reproduced and an open claim, with markup in every text."""
    trials = [
        (m, {"loss": [1, 0.5, 0.1 * n], "grad_phi": [2, 1, 0.5]})
        for n, m in enumerate((NASTY, "b", "c"), 1)
        for _ in "ab"
    ]
    checks = [RANKING | {"claim": NASTY, "better": [NASTY]}, RANKING | {"better": ["nobody"]}]
    panels = [
        {"y": "loss", "label": NASTY, "title": NASTY, "scale": "linear", "line": {"label": NASTY, "value": 0.7}},
        {"y": "grad_phi", "x": "cost", "x_scale": "log", "line": {"label": "start", "column": "loss"}},
        {"y": "gone", "label": NASTY},
    ]
    one, results = made(checks, trials, panels=panels, title=NASTY, claim=NASTY)
    return stored(tmp_path / "store", one.model_copy(update={"tuning": f"36 trials each {NASTY}"}), results)


def test_the_figure_shows_methods_lines_and_what_is_not_there(nasty):
    (one,) = read_report(nasty).experiments
    drawn = experiment_figure(one)
    first, second, third = drawn.axes
    heights = [float(line.get_ydata()[-1]) for line in first.lines]
    assert heights == [pytest.approx(v) for v in (0.1, 0.2, 0.3, 0.7)]
    assert list(map(float, first.lines[0].get_xdata())) == [0, 1, 2]
    assert (first.get_yscale(), second.get_yscale(), second.get_xscale()) == ("linear", "log", "log")
    assert list(map(float, second.lines[0].get_xdata())) == [10, 20]  # a log axis has no place for 0
    assert float(second.lines[-1].get_ydata()[0]) == 1.0  # where the loss starts
    assert third.texts[0].get_text() == "no column of gone"
    assert [text.get_text() for text in third.get_legend().get_texts()][:2] == [NASTY[:39] + "…", "b"]
    assert "36 trials each" in drawn.get_suptitle()


def test_a_panel_may_be_of_one_problem():
    trials = [("a", {"w": [v, v / 2], "problem": p}) for p, v in (("p", 4.0), ("q", 8.0))]
    one, results = made([FALLS], trials, panels=[{"y": "w", "problem": p} for p in ("p", "q", "r")])
    drawn = experiment_figure(outcome(one, results, Path("nowhere")))
    assert [[float(line.get_ydata()[0]) for line in axes.lines] for axes in drawn.axes] == [[4], [8], []]
    assert drawn.axes[2].texts[0].get_text() == "no finite value of w"


@pytest.mark.whole
def test_every_format_tells_the_verdicts(nasty, tmp_path):
    report = read_report(nasty)
    assert report.warnings == []
    write_report(report, "md", nasty, tmp_path / "md")
    text = (tmp_path / "md" / "report.md").read_text()
    assert "![fig](figures/experiment-fig.svg)" in text
    assert "| 2 | reproduced |" in text
    assert "| nobody | c | 0 | cannot be told |" in text
    assert "Cannot be told: no trial of 'nobody' was asked for" in text
    assert "Tuning: 36 trials each" in text
    assert re.search(r"^Run \d{4}-\d\d-\d\d, on ", text, re.M)
    assert "<script" not in text
    ET.parse(tmp_path / "md" / "figures" / "experiment-fig.svg")
    assert (tmp_path / "md" / "figures" / "experiment-fig.png").read_bytes().startswith(b"\x89PNG")
    assert csv.files(report)["experiments.csv"].splitlines()[0] == "figure,claim,problem,ours,theirs,seeds,verdict,by"
    assert booktabs.faults(latex.tables(report)["experiment-fig.tex"]) == []
    assert "figures/" not in md.document(report)  # printed, it has no folder to link to


def test_what_a_suite_says_is_text_on_a_page(nasty, tmp_path):
    page = tmp_path / "p.html"
    write_report(read_report(nasty), "html", nasty, page)
    html = Reader(page.read_text(encoding="utf-8"))
    assert "script" not in html.tags
    text = " ".join("".join(html.text).split())
    assert f"The paper: {NASTY}" in text
    assert f": reproduced, mean {NASTY} at the end, lowest is best: {NASTY} 0.1000 [0.1000, 0.1000] against b" in text
    assert ": cannot be told, no trial of 'nobody'" in text
    assert text.count("a beats b and c") == 4  # for each of two rivals in the table, and before the reason
    assert f"Tuning: 36 trials each {NASTY}" in text
    assert re.search(rf"Run \d{{4}}-\d\d-\d\d, on {re.escape(NASTY)}, unknown cores\.", text)
    ids = [value for _, name, value in html.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_the_site_has_a_page_of_experiments(nasty, tmp_path):
    site = build([nasty], tmp_path / "site").parent
    html = Reader((site / "experiments.html").read_text(encoding="utf-8"))
    assert "img" not in html.tags
    assert "svg" in html.tags  # inline, in the colours of the page; and as a file to download
    assert "figures/experiment-0.svg" in [v for t, n, v in html.attributes if t == "a" and n == "href"]
    ET.parse(site / "figures" / "experiment-0.svg")
    assert "✓ reproduced" in " ".join("".join(html.text).split())
    assert f"{NASTY} 0.100" in " ".join("".join(html.text).split())
    assert "There are no results yet" in (site / "index.html").read_text(encoding="utf-8")  # not out of the box


def verdict_tables(one, folder):
    """Of each table of verdicts on the site: the heads of its columns, and the words of its caption."""
    text = (write_site(Material({}, experiments=[one]), folder).parent / "experiments.html").read_text(encoding="utf-8")
    (table,) = re.findall(r'<table id="verdicts-.*?</table>', text, re.S)
    heads, caption = re.findall(r'<th scope="col".*?>(.*?)</th>', table), re.search(r"<caption>.*?</caption>", table)[0]
    groups = re.findall(r'<th scope="rowgroup" colspan="(\d)"[^>]*>(.*?)</th>', table)
    assert {int(span) for span, _ in groups} == {len(heads)}
    return heads, caption, [claim for _, claim in groups]


def test_a_problem_that_all_verdicts_share_stands_in_the_caption(tmp_path):
    trials = [(method, {"loss": [1, loss]}) for method, loss in (("a", 0.1), ("b", 0.2), ("c", 0.3))]
    heads, caption, claims = verdict_tables(outcome(*made([RANKING], trials), tmp_path), tmp_path / "site")
    assert heads == ["verdict", "ours", "theirs", "seeds"]
    assert "on p, rival by rival" in caption
    assert claims == ["a beats b and c"]
    both = [(method, columns | {"problem": problem}) for problem in "pq" for method, columns in trials]
    heads, caption, _ = verdict_tables(outcome(*made([RANKING], both), tmp_path), tmp_path / "sites")
    assert heads == ["verdict", "ours", "theirs", "problem", "seeds"]
    assert "on each problem, rival by rival" in caption


def test_an_experiment_survives_its_file_and_is_replaced(tmp_path):
    one, results = made([FALLS, RANKING, APART], [("a", {"grad_phi": [1]})])
    path = record(one, tmp_path)
    assert path == tmp_path / "experiments" / "fig.json"
    assert Experiment.model_validate_json(path.read_bytes()) == one
    record(one.model_copy(update={"tuning": "none at all"}), tmp_path)
    (found,), problems = find_outcomes(tmp_path, results)
    assert (found.tuning, problems) == ("none at all", [])
    assert [p.name for p in path.parent.iterdir()] == ["fig.json"]
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write to the result folder"):
        record(one, tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON that can be read"),
        ("{}", "is not an experiment (figure: Field required"),
        ('{"surprise": 1}', "is not an experiment (the file: Value error, there is no field 'surprise'"),
    ],
)
def test_a_file_that_is_no_experiment_is_a_sentence(nasty, text, said):
    (nasty / "experiments" / "other.json").write_text(text)
    report = read_report(nasty)
    assert len(report.experiments) == 1
    (sentence,) = report.warnings
    assert said in sentence
    assert "other.json" in sentence
    assert "run its suite again" in sentence


RULE = {"search": "grid", "by": "phi", "trials": 36, "cost": None, "factor": 3, "seed": 0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps({"summary": "36\ntrials", "rule": RULE, "rows": []}), "36 trials"),
        (json.dumps({"rule": RULE, "rows": []}), ""),
        ('{"summary": "without a rule", "rule": {}, "rows": []}', ""),
        ('{"summary": "of no rows"}', ""),
        ("{", ""),
        ("[]", ""),
    ],
)
def test_what_tune_left_in_the_folder_is_told(tmp_path, text, said):
    one, results = made([FALLS], [("a", {"grad_phi": [1]})])
    record(one, tmp_path)
    (tmp_path / "tuning.json").write_text(text)
    assert find_outcomes(tmp_path, results)[0][0].tuning == said


@pytest.mark.whole
def test_without_torch(nasty, tmp_path):
    code = (
        "import sys, pathlib\n"
        "from bilevelbench.report.contents import read_report\n"
        "from bilevelbench.report.write import write_report\n"
        "report = read_report(pathlib.Path(sys.argv[1]))\n"
        "assert len(report.experiments) == 1\n"
        "write_report(report, 'html', pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) / 'x.html')\n"
        "assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(nasty), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# ---- from end to end


@pytest.fixture
def run(capsys):
    """`bilevelbench run`, in this process; what it prints, on one line."""

    def command(suite, out, **options):
        run_cli.run(suite=str(suite), out=out, jobs=0, **options)
        return " ".join(capsys.readouterr().out.split())

    return command


def test_a_collection_runs_and_records_every_figure(run, collection, tmp_path):
    said = run(collection, tmp_path / "out")
    assert "2 trials; 2 to run" in said  # both figures are of the same trials
    for name in ("one", "two"):
        assert f"Figure {name} it falls: Reproduced: grad_phi falls 1.01-fold in 1 of 1 trials" in said
    assert "F2BA beats SOBA: Cannot be told: no trial of 'soba' was asked for; choose from F2BA, aid" in said
    report = read_report(tmp_path / "out")
    assert [[v.word for v in one.verdicts] for one in report.experiments] == [["reproduced", "cannot be told"]] * 2
    assert "Figure two" in (tmp_path / "out" / "index.html").read_text()


@pytest.fixture
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_the_norms_of_the_lower_level_are_those_that_the_last_lower_step_saw(float64):
    """One step with K = 1 and with K = 3, which share a pack, against gradient descent written out."""
    problem, lam, a = RidgeAbalone(), 50.0, 1e-4
    trials = [trial(f"f2ba[K={K},lam={lam},a_y={a},a_z={a},eta_x=1e-9]", "ridge_abalone", steps=1) for K in (1, 3)]
    curve = packed(trials).curve
    instance = problem.build()
    x, y, z = instance.x0, instance.y0, instance.y0
    seen = {}
    for k in (1, 2, 3):
        at_y = instance.grad_f_y(x, y) + lam * instance.grad_g_y(x, y)
        at_z = instance.grad_g_y(x, z)
        seen[k] = float(at_y.norm()), float(at_z.norm())
        y, z = y - a / lam * at_y, z - a * at_z
    after = curve[curve["step"] == 1]
    found = list(zip(after["L_lam_y"], after["g_y_z"], strict=True))
    assert found == [pytest.approx(seen[k], rel=1e-12) for k in (1, 3)]
    assert curve.loc[curve["step"] == 0, ["L_lam_y", "g_y_z"]].isna().all(axis=None)  # nothing was asked yet


def minimiser(reference):
    """Of phi, by a search on the closed form."""
    found = minimize_scalar(
        lambda x: float(reference.phi(torch.tensor([[x]]))),
        bounds=(-7, 3),
        method="bounded",
        options={"xatol": 1e-12},
    )
    return found.x, found.fun


@pytest.fixture
def figure1(run, tmp_path):
    def command(**options) -> ExperimentOutcome:
        said = run("figure1", tmp_path / "out", **options)
        assert "Figure 1: one ridge parameter on abalone" in said
        (one,) = read_report(tmp_path / "out").experiments
        assert one.verdicts[0].sentence in said
        return one

    return command


def test_figure_1_with_few_steps_is_not_reproduced(figure1):
    one = figure1(steps=20)
    assert [v.word for v in one.verdicts] == ["not reproduced"]
    assert len(one.results.runs) == 5


def assert_at_the_minimum(one, trials):
    """Each trial ends where an independent search finds the minimum of phi, and all three norms have fallen."""
    assert [v.word for v in one.verdicts] == ["reproduced"]
    results = one.results
    assert len(results.runs) == trials
    for trial_id, params in zip(results.runs["trial_id"], results.runs["problem_params"], strict=True):
        x, phi = minimiser(RidgeAbalone(**json.loads(params)).build().reference)
        assert -6 < x < 2
        curve = results.curve[results.curve["trial_id"] == trial_id]
        assert curve["phi"].iloc[0] - phi > 0.5
        assert curve["phi"].iloc[-1] - phi == pytest.approx(0, abs=1e-4)
        for column in ("grad_phi", "L_lam_y", "g_y_z"):
            values = curve[column].dropna()
            assert values.iloc[0] / values.iloc[-1] > 1000, column


@pytest.mark.whole
def test_figure_1_is_reproduced_on_one_split(figure1, float64):
    assert_at_the_minimum(figure1(steps=2000, problem=["ridge_abalone[features=scaled,data_seed=0]"]), 1)


@pytest.mark.slow
def test_figure_1_is_reproduced(figure1, float64):
    assert_at_the_minimum(figure1(), 5)


def test_the_verdict_is_about_the_figure_as_it_was_asked_for(figure1):
    """Narrowed to another method, the claim about F2BA cannot be told."""
    one = figure1(steps=2, method=["aid"])
    assert [(v.word, "no trial of 'F2BA'" in v.reason) for v in one.verdicts] == [("cannot be told", True)]
    assert verdicts.frame([one])["verdict"].tolist() == ["cannot be told"]
