"""What an executor is, what it is told, and what becomes of a pack that has been run.

An executor is one file with one class: a subclass of `Executor`, which a plugin names through the hook
`bilevelbench_executors`. `local.py` is the one to read first.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from bilevelbench.discovery.entry import reason_of
from bilevelbench.discovery.registry import Registry
from bilevelbench.engine.loop import run_pack
from bilevelbench.engine.record import PackResult
from bilevelbench.errors import BilevelbenchError, InvalidInput
from bilevelbench.execute.environment import environment, plugin_commit
from bilevelbench.plan.packs import Pack, plan, spread
from bilevelbench.plan.trial import SESSION, Trial
from bilevelbench.results.schema import curve_of, runs_of
from bilevelbench.results.store import Store

#: Seconds that a worker has for evaluations, on top of what its trial may take, before it is killed.
GRACE = 60.0


@dataclass(frozen=True)
class Done:
    """A pack that is in the store."""

    trials: int
    statuses: tuple[str, ...]
    best: dict[str, tuple[str, float]]  # by problem: the method with the smallest |grad phi|, and that


OnDone = Callable[[Done], None]


@dataclass(frozen=True)
class Execution:
    """Where packs run and within which limits. `None` leaves the choice to the executor.

    `jobs` workers, 0 for this process; `memory` in GiB for each worker; `timed` runs one trial at a time, for time axes;
    a worker that hangs is killed `grace` seconds after twice its trial's seconds; `scheduler` is the address of a cluster.
    `isolate`: plugins of others run in an empty folder, without a network, and cannot write to the results. `patience`: the
    seconds after which a pack in a worker is ended, whatever its trials ask for.
    """

    executor: str = "local"
    jobs: int | None = None
    memory: float | None = None
    timed: bool = False
    grace: float = GRACE
    scheduler: str | None = None
    isolate: bool = False
    patience: float | None = None

    def __post_init__(self) -> None:
        """Mistakes that can be seen without knowing the executor; `Executor.check` sees the others."""
        if self.jobs is not None and self.jobs < 0:
            raise InvalidInput(f"--jobs {self.jobs}: give a number of workers, or 0 to run in this process")
        if self.memory is not None and not (math.isfinite(self.memory) and self.memory > 0):
            raise InvalidInput(f"--memory {self.memory:g}: a limit is a number of GiB above 0")
        if not self.grace >= 0:
            raise InvalidInput(f"grace = {self.grace:g}: give a number of seconds, 0 or more")
        if self.patience is not None and not self.patience > 0:
            raise InvalidInput(f"--seconds {self.patience:g}: give a number of seconds above 0")
        if self.scheduler is not None and not self.scheduler.strip():
            raise InvalidInput("--scheduler is empty; give an address such as tcp://192.0.2.1:8786, or leave it out")

    @property
    def workers(self) -> int:
        """How many workers are asked for; by default one for each core that this process may use."""
        return _cores() if self.jobs is None else self.jobs

    def open(self, registry: Registry) -> Executor:
        """The executor of that name, once it has accepted the options. It starts nothing before its first pack."""
        entry = registry.executor(self.executor)
        module, _, name = entry.value.partition(":")
        try:
            cls = getattr(importlib.import_module(module), name)
        except BilevelbenchError:
            raise
        except Exception as error:
            raise InvalidInput(
                f"executor {self.executor!r} of plugin {entry.plugin!r} cannot be loaded from {entry.value}: {reason_of(error)}"
            ) from error
        if not (inspect.isclass(cls) and issubclass(cls, Executor)) or inspect.isabstract(cls):
            lacking = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
            wanted = f"lacks {lacking}" if lacking else "is not a subclass of bilevelbench.Executor"
            raise InvalidInput(f"executor {self.executor!r} of plugin {entry.plugin!r}: {entry.value} {wanted}")
        cls.check(self)
        return cls(self, registry)


class Executor(ABC):
    """Runs packs and yields each when it is in the store. As a context it keeps its workers from one call to the next."""

    def __init__(self, execution: Execution, registry: Registry) -> None:
        self.execution, self.registry = execution, registry

    @property
    def capacity(self) -> int:
        """How many packs it runs at the same time, as far as that is known: for so many a plan is cut."""
        return 1

    @classmethod
    @abstractmethod
    def check(cls, execution: Execution) -> None:
        """Raise InvalidInput, with the way out, for an option that does not apply here."""

    @abstractmethod
    def where(self, packs: int) -> str:
        """Where so many packs run, in words that go on a sentence: `in 2 worker processes`."""

    @abstractmethod
    def __call__(self, packs: Sequence[Pack], store: Store) -> Iterator[Done]:
        """Run packs in any order. Nobody may be left at work when the caller stops listening."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(at_once=kind is not None)

    def close(self, at_once: bool) -> None:  # noqa: B027 (an executor without workers has nothing to end)
        """End the workers, `at_once` without waiting for what they do; a later call starts new ones."""


def packs_of(trials: Sequence[Trial], executor: Executor) -> list[Pack]:
    """Packs that keep its workers busy; `timed` ones are single trials."""
    if executor.execution.timed:
        return [(trial,) for trial in trials]
    return spread(plan(trials, executor.registry), executor.capacity, executor.registry)


def refuse_objects(packs: Sequence[Pack]) -> None:
    for pack in packs:
        if SESSION in (pack[0].plugin, pack[0].problem_plugin):
            raise InvalidInput(
                f"{pack[0].algorithm.name} on {pack[0].problem.name}: an object of this session cannot be sent to a "
                "worker process; use jobs = 0, or put its class into a file and name that"
            )


def as_json(pack: Pack) -> list[dict[str, Any]]:
    return [trial.model_dump(mode="json") for trial in pack]


def from_json(dumps: Sequence[dict[str, Any]]) -> Pack:
    return tuple(Trial.model_validate(dump) for dump in dumps)


def run_and_store(pack: Pack, store: Store, registry: Registry, timed: bool = False) -> Done:
    """Run one pack in this process and put it into the store; `timed` says that no other one runs beside it."""
    own = os.getpid()
    result = run_pack(pack, registry)
    if os.getpid() != own:  # a copy of this process that a method has forked and left to run on
        os._exit(0)
    return store_result(result, pack, store, registry, timed=timed)


def store_result(
    result: PackResult, pack: Pack, store: Store, registry: Registry, output: str = "", timed: bool = False
) -> Done:
    """Put a pack's rows into the store, with what was printed meanwhile, if anyone kept that."""
    runs, curve = runs_of(result.runs), curve_of(result.curve.columns)
    record = {
        "trials": [{"id": trial.id, **trial.model_dump(mode="json")} for trial in pack],
        "environment": environment(),
        "commits": _commits(pack[0], registry),
        "families": {pack[0].algorithm.name: registry.algorithm(pack[0].algorithm.key).value.family},
        "step_seconds": result.step_seconds,
        "total_seconds": result.total_seconds,
        **({"pictures": result.pictures} if result.pictures else {}),
        **({"output": output} if output else {}),
        **({"timed": True} if timed else {}),
    }
    store.add_tables(runs, curve, record)
    return done_with(result.runs)


def done_with(rows: Sequence[Mapping[str, Any]]) -> Done:
    """What there is to tell of a pack with these rows."""
    best: dict[str, tuple[str, float]] = {}
    for row in rows:
        value = row.get("best_grad_phi")
        if value is not None and value < best.get(row["problem"], ("", float("inf")))[1]:
            best[row["problem"]] = row["label"] or row["algorithm"], value
    return Done(len(rows), tuple(row["status"] for row in rows), best)


def _commits(trial: Trial, registry: Registry) -> dict[str, str | None]:
    classes: list[type] = [registry.algorithm(trial.algorithm.key).value, registry.problem(trial.problem.key).value]
    names = (trial.algorithm.name, trial.problem.name)
    return {name: _commit(cls) for name, cls in zip(names, classes, strict=True)}


def _commit(cls: type) -> str | None:
    try:
        return plugin_commit(inspect.getfile(cls))
    except (OSError, TypeError):  # a class that was typed in, not read from a file
        return None


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
