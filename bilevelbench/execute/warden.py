"""The process that stands between this program and code that nobody has read.

A pack of a plugin of others runs in a process of its own, the trial's, below one that watches it, the warden. The warden runs
no code of the plugin. It adopts whatever the trial's process leaves behind, in whatever way that was started, so that all of it
can be ended; it ends the trial when a step is long over its time, when there are too many processes, or when the program is
gone; and it reads what is printed, of which it keeps the beginning and the end. Where there can be a control group for the
trial, the kernel helps.

Adoption needs Linux. Elsewhere there is the trial's process alone: the program ends it by its deadline, and its group.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from bilevelbench.execute.control_group import ControlGroup
from bilevelbench.execute.isolation import isolate
from bilevelbench.execute.workers import settle
from bilevelbench.processes import (
    TIME_OVER,
    adopt_orphans,
    descendants,
    end_with_parent,
    limit_files,
    memory_of,
    watched,
)

#: Processes that a trial may have at once, its agents included; bytes of a file; files that are open.
PROCESSES, FILE_SIZE, OPEN_FILES = 64, 2**32, 1024

#: Of what a plugin prints the first and the last bytes are kept.
_FIRST, _LAST = 2**14, 3 * 2**14

_LOOK = 0.2  # seconds between two counts of processes
_ENDING = 5.0  # seconds within which everything has to be ended

#: Why a trial was ended, for the sentence in its row.
TOO_MANY = f"was ended because it had started more than {PROCESSES} processes"
TOO_LARGE = "was ended because its processes had more memory together than one of them may have"


@dataclass(frozen=True)
class Task:
    """What the trial's process calls, and where.

    `seconds` are for all of it; `isolate` names what it may only read; its processes are in `group`, if there is one.
    """

    work: Callable[..., str | None]
    arguments: tuple[Any, ...]
    scratch: str
    memory: float | None
    seconds: float | None
    isolate: str | None = None
    group: ControlGroup | None = None


@dataclass(frozen=True)
class Exit:
    """How the trial's process ended: its exit code, or the `cause` if we ended it; and what it printed."""

    code: int | None
    cause: str = ""
    output: str = ""


class Printed:
    """The first and the last bytes of what was printed."""

    def __init__(self) -> None:
        self.first, self.last, self.size = b"", b"", 0

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        room = _FIRST - len(self.first)
        self.first += chunk[:room]
        self.last = (self.last + chunk[room:])[-_LAST:] if room > 0 else (self.last + chunk)[-_LAST:]

    def __str__(self) -> str:
        lost = self.size - len(self.first) - len(self.last)
        cut = f"\n[{lost:,} bytes are left out here]\n".encode() if lost else b""
        return (self.first + cut + self.last).decode("utf-8", "replace")


def guard(task: Task, control: Connection) -> None:
    """The main function of the process that is started for a pack; it tells how the trial ended, if it lives to know."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C in a terminal is the program's
    if sys.platform != "linux":
        control.close()
        with open(Path(task.scratch) / "output", "wb") as file:
            _be_the_trial(task, file.fileno())
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    reading, writing = os.pipe()
    deadline = memoryview(mmap.mmap(-1, 8)).cast("d")
    deadline[0] = math.inf
    child = os.fork()
    if not child:
        control.close()
        os.close(reading)
        watched.deadline = deadline
        _be_the_trial(task, writing)
    os.close(writing)
    try:
        control.send(_Warden(task, child, reading, deadline).watch(control))
    finally:
        _end_all(task.group)


class _Warden:
    def __init__(self, task: Task, child: int, reading: int, deadline: memoryview[float]) -> None:
        self.task, self.child, self.reading, self.deadline = task, child, reading, deadline
        self.printed = Printed()
        self.end = math.inf if task.seconds is None else time.monotonic() + task.seconds

    def watch(self, control: Connection) -> Exit:
        """Until the trial's process has ended, by itself or by us."""
        parent = parent_process()
        assert parent is not None
        gone: list[Any] = [control, parent.sentinel]
        events: list[Any] = [*gone, self.reading, *_descriptor(self.child)]
        looked, cause, code = time.monotonic(), "", None
        while code is None and not cause:
            ready = connection.wait(events, _LOOK)
            if self.reading in ready and not self._read():
                events.remove(self.reading)
            if any(event in ready for event in gone):  # the program is, or wants nothing more of this
                sys.exit(1)
            code = _code_of(self.child)
            now = time.monotonic()
            if code is None and now > min(self.end, self.deadline[0]):
                code = TIME_OVER
            elif now - looked > _LOOK:
                looked = now
                cause = self._excess(descendants())
        _end_all(self.task.group)
        os.set_blocking(self.reading, False)
        with contextlib.suppress(BlockingIOError):
            while self._read():
                pass
        return Exit(None if cause else code, cause, str(self.printed))

    def _excess(self, below: list[int]) -> str:
        """One process alone is bounded by the kernel."""
        if len(below) > PROCESSES:
            return TOO_MANY
        most = self.task.memory
        return TOO_LARGE if most is not None and len(below) > 1 and memory_of(below) > most * 2**30 else ""

    def _read(self) -> bool:
        chunk = os.read(self.reading, 2**16)
        self.printed.add(chunk)
        return bool(chunk)


def _descriptor(pid: int) -> list[int]:
    return [os.pidfd_open(pid)] if hasattr(os, "pidfd_open") else []


def _code_of(child: int) -> int | None:
    found, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _end_all(group: ControlGroup | None) -> None:
    """Whatever is below this process: its group in one go, what has left that in rounds, since it may start more meanwhile."""
    if group is not None:
        group.end()
    until = time.monotonic() + _ENDING
    while (below := descendants()) and time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):  # what is stopped starts nothing while the others are ended
            for pid in below:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def _be_the_trial(task: Task, output: int) -> NoReturn:
    """The rest of the trial's process. What it has to tell is in its scratch folder, in `answer` if it is a sentence."""
    own, code = os.getpid(), 1
    try:
        if task.group is not None:
            task.group.enter()
        _confine(task, output)
        answer = task.work(*task.arguments)
        if answer is not None and os.getpid() == own:
            (Path(task.scratch) / "answer").write_text(answer, encoding="utf-8")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _confine(task: Task, output: int) -> None:
    if sys.platform == "linux":
        end_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    temporary = Path(task.scratch) / "tmp"
    temporary.mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
    if task.isolate is not None:
        isolate(Path(task.scratch) / "work", Path(task.isolate))
    limit_files(FILE_SIZE, OPEN_FILES)
    settle(task.memory)
