"""Settings: what a trial belongs to, what its board says of itself, and the suites behind the official boards."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import Reader
from leaderboard_data import make_results

from bilevelbench.discovery.registry import registry
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.run import run_trials
from bilevelbench.leaderboard.build import build, write_site
from bilevelbench.leaderboard.collect import Material
from bilevelbench.leaderboard.settings import (
    SETTINGS,
    budget_words,
    budgets,
    settings_of_trials,
    standing_words,
)
from bilevelbench.model.algorithm import Distributed
from bilevelbench.plan.suite import Suite
from bilevelbench.plan.trial import Budget
from bilevelbench.report.analysis.ranking import board, costs
from bilevelbench.report.analysis.summary import readable, reading, summary
from bilevelbench.results.schema import Results
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

LEADERBOARD = Path(__file__).resolve().parents[2] / "leaderboard"
SUITES = {path.stem: path for path in (LEADERBOARD / "suites").glob("*.toml")}
SETTING = {"deterministic": "deterministic", "partial": "partial", "full": "full", "finite_sum": "finite-sum",
           "second_order": "second-order"}  # fmt: skip


def with_records(results, **fields):
    """What a pack says of its trials: these fields, by problem."""
    trials = [
        {"id": trial, **{name: values[problem] for name, values in fields.items() if problem in values}}
        for trial, problem in zip(results.runs["trial_id"], results.runs["problem"], strict=True)
    ]
    return Results(results.runs, results.curve, [{"trials": trials}])


def sampled(results, *problems):
    """The meter counted samples there."""
    ids = results.runs.loc[results.runs["problem"].isin(problems), "trial_id"]
    samples = np.where(results.curve["trial_id"].isin(ids), 0.0, np.nan)
    return Results(results.runs, results.curve.assign(second_order_samples=samples), results.records)


def by_problem(results, facts):
    return dict(zip(results.runs["problem"], settings_of_trials(results, facts), strict=True))


# ---- the setting of a trial


def test_a_setting_is_that_of_the_noise_and_of_what_was_asked():
    problems = {
        "exact": {}, "f": {"sigma_f": 1.0, "sigma_g": 0.0}, "g": {"sigma_g": 1}, "both": {"sigma_f": 1, "sigma_g": 0.1},
        "products": {"sigma_h": 0.1}, "sum": {"corruption": 0.3}, "saddle": {}, "switched off": {"sigma_f": 0.0},
    }  # fmt: skip
    results = sampled(make_results({"a": (1, 0, 1.0)}, problems, seeds=1), "f", "g", "both", "products", "sum")
    results = with_records(results, schedule={"saddle": {"second_order": True}, "exact": {"second_order": False}})
    assert by_problem(results, {}) == {
        "exact": "deterministic", "f": "partial", "g": "full", "both": "full", "products": "full", "sum": "finite-sum",
        "saddle": "second-order", "switched off": "deterministic",
    }  # fmt: skip


def test_levels_that_were_not_written_come_from_defaults_and_constants():
    results = sampled(make_results({"a": (1, 0, 1.0)}, {"default": {}, "constant": {}, "sum": {}}, seeds=1),
                      "default", "constant", "sum")  # fmt: skip
    assert set(by_problem(results, {}).values()) == {"finite-sum"}  # nothing is known of any level
    facts = {
        "problems": {
            "default": {"parameters": [{"name": "sigma_g", "default": 0.1}]},
            "constant": {
                "constants": [{"name": "sigma_f", "value": 0.1, "kind": "exact"}, {"name": "sigma_g", "value": 0}]
            },
            "sum": {"parameters": [{"name": "ridge", "default": 0.1}], "constants": [{"name": "mu", "value": 1}]},
        }
    }
    assert by_problem(results, facts) == {"default": "full", "constant": "partial", "sum": "finite-sum"}


def test_a_trial_without_a_curve_has_the_setting_of_its_problem():
    results = sampled(make_results({"a": (1, 0, 1.0), "b": (1, 0, 1.0)}, {"sum": {}}, seeds=1), "sum")
    lost = results.runs.loc[results.runs["label"] == "b", "trial_id"]
    cut = Results(results.runs, results.curve[~results.curve["trial_id"].isin(lost)], [])
    assert list(settings_of_trials(cut, {})) == ["finite-sum", "finite-sum"]


def test_one_problem_may_stand_on_two_boards(tmp_path):
    plain = make_results({"a": (1, 0, 1.0)}, {"saddle": {}}, seeds=2)
    certified = make_results({"a": (1, 0, 1.0)}, {"saddle": {}}, seeds=2, prefix="s")
    certified = with_records(certified, schedule={"saddle": {"second_order": True}})
    both = Results(
        pd.concat([plain.runs, certified.runs], ignore_index=True),
        pd.concat([plain.curve, certified.curve.assign(second_order_eps=1.0)], ignore_index=True),
        certified.records,
    )
    index = write_site(Material({"default": both}), tmp_path / "out")
    assert re.findall(r'data-board="([^"]+)"', index.read_text("utf-8")) == [
        "default-deterministic",
        "default-second-order",
    ]
    page = (tmp_path / "out" / "problem" / "saddle.html").read_text("utf-8")
    assert "On the deterministic and second-order boards" in page
    results = re.findall(r'<caption><span class="cap">Medians[^<]*', page)
    assert ["both conditions" in caption for caption in results] == [False, True]


def test_a_finite_sum_is_not_called_deterministic(tmp_path):
    results = sampled(make_results({"a": (1, 0, 1.0)}, {"sum": {}}, seeds=2), "sum")
    write_site(Material({"default": results}), tmp_path / "out")
    page = "".join(Reader((tmp_path / "out" / "problem" / "sum.html").read_text("utf-8")).text)
    assert "On the finite-sum board." in page
    assert "deterministic" not in page


# ---- second order is scored by second order


def test_a_method_that_stays_at_the_saddle_has_not_arrived():
    results = make_results({"stays": (1, 0, 9.0), "leaves": (1, 0, 3.0)}, {"saddle": {}}, seeds=3)
    leaves = results.curve["trial_id"].isin(results.runs.loc[results.runs["label"] == "leaves", "trial_id"])
    curve = results.curve.assign(second_order_eps=np.where(leaves, results.curve["grad_phi"], 0.7))
    first = Results(results.runs, curve, [])
    second = with_records(first, schedule={"saddle": {"second_order": True}})
    assert list(board(costs(first, [1e-2]))["method"]) == ["stays", "leaves"]
    table = board(costs(second, [1e-2])).set_index("method")
    assert list(table.index) == ["leaves", "stays"]
    assert list(table["reached"]) == [1.0, 0.0]
    told = summary(second).set_index("method")
    assert (told.loc["stays", "best_grad_phi"], told.loc["stays", "share_of"]) == (0.7, "second-order eps")
    assert list(readable(summary(second)).columns[2:4]) == ["second-order eps", "cost to 0.1"]
    assert list(readable(summary(first)).columns[2:4]) == ["|grad phi|", "cost to 0.1"]
    assert "a share of second-order eps at the start, 0.70" in reading(summary(second))
    assert "second-order" not in reading(summary(first))


def test_without_the_eigenvalue_nothing_is_reached():
    results = make_results({"a": (1, 0, 1.0)}, {"saddle": {}}, seeds=2)
    part = with_records(results, schedule={"saddle": {"second_order": True}})
    assert np.isinf(costs(part, [1e-1])["cost"]).all()
    assert np.isfinite(costs(results, [1e-1])["cost"]).all()


# ---- what a board says


def test_the_budget_in_words_is_that_of_the_trials():
    results = sampled(make_results({"a": (1, 0, 1.0)}, {"p": {}, "q": {}, "s": {}}, seeds=2), "s")
    ids = results.runs["trial_id"]
    assert budget_words(budgets(results, ids)) == "The budget of a trial was not recorded."
    same = {"cost": 50000.0, "steps": None, "seconds": None}
    told = with_records(results, budget={"p": same, "q": same, "s": {"cost": 1e6, "steps": 7, "seconds": 0.5}})
    assert budget_words(budgets(told, ids[:4])) == "A trial ends after 50,000 calls at the latest."
    assert budget_words(budgets(told, ids)) == (
        "A trial ends at the latest after 1,000,000 samples or 7 steps or 0.5 seconds on s; 50,000 calls on p, q."
    )


def test_who_stands_on_a_board_and_why():
    stochastic = [{"table": 2, "setting": "partial"}, {"table": 2, "setting": "full"}]
    exact = [{"table": 1, "setting": "deterministic"}]
    claims = {"sgd": stochastic, "gd": exact, "kick": [{"table": 3, "setting": "deterministic"}], "new": []}
    titles = {name: name for name in claims}
    said = {setting: standing_words(setting, claims, titles).split(": ")[1] for setting in SETTINGS}
    assert said["deterministic"] == "gd, kick with a claim of a rate for exact answers; sgd, new without one."
    assert said["full"] == "sgd with a claim of a rate for noise in f and g; gd, kick, new without one."
    assert (
        said["second-order"] == "kick with a claim of a rate for second-order stationarity; sgd, gd, new without one."
    )
    assert standing_words("full", {"new": []}, titles).endswith(
        "new, of which none has a claim of a rate for noise in f and g."
    )
    assert standing_words("partial", {"sgd": stochastic}, titles).endswith(
        "sgd with a claim of a rate for noise in f alone."
    )


# ---- the suites


@pytest.fixture(scope="module")
def boards(tmp_path_factory):
    """One trial of each method on each problem that is quick, with a tiny budget, and the site of them all."""
    folder = tmp_path_factory.mktemp("boards")
    for name, path in SUITES.items():
        suite = Suite.load(path)
        quick = tuple(entry.model_copy(update={"budget": None}) for entry in suite.problem if "clean" not in entry.name)
        tiny = suite.model_copy(update={"problem": quick, "budget": Budget(cost=700), "data_seeds": 1, "seeds": 1})
        run_trials(tiny.trials(registry()), Store(folder / name), registry(), Execution(jobs=0))
    build([*(folder / name for name in SUITES), LEADERBOARD / "results" / "official" / "facts"], folder / "site")
    return folder


def test_there_is_a_suite_for_each_setting_and_its_names_exist():
    assert {SETTING[name] for name in SUITES} == set(SETTINGS)
    for path in SUITES.values():
        suite = Suite.load(path)
        trials = suite.trials(registry())  # names and parameters are checked here
        labels = [trial.label for trial in trials]
        assert len({(t.label, str(t.problem), t.seed) for t in trials}) == len(labels)
        assert re.search(r"A trial may (make|draw) [0-9,]+ (calls|samples)", suite.description)


def test_the_words_of_a_suite_are_its_numbers():
    for path in SUITES.values():
        suite = Suite.load(path)
        said = {float(n.replace(",", "")) for n in re.findall(r"[0-9][0-9,]{4,}[0-9]", suite.description)}
        assert {(entry.budget or suite.budget).cost for entry in suite.problem} <= said


#: It needs an extra, and takes minutes where the others take seconds; random_search stands for it.
UNRANKED = {"tpe"}


def test_every_method_stands_where_it_has_a_claim():
    standing = {SETTING[name]: {entry.name for entry in Suite.load(path).algorithm} for name, path in SUITES.items()}
    for name, entry in registry().algorithms.items():
        if entry.plugin != "bilevelbench" or issubclass(entry.value, Distributed) or name in UNRANKED:
            continue
        assert any(name in methods for methods in standing.values()), f"{name} stands on no board"
        for claim in entry.value.claims:
            claimed = {"table": claim.table, "setting": claim.setting}
            wanted = {key for key, setting in SETTINGS.items() if setting.covers(claimed)}
            assert wanted <= {key for key in wanted if name in standing[key]}, f"{name} is missing from {wanted}"


@pytest.mark.slow  # the suites themselves are looked at always
def test_each_suite_makes_its_board_with_each_method_once(boards):
    text = (boards / "site" / "index.html").read_text("utf-8")
    for name, path in SUITES.items():
        results = load_results(boards / name)
        assert set(settings_of_trials(results, {})) == {SETTING[name]}
        table = text.split(f'id="ranking-default-{SETTING[name]}"')[1].split("</table>")[0]
        links = re.findall(r'<a href="method/([^"]+)\.html"', table)
        assert sorted(links) == sorted(entry.label or entry.name for entry in Suite.load(path).algorithm)
    assert text.count("A trial ends after 700 samples at the latest.") == 3
    assert text.count("A trial ends after 700 calls at the latest.") == 2
    assert (
        "F²BSA, F²SA, F³BSA, PZOBO-S, stocBiO, TTSA with a claim of a rate for noise in f alone; F³SA without one"
        in text
    )


@pytest.mark.slow  # the suites themselves are looked at always
@pytest.mark.parametrize("name", ["partial", "full"])
def test_who_stands_where_there_is_noise_samples(boards, name):
    """An exact answer costs as little as one sample: a method that asks for it would win, having met no noise."""
    runs = load_results(boards / name).runs
    # the samples of one are single ones, which cannot be told from exact answers; the first of the others is a large one
    runs = runs[~runs["algorithm"].isin(["f3bsa", "spaba", "vrbo"])]
    of_f, of_g = runs["grad_f"], runs["grad_g"] + runs["second_order"]
    assert (of_f + of_g > 0).all()
    noisy_g = 64.0 if name == "full" else 1.0  # without noise a sample is the exact answer
    assert list(runs["cost"]) == list(64.0 * of_f + noisy_g * of_g)
