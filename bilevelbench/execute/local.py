"""Where packs run: in this process, or in worker processes with one torch thread each.

A worker writes its own packs into the store, so nothing that is finished depends on this process. A worker that dies or
hangs takes only its own pack down; that pack is split and run again, down to single trials, so that the culprit alone
gets the status. A trial whose worker was killed is tried again before it is blamed: the signal may have
come from outside.

Workers run built-in plugins. A pack with a plugin of others has processes to itself (`contained.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from bilevelbench.discovery.registry import Registry, registry_of
from bilevelbench.errors import BilevelbenchError, InvalidInput
from bilevelbench.execute.contained import Containers, Ended, printed_last
from bilevelbench.execute.executor import (
    Done,
    Execution,
    Executor,
    as_json,
    from_json,
    refuse_objects,
    run_and_store,
    store_result,
)
from bilevelbench.execute.retry import RetryPolicy, killed_externally, lost
from bilevelbench.execute.workers import start_worker, with_environment, worker_context
from bilevelbench.plan.packs import Pack
from bilevelbench.processes import cause_of_death, end_after, ignore_sigint_in_children
from bilevelbench.results.store import Store

#: A worker is killed when its pack takes longer than this many times its seconds, plus a time for evaluations.
_PATIENCE = 2.0
#: How many times in a row all workers may die before any has begun a pack.
_FALSE_STARTS = 3


class LocalExecutor(Executor):
    """Worker processes that stay from one call to the next, or this process; the first pack starts them."""

    def __init__(self, execution: Execution, registry: Registry) -> None:
        super().__init__(execution, registry)
        self.jobs = 1 if execution.timed else execution.workers
        self._pool: Any = None
        self._size = 0
        self._containers: Containers | None = None

    @property
    def capacity(self) -> int:
        return self.jobs

    @classmethod
    def check(cls, execution: Execution) -> None:
        if execution.scheduler is not None:
            raise InvalidInput(
                f"--scheduler {execution.scheduler} only applies to Dask; add --executor dask, or leave out --scheduler"
            )
        if execution.memory is not None and execution.jobs == 0 and not execution.timed:
            raise InvalidInput("--memory limits worker processes, and --jobs 0 has none; give --jobs 1 or more")
        if execution.isolate and execution.jobs == 0 and not execution.timed:
            raise InvalidInput("--isolate needs processes of its own, and --jobs 0 has none; give --jobs 1 or more")

    def where(self, packs: int) -> str:
        jobs = min(self.jobs, packs)
        return f"in {jobs} worker process{'' if jobs == 1 else 'es'}" if self.jobs else "in this process"

    def close(self, at_once: bool) -> None:
        if self._containers is not None:
            self._containers.close(at_once)
            self._containers = None
        self._close_pool(at_once)

    def _close_pool(self, at_once: bool) -> None:
        if self._pool is None:
            return
        if at_once:
            self._pool.stop()
        else:
            self._pool.close()
        self._pool.join()
        self._pool, self._size = None, 0

    def __call__(self, packs: Sequence[Pack], store: Store) -> Iterator[Done]:
        if not self.jobs:
            for pack in packs:
                yield run_and_store(pack, store, self.registry)
            return
        refuse_objects(packs)
        if trusted := sum(not pack[0].strangers for pack in packs):
            self._start(min(self.jobs, trusted))
        if packs:
            yield from self._in_workers(packs, store)

    def _in_workers(self, packs: Sequence[Pack], store: Store) -> Iterator[Done]:
        """Each pack when it is stored; a sentence from a worker is an InvalidInput."""
        from pebble import ProcessExpired  # (starts no threads unless needed)

        waiting = {self._submit(pack, store): pack for pack in packs if not pack[0].strangers}
        strangers = [pack for pack in packs if pack[0].strangers]
        retry, false_starts = RetryPolicy(), 0
        try:
            while waiting or strangers:
                while strangers and len(waiting) < self.jobs:  # a container is not to take a worker's core
                    pack = strangers.pop(0)
                    waiting[self._contain(pack, store)] = pack
                ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ready:
                    pack = waiting.pop(future)
                    try:
                        outcome = future.result()
                    except Ended as error:
                        code, output = error.how.code, error.how.output
                        again = retry.again(pack, killed=killed_externally(code))
                        strangers = again + strangers
                        if not again:
                            cause = error.how.cause or cause_of_death(code)
                            row = lost(pack[0], cause, code, printed_last(output))
                            yield store_result(row, pack, store, self.registry, output, self.execution.timed)
                    except (ProcessExpired, CancelledError) as error:
                        false_starts = 0
                        code = getattr(error, "exitcode", None)
                        again = retry.again(pack, killed=killed_externally(code))
                        waiting |= {self._submit(part, store): part for part in again}
                        if not again:
                            row = lost(pack[0], cause_of_death(code), code)
                            yield store_result(row, pack, store, self.registry, timed=self.execution.timed)
                    except BrokenProcessPool:  # no worker lived long enough to take a pack: all wait for a new pool
                        false_starts += 1
                        pooled = [pack, *(other for other in waiting.values() if not other[0].strangers)]
                        contained = {one: other for one, other in waiting.items() if other[0].strangers}
                        waiting = contained | self._start_again(pooled, store, false_starts)
                        break
                    else:
                        false_starts = 0
                        if isinstance(outcome, str):
                            raise InvalidInput(outcome)
                        yield outcome
        except BaseException:  # also when the caller stops listening: nobody computes for nobody
            self.close(at_once=True)
            raise

    def _submit(self, pack: Pack, store: Store) -> Any:
        limit = _limit(pack, self.execution)
        with ignore_sigint_in_children():
            return self._pool.schedule(_work, args=(as_json(pack), str(store.folder), limit, self.execution.timed))

    def _contain(self, pack: Pack, store: Store) -> Any:
        if self._containers is None:
            self._containers = Containers(self.jobs, self.execution, _work_apart)
        return self._containers.submit(pack, store, _limit(pack, self.execution))

    def _start(self, size: int) -> None:
        if size > self._size:  # workers that are fewer than the packs want are replaced
            self._close_pool(at_once=False)
            self._pool, self._size = _new_pool(size, self.execution.memory), size

    def _start_again(self, packs: Sequence[Pack], store: Store, false_starts: int) -> dict[Any, Pack]:
        if false_starts == _FALSE_STARTS:
            raise InvalidInput(_no_workers(self.execution.memory)) from None
        size = self._size
        self._close_pool(at_once=True)
        self._start(size)
        return {self._submit(pack, store): pack for pack in packs}


def _new_pool(size: int, memory: float | None) -> Any:
    from pebble import ProcessPool

    begin = with_environment(start_worker)
    return ProcessPool(max_workers=size, initializer=begin, initargs=(memory,), context=worker_context())


def _work(dumps: list[dict[str, Any]], folder: str, limit: float | None = None, timed: bool = False) -> Done | str:
    """A sentence instead of an exception: not every exception survives the way to another process."""
    in_time = None if limit is None else end_after(limit)
    try:
        pack = from_json(dumps)
        known = registry_of(pack[0].strangers)
        for named, entry, version in (
            (pack[0].algorithm, known.algorithm(pack[0].algorithm.key), pack[0].plugin_version),
            (pack[0].problem, known.problem(pack[0].problem.key), pack[0].problem_plugin_version),
        ):
            if version and entry.version != version:
                return (
                    f"{named.name} has version {entry.version} in its worker and {version} in the plan: it was changed "
                    "while it was being run, or is another one there; run the same command again with one version"
                )
        return run_and_store(pack, Store(folder), known, timed)
    except BilevelbenchError as error:
        return str(error)
    except Exception as error:
        return f"a worker process failed outside of any trial: {type(error).__name__}: {error}"
    finally:
        if in_time is not None:
            in_time()


def _work_apart(dumps: list[dict[str, Any]], folder: str, limit: float | None) -> str | None:
    """The same in a container, whose rows are looked for in the folder."""
    answer = _work(dumps, folder, limit)
    return answer if isinstance(answer, str) else None


def _limit(pack: Pack, execution: Execution) -> float | None:
    seconds = [trial.budget.seconds for trial in pack]
    longest = max((s for s in seconds if s is not None), default=None)
    limits = [] if longest is None or None in seconds else [_PATIENCE * longest + execution.grace]
    return min([*limits, *([] if execution.patience is None else [execution.patience])], default=None)


def _no_workers(memory: float | None) -> str:
    way_out = f"give more than --memory {memory:g}, or " if memory is not None else ""
    return f"worker processes die before they can take a trial; {way_out}run in one process with --jobs 0 to see why"
