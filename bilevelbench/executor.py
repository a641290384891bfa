"""Where packs run: in this process, or in worker processes with one torch thread each.

A worker writes its own packs into the store, so nothing that is finished depends on this process. A worker that dies or
hangs takes only its own pack down; that pack is split and run again, down to single trials, so that the culprit alone
gets the status. A trial whose worker was killed is tried again before it is blamed: the hand that killed it may have
been anyone's.
"""

from __future__ import annotations

import gc
import inspect
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, Protocol

from bilevelbench.environment import environment, plugin_commit
from bilevelbench.errors import BilevelbenchError, InvalidInput
from bilevelbench.lane import Lane
from bilevelbench.registry import Registry, registry
from bilevelbench.results import curve_of, runs_of
from bilevelbench.runner import PackResult, run_pack
from bilevelbench.store import Store
from bilevelbench.trial import Trial

#: A worker is killed when its pack takes longer than this many times its seconds, plus a minute for evaluations.
_PATIENCE, GRACE = 2.0, 60.0
#: So often in a row may all workers die before any has begun a pack.
_FALSE_STARTS = 3
#: So often is a single trial tried whose worker is killed.
ATTEMPTS = 3

Pack = tuple[Trial, ...]


@dataclass(frozen=True)
class Done:
    """A pack that is in the store."""

    trials: int
    statuses: tuple[str, ...]
    best: dict[str, tuple[str, float]]  # by problem: the method with the smallest |grad phi|, and that


Progress = Callable[[Done], None]


class Executor(Protocol):
    """Runs packs and yields each when it is in the store; as text, it says where."""

    def __call__(self, packs: Sequence[Pack], store: Store) -> Iterator[Done]: ...


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


def refuse_objects(packs: Sequence[Pack]) -> None:
    for pack in packs:
        if "this session" in (pack[0].plugin, pack[0].problem_plugin):
            raise InvalidInput(
                f"{pack[0].algorithm.name} on {pack[0].problem.name}: an object of this session cannot be sent to a "
                "worker process; use jobs = 0, or put its class into a file and name that"
            )


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
        casualties, false_starts = Casualties(), 0
        while waiting:
            ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                pack = waiting.pop(future)
                try:
                    outcome = future.result()
                except (ProcessExpired, CancelledError) as error:
                    false_starts = 0
                    code = getattr(error, "exitcode", None)
                    again = casualties.again(pack, killed=_by_a_stranger(code))
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
        with deaf_children():
            return self._pool.schedule(_work, args=(as_json(pack), str(store.folder), _limit(pack, self.grace)))


class Casualties:
    """What becomes of packs whose worker died: halves, or another attempt, or in the end the blame."""

    def __init__(self) -> None:
        self._deaths: Counter[str] = Counter()

    def again(self, pack: Pack, killed: bool) -> list[Pack]:
        """What to run once more; nothing if the pack's one trial is the culprit. `killed`: perhaps by someone else."""
        if len(pack) > 1:
            return [pack[: len(pack) // 2], pack[len(pack) // 2 :]]
        self._deaths[pack[0].id] += 1
        return [pack] if killed and self._deaths[pack[0].id] < ATTEMPTS else []


def _pool(jobs: int, memory: float | None) -> Any:
    from pebble import ProcessPool

    context = multiprocessing.get_context("spawn")
    return ProcessPool(max_workers=jobs, initializer=start_worker, initargs=(memory,), context=context)


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes and threads that are started inside do not hear Ctrl-C, from their first instant on: it is ours."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker(memory: float | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the time limit of a pack, which ends this process
    registry()  # now, and not within the time limit of the first pack
    gc.freeze()  # what is imported stays: the collector need not look through it again and again
    if memory is not None:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = int(memory * 2**30)
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _end_with_parent() -> None:
    """A killed parent leaves no worker that computes for nobody; what it has stored is whole."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(dumps: list[dict[str, Any]], folder: str, limit: float | None = None) -> Done | str:
    """A sentence instead of an exception: not every exception survives the way to another process."""
    try:
        if limit is not None:
            # The kernel's timer: it ends also what never gives the interpreter back, and no change of the clock moves it.
            signal.setitimer(signal.ITIMER_REAL, limit)
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
        if limit is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)


def as_json(pack: Pack) -> list[dict[str, Any]]:
    return [trial.model_dump(mode="json") for trial in pack]


def from_json(dumps: Sequence[dict[str, Any]]) -> Pack:
    return tuple(Trial.model_validate(dump) for dump in dumps)


def _run(pack: Pack, plugins: Registry) -> PackResult:
    """`run_pack`, with a row also for what no runner can catch: a method that calls sys.exit, or cannot be packed."""
    try:
        return run_pack(pack, plugins)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if len(pack) == 1:
            return _row(pack[0], "error", f"could not be run: {type(error).__name__}: {error}".rstrip(": "))
        result = _run(pack[: len(pack) // 2], plugins)
        result.extend(_run(pack[len(pack) // 2 :], plugins))
        return result


def keep(result: PackResult, pack: Pack, store: Store, plugins: Registry) -> Done:
    """Put a pack's rows into the store."""
    runs, curve = runs_of(result.runs), curve_of(result.curve.columns)
    record = {
        "trials": [{"id": trial.id, **trial.model_dump(mode="json")} for trial in pack],
        "environment": environment(),
        "commits": _commits(pack[0], plugins),
        "families": {pack[0].algorithm.name: plugins.algorithm(pack[0].algorithm.key).value.family},
        "step_seconds": result.step_seconds,
        "total_seconds": result.total_seconds,
    }
    store.add_tables(runs, curve, record)
    best: dict[str, tuple[str, float]] = {}
    for row in result.runs:
        value = row.get("best_grad_phi", float("nan"))
        if value < best.get(row["problem"], ("", float("inf")))[1]:
            best[row["problem"]] = row["label"] or row["algorithm"], value
    return Done(len(pack), tuple(row["status"] for row in result.runs), best)


def _commits(trial: Trial, plugins: Registry) -> dict[str, str | None]:
    classes: list[type] = [plugins.algorithm(trial.algorithm.key).value, plugins.problem(trial.problem.key).value]
    names = (trial.algorithm.name, trial.problem.name)
    return {name: _commit(cls) for name, cls in zip(names, classes, strict=True)}


def _commit(cls: type) -> str | None:
    try:
        return plugin_commit(inspect.getfile(cls))
    except (OSError, TypeError):  # a class that was typed in, not read from a file
        return None


def _limit(pack: Pack, grace: float) -> float | None:
    seconds = [trial.budget.seconds for trial in pack]
    longest = max((s for s in seconds if s is not None), default=None)
    return None if longest is None or None in seconds else _PATIENCE * longest + grace


def lost(trial: Trial, cause: str, code: int | None = None) -> PackResult:
    """The row of a trial whose worker process did not come back."""
    if code == -signal.SIGALRM:
        limit = f"{trial.budget.seconds:g} seconds of steps" if trial.budget.seconds else "its time"
        return _row(trial, "error", f"hung: gave no answer long after {limit} were over; its worker process was killed")
    times = f" (in each of {ATTEMPTS} attempts)" if _by_a_stranger(code) else ""
    return _row(trial, "error", f"its worker process {cause}{times}")


def _by_a_stranger(code: int | None) -> bool:
    """A signal may come from anywhere; an exit code and the time limit are the trial's own."""
    return code is not None and code < 0 and code != -signal.SIGALRM


def _row(trial: Trial, status: str, message: str) -> PackResult:
    return PackResult(runs=[Lane(trial, trial.algorithm.params).run_row(status, message, steps=0)])


def cause_of_death(code: int | None) -> str:
    if code is None:
        return "died, nobody knows why"
    if code >= 0:
        return f"ended with exit code {code} in the middle of the trial: the method or the problem ended it"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = ", most often for want of memory" if name == "SIGKILL" else ""
    return f"was killed by signal {name} in the middle of the trial{hint}"


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
