"""Faults for real: killed processes, a full disk, two runs at once, damaged files, a clock that jumps, methods that hang."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from contextlib import contextmanager

import pandas as pd
import psutil
import pytest
from helpers import assert_same
from test_kill import COMMAND, PACKS, TRIALS, here, start, stop, stored, wait_for, workers
from test_local import METHOD, trial

from bilevelbench.discovery.registry import registry
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.run import run_trials
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

pytestmark = pytest.mark.whole


def finish(folder, *more, **options):
    """The same command again, to its end: what it says."""
    process = start(folder, 2, *more, **options)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def assert_complete(folder, undisturbed):
    """A row for each trial, once, with the numbers of a run that nobody disturbed."""
    published = pd.read_parquet(folder / "runs.parquet")
    assert sorted(published["trial_id"]) == sorted(undisturbed.runs["trial_id"])
    results = load_results(folder)
    assert results.warnings == []
    assert_same(results, undisturbed)


# ---------------------------------------------------------------------------------------------------- SIGKILL


def sweep(trials):
    """A plan of so many trials, in packs of five."""
    data_seeds = ",".join(map(str, range(trials // 5)))
    return ["run", "-a", "f2ba", "-p", f"quadratic[data_seed={data_seeds}]", "--seeds", "5", "--steps", "300"]


def kill_at_random(folder, command, kills, packs, rng):
    """Kill the run or one of its workers, so many times, spread over the sweep; begin it again when it is gone."""
    process, killed = start(folder, 2, command=command), {"run": 0, "worker": 0}
    for kill in range(kills):
        while True:
            if process.poll() is not None:  # killed, or it gave up because its workers were
                process.communicate()
                process = start(folder, 2, command=command)
            wait_for(folder, process, int(0.9 * packs * kill / kills))  # the last kills have to find something to kill
            time.sleep(rng.uniform(0, 1.5))
            victim = rng.choice([psutil.Process(process.pid), *workers(process)]) if process.poll() is None else None
            if victim is not None:
                break
        with_run = victim.pid == process.pid
        victim.kill()
        killed["run" if with_run else "worker"] += 1
        if with_run:
            process.communicate()  # until its last worker is gone as well
    process.communicate()
    assert sum(killed.values()) == kills
    return killed


def kill_and_compare(tmp_path, trials, kills):
    command, rng = sweep(trials), random.Random()
    here(tmp_path / "undisturbed", command)
    killed = kill_at_random(tmp_path / "out", command, kills, trials // 5, rng)
    finish(tmp_path / "out", command=command)
    print(f"killed: {killed}")
    assert_complete(tmp_path / "out", load_results(tmp_path / "undisturbed"))
    assert len(pd.read_parquet(tmp_path / "out" / "runs.parquet")) == trials


@pytest.mark.slow  # test_kill.py kills once always
def test_three_random_kills(tmp_path):
    kill_and_compare(tmp_path, trials=15, kills=3)


@pytest.mark.long
def test_two_hundred_random_kills_over_three_hundred_trials(tmp_path):
    kill_and_compare(tmp_path, trials=300, kills=200)


@pytest.mark.slow  # test_kill.py kills once always
def test_a_trial_whose_worker_is_killed_by_somebody_else_is_not_blamed(tmp_path):
    """Killed twice and then left alone, it gives the numbers that it would have given."""
    once = METHOD.replace(
        "os.kill(os.getpid(), signal.SIGKILL)",
        "from pathlib import Path; deaths = Path(__file__).with_name('deaths'); deaths.open('a').write('x')\n"
        "                if len(deaths.read_text()) <= 2: os.kill(os.getpid(), signal.SIGKILL)",
    )
    (tmp_path / "method.py").write_text(once)
    victim = trial(str(tmp_path / "method.py"), eta=1.0, mode="kill")
    results = run_trials([victim], Store(tmp_path / "out"), registry(), Execution(jobs=1))
    assert (tmp_path / "deaths").read_text() == "xx" + "x" * victim.budget.steps
    assert results.runs["status"].tolist() == ["budget"]


# ---------------------------------------------------------------------------------------------------- the disk


@contextmanager
def small_disk(path, kilobytes):
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no disk of a limited size can be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.slow  # tests/results/test_store.py meets such a disk always
def test_a_full_disk(tmp_path, undisturbed):
    folder = tmp_path / "disk"
    with small_disk(folder, kilobytes=160):
        process = start(folder, 2)
        _, err = process.communicate()
        assert process.returncode == 2
        assert "No space left on device; free some space and run the same command again (what is stored stays)" in err
        assert "Traceback" not in err
        before = stored(folder)
        assert 0 < len(before) < PACKS
        assert not list(folder.rglob(".tmp-*"))
        assert len(load_results(folder).runs) == 2 * len(before)
        subprocess.run(["mount", "-o", "remount,size=8m", str(folder)], check=True)
        assert f"{2 * len(before)} of them stored already" in finish(folder)
        assert before.items() <= stored(folder).items()
        assert_complete(folder, undisturbed)


@pytest.mark.slow  # tests/results/test_store.py meets such a file system always
def test_files_that_may_not_grow(tmp_path, undisturbed):
    """A limit that needs no rights of an administrator; here it is met by every pack."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        process = start(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    _, err = process.communicate()
    assert process.returncode == 2
    assert "cannot write to the result folder" in err
    assert "File too large" in err
    assert stored(tmp_path) == {}
    finish(tmp_path)
    assert_complete(tmp_path, undisturbed)


def test_a_truncated_file(tmp_path, undisturbed):
    """One pack loses half of a table and the published table its end: only that pack is run again."""
    here(tmp_path)
    before = stored(tmp_path)
    bad = random.choice(sorted(before))
    for path in (tmp_path / "packs" / bad / "curve.parquet", tmp_path / "runs.parquet"):
        os.truncate(path, path.stat().st_size // 2)
    out = here(tmp_path)
    told = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert len(told) == 1
    assert f"{bad}/curve.parquet" in told[0]
    assert "the pack is ignored and the same command runs its trials again" in told[0]
    assert f"{TRIALS} trials, {TRIALS - 2} of them stored already; 2 to run in 1 pack" in out
    after = stored(tmp_path)
    assert before.items() - after.items() == {(bad, before[bad])}
    assert (tmp_path / "packs" / f"{bad}.corrupt-0").is_dir()
    assert_complete(tmp_path, undisturbed)


# ---------------------------------------------------------------------------------------------------- other runs


@pytest.mark.slow  # two writers share a store in tests/results/test_store.py always
@pytest.mark.parametrize("one_is_killed", [False, True])
def test_two_runs_into_one_folder(tmp_path, undisturbed, one_is_killed):
    runs = [start(tmp_path, 1) for _ in range(2)]
    if one_is_killed:
        wait_for(tmp_path, runs[0], 2)
        stop(runs.pop(), signal.SIGKILL)
    for process in runs:
        _, err = process.communicate()
        assert (process.returncode, err) == (0, "")
    assert_complete(tmp_path, undisturbed)
    assert not list((tmp_path / "packs").glob(".tmp-*")) or one_is_killed


# ---------------------------------------------------------------------------------------------------- time and memory

#: Each look at the clock of the day finds it a day earlier or later; in every process that finds this file.
JUMPING = """
import random, time
real, rng = time.time, random.Random()
time.time = lambda: real() + rng.choice([-86400, 0, 86400])
"""


def jumping_clock(folder, monkeypatch):
    (folder / "sitecustomize.py").write_text(JUMPING)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_clock_that_jumps_in_this_process_changes_nothing(tmp_path, monkeypatch):
    limited = [*COMMAND, "--seconds", "60"]
    here(tmp_path / "steady", limited)
    real, rng = time.time, random.Random(0)
    monkeypatch.setattr(time, "time", lambda: real() + rng.choice([-86400, 0, 86400]))
    here(tmp_path / "out", limited)
    assert_complete(tmp_path / "out", load_results(tmp_path / "steady"))
    assert load_results(tmp_path / "out").curve["seconds"].between(0, 60).all()


@pytest.mark.slow  # above, without workers
def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    """Neither a trial's seconds nor the limit of its worker are taken from the clock of the day."""
    limited = [*COMMAND, "--seconds", "60"]
    here(tmp_path / "steady", limited)
    jumping_clock(tmp_path, monkeypatch)
    finish(tmp_path / "out", command=limited)
    steady = load_results(tmp_path / "steady")
    assert steady.runs["status"].tolist() == ["budget"] * TRIALS
    assert_complete(tmp_path / "out", steady)
    assert load_results(tmp_path / "out").curve["seconds"].between(0, 60).all()


@pytest.mark.slow  # the gallery has an endless loop
def test_a_method_that_never_gives_the_interpreter_back(tmp_path, monkeypatch):
    """It hangs inside C, where no thread of its process runs, while the clock jumps; its neighbours go on."""
    held = METHOD.replace("time.sleep(10**6)", "import ctypes; [ctypes.PyDLL(None).pause() for _ in iter(int, 1)]")
    (tmp_path / "method.py").write_text(held)
    jumping_clock(tmp_path, monkeypatch)
    file = str(tmp_path / "method.py")
    trials = [trial(file, eta, "hang", seconds=0.2) for eta in (0.1, 1.0, 0.2)]
    results = run_trials(trials, Store(tmp_path / "out"), registry(), Execution(jobs=2, grace=3.0))
    status = results.runs.set_index("trial_id")["status"]
    assert [status[t.id] for t in trials] == ["budget", "error", "budget"]


@pytest.mark.slow  # a trial of test_local.py takes too much always
def test_memory_that_grows_ends_one_trial(tmp_path):
    """Small pieces, as a leak takes them, until the limit of the worker is met."""
    leak = METHOD.replace("torch.ones(2**29, dtype=torch.float64)", "[bytearray(2**20) for _ in iter(int, 1)]")
    (tmp_path / "method.py").write_text(leak)
    file = str(tmp_path / "method.py")
    trials = [trial(file, eta, "eat") for eta in (0.1, 0.2, 0.3, 1.0)]
    results = run_trials(trials, Store(tmp_path / "out"), registry(), Execution(jobs=1, memory=1.0))
    rows = results.runs.set_index("trial_id")
    assert [rows.loc[t.id, "status"] for t in trials] == ["budget", "budget", "budget", "error"]
    assert "Memory" in rows.loc[trials[-1].id, "message"]
