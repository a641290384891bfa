"""What differs between operating systems, here and as another one would see it."""

import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bilevelbench import processes
from bilevelbench.processes import TIME_OVER, end_after, peak_memory

pytestmark = pytest.mark.whole

#: A system without what Windows lacks; run before the package is imported.
WINDOWS = """
import os, signal, sys
for name in ("SIGALRM", "SIGKILL", "SIGHUP", "setitimer", "ITIMER_REAL", "pthread_sigmask", "SIG_BLOCK", "SIG_SETMASK"):
    delattr(signal, name)
for name in ("sched_getaffinity", "sysconf"):
    delattr(os, name)
sys.modules["resource"] = None
"""


def test_the_peak_of_memory_is_in_bytes_and_stays_when_memory_is_given_back():
    before = peak_memory()
    block = np.ones(2**24)  # 128 MiB
    del block
    assert peak_memory() >= max(before, 2**27)
    assert peak_memory() < 2**40


@pytest.mark.parametrize(("system", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_unit_of_the_peak_is_that_of_the_system(monkeypatch, system, unit):
    monkeypatch.setattr(sys, "platform", system)
    assert peak_memory() == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.parametrize("system", ["", WINDOWS])
@pytest.mark.parametrize(("seconds", "code"), [(0.2, "TIME_OVER"), (60, "0")])
def test_a_process_ends_when_its_time_is_over_and_only_then(system, seconds, code):
    body = f"from bilevelbench.processes import *\nin_time = end_after({seconds})\n"
    body += "import time\ntime.sleep(20)\n" if code == "TIME_OVER" else "in_time()\n"
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", system + body], check=False)
    wanted = {"": TIME_OVER, WINDOWS: 124}[system] if code == "TIME_OVER" else 0
    assert done.returncode == wanted
    assert time.monotonic() - begin < 20


def test_the_limit_that_was_met_is_taken_back():
    end_after(60)()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert TIME_OVER == -signal.SIGALRM


def test_the_package_runs_a_trial_without_what_windows_lacks(tmp_path):
    body = f"""
import importlib, pkgutil
import bilevelbench, bilevelbench.processes
bilevelbench.processes.peak_memory = lambda: 1
for module in pkgutil.walk_packages(bilevelbench.__path__, "bilevelbench."):
    if module.name not in ("bilevelbench.__main__", "bilevelbench.execute.dask"):  # Dask asks for the system's name
        importlib.import_module(module.name)
from bilevelbench.cli.app import main
sys.argv = "bilevelbench run -a f2ba -p quadratic --steps 3 --jobs 0 -o".split() + [{str(tmp_path / "out")!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", WINDOWS + body], capture_output=True, text=True, check=False)
    assert "f2ba" in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr


def test_children_hear_no_interrupt_where_signals_can_be_masked():
    with processes.ignore_sigint_in_children():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_free_memory_is_in_bytes():
    assert 1 << 20 < processes.free_memory() < 1 << 45
