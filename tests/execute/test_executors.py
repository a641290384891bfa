"""Executors by name: the options that all commands share, an executor of a plugin, and the same tables on all of them."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest
from helpers import assert_same, cli
from test_dask import cluster

from bilevelbench import hookimpl
from bilevelbench.discovery.entry import Entry
from bilevelbench.discovery.registry import EXECUTORS, Registry, registry
from bilevelbench.errors import InvalidInput, UnknownName
from bilevelbench.execute import run as running
from bilevelbench.execute.executor import Execution
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

pytestmark = pytest.mark.whole

PLUGIN = """
from bilevelbench import Executor, InvalidInput, hookimpl, run_and_store

@hookimpl
def bilevelbench_executors():
    return {"backwards": "acme_executor:Backwards"}

class Backwards(Executor):
    entered = 0
    order = []

    @classmethod
    def check(cls, execution):
        if execution.jobs:
            raise InvalidInput(f"--jobs {execution.jobs} does not apply to --executor backwards; leave it out")

    def where(self, packs):
        return f"from the last of {packs} to the first"

    def __enter__(self):
        Backwards.entered += 1
        return self

    def __call__(self, packs, store):
        for pack in reversed(packs):
            self.order.append(pack[0].problem.params.get("data_seed"))
            yield run_and_store(pack, store, self.registry)
"""
RUN = ["run", "-a", "f2ba", "-p", "quadratic[data_seed=0,1,2]", "--steps", "3"]
TUNE = ["tune", "-a", "f2ba", "-p", "quadratic[dim_x=5]", "--search", "halving", "--trials", "4", "--budget", "200"]
TUNE += ["--cost", "600"]
RATES = """
title = "small"
problem = "tail_anchor"
problem_params = { tails = 1, anchors = 1, mu = 1.0, L = 2.0 }
[[row]]
method = "aid"
set_by = "eps"
eps = [0.4, 0.2]
seeds = 2
weakened = { text = "two terms", params = { solver = "neumann", N = 1 }, values = 1 }
"""


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """The plugin's module, registered through its hook in the registry of this process."""
    (tmp_path / "acme_executor.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_executor", raising=False)
    import acme_executor

    monkeypatch.setattr(registry(), "executors", dict(registry().executors))
    registry().add_module(acme_executor, "acme", "1.2")
    yield acme_executor
    del sys.modules["acme_executor"]


# ---- an executor of a plugin


def test_an_executor_of_a_plugin_runs_a_plan(acme, tmp_path):
    code, out, err = cli(*RUN, "--executor", "backwards", "-o", tmp_path / "theirs")
    assert (code, err) == (0, "")
    assert "3 trials; 3 to run in 3 packs, from the last of 3 to the first" in out
    assert (acme.Backwards.order, acme.Backwards.entered) == ([2, 1, 0], 1)
    assert cli(*RUN, "--jobs", 0, "-o", tmp_path / "ours")[0] == 0
    assert_same(load_results(tmp_path / "theirs"), load_results(tmp_path / "ours"))


def test_its_option_check_is_asked(acme, tmp_path):
    for command in (RUN, TUNE, ["rates", "-a", "aid"]):
        code, _, err = cli(*command, "--executor", "backwards", "--jobs", 2, "-o", tmp_path / "out")
        assert (code, err) == (2, "error: --jobs 2 does not apply to --executor backwards; leave it out\n")
    assert acme.Backwards.entered == 0


def test_tune_enters_it_once_for_all_rounds(acme, tmp_path):
    code, out, err = cli(*TUNE, "--executor", "backwards", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    assert out.count("from the last of") >= 2
    assert acme.Backwards.entered == 1


@pytest.mark.parametrize(
    ("offered", "words"),
    [
        ({"local": "mine:Mine"}, "its executor 'local' is left out: plugin 'bilevelbench' has that name already"),
        ({"a b": "mine:Mine"}, "'a b' is not a valid name"),
        ({"mine": "mine"}, "executor 'mine' has the import path 'mine'; give one such as \"package.module:Class\""),
        ([int], 'is not an executor; give each as {"name": "package.module:Class"}'),
    ],
)
def test_what_a_hook_may_not_offer(offered, words):
    found, module = Registry(), ModuleType("acme")
    module.bilevelbench_executors = _hook(offered)
    found.add_module(module, "acme", "1.2")
    (failure,) = found.failures
    assert str(failure).startswith("plugin 'acme': ")
    assert words in str(failure)
    assert {name: entry.value for name, entry in found.executors.items()} == EXECUTORS


def _hook(offered):
    @hookimpl
    def bilevelbench_executors():
        return offered

    return bilevelbench_executors


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere:Mine", "executor 'mine' of plugin 'acme' cannot be loaded from nowhere:Mine: ModuleNotFoundError"),
        ("json:Mine", "cannot be loaded from json:Mine: AttributeError"),
        ("json:JSONDecoder", "json:JSONDecoder is not a subclass of bilevelbench.Executor"),
        ("bilevelbench:Executor", "bilevelbench:Executor lacks __call__, check, where"),
    ],
)
def test_a_class_that_cannot_be_used_is_a_sentence(path, words):
    found = Registry()
    found.executors["mine"] = Entry(path, "acme", "1.2")
    with pytest.raises(InvalidInput) as caught:
        Execution("mine").open(found)
    assert words in str(caught.value)


# ---- options


@pytest.mark.parametrize("command", [RUN, TUNE, ["rates", "-a", "aid"]], ids=["run", "tune", "rates"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--executor", "lokal"], "unknown executor 'lokal'; did you mean 'local'?"),
        (["--scheduler", "tcp://here:1"], "--scheduler tcp://here:1 only applies to Dask; add --executor dask"),
        (["--scheduler", " "], "--scheduler is empty"),
        (["--memory", "-1"], "--memory -1: a limit is a number of GiB above 0"),
        (["--memory", "1", "--jobs", "0"], "--memory limits worker processes, and --jobs 0 has none"),
        (["--executor", "dask", "--jobs", "0"], "give --jobs 1 or more Dask workers"),
    ],
)
def test_every_command_has_the_same_options(command, options, words, tmp_path):
    code, out, err = cli(*command, *options, "-o", tmp_path)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(
    ("options", "words"),
    [({"jobs": -1}, "--jobs -1: give a number of workers"), ({"grace": float("nan")}, "grace = nan: give a number")],
)
def test_values_that_no_executor_takes(options, words):
    with pytest.raises(InvalidInput, match=words):
        Execution(**options)


def test_a_name_may_be_unknown_because_its_plugin_is_broken():
    found = Registry()
    found.add_module(json, "broken", "1")
    with pytest.raises(UnknownName, match=r"unknown executor 'slurm'.*plugin 'broken': json offers nothing"):
        Execution("slurm").open(found)


def test_where_packs_run_in_words():
    def where(packs, **options):
        return Execution(**options).open(registry()).where(packs)

    assert where(9, jobs=0) == "in this process"
    assert where(9, jobs=4) == "in 4 worker processes"
    assert where(1, jobs=4) == "in 1 worker process"
    assert where(9, jobs=4, timed=True) == "in 1 worker process"
    assert where(9, executor="dask", jobs=4) == "in 4 Dask workers"
    assert where(9, executor="dask", scheduler="tcp://here:1") == "on the Dask cluster at tcp://here:1"


def test_the_store_is_read_and_the_plan_made_once(tmp_path, monkeypatch):
    calls = []

    def counted(name, function):
        return lambda *arguments: (calls.append(name), function(*arguments))[1]

    monkeypatch.setattr(Store, "done", counted("done", Store.done))
    monkeypatch.setattr(running, "packs_of", counted("plan", running.packs_of))
    assert cli(*RUN, "--jobs", 0, "-o", tmp_path)[0] == 0
    assert calls == ["done", "plan"]


# ---- the studies on Dask


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("cluster"), "--nthreads", "1") as (address, *_):
        yield address


@pytest.mark.slow  # test_dask.py runs trials there always
def test_tune_gives_the_same_on_dask(scheduler, tmp_path):
    code, out, err = cli(*TUNE, "--executor", "dask", "--scheduler", scheduler, "-o", tmp_path / "dask")
    assert (code, err) == (0, "")
    assert out.count(f"on the Dask cluster at {scheduler}") >= 2  # rounds
    assert cli(*TUNE, "--jobs", 0, "-o", tmp_path / "local")[0] == 0
    assert (tmp_path / "dask" / "best.toml").read_text() == (tmp_path / "local" / "best.toml").read_text()
    assert_same(load_results(tmp_path / "dask"), load_results(tmp_path / "local"))


@pytest.mark.long  # `tune` always goes to that cluster
def test_rates_gives_the_same_on_dask(scheduler, tmp_path, monkeypatch):
    (tmp_path / "small.toml").write_text(RATES)
    monkeypatch.setitem(registry().suites, "rates_table1", Entry(tmp_path / "small.toml", "tests", "1"))
    code, out, err = cli("rates", "--executor", "dask", "--scheduler", scheduler, "-o", tmp_path / "dask")
    assert (code, err) == (0, "")
    assert out.count(f"on the Dask cluster at {scheduler}") == 2  # the row, and its necessity check
    assert cli("rates", "--jobs", 0, "-o", tmp_path / "local")[0] == 0
    assert (tmp_path / "dask" / "rates.json").read_text() == (tmp_path / "local" / "rates.json").read_text()
    assert_same(load_results(tmp_path / "dask"), load_results(tmp_path / "local"))
