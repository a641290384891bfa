"""TPE: values of phi at points that a tree-structured Parzen estimator proposes.

    x_try <- the estimator's proposal from the tries so far,  x0 in the first step
    y_try <- L-BFGS on g(x_try, .) from y0 until |g_y| <= tol
    if f(x_try, y_try) is the smallest value so far:  x, y <- x_try, y_try

The estimator models each coordinate of the good tries and of the others by a mixture of densities, and proposes where the first
is large beside the second. Bergstra, Bardenet, Bengio, Kegl, "Algorithms for hyper-parameter optimization", NeurIPS 2011, in
the version of Akiba, Sano, Yanase, Ohta, Koyama, "Optuna: a next-generation hyperparameter optimization framework", KDD 2019.
Proposals are uniform for the first `startup` tries. It needs the extra `tune`. benchmark_bilevel makes
five tries per step; here it is one.

Our choices: the tries are tensors of the state, and the estimator is made anew from them in each step, seeded by a draw of the
trial, so that a run can be repeated; it sees the last `memory` tries, which bounds the time of a step. An x0 outside of the box
is tried, but the estimator does not hear of it. A value that is not a number counts as the largest.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from pydantic import PositiveInt
from torch import Tensor

from bilevelbench import Constants, InvalidInput, Oracle
from bilevelbench_methods.zeroth_order.box_search import BoxSearch, State


class TPE(BoxSearch):
    name = "tpe"
    title = "TPE"
    paper = "https://papers.nips.cc/paper/4443-algorithms-for-hyper-parameter-optimization"
    lanes = False
    needs_modules = ("optuna",)

    memory: PositiveInt = 100
    """tries that the estimator sees; the oldest are forgotten"""
    startup: PositiveInt = 10
    """tries that are uniform in the box"""

    def resolve(self, constants: Constants) -> Self:
        _optuna()
        return self

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        state = super().init(x0, y0, oracle)
        tries, values = x0.expand(self.memory, -1, -1), state.value.expand(self.memory, -1, -1)
        return State(x=state.x, y=state.y, value=state.value, y0=y0, k=0, memory=(tries.clone(), values.clone()))

    def ask(self, s: State, oracle: Oracle) -> Tensor:
        optuna = _optuna()
        seed = int(2**32 * float(oracle.uniform(1)))
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=self.startup)
        low, high = float(self.lower), float(self.upper)
        side = optuna.distributions.FloatDistribution(
            low, high
        )  # one for all, of which optuna then makes one copy per try
        box = {str(i): side for i in range(oracle.dx)}
        study = optuna.create_study(sampler=sampler)
        for x, value in zip(*(part[: s.k, 0].tolist() for part in s.memory), strict=True):
            if all(low <= coordinate <= high for coordinate in x):
                params = {str(i): coordinate for i, coordinate in enumerate(x)}
                study.add_trial(optuna.trial.create_trial(params=params, distributions=box, value=value[0]))
        proposed = study.ask(box).params
        return torch.tensor([[proposed[name] for name in box]], dtype=oracle.dtype)

    def remember(self, s: State, x: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        tries, values = (part.clone() for part in s.memory)
        tries[s.k % self.memory] = x
        values[s.k % self.memory] = value.nan_to_num(nan=torch.finfo(value.dtype).max)
        return tries, values


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InvalidInput(
            'tpe needs optuna, which is not installed; pip install "bilevelbench[tune]", or take random_search'
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
