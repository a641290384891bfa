"""Processes that are started, and how they ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


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
