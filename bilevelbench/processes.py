"""Processes that are started, what they may use, and how they ended: all that differs between operating systems."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

#: The exit code of a process that `end_after` ended: that of the alarm, or where there is none (Windows) that of timeout(1).
TIME_OVER: int = -signal.SIGALRM if hasattr(signal, "SIGALRM") else 124


@contextmanager
def ignore_sigint_in_children() -> Iterator[None]:
    """Processes and threads that are started inside ignore Ctrl-C from their first instant on: this process handles it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cause_of_death(code: int | None) -> str:
    if code is None:
        return "died for an unknown reason"
    if code >= 0:
        return f"ended with exit code {code} in the middle of the trial: the method or the problem ended it"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = ", most often because memory ran out" if name == "SIGKILL" else ""
    return f"was killed by signal {name} in the middle of the trial{hint}"


def peak_memory() -> int:
    """The most memory that this process has had so far, in bytes."""
    if sys.platform == "win32":
        import psutil  # elsewhere it does not know the peak

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_memory() -> int:
    """What this process could still get without anyone being moved to disk, in bytes; on macOS, all that there is."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.virtual_memory().available)
    if sys.platform == "linux":
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def limit_memory(gib: float) -> None:
    """From here on this process gets no more than this, or than it was limited to before. Windows has no such limit."""
    if sys.platform == "win32":
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(gib * 2**30)
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def end_after(seconds: float) -> Callable[[], None]:
    """This process ends with `TIME_OVER` after this many seconds, unless the returned function is called first.

    The kernel's timer also ends code that never releases the interpreter, and setting the clock does not move it. Windows
    has no such timer: there a thread does it, as soon as it gets the interpreter.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return _disarm
    timer = threading.Timer(seconds, os._exit, [TIME_OVER])
    timer.daemon = True
    timer.start()
    return timer.cancel


def _disarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
