"""Processes that are started, what they may use, and how they ended: all that differs between operating systems."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

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


@contextmanager
def noticing_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Whether a KeyboardInterrupt that arises inside was pressed by somebody: any code may raise one."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is not signal.default_int_handler:
        yield lambda: handler is not signal.SIG_IGN
        return
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, signal.default_int_handler)


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


def is_alive(pid: int) -> bool:
    """Whether this machine has such a process, of whomever."""
    if sys.platform == "win32":  # where the signal 0 is Ctrl-C
        import psutil

        return bool(psutil.pid_exists(pid))
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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


def limit_files(size: int, count: int) -> None:
    """From here on this process writes no file above `size` bytes, has `count` open at most, and leaves no core behind."""
    if sys.platform == "win32":
        return
    import resource

    for what, most in ((resource.RLIMIT_FSIZE, size), (resource.RLIMIT_NOFILE, count), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(what)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (limit, limit))


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


class Watched:
    """What a process that watches this one reads: the time (`time.monotonic`) by which code of others has to be back."""

    deadline: memoryview[float] | None = None  # one number in shared memory; None where nobody watches


watched = Watched()


def end_session(leader: int) -> None:
    """Kill what a process that is gone has left in the session that it led; on Windows there is no such thing."""
    if sys.platform == "linux":
        for pid, _, session in _running():
            if session == leader:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    elif hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


# ---------------------------------------------------------------------------------------------------- Linux alone

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def libc(function: str, *arguments: Any) -> None:
    """A call of the C library, whose failure is an OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process, however they were started."""
    libc("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """The kernel kills this process when the thread that forked it is gone."""
    libc("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _running() -> Iterator[tuple[int, int, int]]:
    """Every process that has not ended, with its parent and its session."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]  # a name may hold anything
                if state not in (b"Z", b"X"):
                    yield int(name), int(parent), int(session)


def memory_of(pids: Iterable[int]) -> int:
    """The bytes that these processes have together: what some of them share counts once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            total += 1024 * sum(int(line.split()[1]) for line in file if line.startswith((b"Pss:", b"SwapPss:")))
    return total


def descendants() -> list[int]:
    """The processes below this one that still run."""
    below: dict[int, list[int]] = {}
    for pid, parent, _ in _running():
        below.setdefault(parent, []).append(pid)
    found, new = list[int](), [os.getpid()]
    while new:
        new = [child for pid in new for child in below.get(pid, ())]
        found += new
    return found
