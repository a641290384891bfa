"""Any optimiser of torch as the x-step of a method.

With an x-step of length one a method moves x by minus its estimate d of the hypergradient: `x <- x - d`. So the engine reads
d off the step, hands it to the optimiser as the gradient of x, and puts x where the optimiser goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from bilevelbench.errors import InvalidInput
from bilevelbench.model.algorithm import Algorithm

#: A class such as torch.optim.Adam, or a function that makes an optimiser for the tensors that it is given.
MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]

_STEP = "eta_x"


def with_unit_step(method: type[Algorithm], params: dict[str, Any]) -> dict[str, Any]:
    """The parameters with an x-step of one, if the method has an x-step that moves nothing but x."""
    if _STEP in params:
        raise InvalidInput(f"{_STEP}={params[_STEP]!r}: the step is the outer optimiser's own (lr=); leave out {_STEP}")
    if method.tuned.get(_STEP) != "upper_step" or method.x_step is Algorithm.x_step:
        raise InvalidInput(
            f"{method.name} has no x-step {_STEP} of constant length, which an outer optimiser could take the place of; "
            "choose another method, such as f2ba, aid or itd"
        )
    return {**params, _STEP: 1.0}


class OuterOptimizer:
    """Where x goes, given where it was and where a method with an x-step of one would have it."""

    def __init__(self, make: MakeOptimizer) -> None:
        self._make = make
        self._optimizer: torch.optim.Optimizer | None = None
        self._x = torch.empty(0)

    def __call__(self, x: Tensor, moved: Tensor) -> Tensor:
        if self._optimizer is None:
            self._x = x.clone()
            self._optimizer = self._made()
        self._x.copy_(x)  # a projection may have moved it
        self._x.grad = x - moved
        self._optimizer.step()
        return self._x.detach().clone()

    def _made(self) -> torch.optim.Optimizer:
        try:
            made = self._make([self._x])
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"outer_optimizer: {error}") from error
        if not isinstance(made, torch.optim.Optimizer) or isinstance(made, torch.optim.LBFGS):
            raise InvalidInput(
                f"outer_optimizer made {type(made).__name__}; give a class of torch.optim that steps on gradients alone, or "
                "a function of the parameters: lambda x: torch.optim.Adam(x, lr=0.01)"
            )
        return made
