"""Which trials are run again: drawn by a seed that is told, and more often those that decide ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd

from bilevelbench.report.analysis.ranking import costs, medians, ranks
from bilevelbench.report.analysis.summary import TARGETS
from bilevelbench.results.schema import Results

#: The weight of a trial that has reached nothing: a failure may be invented, too, to make others look better.
_LEAST = 0.1


def weights(results: Results) -> dict[str, float]:
    """By trial: the sum, over the accuracies that it reached, of one over the rank of its method on that problem."""
    table = costs(results, TARGETS)
    middle = medians(table)
    rank = {
        (*cell, method): place
        for cell, row in zip(middle.index, ranks(middle.to_numpy()), strict=True)
        for method, place in zip(middle.columns, row, strict=True)
    }
    keys = zip(table["problem"], table["target"], table["method"], strict=True)
    decides = pd.Series([1.0 / rank[key] for key in keys], index=table.index, dtype=float)
    worth = decides.where(np.isfinite(table["cost"]), 0.0).groupby(table["trial_id"]).sum()
    return {str(trial): _LEAST + float(value) for trial, value in worth.items()}


def drawn(worth: Mapping[str, float], among: Collection[str], number: int, seed: int) -> list[str]:
    """`number` of these trials without repetition, each in proportion to its weight; all of them where there are no more."""
    names = sorted(among)
    if number >= len(names):
        return names
    share = np.array([worth.get(name, _LEAST) for name in names])
    chosen = np.random.default_rng(seed).choice(len(names), size=number, replace=False, p=share / share.sum())
    return [names[i] for i in sorted(chosen)]
