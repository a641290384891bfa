"""Where packs run: in this process, or in worker processes with one torch thread each.

A worker writes its own packs into the store, so nothing that is finished depends on this process. A worker that dies or
hangs takes only its own pack down; that pack is split and run again, down to single trials, so that the culprit alone
gets the status.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, TimeoutError, wait
from dataclasses import dataclass
from functools import cache
from typing import Any

from bilevelbench.environment import environment, plugin_commit
from bilevelbench.lane import Lane
from bilevelbench.registry import Registry, registry
from bilevelbench.results import curve_frame, runs_frame
from bilevelbench.runner import PackResult, run_pack
from bilevelbench.store import Store
from bilevelbench.trial import Trial

#: A worker is killed when its pack takes longer than this many times its seconds, plus a minute for evaluations.
_PATIENCE, _GRACE = 2.0, 60.0

Pack = tuple[Trial, ...]


@dataclass(frozen=True)
class Done:
    """A pack that is in the store."""

    trials: int
    statuses: tuple[str, ...]
    best: dict[str, tuple[str, float]]  # by problem: the method with the smallest |grad phi|, and that


def run_here(packs: Sequence[Pack], store: Store, plugins: Registry) -> Iterator[Done]:
    """One pack after the other in this process."""
    for pack in packs:
        yield _keep(run_pack(pack, plugins), pack, store, plugins)


def run_in_workers(
    packs: Sequence[Pack], store: Store, jobs: int, memory: float | None = None, grace: float = _GRACE
) -> Iterator[Done]:
    """Packs in `jobs` worker processes; `memory` is a limit in GiB for each."""
    from pebble import ProcessExpired, ProcessPool  # noqa: PLC0415 (starts no threads unless needed)

    context = multiprocessing.get_context("spawn")
    pool = ProcessPool(max_workers=jobs, initializer=_start_worker, initargs=(memory,), context=context)
    waiting: dict[Any, Pack] = {}

    def submit(pack: Pack) -> None:
        args = ([trial.model_dump(mode="json") for trial in pack], str(store.folder))
        waiting[pool.schedule(_work, args=args, timeout=_limit(pack, grace))] = pack

    finished = False
    try:
        for pack in packs:
            submit(pack)
        while waiting:
            ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                pack = waiting.pop(future)
                try:
                    yield future.result()
                except (ProcessExpired, TimeoutError, CancelledError) as error:
                    if len(pack) > 1:
                        submit(pack[: len(pack) // 2])
                        submit(pack[len(pack) // 2 :])
                    else:
                        yield _keep(_lost(pack[0], error), pack, store, registry())
        finished = True
    finally:
        if finished:
            pool.close()
        else:
            pool.stop()
        pool.join()


def _start_worker(memory: float | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    if memory is not None:
        import resource  # noqa: PLC0415

        limit = int(memory * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _work(dumps: list[dict[str, Any]], folder: str) -> Done:
    pack = tuple(Trial.model_validate(dump) for dump in dumps)
    return _keep(run_pack(pack, registry()), pack, _store(folder), registry())


@cache
def _store(folder: str) -> Store:
    """One for each worker: opening a store looks through its folder."""
    return Store(folder)


def _keep(result: PackResult, pack: Pack, store: Store, plugins: Registry) -> Done:
    runs, curve = runs_frame(result.runs), curve_frame(result.curve)
    record = {
        "trials": [{"id": trial.id, **trial.model_dump(mode="json")} for trial in pack],
        "environment": environment(),
        "commits": _commits(pack[0], plugins),
        "step_seconds": result.step_seconds,
        "total_seconds": result.total_seconds,
    }
    store.add(runs, curve, record)
    best: dict[str, tuple[str, float]] = {}
    for row in result.runs:
        value = row.get("best_grad_phi", float("nan"))
        if value == value and value < best.get(row["problem"], ("", float("inf")))[1]:
            best[row["problem"]] = row["algorithm"], value
    return Done(len(pack), tuple(row["status"] for row in result.runs), best)


def _commits(trial: Trial, plugins: Registry) -> dict[str, str | None]:
    import inspect  # noqa: PLC0415

    classes: list[type] = [plugins.algorithm(trial.algorithm.name).value, plugins.problem(trial.problem.name).value]
    names = (trial.algorithm.name, trial.problem.name)
    return {name: plugin_commit(inspect.getfile(cls)) for name, cls in zip(names, classes, strict=True)}


def _limit(pack: Pack, grace: float) -> float | None:
    seconds = [trial.budget.seconds for trial in pack]
    longest = max((s for s in seconds if s is not None), default=None)
    return None if longest is None or None in seconds else _PATIENCE * longest + grace


def _lost(trial: Trial, error: BaseException) -> PackResult:
    if isinstance(error, TimeoutError):
        status, message = "timeout", f"hung: no answer within the limit for {trial.budget.seconds:g} seconds of steps; killed"
    else:
        code = getattr(error, "exitcode", None)
        status, message = "error", f"its worker process died ({_cause(code)}), most often for want of memory"
    return PackResult(runs=[Lane(trial, trial.algorithm.params).run_row(status, message, steps=0)])


def _cause(code: int | None) -> str:
    if code is None:
        return "cause unknown"
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def default_jobs() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


Progress = Callable[[Done], None]
