"""A problem whose two finite sums are dealt out to agents: row k of agent i of m is row i + k m of the problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bilevelbench import Agents, FiniteSum, Instance, Rows, Shared


class DealtOut(Shared):
    """Before a problem that asks for its `_agents`; not made from one, since its defaults would win over that problem's."""

    embedded = False  # every distributed method would start processes in `run --all`

    def _agents(self, functions: Mapping[str, Callable[..., Any]], noise: FiniteSum, **rest: Any) -> Agents:
        """Who hold the means over their own rows of functions of (x, y, .., rows); `rest` is the same for all."""

        def local(i: int) -> Instance:
            of_f, of_g = (torch.arange(i, n, self.agents) for n in (noise.n_f, noise.n_g))
            own: dict[str, Any] = {
                name: _among(one, of_f if _is_of_f(name) else of_g) for name, one in functions.items()
            }
            return Instance(**own, **rest, noise=FiniteSum(n_f=len(of_f), n_g=len(of_g)))

        return Agents(self.agents, local)


def _is_of_f(name: str) -> bool:
    return name == "f" or name.startswith("grad_f")


def _among(function: Callable[..., Any], own: Tensor) -> Callable[..., Any]:
    """The mean over an agent's own rows of a function that is a mean over all; its row k is row own[k] of all."""

    def local(x: Tensor, y: Tensor, *rest: Any) -> Any:
        vectors, rows = [r for r in rest if isinstance(r, Tensor)], next((r for r in rest if isinstance(r, Rows)), None)
        if rows is None:
            index = own.expand(x.shape[-2], -1)
            return function(x, y, *vectors, Rows(index, torch.full(index.shape, 1 / len(own), dtype=x.dtype)))
        return function(x, y, *vectors, Rows(own[rows.index], rows.weight))

    return local
