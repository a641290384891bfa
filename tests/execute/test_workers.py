"""How workers begin: forks of a server that has imported everything, with the environment of whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from helpers import all_end
from helpers import trial as named_trial
from test_kill import workers

from bilevelbench.discovery.registry import registry
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.workers import _READ_AT_LOADING, _settings_of_server, with_environment, worker_context
from bilevelbench.results.store import Store

pytestmark = pytest.mark.whole

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the server")

FORKING = """
import os, sys
import bilevelbench.execute.preloaded
assert {"torch", "bilevelbench_methods", "bilevelbench_problems", "scipy.special"} <= sys.modules.keys()
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
tasks = [task for task in os.listdir("/proc/self/task") if int(task) != os.getpid()]
print(*(open(f"/proc/self/task/{task}/comm").read().strip() for task in tasks))
"""


@linux
def test_the_server_forks_without_threads_of_its_own():
    """OpenBLAS ends its threads before a fork, and jemalloc halts its one; any other might hold a lock for ever."""
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", FORKING], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"jemalloc_bg_thd"}


@pytest.fixture
def settings_of_the_server(monkeypatch):
    """Another test of this process may have started the server while a variable was set for it alone."""
    for name in [name for name in os.environ if name.startswith(_READ_AT_LOADING)]:
        monkeypatch.delenv(name)
    for name, value in _settings_of_server().items():
        monkeypatch.setenv(name, value)
    assert worker_context().get_start_method() == "forkserver"


def _tell(sender, variable):
    sender.send(os.environ.get(variable))


def told_by_a_worker(variable):
    context = worker_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=with_environment(_tell), args=(sender, variable))
    process.start()
    answer = receiver.recv()
    process.join()
    return context.get_start_method(), answer


def test_a_worker_has_the_environment_of_now(monkeypatch):
    monkeypatch.setenv("BILEVELBENCH_DATA", "one")
    assert told_by_a_worker("BILEVELBENCH_DATA")[1] == "one"
    monkeypatch.delenv("BILEVELBENCH_DATA")
    assert told_by_a_worker("BILEVELBENCH_DATA")[1] is None


@linux
def test_settings_that_are_read_when_libraries_load_need_a_fresh_process(settings_of_the_server, monkeypatch):
    assert told_by_a_worker("ATEN_CPU_CAPABILITY")[0] == "forkserver"
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert told_by_a_worker("ATEN_CPU_CAPABILITY") == ("spawn", "default")


@linux
def test_what_imports_set_needs_none(settings_of_the_server, monkeypatch):
    monkeypatch.delenv("KMP_INIT_AT_FORK", raising=False)
    code = "import os; seen = dict(os.environ); import sklearn.datasets; print(*(os.environ.keys() - seen.keys()))"
    env = {name: value for name, value in os.environ.items() if not name.startswith("KMP_")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "KMP_INIT_AT_FORK" in done.stdout.split()
    for name in done.stdout.split():
        monkeypatch.setenv(name, "TRUE")
    assert worker_context().get_start_method() == "forkserver"


@linux
def test_a_server_that_is_killed_takes_its_workers_along_and_another_one_goes_on(settings_of_the_server, tmp_path):
    packs = [(named_trial("f2ba", "quadratic", steps=1000, seed=seed),) for seed in range(3)]
    with Execution(jobs=1).open(registry()) as executor:
        running = executor(packs, Store(tmp_path))
        statuses = [next(running).statuses]
        (worker,) = workers(psutil.Process())
        server, used = worker.ppid(), worker.cpu_times().user
        while worker.cpu_times().user < used + 0.2:  # then it is in the middle of the next trial
            time.sleep(0.01)
        os.kill(server, signal.SIGKILL)
        statuses += [done.statuses for done in running]
        assert statuses == [("budget",)] * 3
        (successor,) = workers(psutil.Process())
        assert successor.pid != worker.pid
        assert successor.ppid() != server
    assert all_end([worker.pid])
