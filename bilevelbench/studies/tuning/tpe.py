"""Optuna's tree-structured Parzen estimator, asked in batches so that a batch is a lane pack. Needs the extra `tune`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bilevelbench.errors import InvalidInput
from bilevelbench.plan.trial import Budget
from bilevelbench.studies.tuning.search import Ask, Best, Search, shortened
from bilevelbench.studies.tuning.space import Dimension

if TYPE_CHECKING:
    import optuna

BATCH = 16
#: The share of the budget after which the median decides who goes on.
_EARLY = 3
#: What optuna is told of a failure: its medians subtract scores, and two infinities have no difference.
_FAILURE = 1e300


def tpe(dimensions: Sequence[Dimension], trials: int, budget: Budget, seed: int) -> Search:
    """As many settings as `trials`, from ranges that span the grid.

    Each is looked at after a third of the budget. If it is then worse than the median of those before it, it ends there
    (and has counted as one of them); otherwise it is run again with the whole budget.
    """
    optuna = _optuna()
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=BATCH, constant_liar=True),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=BATCH // 2),
    )
    best = Best({}, math.inf)
    for start in range(0, trials, BATCH):
        asked = [study.ask() for _ in range(min(BATCH, trials - start))]
        choices = {one.number: {d.name: _suggest(one, d) for d in dimensions} for one in asked}
        early = yield [Ask(choices[one.number], shortened(budget, _EARLY)) for one in asked]
        going = []
        for one, seen in zip(asked, early, strict=True):
            one.report(min(seen.score, _FAILURE), step=1)
            if one.should_prune():
                study.tell(one, state=optuna.trial.TrialState.PRUNED)
            else:
                going.append(one)
        late = yield [Ask(choices[one.number], budget) for one in going]
        for one, seen in zip(going, late, strict=True):
            study.tell(one, min(seen.score, _FAILURE))
            if not best.choice or seen.score < best.score:
                best = Best(choices[one.number], seen.score)
    return best


def _suggest(trial: optuna.Trial, dimension: Dimension) -> Any:
    """From the smallest to the largest value of the grid, evenly on a log scale; words are chosen among."""
    values, name = dimension.values, dimension.name
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values) or min(numbers) <= 0:
        return trial.suggest_categorical(name, values)
    if dimension.whole:
        return trial.suggest_int(name, int(min(numbers)), int(max(numbers)), log=True)
    drawn = trial.suggest_float(name, float(min(numbers)), float(max(numbers)), log=True)
    return float(f"{drawn:.4g}")  # to be read by people; the fifth digit of a step size decides nothing


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InvalidInput(
            'search = "tpe" needs optuna, which is not installed; pip install "bilevelbench[tune]", or search by "grid" '
            'or "halving"'
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
