"""A team: agents in processes of their own, led by the process that runs the trial.

The leader is agent 0. It runs the trial as any other, with the usual runner, budgets, clock and evaluator; only its oracle
asks what agent 0 holds, and `oracle.mean` is an all-reduce with the others, who make the same steps on what they hold
(`agent.py`). Nothing else travels: iterates are equal everywhere because they are made of equal means.

A team serves one trial after the other and is dismissed when there are no more, or when one of its agents is lost.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch import Tensor

from bilevelbench.engine.agents.gloo import (
    FAILED,
    NO_MORE,
    OVER,
    READY,
    TRIAL,
    ConnectionLost,
    Gloo,
    leaders_store,
    torchrun_store,
)
from bilevelbench.engine.agents.torchrun import under_torchrun
from bilevelbench.errors import AgentLost, InvalidInput
from bilevelbench.model.agents import Alone, Part
from bilevelbench.model.algorithm import Algorithm, Distributed
from bilevelbench.model.instance import Instance
from bilevelbench.model.noise import FiniteSum
from bilevelbench.plan.trial import SESSION, Trial
from bilevelbench.processes import cause_of_death

_START = 300.0  # seconds: importing torch and the plugins and building the problem, on a busy machine
_DIAGNOSIS = 2.0  # seconds within which the cause of a lost connection becomes known
_SHUTDOWN = 5.0  # seconds that an agent has to end by itself

_team: Team | None = None


def join(method: Algorithm, instance: Instance, trial: Trial) -> Part | None:
    """The leader's part in this trial, with the other agents ready; None for a method that is not distributed."""
    if not isinstance(method, Distributed):
        return None
    if instance.agents is None:
        raise InvalidInput(f"{method.name} is run by agents, and {trial.problem.name} is not shared between agents")
    count, local = instance.agents.count, instance.agents.local(0)
    if isinstance(instance.noise, FiniteSum):
        ours, whole = local.noise, instance.noise
        # a mean over rows that are dealt out evenly, or over agents who all hold the whole sum
        if any(own not in (n, n / count) for own, n in ((ours.n_f, whole.n_f), (ours.n_g, whole.n_g))):
            raise InvalidInput(
                f"{trial.problem.name}: agent 0 of {count} holds {ours.n_f} of {whole.n_f} rows of f and {ours.n_g} of "
                f"{whole.n_g} of g; deal them out evenly, or let every agent hold them all"
            )
    if count == 1:
        return Part(0, local, Alone())
    if SESSION in (trial.plugin, trial.problem_plugin):
        raise InvalidInput(
            f"{trial.algorithm.name} on {trial.problem.name}: an object of this session cannot be sent to the processes "
            "of agents; put its class into a file and name that"
        )
    team = _assemble(count)
    try:
        team.begin(trial, method.timeout)
    except AgentLost:
        dismiss()
        raise
    return Part(0, local, team)


def dismiss() -> None:
    """End the processes that we have started, if there are any. Those of torchrun stay until the command ends."""
    global _team
    if _team is not None and _team.is_ours:
        _team.close()
        _team = None


@contextmanager
def leading_torchrun() -> Iterator[None]:
    """Around the command of torchrun's first process: the others serve it, also if there is nothing for them to do."""
    global _team
    _team = Team(int(os.environ["WORLD_SIZE"]))
    try:
        yield
    finally:
        _team.close()


atexit.register(dismiss)


def _assemble(size: int) -> Team:
    global _team
    if _team is not None and _team.size != size:
        if not _team.is_ours:
            raise InvalidInput(
                f"{size} agents need {size} processes, and torchrun has started {_team.size}; give it "
                f"--nproc-per-node {size}"
            )
        dismiss()
    if _team is None:
        _team = Team(size)
    return _team


class Team:
    """`size` agents, of whom we are number 0; a Network while a trial is on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_ours = not under_torchrun()
        self._trials = 0
        self._patience = 0.0
        self._lost = False
        self._gloo: Gloo | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._store: Any
        if self.is_ours:
            self._store = leaders_store()
            self._processes = [_start(self._store.port, rank, size) for rank in range(1, size)]
        else:
            self._store, _, _ = torchrun_store()

    def begin(self, trial: Trial, patience: float) -> None:
        """Hand out a trial and wait until every agent has built its problem."""
        self._number, self._patience = self._trials, patience
        self._trials += 1
        self._store.set(TRIAL.format(self._number), trial.model_dump_json())
        self._wait_until_ready()
        try:
            limit = timedelta(seconds=patience)
            self._gloo = Gloo(self._store, self._number, 0, self.size, limit, loopback=self.is_ours)
        except ConnectionLost as lost:
            raise AgentLost(self._cause(lost)) from None

    def mean(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        assert self._gloo is not None
        try:
            return self._gloo.mean(tensors)
        except ConnectionLost as lost:
            self._lost = True
            raise AgentLost(self._cause(lost)) from None

    def end(self) -> None:
        """The trial is over; the agents hear of it when the connection closes."""
        if self._gloo is not None:
            self._store.set(OVER.format(self._number), "")
            self._gloo.end()
            self._gloo = None
        if self._lost:
            dismiss()

    def close(self) -> None:
        """Agents that we started end when their standard input does; those of torchrun are told."""
        if not self.is_ours:
            self._store.set(TRIAL.format(self._trials), NO_MORE)
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_SHUTDOWN)
            except subprocess.TimeoutExpired:  # stopped, or in a call that does not end
                process.kill()
                process.wait()
        self._processes = []

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START
        waiting = list(range(1, self.size))
        while waiting:
            if failure := self._failure():
                raise AgentLost(failure)
            if time.monotonic() > deadline:
                raise AgentLost(f"agent {waiting[0]} of {self.size} was not ready after {_START:g} seconds")
            waiting = [rank for rank in waiting if not self._store.check([READY.format(self._number, rank)])]
            time.sleep(0.002)

    def _failure(self) -> str | None:
        """Which agent failed, if that is known by now."""
        for rank, process in enumerate(self._processes, 1):
            if process.poll() is not None:
                return f"the process of agent {rank} of {self.size} {cause_of_death(process.returncode)}"
        for rank in range(1, self.size):
            key = FAILED.format(self._number, rank)
            if self._store.check([key]):
                return f"agent {rank} of {self.size} failed: {self._store.get(key).decode()}"
        return None

    def _cause(self, lost: ConnectionLost) -> str:
        deadline = time.monotonic() + (_DIAGNOSIS if self.is_ours else 0)  # torchrun is about to end us as well
        while True:
            if failure := self._failure():
                return failure
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        if "imed out" in str(lost):
            return f"an agent gave no answer within {self._patience:g} seconds (the parameter `timeout`)"
        return f"the connection to the other agents is lost: {lost}"


def _start(port: int, rank: int, size: int) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C is the leader's. multiprocessing would refuse, since a worker is a daemon."""
    return subprocess.Popen(
        [sys.executable, "-m", "bilevelbench.engine.agents.agent", str(port), str(rank), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=None if os.environ.get("BILEVELBENCH_DEBUG") else subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
