"""Packs of plugins of others: each in processes of its own, which end with it and with all that they have started.

Their rows come back as files in a folder of this process, which looks at them and stores them: the trial's process has no part
in the store. What it printed is stored beside its rows.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bilevelbench.errors import StoreError
from bilevelbench.execute.control_group import ControlGroup
from bilevelbench.execute.environment import environment
from bilevelbench.execute.executor import Done, Execution, as_json, done_with
from bilevelbench.execute.warden import Exit, Task, guard
from bilevelbench.execute.workers import with_environment, worker_context
from bilevelbench.plan.packs import Pack
from bilevelbench.processes import TIME_OVER, end_session, ignore_sigint_in_children
from bilevelbench.results.packs import pack_paths, read_pack, read_tables, to_parquet
from bilevelbench.results.schema import runs_of
from bilevelbench.results.status import Status
from bilevelbench.results.store import Store

_SPARE = 15.0  # seconds that a warden has beyond the limit of its pack, before it counts as stopped
_ANSWER = 2000  # characters of a sentence that comes instead of rows
_TAIL = 200  # characters of what was printed last that a failed row shows


class Ended(Exception):
    """The process of a pack ended before its rows were there."""

    def __init__(self, how: Exit) -> None:
        super().__init__(how)
        self.how = how


class Containers:
    """Runs packs, each in a container; `work` is called there with the pack, a folder for its rows and its limit."""

    def __init__(self, size: int, execution: Execution, work: Callable[..., str | None]) -> None:
        self._threads = ThreadPoolExecutor(size, "container")
        self._execution, self._work = execution, work
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._is_closed = False

    def submit(self, pack: Pack, store: Store, limit: float | None) -> Future[Done]:
        """A future of what became of the pack; `Ended` if nothing did."""
        return self._threads.submit(self._run, pack, store, limit)

    def close(self, at_once: bool) -> None:
        with self._lock:
            self._is_closed = at_once
            for control in self._open if at_once else ():
                with contextlib.suppress(OSError):
                    control.send("end")
        self._threads.shutdown(cancel_futures=at_once)

    def _run(self, pack: Pack, store: Store, limit: float | None) -> Done:
        with tempfile.TemporaryDirectory(prefix="bilevelbench-", ignore_cleanup_errors=True) as scratch:
            rows, group = Path(scratch) / "rows", ControlGroup.make(self._memory)
            given = as_json(pack), str(rows), limit
            task = Task(self._work, given, scratch, self._memory, limit, self._view(scratch, store), group)
            try:
                how = self._watched(task)
            finally:
                if group is not None:  # if somebody has killed the warden
                    group.end()
            answer = Path(scratch) / "answer"
            if answer.is_file():  # written beside the plugin's code: a reason why this pack failed, and nobody else's
                raise Ended(Exit(None, f"could not run it: {_text(answer)[:_ANSWER]}", how.output))
            if how.code != 0:
                raise Ended(how)
            return _stored(rows, pack, store, how)

    @property
    def _memory(self) -> float | None:
        """In GiB; nobody's code gets more than there is."""
        there = environment()["memory"]
        return self._execution.memory or (None if there is None else there / 2**30)

    def _view(self, scratch: str, store: Store) -> str | None:
        """What may only be read; the scratch folder must not be part of it."""
        if not self._execution.isolate:
            return None
        return str(store.packs if Path(scratch).is_relative_to(store.folder) else store.folder)

    def _watched(self, task: Task) -> Exit:
        context = worker_context()
        control, theirs = context.Pipe()
        with self._lock:
            if self._is_closed:
                return Exit(None)
            with ignore_sigint_in_children():
                process = context.Process(target=with_environment(guard), args=(task, theirs), daemon=True)
                process.start()
            self._open.add(control)
        theirs.close()
        try:
            return self._heard(task, control, process)
        finally:
            with self._lock:
                self._open.discard(control)
            control.close()
            process.join(_SPARE)
            process.kill()
            process.join()
            process.close()

    def _heard(self, task: Task, control: Connection, process: Any) -> Exit:
        until = None if task.seconds is None else task.seconds + _SPARE
        began = time.monotonic()
        try:
            if control.poll(until):
                how = control.recv()
                assert isinstance(how, Exit)
                return how
        except (EOFError, OSError):  # there is no warden, or it was killed
            process.join(None if until is None else max(0.0, until - (time.monotonic() - began)))
        code = process.exitcode
        if code is None:
            process.kill()
            code = TIME_OVER
        end_session(process.pid)
        return Exit(code, output=_text(Path(task.scratch) / "output"))


def _text(file: Path) -> str:
    try:
        with open(file, "rb") as content:
            return content.read(2**16).decode("utf-8", "replace")
    except OSError:
        return ""


def _stored(rows: Path, pack: Pack, store: Store, how: Exit) -> Done:
    """Put what the trial's process has written into the store, after reading it as closely as anything else is read."""
    try:
        if not (paths := pack_paths(rows)):
            raise Ended(how)
        (path,) = paths
        found = read_pack(path)
        _, curve = read_tables(path, found.record)
    except (StoreError, ValueError) as error:
        raise Ended(Exit(None, "handed over rows that cannot be right", how.output)) from error
    if found.trial_ids != sorted(trial.id for trial in pack):
        raise Ended(Exit(None, "handed over rows of other trials", how.output))
    tail = printed_last(how.output)
    told = [
        {**row, "message": row["message"] + tail} if Status(row["status"]).broken else row
        for row in found.runs.to_pylist()
    ]
    store.place({**found.record, **({"output": how.output} if how.output else {})}, [to_parquet(runs_of(told)), curve])
    return done_with(told)


def printed_last(output: str) -> str:
    """The end of what was printed, for the sentence of a failed trial; nothing if nothing was."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"; it printed last: {lines[-1][-_TAIL:]!r}" if lines else ""
