"""`bilevelbench tune` from end to end, in this process, on small problems."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from helpers import cli, plugins
from torch import Tensor

from bilevelbench import Algorithm
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.run import run_trials
from bilevelbench.leaderboard.collect import load
from bilevelbench.plan.suite import AlgorithmEntry, ProblemEntry, Suite
from bilevelbench.plan.trial import Budget, Schedule
from bilevelbench.plan.tuning import Tune
from bilevelbench.report.analysis.summary import readable as summary_for_people
from bilevelbench.report.analysis.summary import summary
from bilevelbench.report.analysis.tuning import Tuning, read_tuning, readable, remarks, table
from bilevelbench.report.contents import read_report
from bilevelbench.report.figures.save import save_figures
from bilevelbench.report.figures.tuning import tuning_figure
from bilevelbench.report.formats import csv, latex, md
from bilevelbench.report.write import write_report
from bilevelbench.results.schema import Results
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results
from bilevelbench.studies.tuning.record import best_suite, suite_toml, tuning_record, write_tuning
from bilevelbench.studies.tuning.study import run_tuning

pytestmark = pytest.mark.whole

HERE = Execution(jobs=0)
SUITES = Path(__file__).parents[3] / "leaderboard" / "suites"
SMALL = ["-p", "quadratic[dim_x=5,data_seed=0,1]", "--budget", "300", "--jobs", "0"]


def plan(*methods: str | AlgorithmEntry, problem: str = "quadratic", schedule: Schedule | None = None, **rule) -> Suite:
    entries = tuple(m if isinstance(m, AlgorithmEntry) else AlgorithmEntry(name=m) for m in methods)
    return Suite(
        title="small",
        algorithm=entries,
        problem=(ProblemEntry(name=problem, params={"data_seed": [0, 1]}),),
        budget=Budget(cost=300),
        schedule=schedule or Schedule(),
        tune=Tune.model_validate(rule),
    )


def tuned(suite: Suite, folder: Path, among=None):
    among = among or registry()
    jobs, results = run_tuning(suite, among, lambda trials: run_trials(trials, Store(folder), among, HERE))
    return {job.method.label: job for job in jobs}, results


@dataclass(frozen=True)
class Still:
    x: Tensor
    y: Tensor


class Fickle(Algorithm):
    """Moves x by `shift` once; raises where `shift` is negative, and blows up where it is large."""

    name = "fickle"
    uses = frozenset({"grad_f"})
    tuned = {"shift": "upper_step"}
    shift: float = 0.0

    def init(self, x0, y0, oracle):
        return Still(x0, y0)

    def step(self, s, oracle):
        f_x, _ = oracle.grad_f(s.x, s.y)
        return Still(s.x + self.shift + 0 * f_x, s.y)


# ---------------------------------------------------------------------------------------------------- equal budgets


def test_every_method_has_as_many_settings_with_the_same_budget(tmp_path):
    jobs, results = tuned(plan("f2ba", "aid", "f2sa", trials=20), tmp_path)
    runs = results.runs
    for name, job in jobs.items():
        assert len(job.tried) == 20
        assert len(job.trials) == 40  # two data sets
        mine = runs[runs["algorithm"] == name]
        assert set(mine["trial_id"]) == set(job.trials)
        assert (mine["cost"] <= 300).all()
    assert {trial.budget for job in jobs.values() for trial in job.trials.values()} == {Budget(cost=300)}


def test_halving_stays_below_its_cap(tmp_path):
    suite = plan("f2ba", "aid", search="halving", trials=9, cost=3000, factor=3)
    jobs, results = tuned(suite, tmp_path)
    for job in jobs.values():
        spent = results.runs.loc[results.runs["trial_id"].isin(job.trials), "cost"].sum()
        assert 1500 < spent <= 3000
        assert [len({t.budget.cost for t in job.trials.values()})] == [3]
        assert len(job.trials) == 2 * (9 + 3 + 1)


def test_a_grid_that_is_a_pack_is_run_as_one(tmp_path):
    tuned(plan(AlgorithmEntry(name="f2ba", params={"lam": [10.0, 100.0], "eta_x": [0.01, 0.1]})), tmp_path)
    assert len(load_results(tmp_path).records) == 2  # one for each data set


@pytest.mark.parametrize("search", [{}, {"search": "halving", "cost": 6000}], ids=["grid", "halving"])
@pytest.mark.quick_cases(1)
def test_every_search_spends_the_same(tmp_path, search):
    """Of a grid whose larger steps diverge at once, and which is far smaller for f2sa."""
    grid = {"upper_step": [0.01, 1.0, 100.0], "lower_step": [0.1, 10.0], "penalty": [10.0, 100.0]}
    suite = plan("f2ba", "aid", "f2sa", trials=10, equal_cost=True, defaults=True, grid=grid, **search)
    jobs, results = tuned(suite, tmp_path)
    spent = {}
    for name, job in jobs.items():
        spent[name] = results.runs.loc[results.runs["trial_id"].isin(job.trials), "cost"].sum()
        assert job.cost == 6000  # ten settings, two data sets, 300 calls
        assert len(job.trials) > 20  # some have failed early
        assert job.tried[0].choice == {}
        assert job.remark == ""
    assert min(spent.values()) >= 0.98 * max(spent.values())
    assert max(spent.values()) <= 6000
    record = tuning_record(suite, list(jobs.values()), results)
    write_tuning(tmp_path, record, best_suite(suite, list(jobs.values()), record))
    found = read_tuning(tmp_path)
    shares = [row["cost"] / 6000 for row in found.rows]
    said = f"every search spent {min(shares):.1%} to {max(shares):.1%} of what it was given"
    assert any(said in remark for remark in remarks(found))
    assert "spent the same on every method" in record["summary"]
    assert list(readable(found)["search cost"]) == [f"{cost:,.10g}" for cost in table(found)["cost"]]


@pytest.mark.slow  # test_search.py says it of a made-up search always
def test_a_search_that_cannot_spend_its_cost_says_so(tmp_path):
    suite = plan(AlgorithmEntry(name="fickle", params={"shift": [1e300, 1e301]}), "aid", trials=4, equal_cost=True)
    jobs, _ = tuned(suite, tmp_path, plugins(Fickle))
    assert jobs["aid"].remark == ""
    assert "The search of fickle on quadratic spent" in jobs["fickle"].remark
    assert "of its cost" in jobs["fickle"].remark


def test_a_method_without_parameters_to_tune_runs_as_it_is(tmp_path):
    suite = plan("hoag", "aid", trials=2, equal_cost=True)
    jobs, results = tuned(suite, tmp_path)
    record = tuning_record(suite, list(jobs.values()), results)
    assert record["rows"][0]["remark"] == "hoag has no parameters to tune on quadratic: it runs as it is."
    assert record["rows"][0]["trials"] == 2
    assert best_suite(suite, list(jobs.values()), record).algorithm[0].params == {}
    with pytest.raises(InvalidInput, match="hoag has no tunable parameters: write lists"):
        tuned(plan("hoag", trials=2), tmp_path)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"search": "halving", "cost": 1000}, "too little to try 2 settings of f2ba with the whole budget on quadratic"),
        ({"problem_params": {"dim_x": 10}, "equal_cost": False}, "leave quadratic.* as it is, which the report runs on too"),
    ],
    ids=["no finals", "the same problem"],
)  # fmt: skip
def test_a_rule_that_cannot_be_kept_is_a_sentence(tmp_path, rule, said):
    suite = plan("f2ba", **({"equal_cost": True} | rule))
    if "problem_params" in rule:
        entry = ProblemEntry(name="quadratic", params={"data_seed": [0, 1], "dim_x": 10})
        suite = suite.model_copy(update={"problem": (entry,)})
    with pytest.raises(InvalidInput, match=said):
        tuned(suite, tmp_path)


def test_equal_cost_needs_a_budget_in_calls(tmp_path):
    suite = plan("f2ba", equal_cost=True).model_copy(update={"budget": Budget(steps=10)})
    with pytest.raises(InvalidInput, match="equal_cost needs a budget in calls on quadratic"):
        tuned(suite, tmp_path)


def test_a_search_on_other_problems_is_reported_on_those_of_the_suite(tmp_path):
    rule = {"trials": 3, "seeds": 2, "problem_params": {"kappa": 3.0, "data_seed": 7}}
    problem = ProblemEntry(name="quadratic", params={"kappa": [2.0, 4.0], "data_seed": [0, 1]})
    suite = plan("aid", **rule).model_copy(update={"problem": (problem,), "seeds": 5})
    jobs, results = tuned(suite, tmp_path)
    (job,) = jobs.values()
    assert {str(trial.problem) for trial in job.trials.values()} == {"quadratic[kappa=3.0,data_seed=7]"}
    assert {trial.seed for trial in job.trials.values()} == {0, 1}
    record = tuning_record(suite, [job], results)
    final = best_suite(suite, [job], record).trials(registry())
    assert {(t.problem.params["kappa"], t.problem.params["data_seed"]) for t in final} == {
        (2, 0),
        (2, 1),
        (4, 0),
        (4, 1),
    }
    assert {t.seed for t in final} == {2, 3, 4, 5, 6}
    best = job.method.params(job.best.choice)
    assert all({name: t.algorithm.params[name] for name in best} == best for t in final)


@pytest.mark.parametrize("setting", sorted(path.stem for path in SUITES.glob("*.toml")))
def test_the_suites_of_the_boards_are_searched_at_equal_cost(setting):
    suite = Suite.load(SUITES / f"{setting}.toml")
    assert suite.tune.equal_cost
    assert suite.tune.defaults
    assert suite.tune.fresh_data
    roles = {
        role for entry in suite.algorithms(registry()) for role in registry().algorithm(entry.name).value.tuned.values()
    }
    noisy = setting in ("partial", "full", "finite_sum")
    assert suite.tune.grid.model_fields_set == roles - (set() if noisy else {"batch"})


# ---------------------------------------------------------------------------------------------------- who is chosen


def test_the_choice_is_the_smallest_median_at_the_end(tmp_path):
    suite = plan(AlgorithmEntry(name="f2ba", params={"eta_x": [0.001, 0.03, 0.1], "lam": [10.0, 1000.0]}))
    jobs, results = tuned(suite, tmp_path)
    job = jobs["f2ba"]
    last = results.curve.drop_duplicates("trial_id", keep="last").set_index("trial_id")["phi"]
    table: dict[str, list[float]] = {}
    for trial in job.trials.values():
        table.setdefault(json.dumps(trial.algorithm.params, sort_keys=True), []).append(last[trial.id])
    best = min(table, key=lambda key: np.median(table[key]))
    assert json.loads(best) == job.method.params(job.best.choice)
    assert job.best.score == pytest.approx(np.median(table[best]))


def test_a_failure_is_infinite(tmp_path):
    """A setting that ends far off loses to any other, and wins over none, even if what it reached looks small."""
    entry = AlgorithmEntry(name="fickle", params={"shift": [math.nan, 0.5, 1e300]})
    jobs, _ = tuned(plan(entry), tmp_path, plugins(Fickle))
    job = jobs["fickle"]
    assert [math.isinf(one.score) for one in job.tried] == [True, False, True]
    assert [one.failed for one in job.tried] == [2, 0, 2]
    assert job.best.choice == {"shift": 0.5}


def test_if_everything_fails_the_method_keeps_its_row(tmp_path):
    suite = plan(AlgorithmEntry(name="fickle", params={"shift": [1e300, 1e301]}), "f2ba", trials=4)
    jobs, results = tuned(suite, tmp_path, plugins(Fickle))
    record = tuning_record(suite, list(jobs.values()), results)
    row = record["rows"][0]
    assert (row["method"], row["score"], row["failed"], row["trials"]) == ("fickle", None, 4, 4)
    assert [entry.label for entry in best_suite(suite, list(jobs.values()), record).algorithm] == ["fickle", "f2ba"]


@pytest.mark.parametrize("by", ["test_loss", "test_accuracy"])
def test_a_test_metric_may_not_choose(by, tmp_path):
    code, _, err = cli("tune", "-a", "f2ba", *SMALL, "--by", by, "-o", tmp_path)
    assert code == 2
    assert "which may not choose parameters" in err


def test_an_unknown_metric_is_named_and_nothing_is_lost(tmp_path):
    suite = plan("f2ba", problem="ridge_abalone", trials=3, by="val_rsme")
    with pytest.raises(InvalidInput, match=r"no 'val_rsme' to select by; did you mean 'val_rmse'"):
        tuned(suite, tmp_path)
    before = len(load_results(tmp_path).records)
    _, results = tuned(plan("f2ba", problem="ridge_abalone", trials=3, by="val_rmse"), tmp_path)
    assert len(results.records) == before


def test_without_phi_the_problems_metrics_are_named(tmp_path):
    blind = Schedule(phi=False)
    with pytest.raises(InvalidInput, match=r"needs phi on logreg_breast_cancer.*metrics \(.*val_"):
        tuned(plan("f2ba", problem="logreg_breast_cancer", schedule=blind, trials=2), tmp_path)
    # a closed form is known all the same
    jobs, _ = tuned(plan("f2ba", schedule=blind, trials=6), tmp_path)
    assert math.isfinite(jobs["f2ba"].best.score)


def test_the_gradient_chooses_only_if_asked_and_with_a_warning(tmp_path):
    code, out, _ = cli("tune", "-a", "f2ba", *SMALL, "--trials", 3, "--by", "grad_phi", "-o", tmp_path)
    assert code == 0
    assert "small where x has run away" in out


def test_a_method_that_cannot_make_a_step_keeps_its_row_and_the_others_are_tuned(tmp_path):
    suite = plan(AlgorithmEntry(name="f2ba", params={"K": [200]}), "aid", trials=4)
    jobs, results = tuned(suite, tmp_path)
    record = tuning_record(suite, list(jobs.values()), results)
    stuck, moved = record["rows"]
    assert (stuck["score"], stuck["failed"], stuck["trials"]) == (None, 8, 8)
    assert stuck["remark"].startswith(
        "No setting of f2ba[K=200] made a single step on quadratic within 300 calls; give it"
    )
    assert math.isfinite(moved["score"])
    assert moved["remark"] == ""
    write_tuning(tmp_path, record, best_suite(suite, list(jobs.values()), record))
    found = read_tuning(tmp_path)
    assert [row.phi for row in readable(found).itertuples()][1] == "no step"
    assert stuck["remark"] in remarks(found)


def test_a_rung_without_a_step_is_not_the_end(tmp_path):
    """The first rung of halving covers no step of f2ba, the last one does; what stands still has no score."""
    jobs, _ = tuned(plan("f2ba", search="halving", cost=3000, trials=27), tmp_path)
    job = jobs["f2ba"]
    first = min(one.budget.cost for one in job.tried)
    assert all(math.isinf(one.score) for one in job.tried if one.budget.cost == first)
    assert job.steps > 0
    assert job.remark == ""


def test_the_tables_rank_by_the_metric_that_chose(tmp_path):
    """By |g_y|, which here is another order than that of |grad phi|."""
    methods = ["-a", "f2ba[K=1,eta_x=0.05,0.1]", "-a", "f2ba[K=30,eta_x=1e-4,2e-4]"]
    assert cli("tune", *methods, *SMALL, "--trials", 2, "--by", "g_y", "-o", tmp_path / "t")[0] == 0
    scores = table(read_tuning(tmp_path / "t"))["score"]
    assert scores.is_monotonic_increasing
    code, said, _ = cli("run", "--suite", tmp_path / "t" / "best.toml", "--jobs", 0, "-o", tmp_path / "final")
    assert code == 0
    final = load_results(tmp_path / "final")
    last = final.curve.drop_duplicates("trial_id", keep="last").set_index("trial_id")["g_y"]
    order = final.runs.assign(score=final.runs["trial_id"].map(last)).groupby("label")["score"].median().sort_values()
    assert list(summary(final)["method"]) == list(order.index)
    places = [said.rindex(f"\n{name} ") for name in order.index]
    assert places == sorted(places)
    by_gradient = summary(Results(final.runs, final.curve, []))
    assert list(by_gradient["best_grad_phi"]) == sorted(by_gradient["best_grad_phi"])
    assert list(by_gradient["method"]) != list(order.index)
    assert "g_y" in summary_for_people(summary(final))
    assert "g_y" not in summary_for_people(by_gradient)


def test_two_methods_need_two_names(tmp_path):
    entries = [AlgorithmEntry(name="aid", label="AID"), AlgorithmEntry(name="aid", label="AID")]
    with pytest.raises(InvalidInput, match="two methods are called 'AID'"):
        tuned(plan(*entries, trials=2), tmp_path)


# ---------------------------------------------------------------------------------------------------- what it leaves


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A finished search, and the run of its best parameters."""
    out = tmp_path_factory.mktemp("tune") / "tuning"
    code, said, err = cli("tune", "-a", "f2ba", "-a", "f2sa", *SMALL, "--trials", 40, "-o", out)
    assert code == 0, err
    assert "Drawn from a larger grid, with seed 0: f2ba." in said
    assert "Smaller than 40, and so tried whole: the grid of f2sa." in said
    code, _, err = cli("run", "--suite", out / "best.toml", "--jobs", "0", "-o", out / "best")
    assert code == 0, err
    return out


def test_the_cost_of_tuning_is_recorded(folder):
    record = json.loads((folder / "tuning.json").read_text())
    runs = load_results(folder).runs
    for row in record["rows"]:
        mine = runs[runs["algorithm"] == row["algorithm"]]
        assert row["trials"] == len(mine)
        assert row["calls"] == int((mine["first_order"] + mine["second_order"] + mine["value"]).sum())
        assert row["cost"] == mine["cost"].sum()
        assert 0 < row["seconds"] <= mine["seconds"].sum()
        assert f"{row['calls']:,} calls" in record["summary"]
    assert record["summary"] in (folder / "best.toml").read_text()


def test_the_best_are_run_on_other_data_and_seeds(folder):
    searched, final = load_results(folder).runs, load_results(folder / "best").runs
    assert sorted(final["label"]) == ["f2ba", "f2ba", "f2sa", "f2sa"]
    assert not set(searched["problem_params"]) & set(final["problem_params"])
    assert not set(searched["seed"]) & set(final["seed"])
    best = {row["method"]: row["best"] for row in json.loads((folder / "tuning.json").read_text())["rows"]}
    for row in final.itertuples():
        params = json.loads(row.algorithm_params)
        assert {name: params[name] for name in best[row.label]} == best[row.label]


def test_the_same_command_finds_everything_done(folder):
    before = (folder / "best.toml").read_bytes()
    packs = len(load_results(folder).records)
    code, said, _ = cli("tune", "-a", "f2ba", "-a", "f2sa", *SMALL, "--trials", 40, "-o", folder)
    assert code == 0
    assert "nothing to run" in said
    assert len(load_results(folder).records) == packs
    assert (folder / "best.toml").read_bytes() == before


def test_an_interrupted_search_goes_on_to_the_same_choice(tmp_path):
    suite = plan("f2ba", "aid", search="halving", trials=9, cost=3000)
    rounds = 0

    def stopped(trials):
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            run_trials(trials[:3], Store(tmp_path), registry(), HERE)
            raise KeyboardInterrupt
        return run_trials(trials, Store(tmp_path), registry(), HERE)

    with pytest.raises(KeyboardInterrupt):
        run_tuning(suite, registry(), stopped)
    jobs, _ = tuned(suite, tmp_path)
    whole, _ = tuned(suite, tmp_path / "whole")
    assert {name: job.tried for name, job in jobs.items()} == {name: job.tried for name, job in whole.items()}


def test_the_search_stays_off_the_boards_and_the_best_are_on_the_tuned_one(folder):
    material = load([folder, folder / "best"])
    assert material.results["default"].runs.empty
    assert sorted(material.results["tuned"].runs["label"]) == ["f2ba", "f2ba", "f2sa", "f2sa"]


def test_default_and_tuned_may_share_a_folder(folder, tmp_path):
    for arguments in (["-a", "f2ba", *SMALL], ["--suite", folder / "best.toml", "--jobs", "0"]):
        assert cli("run", *arguments, "-o", tmp_path)[0] == 0
    material = load([tmp_path])
    assert list(material.results["default"].runs["label"]) == ["f2ba", "f2ba"]
    assert len(material.results["tuned"].runs) == 4


def test_the_figure_is_written_and_reported(folder, tmp_path):
    for name in ("sensitivity-1.svg", "sensitivity-1.png"):
        assert (folder / name).stat().st_size > 1000
    text = (folder / "sensitivity-1.svg").read_text()
    for word in ("upper step", "lower step", "penalty", "f2ba", "f2sa", "phi, best over the others"):
        assert word in text
    report = read_report(folder)
    assert report.results.runs.empty  # forty settings are no forty methods
    assert [path.name for path in save_figures(report, tmp_path)] == ["sensitivity-1.svg", "sensitivity-1.png"]
    write_report(report, "html", folder, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for said in (md.document(report), csv.files(report)["tuning.csv"], latex.tables(report)["tuning.tex"], page):
        assert "f2sa" in said
    assert "Chosen by the median of phi" in page


def test_the_figure_shows_the_best_over_the_others_and_what_failed():
    tried = [
        {"choice": {"upper_step": 0.1, "penalty": 10.0}, "budget": {}, "score": 5.0},
        {"choice": {"upper_step": 0.1, "penalty": 100.0}, "budget": {}, "score": 3.0},
        {"choice": {"upper_step": 1.0, "penalty": 10.0}, "budget": {}, "score": None},
        {"choice": {"upper_step": 1.0, "penalty": 100.0}, "budget": {}, "score": 4.0},
        {"choice": {"upper_step": 1.0, "penalty": 100.0}, "budget": {}, "score": 2.0},  # again, with more calls
    ]
    rows = [{"method": "m", "family": "penalty", "problem": "p", "tried": tried}]
    figure = tuning_figure(Tuning("", "", {"by": "phi"}, rows), "p")
    upper, penalty = figure.axes
    line, lost = upper.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0.1, 1.0], [3.0, 2.0])
    assert list(lost.get_xdata()) == [1.0]
    assert list(penalty.lines[0].get_ydata()) == [5.0, 2.0]


def test_nothing_but_failures_makes_no_figure():
    tried = [{"choice": {"upper_step": 0.1}, "budget": {}, "score": None}]
    rows = [{"method": "m", "family": "", "problem": "p", "tried": tried}]
    assert tuning_figure(Tuning("", "", {"by": "phi"}, rows), "p") is None


def test_json_is_the_record(tmp_path):
    code, out, err = cli("tune", "-a", "f2ba", *SMALL, "--trials", 3, "--json", "-o", tmp_path)
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "tuning.json").read_text())
    assert "trials" in err


# ---------------------------------------------------------------------------------------------------- suite files

SUITE = """
title = "mine"
data_seeds = 2
seeds = 1
budget = { cost = 300 }

[[algorithm]]
name = "aid"
label = 'AID "cg"'
params = { solver = "cg", eta_x = 0.1 }

[[problem]]
name = "quadratic"
params = { dim_x = 5 }

[[problem]]
name = "quadratic"
params = { dim_x = 3 }
budget = { cost = 200 }

[tune]
trials = 4
fresh_data = false

[tune.grid]
upper_step = [0.01, 0.1]
lower_step = [0.1, 1.0]
"""


def test_a_suite_is_tuned_and_run(tmp_path):
    """Two variants of one problem have each their own best parameters."""
    (tmp_path / "mine.toml").write_text(SUITE)
    code, _, err = cli("tune", "--suite", tmp_path / "mine.toml", "--jobs", "0", "-o", tmp_path / "out")
    assert code == 0, err
    best = Suite.load(tmp_path / "out" / "best.toml")
    assert [entry.problems for entry in best.algorithm] == [("quadratic[dim_x=5]",), ("quadratic[dim_x=3]",)]
    assert {entry.label for entry in best.algorithm} == {'AID "cg"'}
    trials = best.trials(registry())
    assert {(t.problem.params["dim_x"], t.budget.cost, t.problem.params["data_seed"]) for t in trials} == {
        (5, 300, 0), (5, 300, 1), (3, 200, 0), (3, 200, 1),
    }  # fmt: skip
    assert all(t.tuned == "phi" and t.seed == 1 and t.algorithm.params["solver"] == "cg" for t in trials)
    found = read_tuning(tmp_path / "out")
    assert found.problems == ["quadratic[dim_x=5]", "quadratic[dim_x=3]"]


def test_a_suite_survives_its_file(tmp_path):
    suite = plan(
        AlgorithmEntry(name="f2ba", label='a "b" \\ ü', params={"lam": [1e-5, 1e20], "K": [3]}, problems=("x[a=1]",)),
        schedule=Schedule(ratio=1.3, phi=False),
        search="halving",
        cost=100.0,
        by="val_loss",
    )
    (tmp_path / "s.toml").write_text(suite_toml(suite), encoding="utf-8")
    assert Suite.load(tmp_path / "s.toml") == suite


def test_a_wrong_field_is_named(tmp_path):
    (tmp_path / "mine.toml").write_text(SUITE.replace("trials = 4", "trails = 4"))
    code, _, err = cli("tune", "--suite", tmp_path / "mine.toml", "-o", tmp_path / "out")
    assert code == 2
    assert "tune: there is no field 'trails' (trails = 4); did you mean 'trials'" in err


def test_too_few_data_sets_are_found_before_anything_runs(tmp_path):
    problem = ProblemEntry(name="ridge_abalone", params={"data_seed": [7, 0, 13, 15, 16, 19, 29]})
    suite = plan("f2ba").model_copy(update={"problem": (problem,)})
    with pytest.raises(InvalidInput, match="12 data sets, too few to tune on 7"):
        tuned(suite, tmp_path)
    assert not list(tmp_path.glob("packs/*"))
