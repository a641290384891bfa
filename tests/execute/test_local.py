"""Worker processes for real: methods that die, hang and eat memory, and the trials beside them that must not notice."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future

import pandas as pd
import psutil
import pytest
from helpers import trial as named_trial
from test_kill import workers as below

from bilevelbench import processes
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput
from bilevelbench.execute import executor, local
from bilevelbench.execute.executor import Done, Execution
from bilevelbench.plan.packs import plan
from bilevelbench.plan.trial import Budget, Spec
from bilevelbench.plan.trials import make_trial
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

pytestmark = pytest.mark.whole

METHOD = """
import os, signal, sys, time
import psutil
from dataclasses import dataclass
import torch
from torch import Tensor
from bilevelbench import Algorithm

@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor

class Dangerous(Algorithm):
    name = "dangerous"
    uses = frozenset({"grad_f", "grad_g"})
    eta: float = 0.1
    mode: str = ""

    def init(self, x0, y0, oracle):
        return State(x0, y0)

    def step(self, s, oracle):
        if bool((self.eta > 0.5).any()):
            if self.mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.mode == "kill grandparent":  # beyond the process that watches this one
                os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)
            if self.mode == "exit":
                os._exit(7)
            if self.mode == "sys.exit":
                sys.exit("enough")
            if self.mode == "hang":
                time.sleep(10**6)
            if self.mode == "eat":
                torch.ones(2**29, dtype=torch.float64)
        f_x, f_y = oracle.grad_f(s.x, s.y)
        g_x, g_y = oracle.grad_g(s.x, s.y)
        return State(s.x - self.eta * f_x, s.y - self.eta * (f_y + g_y))
"""
MODES = ["kill", "exit", "sys.exit", "hang", "eat"]
ETAS = {"kill": (1.0, 0.1, 0.2), "exit": (1.0, 0.1), "sys.exit": (0.1, 1.0), "hang": (1.0,), "eat": (0.1, 1.0, 0.2)}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("method") / "dangerous.py"
    path.write_text(METHOD)
    return str(path)


def trial(name, eta=0.1, mode="", steps=4, seconds=None):
    return make_trial(
        registry(),
        Spec(name=name, params={"eta": eta, "mode": mode}),
        Spec(name="quadratic", params={"dim_x": 3}),
        budget=Budget(steps=steps, seconds=seconds),
    )


@pytest.fixture(scope="module")
def trials(file):
    return [trial(file, eta, mode, seconds=0.5 if mode == "hang" else None) for mode in MODES for eta in ETAS[mode]]


@pytest.fixture(scope="module")
def outcome(trials, tmp_path_factory):
    """All of them in two workers with a GiB each: (results, what was reported)."""
    store = Store(tmp_path_factory.mktemp("workers"))
    packs = plan(trials, registry())
    assert [len(pack) for pack in packs] == [len(ETAS[mode]) for mode in MODES]
    reported = run_in_workers(packs, store, jobs=2, memory=1.0, grace=3.0)
    return store.publish(), reported


def here():
    return Execution(jobs=0).open(registry())


def run_in_workers(packs, store, **options):
    with Execution(**options).open(registry()) as workers:
        return list(workers(packs, store))


def rows(results, trials, mode):
    table = results.runs.set_index("trial_id")
    return {t.algorithm.params["eta"]: table.loc[t.id] for t in trials if t.algorithm.params["mode"] == mode}


def test_every_trial_has_a_row_and_is_reported(outcome, trials):
    results, reported = outcome
    assert sorted(results.runs["trial_id"]) == sorted(t.id for t in trials)
    assert sum(done.trials for done in reported) == len(trials)
    statuses = [status for done in reported for status in done.statuses]
    assert sorted(statuses) == sorted(results.runs["status"])


@pytest.mark.parametrize(
    ("mode", "status", "words"),
    [
        ("kill", "error", "its worker process was killed by signal SIGKILL in the middle of the trial"),
        ("exit", "error", "its worker process ended with exit code 7 in the middle of the trial"),
        ("sys.exit", "error", "SystemExit: enough"),
        (
            "hang",
            "error",
            "hung: gave no answer long after 0.5 seconds of steps were over; its worker process was killed",
        ),
        ("eat", "error", "memory"),
    ],
)
def test_the_culprit_alone_gets_the_status(outcome, trials, mode, status, words):
    for eta, row in rows(outcome[0], trials, mode).items():
        if eta > 0.5:
            assert row["status"] == status
            assert words in row["message"]
        else:
            assert (row["status"], row["steps"]) == ("budget", 4)


def test_workers_and_this_process_give_the_same_numbers(outcome, trials, tmp_path):
    harmless = [t for t in trials if t.algorithm.params["eta"] < 0.5]
    store = Store(tmp_path)
    for done in here()(plan(harmless, registry()), store):
        assert isinstance(done, Done)
    ours, there = store.publish(), outcome[0]
    unlike = ["seconds", "peak_memory", "pack_lanes"]  # a pack that lost a lane is narrower
    runs = there.runs[there.runs["trial_id"].isin(ours.runs["trial_id"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(runs.drop(columns=unlike), ours.runs.drop(columns=unlike), check_exact=True)
    curve = there.curve[there.curve["trial_id"].isin(ours.runs["trial_id"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(curve.drop(columns="seconds"), ours.curve.drop(columns="seconds"), check_exact=True)


def test_a_pack_is_stored_with_its_trials_and_its_circumstances(outcome, trials):
    known = {t.id: t for t in trials}
    for record in outcome[0].records:
        for dump in record["trials"]:
            assert known[dump["id"]].budget.steps == dump["budget"]["steps"]
        assert record["environment"]["packages"]["torch"]
        assert set(record["commits"]) == {"quadratic", trials[0].algorithm.name}
        assert "timed" not in record


def test_a_pack_that_ran_alone_says_so(tmp_path):
    known, store = registry(), Store(tmp_path)
    trials = [named_trial("f2ba", "quadratic", steps=1, seed=seed) for seed in (0, 1)]
    execution = Execution(jobs=2, timed=True)
    with execution.open(known) as workers:
        list(workers(executor.packs_of(trials, workers), store))
    assert [record["timed"] for record in load_results(tmp_path).records] == [True, True]


def test_lasting_workers_are_the_same_processes_in_every_run(tmp_path):
    store, seen = Store(tmp_path), []
    with Execution(jobs=1).open(registry()) as workers:
        assert workers.where(5) == "in 1 worker process"
        for seed in range(2):
            assert [
                done.trials for done in workers([(named_trial("f2ba", "quadratic", steps=2, seed=seed),)], store)
            ] == [1]
            seen.append({p.pid for p in below(psutil.Process())})
        assert list(workers([], store)) == []
    assert seen[0] == seen[1] != set()
    assert len(store.done()) == 2
    assert not seen[0] & {p.pid for p in psutil.Process().children(recursive=True)}


def test_no_more_workers_than_packs_and_more_when_a_later_round_wants_them(tmp_path, monkeypatch):
    events = []

    class Pool:
        def __init__(self, size, memory):
            events.append(size)

        def schedule(self, function, args):
            future = Future()
            future.set_result(Done(1, ("budget",), {}))
            return future

        def close(self):
            events.append("closed")

        def join(self):
            pass

    monkeypatch.setattr(local, "_new_pool", Pool)
    with Execution(jobs=3).open(registry()) as workers:
        for packs in (2, 1, 5):
            assert len(list(workers([(named_trial("f2ba", "quadratic", steps=2),)] * packs, Store(tmp_path)))) == packs
    assert events == [2, "closed", 3, "closed"]


def test_nothing_to_do_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_new_pool", lambda *_: pytest.fail("a pool was made"))
    assert run_in_workers([], Store(tmp_path), jobs=2) == []


def test_workers_that_cannot_start_are_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "start_worker", os._exit)  # with `memory` for its exit code
    with pytest.raises(InvalidInput, match=r"die before they can take a trial; give more than --memory 9"):
        run_in_workers([(named_trial("f2ba", "quadratic", steps=2),)], Store(tmp_path), jobs=1, memory=9)
    assert Store(tmp_path).done() == set()


def test_leaving_early_stops_the_workers(file, tmp_path):
    packs = [(trial(file, eta=eta),) for eta in (0.1, 0.2)] + [(trial(file, 1.0, "hang"),)]
    running = Execution(jobs=1).open(registry())(packs, Store(tmp_path))
    assert next(running).trials == 1
    running.close()  # as Ctrl-C does; would wait for ever if the hung one were waited for
    assert len(Store(tmp_path).done()) in (1, 2)


# ---- in this process


def test_what_no_runner_catches_is_a_row_here_too(file, tmp_path):
    pack = tuple(trial(file, eta, "sys.exit") for eta in (0.1, 0.2, 1.0))
    (done,) = here()([pack], Store(tmp_path))
    assert done.statuses == ("budget", "budget", "error")
    assert done.best["quadratic"][1] > 0


def test_ctrl_c_is_not_a_row(file, tmp_path, monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(executor, "run_pack", press)
    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        list(here()([(trial(file),)], store))
    assert store.done() == set()


def test_a_worker_answers_mistakes_with_sentences(file, tmp_path):
    good = trial(file)
    unknown = good.model_copy(update={"algorithm": Spec(name="f2bb")})
    assert local._work([unknown.model_dump(mode="json")], str(tmp_path)).startswith("unknown method 'f2bb'")
    edited = good.model_copy(update={"plugin_version": "another"})
    assert "was changed while it was being run" in local._work([edited.model_dump(mode="json")], str(tmp_path))
    (tmp_path / "file").touch()
    assert "cannot write to the result folder" in local._work([good.model_dump(mode="json")], str(tmp_path / "file"))
    assert "failed outside of any trial" in local._work([{"bogus": 1}], str(tmp_path))
    done = local._work([good.model_dump(mode="json")], str(tmp_path / "fine"))
    assert done.statuses == ("budget",)


def test_a_pack_may_take_no_longer_than_whoever_runs_it_has_patience(file):
    """Whatever its trials ask for: those of strangers may ask for years."""
    endless, timed = trial(file), trial(file).model_copy(update={"budget": Budget(seconds=10.0)})
    for pack, patience, limit in (
        ((endless,), None, None), ((endless,), 5.0, 5.0), ((timed,), None, 23.0), ((timed,), 5.0, 5.0), ((timed,), 99.0, 23.0),
        ((timed, endless), None, None),
    ):  # fmt: skip
        assert local._limit(pack, Execution(grace=3.0, patience=patience)) == limit
    with pytest.raises(InvalidInput, match="--seconds 0: give a number of seconds above 0"):
        Execution(patience=0.0)


def test_objects_of_this_session_cannot_be_sent(file, tmp_path):
    mine = trial(file).model_copy(update={"plugin": "this session"})
    with pytest.raises(InvalidInput, match="an object of this session cannot be sent to a worker"):
        run_in_workers([(mine,)], Store(tmp_path), jobs=1)


def test_how_a_process_ended_in_words():
    assert "exit code 3" in processes.cause_of_death(3)
    assert "SIGSEGV" in processes.cause_of_death(-signal.SIGSEGV)
    assert "signal 99" in processes.cause_of_death(-99)
    assert "for an unknown reason" in processes.cause_of_death(None)


def test_the_time_limit_of_a_pack(file):
    limited, free = trial(file, seconds=3.0), trial(file)
    assert local._limit((limited,), Execution(grace=1.0)) == 7.0
    assert local._limit((limited, free), Execution(grace=1.0)) is None
