"""Synthetic images for real ones that are dealt out to agents: f_i is the mean over agent i's real training rows.

    distill_digits_agents, distill_mnist_agents

The problems are those of `distill`, without the last real training rows if they do not divide evenly. The synthetic images are
x, which all agents see, so every agent holds the whole of g, all 10 per_class rows of it. Constants and metrics are those of
the mean problem.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from bilevelbench import Agents, Instance, Shared
from bilevelbench_problems.common import evenly
from bilevelbench_problems.cross_entropy import Loss
from bilevelbench_problems.distill import Distill, DistillDigits, DistillMNIST, Part, Synthetic


class _DistillAgents(Shared):
    """Before a problem of `distill`; not made from one, since its defaults would win over that problem's."""

    embedded = False  # every distributed method would start processes in `run --all`

    def _data(self) -> tuple[Part, Part]:
        train, test = cast(Distill, super())._data()
        return evenly(train, self.agents), test

    def _agents(self, train: Part, small: Synthetic, x0: Tensor, y0: Tensor) -> Agents:
        A, b = train

        def local(i: int) -> Instance:
            own = Loss(small.link, A[i :: self.agents], b[i :: self.agents], small.weight.dtype)
            return Instance(**small.judged_by(own), x0=x0, y0=y0)

        return Agents(self.agents, local)


class DistillDigitsAgents(_DistillAgents, DistillDigits):
    name = "distill_digits_agents"


class DistillMNISTAgents(_DistillAgents, DistillMNIST):
    name = "distill_mnist_agents"
