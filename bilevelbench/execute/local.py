"""Where packs run: in this process, or in worker processes with one torch thread each.

A worker writes its own packs into the store, so nothing that is finished depends on this process. A worker that dies or
hangs takes only its own pack down; that pack is split and run again, down to single trials, so that the culprit alone
gets the status. A trial whose worker was killed is tried again before it is blamed: the hand that killed it may have
been anyone's.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from bilevelbench.discovery.registry import Registry, registry
from bilevelbench.engine.loop import run_pack
from bilevelbench.engine.record import PackResult
from bilevelbench.errors import BilevelbenchError, InvalidInput
from bilevelbench.execute.executor import Done, Pack, as_json, from_json, keep, refuse_objects
from bilevelbench.execute.retry import RetryPolicy, failure_row, killed_externally, lost
from bilevelbench.processes import cause_of_death, end_after, ignore_sigint_in_children, limit_memory
from bilevelbench.results.store import Store

#: A worker is killed when its pack takes longer than this many times its seconds, plus a minute for evaluations.
_PATIENCE, GRACE = 2.0, 60.0
#: So often in a row may all workers die before any has begun a pack.
_FALSE_STARTS = 3


def run_here(packs: Sequence[Pack], store: Store, plugins: Registry) -> Iterator[Done]:
    """One pack after the other in this process."""
    for pack in packs:
        yield keep(_run(pack, plugins), pack, store, plugins)


def run_in_workers(
    packs: Sequence[Pack], store: Store, jobs: int, memory: float | None = None, grace: float = GRACE
) -> Iterator[Done]:
    """Packs in `jobs` worker processes; `memory` is a limit in GiB for each."""
    if packs:
        with Workers(jobs, memory, grace) as workers:
            yield from workers(packs, store)


@contextmanager
def lasting_workers(jobs: int | None) -> Iterator[Workers | None]:
    """For several runs one after the other, so that a worker keeps what it has imported and built; None: in this process."""
    jobs = default_jobs() if jobs is None else jobs
    if not jobs:
        yield None
        return
    with Workers(jobs) as workers:
        yield workers


class Workers:
    """Worker processes that stay from one run to the next; the first one starts them."""

    def __init__(self, jobs: int, memory: float | None = None, grace: float = GRACE) -> None:
        self.jobs, self.memory, self.grace = jobs, memory, grace
        self._pool = _pool(jobs, memory)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.end(at_once=kind is not None)

    def end(self, at_once: bool) -> None:
        if at_once:
            self._pool.stop()
        else:
            self._pool.close()
        self._pool.join()

    def __str__(self) -> str:
        return in_processes(self.jobs)

    def __call__(self, packs: Sequence[Pack], store: Store) -> Iterator[Done]:
        """Each pack when it is stored; a sentence from a worker is an InvalidInput."""
        from pebble import ProcessExpired  # (starts no threads unless needed)

        refuse_objects(packs)
        waiting = {self._submit(pack, store): pack for pack in packs}
        casualties, false_starts = RetryPolicy(), 0
        while waiting:
            ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                pack = waiting.pop(future)
                try:
                    outcome = future.result()
                except (ProcessExpired, CancelledError) as error:
                    false_starts = 0
                    code = getattr(error, "exitcode", None)
                    again = casualties.again(pack, killed=killed_externally(code))
                    waiting |= {self._submit(part, store): part for part in again}
                    if not again:
                        yield keep(lost(pack[0], cause_of_death(code), code), pack, store, registry())
                except BrokenProcessPool:  # no worker lived long enough to take a pack: all of them wait for a new pool
                    false_starts += 1
                    if false_starts == _FALSE_STARTS:
                        raise InvalidInput(_no_workers(self.memory)) from None
                    left = [pack, *waiting.values()]
                    self.end(at_once=True)
                    self._pool = _pool(self.jobs, self.memory)
                    waiting = {self._submit(again, store): again for again in left}
                    break
                else:
                    false_starts = 0
                    if isinstance(outcome, str):
                        raise InvalidInput(outcome)
                    yield outcome

    def _submit(self, pack: Pack, store: Store) -> Any:
        with ignore_sigint_in_children():
            return self._pool.schedule(_work, args=(as_json(pack), str(store.folder), _limit(pack, self.grace)))


def _pool(jobs: int, memory: float | None) -> Any:
    from pebble import ProcessPool

    context = multiprocessing.get_context("spawn")
    return ProcessPool(max_workers=jobs, initializer=start_worker, initargs=(memory,), context=context)


def start_worker(memory: float | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the time limit of a pack, which ends this process
    registry()  # now, and not within the time limit of the first pack
    gc.freeze()  # what is imported stays: the collector need not look through it again and again
    if memory is not None:
        limit_memory(memory)


def _end_with_parent() -> None:
    """A killed parent leaves no worker that computes for nobody; what it has stored is whole."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(dumps: list[dict[str, Any]], folder: str, limit: float | None = None) -> Done | str:
    """A sentence instead of an exception: not every exception survives the way to another process."""
    in_time = None if limit is None else end_after(limit)
    try:
        pack = from_json(dumps)
        plugins = registry()
        for named, entry, version in (
            (pack[0].algorithm, plugins.algorithm(pack[0].algorithm.key), pack[0].plugin_version),
            (pack[0].problem, plugins.problem(pack[0].problem.key), pack[0].problem_plugin_version),
        ):
            if version and entry.version != version:
                return (
                    f"{named.name} has version {entry.version} in its worker and {version} in the plan: it was changed "
                    "while it was being run, or is another one there; run the same command again with one version"
                )
        return keep(_run(pack, plugins), pack, Store(folder), plugins)
    except BilevelbenchError as error:
        return str(error)
    except Exception as error:
        return f"a worker process failed outside of any trial: {type(error).__name__}: {error}"
    finally:
        if in_time is not None:
            in_time()


def _run(pack: Pack, plugins: Registry) -> PackResult:
    """`run_pack`, with a row also for what no runner can catch: a method that calls sys.exit, or cannot be packed."""
    try:
        return run_pack(pack, plugins)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if len(pack) == 1:
            return failure_row(pack[0], "error", f"could not be run: {type(error).__name__}: {error}".rstrip(": "))
        result = _run(pack[: len(pack) // 2], plugins)
        result.extend(_run(pack[len(pack) // 2 :], plugins))
        return result


def _limit(pack: Pack, grace: float) -> float | None:
    seconds = [trial.budget.seconds for trial in pack]
    longest = max((s for s in seconds if s is not None), default=None)
    return None if longest is None or None in seconds else _PATIENCE * longest + grace


def _no_workers(memory: float | None) -> str:
    way_out = f"give more than --memory {memory:g}, or " if memory is not None else ""
    return f"worker processes die before they can take a trial; {way_out}run in one process with --jobs 0 to see why"


def in_processes(jobs: int) -> str:
    """Where packs run, in words."""
    return f"in {jobs} worker process{'' if jobs == 1 else 'es'}" if jobs else "in this process"


def default_jobs() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
