"""Label cleaning whose training and validation rows are dealt out to agents: f_i and g_i are means over agent i's.

    label_cleaning_digits_agents, label_cleaning_iris_agents, cleaning_mnist_agents, cleaning_fashion_agents

The problems are those of `label_cleaning` and `cleaning_images`. Rows that do not divide evenly are left out. x has a weight
for every row, and an agent's g_i moves those of its own rows alone; it holds the whole ridge. Constants and metrics are those
of the mean problem.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from bilevelbench import Agents, FiniteSum, Instance, Rows, Shared
from bilevelbench_problems.cleaning_images import CleaningFashion, CleaningMNIST
from bilevelbench_problems.common import evenly
from bilevelbench_problems.cross_entropy import Loss, cleaned_by
from bilevelbench_problems.label_cleaning import Cleaning, LabelCleaningDigits, LabelCleaningIris, Parts
from bilevelbench_problems.weighted_cross_entropy import Weighted

_OF_F = ("f", "grad_f_x", "grad_f_y")


class _CleaningAgents(Shared):
    """Before a problem of `label_cleaning`; not made from one, since its defaults would win over that problem's."""

    embedded = False  # every distributed method would start processes in `run --all`

    def _data(self) -> Parts:
        train, val, test, wrong = cast(Cleaning, super())._data()
        train = evenly(train, self.agents)
        return train, evenly(val, self.agents), test, wrong[: len(train[1])]

    def _agents(self, train: Weighted, val: Loss) -> Agents:
        return _dealt_out(train, val, self.agents, cast(Cleaning, self)._x0(train.n))


class LabelCleaningDigitsAgents(_CleaningAgents, LabelCleaningDigits):
    name = "label_cleaning_digits_agents"


class LabelCleaningIrisAgents(_CleaningAgents, LabelCleaningIris):
    name = "label_cleaning_iris_agents"


class CleaningMNISTAgents(_CleaningAgents, CleaningMNIST):
    name = "cleaning_mnist_agents"


class CleaningFashionAgents(_CleaningAgents, CleaningFashion):
    name = "cleaning_fashion_agents"


def _dealt_out(train: Weighted, val: Loss, agents: int, x0: Tensor) -> Agents:
    functions = cleaned_by(train, val)

    def local(i: int) -> Instance:
        of_f, of_g = (torch.arange(i, n, agents) for n in (val.n, train.n))
        own: dict[str, Any] = {name: _among(one, of_f if name in _OF_F else of_g) for name, one in functions.items()}
        return Instance(
            **own,
            x0=x0,
            y0=torch.zeros(1, train.link.scores * train.p),
            noise=FiniteSum(n_f=len(of_f), n_g=len(of_g)),
            points="stack",
        )

    return Agents(agents, local)


def _among(function: Callable[..., Tensor], own: Tensor) -> Callable[..., Tensor]:
    """The mean over an agent's own rows of a function that is a mean over all; its row k is row own[k] of all."""

    def local(x: Tensor, y: Tensor, *rest: Any) -> Tensor:
        vectors, rows = [r for r in rest if isinstance(r, Tensor)], next((r for r in rest if isinstance(r, Rows)), None)
        if rows is None:
            index = own.expand(x.shape[-2], -1)
            return function(x, y, *vectors, Rows(index, torch.full(index.shape, 1 / len(own), dtype=x.dtype)))
        return function(x, y, *vectors, Rows(own[rows.index], rows.weight))

    return local
