"""An agent: a process that makes the steps of a trial on what it holds, beside the leader, who runs the trial.

    python -m bilevelbench.engine.agents.agent PORT RANK SIZE

A leader starts it like this (`leader.py`), or torchrun starts it in its own way. It evaluates nothing and writes nothing.
Between trials it waits at the leader's store; a trial ends when the leader says so there and closes the connection.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry_of
from bilevelbench.engine.agents.gloo import (
    FAILED,
    FOREVER,
    NO_MORE,
    OVER,
    READY,
    TRIAL,
    ConnectionLost,
    Gloo,
    agents_store,
    torchrun_store,
)
from bilevelbench.engine.sanity import explain
from bilevelbench.engine.setup import PreparedPack, make_methods
from bilevelbench.errors import BudgetExhausted, InvalidInput
from bilevelbench.model.agents import Part
from bilevelbench.model.rounding import one_thread
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.trial import Trial


def serve(store: Any, rank: int, size: int, loopback: bool) -> None:
    """Trial after trial, until there are no more."""
    for number in itertools.count():
        order = store.get(TRIAL.format(number))
        if order == NO_MORE:
            return
        over, network = OVER.format(number), None
        try:
            with one_thread():
                share = _Share(Trial.model_validate_json(order), rank)
                store.set(READY.format(number, rank), "")
                network = Gloo(store, number, rank, size, FOREVER, loopback)
                share.run(network, functools.partial(store.check, [over]))
            store.wait([over], FOREVER)  # others may still be in the last round
        except ConnectionLost:
            pass  # the trial is over, or the leader finds out which agent failed
        except Exception as error:
            store.set(FAILED.format(number, rank), explain(error, None))
        finally:
            if network is not None:
                network.end()


class _Share:
    """One agent's share in the work of a trial."""

    def __init__(self, trial: Trial, rank: int) -> None:
        known = registry_of(trial.strangers)
        problem = make(known.problem(trial.problem.key), trial.problem.params)
        with default_dtype(getattr(torch, trial.dtype)):
            self.instance = problem.build()
            if self.instance.agents is None:
                raise InvalidInput(f"{problem.name} is not shared between agents")
            self.local = self.instance.agents.local(rank)
        self.instance.constants.problem = problem.name
        entry = known.algorithm(trial.algorithm.key)
        self.methods = make_methods([trial], entry, self.instance.constants)
        self.trial, self.rank = trial, rank

    def run(self, network: Gloo, over: Callable[[], bool]) -> None:
        """The steps that the runner makes, without the runner, up to the end of the budget or of the connection."""
        part = Part(self.rank, self.local, network)
        pack = PreparedPack(self.instance, self.methods, [self.trial.seed], [self.trial.budget.most], part=part)
        try:
            state = pack.init()
            for number in itertools.count(1):
                before = network.rounds
                state = pack.step(number, state)
                pack.check_counts()
                if (
                    network.rounds == before and over()
                ):  # an agent that sends nothing does not notice a closed connection
                    return
        except BudgetExhausted:
            return


def serve_torchrun() -> None:
    """Any of torchrun's processes except the first, which leads."""
    serve(*torchrun_store(), loopback=False)


def _end_with_leader() -> None:
    """Our standard input is a pipe that nobody writes to; it ends when the leader closes it or dies."""
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    port, rank, size = map(int, sys.argv[1:])
    threading.Thread(target=_end_with_leader, daemon=True).start()
    serve(agents_store(port), rank, size, loopback=True)


if __name__ == "__main__":
    main()
