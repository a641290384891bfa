"""What an executor is, and what becomes of a pack that has been run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bilevelbench.discovery.registry import Registry
from bilevelbench.engine.record import PackResult
from bilevelbench.errors import InvalidInput
from bilevelbench.execute.environment import environment, plugin_commit
from bilevelbench.plan.trial import Trial
from bilevelbench.results.schema import curve_of, runs_of
from bilevelbench.results.store import Store

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


def refuse_objects(packs: Sequence[Pack]) -> None:
    for pack in packs:
        if "this session" in (pack[0].plugin, pack[0].problem_plugin):
            raise InvalidInput(
                f"{pack[0].algorithm.name} on {pack[0].problem.name}: an object of this session cannot be sent to a "
                "worker process; use jobs = 0, or put its class into a file and name that"
            )


def as_json(pack: Pack) -> list[dict[str, Any]]:
    return [trial.model_dump(mode="json") for trial in pack]


def from_json(dumps: Sequence[dict[str, Any]]) -> Pack:
    return tuple(Trial.model_validate(dump) for dump in dumps)


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
