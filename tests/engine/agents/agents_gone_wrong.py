"""Problems whose agent 1 does what agents should not do, and a method that compares iterates; loaded by processes of agents."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import torch
from bilevelbench_problems import QuadraticAgents
from torch import Tensor

from bilevelbench import Agents, Distributed, FiniteSum, Instance, Oracle, Shared, norm

GOOD_CALLS = 20


class Spoiled(QuadraticAgents):
    """Agent 1's g_y goes wrong after GOOD_CALLS calls."""

    dim_x: int = 2
    dim_y: int = 3
    agents: int = 2

    def build(self) -> Instance:
        instance = super().build()
        whole = instance.agents
        instance.agents = Agents(whole.count, lambda i: self.spoil(whole.local(i)) if i == 1 else whole.local(i))
        return instance

    def spoil(self, local: Instance) -> Instance:
        raw, calls = local._raw["grad_g_y"], [0]

        def grad_g_y(x: Tensor, y: Tensor) -> Tensor:
            calls[0] += 1
            if calls[0] > GOOD_CALLS:
                self.go_wrong(local, x, y)
            return raw(x, y)

        return Instance(f=local._raw["value_f"], g=local._raw["value_g"], x0=local.x0, y0=local.y0, grad_g_y=grad_g_y)

    def go_wrong(self, local: Instance, x: Tensor, y: Tensor) -> None:
        raise NotImplementedError


class Uneven(Shared):
    """Agents who hold all rows of g, which is fine, and three of ten rows of f, which is not."""

    name = "uneven"
    finite_sum = True
    agents: int = 2

    def build(self) -> Instance:
        whole = self.holding(10)
        whole.agents = Agents(self.agents, lambda i: self.holding(3))
        return whole

    def holding(self, n_f: int) -> Instance:
        def square(x: Tensor, y: Tensor, rows: object = None) -> Tensor:
            return 0.5 * (x - y).square().sum(-1, keepdim=True)

        start = torch.zeros(1, 2)
        return Instance(f=square, g=square, x0=start, y0=start, noise=FiniteSum(n_f=n_f, n_g=10))


class Killed(Spoiled):
    name = "killed"

    def go_wrong(self, local, x, y):
        os.kill(os.getpid(), signal.SIGKILL)


class Raising(Spoiled):
    name = "raising"

    def go_wrong(self, local, x, y):
        raise ValueError("the disk of agent 1 is full")


class Hanging(Spoiled):
    name = "hanging"

    def go_wrong(self, local, x, y):
        time.sleep(1000)


class Unbuildable(Spoiled):
    name = "unbuildable"

    def spoil(self, local):
        raise ValueError("agent 1 has no data")


class Cheating(Spoiled):
    """Agent 1 looks at g_y twice and tells of one."""

    name = "cheating"

    def build(self) -> Instance:
        instance = super().build()
        whole = instance.agents

        def local(i: int) -> Instance:
            made = whole.local(i)
            if i == 1:
                made.passes[0] += 1
            return made

        instance.agents = Agents(whole.count, local)
        return instance

    def go_wrong(self, local, x, y):
        pass


@dataclass(frozen=True)
class Compared:
    x: Tensor
    y: Tensor
    apart: Tensor


class Compare(Distributed):
    """Descent on f and g with means, and how far our iterates are from the agents' mean: for two agents that is exact."""

    name = "compare"
    uses = frozenset({"grad_f_x", "grad_g_y"})

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> Compared:
        return Compared(x0, y0, torch.zeros_like(x0[..., :1]))

    def step(self, s: Compared, oracle: Oracle) -> Compared:
        kick = oracle.normal(oracle.dx)
        f_x, g_y = oracle.mean(oracle.grad_f_x(s.x, s.y), oracle.grad_g_y(s.x, s.y))
        x, y = s.x - 0.1 * (f_x + kick), s.y - 0.1 * g_y
        mean_x, mean_y = oracle.mean(x, y)
        return Compared(x, y, s.apart + norm(x - mean_x) + norm(y - mean_y))

    def extras(self, s: Compared) -> dict[str, Tensor]:
        return {"apart": s.apart}


class Silent(Compare):
    """Never sends anything."""

    name = "silent"

    def step(self, s: Compared, oracle: Oracle) -> Compared:
        return Compared(s.x - 0.1 * oracle.grad_f_x(s.x, s.y), s.y - 0.1 * oracle.grad_g_y(s.x, s.y), s.apart)
