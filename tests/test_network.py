"""Agents: F2BA over several owners of one problem is F2BA on their mean, and every round is on the meter."""

from __future__ import annotations

import pytest
import torch

import bilevelbench
from bilevelbench import Agents, Instance, Problem, Simulated, dot

STEPS, K, DX, DY, AGENTS = 20, 3, 2, 4, 3


class Shared(Problem):
    """g_i = 1/2 y'A_i y - x'B_i y and f_i = 1/2 |y - c_i|^2 + 1/2 |x|^2, one for each agent."""

    name = "shared"
    apart: bool = True

    def build(self) -> Instance:
        rng = self.generator()
        A = torch.randn(AGENTS, DY, DY, generator=rng)
        A = A @ A.mT / DY + torch.eye(DY)
        B, c = torch.randn(AGENTS, DX, DY, generator=rng), torch.randn(AGENTS, 1, DY, generator=rng)
        mean = self._instance(A.mean(0), B.mean(0), c.mean(0), None)
        if not self.apart:
            return mean
        return self._instance(A.mean(0), B.mean(0), c.mean(0), Agents(self._instance(A, B, c, None), Simulated()))

    def _instance(self, A: torch.Tensor, B: torch.Tensor, c: torch.Tensor, agents: Agents | None) -> Instance:
        return Instance(
            f=lambda x, y: 0.5 * dot(y - c, y - c) + 0.5 * dot(x, x),
            g=lambda x, y: 0.5 * dot(y @ A, y) - dot(x @ B, y),
            x0=torch.ones(DX),
            y0=torch.zeros(DY),
            grad_f_x=lambda x, y: x + 0 * y[..., :1],
            grad_f_y=lambda x, y: y - c,
            grad_g_x=lambda x, y: -(y @ B.mT),
            grad_g_y=lambda x, y: y @ A - x @ B,
            agents=agents,
        )


def run(apart: bool, **steps: int):
    method = f"f2ba[K={K},lam=10,100,eta_x=0.1,a_y=0.1,a_z=0.1]"
    return bilevelbench.run(method, Shared(apart=apart), **steps)


def test_f2ba_over_agents_is_f2ba_on_their_mean():
    together, apart = run(False, steps=STEPS), run(True, steps=STEPS)
    torch.testing.assert_close(
        torch.tensor(apart.curve["grad_phi"].to_numpy()), torch.tensor(together.curve["grad_phi"].to_numpy())
    )
    for column in ("grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y"):  # per agent as alone
        assert apart.runs[column].tolist() == together.runs[column].tolist()


def test_rounds_and_bytes_are_those_of_the_algorithm():
    """K + 1 rounds and 2 K dy + dx numbers a step and agent, for each lane."""
    runs = run(True, steps=STEPS).runs
    assert runs["rounds"].tolist() == [STEPS * (K + 1)] * 2
    assert runs["bytes"].tolist() == [STEPS * (2 * K * DY + DX) * 8] * 2


def test_rounds_of_a_lane_do_not_depend_on_its_pack():
    short = "f2ba[K=2,lam=10,eta_x=0.1,a_y=0.1,a_z=0.1]"
    long = "f2ba[K=5,lam=10,eta_x=0.1,a_y=0.1,a_z=0.1]"
    packed = bilevelbench.run([short, long], Shared(), budget=300).runs
    alone = [bilevelbench.run(method, Shared(), budget=300).runs.iloc[0] for method in (short, long)]
    for column in ("rounds", "bytes", "cost", "steps"):
        assert packed[column].tolist() == [row[column] for row in alone]


@pytest.mark.parametrize("column", ["rounds", "bytes"])
def test_one_machine_sends_nothing(column):
    assert run(False, steps=2).runs[column].tolist() == [0, 0]
