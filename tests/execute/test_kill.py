"""Runs that are killed: the same command finishes the rest and repeats nothing that was stored."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest

from bilevelbench.cli.app import main
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

pytestmark = pytest.mark.whole

# Eight packs of two trials; each takes part of a second.
COMMAND = ["run", "-a", "f2ba", "-p", "quadratic[data_seed=0,1,2,3,4,5,6,7]", "--seeds", "2", "--steps", "400"]
PACKS, TRIALS = 8, 16


def start(folder, jobs=1, *more, command=COMMAND, **environment):
    """The command with further options, in a process of its own."""
    options = [*command, "--jobs", str(jobs), "-o", str(folder), *more]
    command = [sys.executable, "-W", "error", "-m", "bilevelbench", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    # A group of its own, which is then killed as a whole; and Ctrl-C as in a terminal, also where these tests run in the
    # background of a shell, which makes its children ignore it.
    return subprocess.Popen(
        command, env=env, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def here(folder, command=COMMAND):
    """The same command in this process: its output."""
    out, argv = io.StringIO(), sys.argv
    sys.argv = ["bilevelbench", *command, "--jobs", "0", "-o", str(folder)]
    try:
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as stop:
            main()
    finally:
        sys.argv = argv
    assert not stop.value.code
    return out.getvalue()


def stored(folder):
    """By pack: when and how its record was written."""
    return {
        path.parent.name: (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes())
        for path in folder.glob("packs/*/pack.json")
        if not path.parent.name.startswith(".")
    }


def wait_for(folder, process, packs):
    """Until so many packs are there, or the run is over."""
    deadline = time.monotonic() + 120
    while len(stored(folder)) < packs and process.poll() is None:
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.01)


def stop(process, number):
    """Send it to the whole group; the output."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    return process.communicate()


def workers(process):
    """The processes below this one that take packs, and Dask's workers; not the helpers that multiprocessing keeps."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        return []
    return [p for p in below if is_worker(p)]


def is_worker(process):
    """Started afresh, or forked by the server that has the same command; one that has just ended is none."""
    try:
        command, above = process.cmdline(), process.parent()
        is_fork = "forkserver" in " ".join(command) and above is not None and above.cmdline() == command
    except psutil.Error:
        return False
    return is_fork or "spawn_main" in " ".join(command)


def assert_finished(folder, undisturbed, before):
    """All trials once, what was stored before is untouched, the numbers are those of a run that nobody killed."""
    after = stored(folder)
    assert before.items() <= after.items()
    ids = [i for _, _, text in after.values() for i in json.loads(text)["trial_ids"]]
    assert len(ids) == len(set(ids)) == TRIALS
    results = load_results(folder)
    assert results.warnings == []
    unlike = ["seconds", "peak_memory"]
    pd.testing.assert_frame_equal(
        results.runs.drop(columns=unlike), undisturbed.runs.drop(columns=unlike), check_exact=True
    )
    pd.testing.assert_frame_equal(
        results.curve.drop(columns="seconds"), undisturbed.curve.drop(columns="seconds"), check_exact=True
    )


def kill_and_resume(folder, undisturbed, waits, jobs):
    before = {}
    for packs, pause in waits:
        process = start(folder, jobs)
        wait_for(folder, process, packs)
        time.sleep(pause)
        stop(process, signal.SIGKILL)
        now = stored(folder)
        assert before.items() <= now.items()  # nothing was lost and nothing was written twice
        results = Store(folder).load()
        assert results.warnings == []
        assert len(results.runs) == sum(len(json.loads(t)["trial_ids"]) for *_, t in now.values())
        before = now
    out = here(folder)
    done = sum(len(json.loads(text)["trial_ids"]) for *_, text in before.values())
    told = f"{done} of them stored already; " if done else ""
    assert told in out
    assert f"{TRIALS - done} to run" in out or (done == TRIALS and "nothing to run" in out)
    assert_finished(folder, undisturbed, before)


@pytest.mark.slow  # Ctrl-C in the middle is tested below, a writer that is killed in tests/results/test_store.py
def test_killed_in_the_middle(tmp_path, undisturbed):
    rng = random.Random()
    kill_and_resume(tmp_path, undisturbed, [(1, rng.uniform(0, 0.5)), (4, rng.uniform(0, 0.5))], jobs=1)


@pytest.mark.long  # test_faults.py kills three times always
@pytest.mark.parametrize("jobs", [0, 2])
def test_killed_again_and_again_at_random_times(tmp_path, undisturbed, jobs):
    rng = random.Random()
    waits = [(0, rng.uniform(0, 8)), *((n, rng.uniform(0, 1)) for n in (2, 6))]
    kill_and_resume(tmp_path, undisturbed, waits, jobs)


def test_ctrl_c(tmp_path, undisturbed):
    process = start(tmp_path, jobs=2)
    wait_for(tmp_path, process, 1)
    _, err = stop(process, signal.SIGINT)
    assert process.returncode == 130, err
    assert err.strip() == "interrupted; what was finished is stored, and the same command continues from there"
    before = stored(tmp_path)
    assert before
    assert len(pd.read_parquet(tmp_path / "runs.parquet")) == 2 * len(before)  # the tables are there as well
    if len(before) < PACKS:
        assert f"{2 * len(before)} of them stored already" in here(tmp_path)
    assert_finished(tmp_path, undisturbed, before)


@pytest.mark.slow  # above, they have started
def test_ctrl_c_while_workers_are_starting(tmp_path):
    process = start(tmp_path, jobs=2)
    for line in process.stdout:  # said before the first worker is started
        if "to run" in line:
            break
    time.sleep(0.3)
    _, err = stop(process, signal.SIGINT)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert err.strip() == "interrupted; what was finished is stored, and the same command continues from there"


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path, undisturbed):
    """Only the parent is killed: its workers finish what they have, store it, and go."""
    process = start(tmp_path, jobs=2)
    wait_for(tmp_path, process, 1)
    process.kill()
    process.communicate()  # returns when the last worker has closed its end
    with contextlib.suppress(ProcessLookupError):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.1)
    before = stored(tmp_path)
    here(tmp_path)
    assert_finished(tmp_path, undisturbed, before)
