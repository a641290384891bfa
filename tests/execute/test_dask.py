"""Packs on a Dask cluster of real processes: the numbers of the local executor, and what happens when parts of it die."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import dask
import distributed  # noqa: F401 (its settings: a fixture that changes one would take all of them away at its end)
import psutil
import pytest
from distributed.comm.core import CommClosedError
from helpers import all_end, assert_same, of
from helpers import trial as named_trial
from test_kill import COMMAND, PACKS, TRIALS, here, start, stop, stored, wait_for, workers
from test_local import METHOD, rows, trial

from bilevelbench.cli import app, console
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import BilevelbenchError, InvalidInput
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.run import run_trials
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

pytestmark = pytest.mark.whole

DASK = ("--executor", "dask")
ETAS = {"exit": (1.0, 0.1), "hang": (1.0,), "eat": (0.1, 1.0, 0.2), "kill grandparent": (0.1, 1.0)}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("method") / "dangerous.py"
    path.write_text(METHOD)
    return str(path)


def on_dask(packs, store, **options):
    with Execution("dask", **options).open(registry()) as executor:
        return list(executor(packs, store))


@pytest.fixture(scope="module")
def trials(file):
    """Some that the local executor knows as well, and one that takes its Dask worker down."""
    return [
        trial(file, eta, mode, seconds=0.5 if mode == "hang" else None) for mode, etas in ETAS.items() for eta in etas
    ]


@pytest.fixture(scope="module")
def outcome(trials, tmp_path_factory):
    """All of them on two Dask workers, of which one death condemns; (results, what was reported)."""
    store, reported = Store(tmp_path_factory.mktemp("dask")), []
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        execution = Execution("dask", jobs=2, memory=1.0, grace=3.0)
        results = run_trials(trials, store, registry(), execution, reported.append)
    return results, reported


def test_harmless_trials_have_the_numbers_of_the_local_executor(trials, tmp_path):
    """The quick form of what follows, for which a worker dies three times."""
    harmless = [t for t in trials if t.algorithm.params["eta"] < 0.5][:2]
    dask, local = (
        run_trials(harmless, Store(tmp_path / execution.executor), registry(), execution)
        for execution in (Execution("dask", jobs=1), Execution(jobs=0))
    )
    assert len(local.runs) == len(harmless)
    assert_same(dask, local)


@pytest.mark.slow
def test_every_trial_has_a_row_and_is_reported(outcome, trials):
    results, reported = outcome
    assert sorted(results.runs["trial_id"]) == sorted(t.id for t in trials)
    assert sorted(s for done in reported for s in done.statuses) == sorted(results.runs["status"])
    assert sum(done.trials for done in reported) == len(trials)
    assert {name for done in reported for name in done.best} == {"quadratic"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "status", "words"),
    [
        ("exit", "error", "ended with exit code 7 in the middle of the trial"),
        ("hang", "error", "hung: gave no answer long after 0.5 seconds of steps were over"),
        ("eat", "error", "memory"),
        ("kill grandparent", "error", "was lost with its Dask worker 3 times, the last time at tcp://127.0.0.1:"),
    ],
)
def test_the_culprit_alone_gets_the_status(outcome, trials, mode, status, words):
    for eta, row in rows(outcome[0], trials, mode).items():
        if eta > 0.5:
            assert (row["status"], words in row["message"]) == (status, True), row["message"]
        else:
            assert (row["status"], row["steps"]) == ("budget", 4), row["message"]


@pytest.mark.slow
def test_the_numbers_are_those_of_the_local_executor(outcome, trials, tmp_path):
    harmless = [t for t in trials if t.algorithm.params["eta"] < 0.5]
    local = run_trials(harmless, Store(tmp_path), registry(), Execution(jobs=0))
    assert len(local.runs) == len(harmless)
    assert_same(of(outcome[0], harmless), of(local, harmless))


# ---------------------------------------------------------------------------------------------------- the command line


@pytest.mark.slow  # above, a trial takes its worker down three times
def test_the_same_table_and_any_worker_may_be_killed(tmp_path, undisturbed):
    process = start(tmp_path, 2, *DASK)
    wait_for(tmp_path, process, 1)
    for _ in range(2):  # a Dask worker, or the process in which it runs a pack
        victims = workers(process)
        if victims:
            random.choice(victims).kill()
        time.sleep(random.uniform(0, 1))
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert f"{TRIALS} to run in {PACKS} packs, in 2 Dask workers" in out
    assert f"{TRIALS}/{TRIALS} trials" in out  # progress, as pack after pack comes back
    assert_same(load_results(tmp_path), undisturbed)


@pytest.mark.long
def test_every_method_on_every_problem_gives_the_same_table(tmp_path):
    for name, more in (("local", ()), ("dask", DASK)):
        process = start(tmp_path / name, 2, *more, command=["run", "--all"])
        _, err = process.communicate()
        assert (process.returncode, err) == (0, "")
    assert_same(load_results(tmp_path / "dask"), load_results(tmp_path / "local"))


@pytest.mark.slow  # test_kill.py stops runs on this machine always
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_client_that_is_stopped_leaves_nobody_and_goes_on(tmp_path, undisturbed, number):
    process = start(tmp_path, 2, *DASK)
    wait_for(tmp_path, process, 1)
    family = workers(process)
    assert len(family) >= 2
    if number == signal.SIGKILL:
        process.kill()
        process.communicate()
    else:
        _, err = stop(process, signal.SIGINT)
        assert (process.returncode, err.strip()) == (130, console.INTERRUPTED)
    assert all_end([p.pid for p in family])
    before = stored(tmp_path)
    assert before
    assert f"{2 * len(before)} of them stored already" in here(tmp_path) or len(before) == PACKS
    assert before.items() <= stored(tmp_path).items()
    assert_same(load_results(tmp_path), undisturbed)


# ---------------------------------------------------------------------------------------------------- a cluster elsewhere


@contextmanager
def cluster(folder, *options):
    """A scheduler and a worker as people start them, in a folder of their own: (address, scheduler, worker)."""
    address_file, processes = folder / "scheduler.json", []

    def dask_process(what, *arguments):
        command = [sys.executable, "-m", "dask", what, "--no-dashboard", *arguments]
        processes.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return processes[-1]

    try:
        scheduler = dask_process(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(address_file)
        )
        deadline = time.monotonic() + 60
        while not (address_file.exists() and address_file.read_text().strip()):
            assert time.monotonic() < deadline, "the scheduler does not start"
            time.sleep(0.05)
        address = json.loads(address_file.read_text())["address"]
        worker = dask_process("worker", address, "--host", "127.0.0.1", "--local-directory", str(folder), *options)
        yield address, scheduler, worker
    finally:
        family = [child for p in processes if p.poll() is None for child in psutil.Process(p.pid).children(True)]
        for process in (*processes, *family):
            process.kill()
        for process in processes:
            process.wait()
        assert all_end([p.pid for p in family])


@pytest.mark.slow  # above, a cluster is made and used always
def test_a_cluster_that_is_there(tmp_path, undisturbed):
    """Its worker has a nanny and two threads; the results come back and its processes go."""
    with cluster(tmp_path, "--nthreads", "2") as (address, scheduler, worker):
        folder = tmp_path / "out"
        command = [*COMMAND, *DASK, "--scheduler", address, "-o", str(folder)]
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "bilevelbench", *command], capture_output=True, text=True, timeout=900
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert f"on the Dask cluster at {address}" in done.stdout
        assert_same(load_results(folder), undisturbed)
        deadline = time.monotonic() + 30
        while len(workers(worker)) > 1:
            assert time.monotonic() < deadline, "processes are left behind in the Dask worker"
            time.sleep(0.1)
        assert scheduler.poll() is worker.poll() is None


@pytest.mark.slow  # below, nobody answers at an address
def test_a_scheduler_that_dies_is_a_sentence(tmp_path):
    with cluster(tmp_path, "--no-nanny") as (address, scheduler, _):
        store = Store(tmp_path / "out")
        slow = [(named_trial("f2ba", "quadratic", steps=400, seed=seed),) for seed in range(40)]
        running = Execution("dask", scheduler=address).open(registry())(slow, store)
        assert next(running).trials == 1
        os.kill(scheduler.pid, signal.SIGKILL)
        with pytest.raises(BilevelbenchError, match=r"the Dask scheduler was lost .* what was finished is stored"):
            list(running)
        assert 1 <= len(store.done()) < len(slow)


def test_a_scheduler_that_goes_while_it_hands_over_an_answer_is_the_same_sentence(monkeypatch, tmp_path):
    class Answer:
        key = "only"

        def cancelled(self):
            return False

        def exception(self):
            return None

        def result(self):
            raise CommClosedError("Connection reset by peer")

    class Client:
        loop = None

        def submit(self, *_, key):
            Answer.key = key
            return Answer()

    class Ready(list):
        add = list.append

    monkeypatch.setattr("bilevelbench.execute.dask.as_completed", lambda **_: Ready())
    executor = Execution("dask", scheduler="tcp://127.0.0.1:1").open(registry())
    pack = (named_trial("f2ba", "quadratic", steps=1),)
    with pytest.raises(BilevelbenchError, match="the Dask scheduler was lost while packs ran"):
        list(executor._run(Client(), [pack], Store(tmp_path)))


# ---------------------------------------------------------------------------------------------------- mistakes


def exits(capsys, monkeypatch, *arguments):
    """What the command says when it ends with 2."""
    monkeypatch.setattr(sys, "argv", ["bilevelbench", "run", "-a", "f2ba", "-p", "quadratic", *arguments])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--executor", "dusk"], "unknown executor 'dusk'; did you mean 'dask'?"),
        (["--scheduler", "tcp://here:1"], "--scheduler tcp://here:1 only applies to Dask; add --executor dask"),
        ([*DASK, "--timed"], "leave out --executor dask"),
        ([*DASK, "--jobs", "0"], "give --jobs 1 or more Dask workers"),
        ([*DASK, "--jobs", "2", "--scheduler", "tcp://here:1"], "has workers of its own; leave out --jobs"),
        ([*DASK, "--scheduler", "nonsense://here:1"], "no Dask scheduler answers at 'nonsense://here:1'"),
    ],
)
def test_options_that_do_not_fit(capsys, monkeypatch, tmp_path, options, words):
    assert words in exits(capsys, monkeypatch, *options, "-o", str(tmp_path))


@pytest.mark.parametrize("listens", [False, True])
def test_nobody_at_that_address(capsys, monkeypatch, tmp_path, listens):
    """Nothing listens there, or something that is no scheduler and never answers."""
    monkeypatch.setattr("bilevelbench.execute.dask._CONNECT", 1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listens:
            other.listen()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        error = exits(capsys, monkeypatch, *DASK, "--scheduler", address, "-o", str(tmp_path))
    assert f"error: no Dask scheduler answers at '{address}'" in error
    assert len(error.strip().splitlines()) == 1


def test_without_the_extra(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "bilevelbench.execute.dask", raising=False)
    error = exits(capsys, monkeypatch, *DASK, "-o", str(tmp_path))
    assert 'pip install "bilevelbench[dask]"' in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.slow  # above, a cluster is made and used always
def test_another_version_there_fails_its_own_trial_with_a_sentence(file, tmp_path):
    edited = trial(file).model_copy(update={"plugin_version": "another"})
    on_dask([(edited,)], Store(tmp_path), jobs=1)
    (row,) = load_results(tmp_path).runs.to_dict("records")
    assert row["status"] == "error"
    assert re.search(r"dangerous has version .* and another in the plan", row["message"])


def test_nothing_to_do_starts_no_cluster(tmp_path, monkeypatch):
    monkeypatch.setattr("bilevelbench.execute.dask.LocalCluster", lambda **_: pytest.fail("a cluster was started"))
    assert on_dask([], Store(tmp_path), jobs=2) == []


def test_objects_of_this_session_cannot_be_sent(file, tmp_path):
    mine = trial(file).model_copy(update={"plugin": "this session"})
    with pytest.raises(InvalidInput, match="an object of this session cannot be sent to a worker"):
        on_dask([(mine,)], Store(tmp_path), jobs=1)
