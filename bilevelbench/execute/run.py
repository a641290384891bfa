"""From trials to tables: what the store lacks is run, and what it then holds is published."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bilevelbench.discovery.registry import Registry
from bilevelbench.engine.agents.leader import dismiss
from bilevelbench.execute.executor import Execution, Executor, OnDone, packs_of
from bilevelbench.plan.packs import Pack
from bilevelbench.plan.trial import Trial
from bilevelbench.results.schema import Results
from bilevelbench.results.store import Store


@dataclass(frozen=True)
class Outstanding:
    """What a store lacks of the trials that are wanted."""

    wanted: frozenset[str]
    packs: tuple[Pack, ...]

    @property
    def trials(self) -> int:
        return sum(map(len, self.packs))


def outstanding(trials: Sequence[Trial], store: Store, executor: Executor) -> Outstanding:
    done = store.done()
    by_id = {trial.id: trial for trial in trials}
    missing = [trial for trial in by_id.values() if trial.id not in done]
    return Outstanding(frozenset(by_id), tuple(packs_of(missing, executor)))


@contextmanager
def _frozen() -> Iterator[None]:
    """What is there need not be looked through by the garbage collector, again and again: all of torch is."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@_frozen()
def run_packs(packs: Sequence[Pack], store: Store, executor: Executor, progress: OnDone = lambda _: None) -> Results:
    """Run these packs and publish the tables of the store, also when interrupted."""
    try:
        for finished in executor(packs, store):
            progress(finished)
    finally:
        dismiss()
        results = store.publish()
    return results


def run_trials(
    trials: Sequence[Trial],
    store: Store,
    registry: Registry,
    execution: Execution,
    progress: OnDone = lambda _: None,
) -> Results:
    """Run what the store does not hold yet, in workers that end with it."""
    with execution.open(registry) as executor:
        return run_packs(outstanding(trials, store, executor).packs, store, executor, progress)
