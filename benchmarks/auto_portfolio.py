"""What `solve` without any setting costs, beside methods that were tuned by hand: nine problems, one table.

    python benchmarks/auto_portfolio.py                       all nine; --only quadratic --only ridge for some

By hand: every method of `EXACT`, and on problems with data of `BY_HAND`, gets 36 settings, drawn from the grid of `bilevelbench
tune`, and the budget. The target is `FRACTION` of the largest decrease of phi among all of these runs: the best by hand gets
there on every problem, whatever `auto` does. Points where the evaluator could not solve for phi do not count on either side.
What counts is the cost at which a run is first there, in the best setting of the best method.

`auto` is one call of `solve` with nothing but the budget; its cost includes its search, and phi at the points that it visits
is found afterwards by the evaluator that has looked at the runs by hand. `ratio` is one cost over the other, and `with both
searches` has the cost of the search by hand as well, which nobody has for nothing.

The runs by hand are stored in build/auto_portfolio, and what is there is not run again; --hand runs nothing else.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

import bilevelbench
from bilevelbench import FiniteSum, Instance, Problem, Results, Rows, Schedule, Solution, StepInfo, from_functions
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.suite import AlgorithmEntry
from bilevelbench.plan.tuning import Grid
from bilevelbench.studies.tuning.space import method_of

EMBEDDED = ("quadratic", "logcosh", "cosine_kappa", "ridge_abalone", "logreg_wine", "label_cleaning_iris")
EXACT = ("f2ba", "aid", "itd")
BY_HAND = (*EXACT, "stocbio", "soba")
SETTINGS, FRACTION, RATIO, TWICE = 36, 0.99, 1.15, 2.0
STORED = Path("build/auto_portfolio")


class Ridge(Problem):
    """One weight of decay for each of 12 features of a regression; most features are noise."""

    name = "ridge"

    def build(self) -> Instance:
        A, noise = (_normal(self, *shape) for shape in ((80, 12), (80,)))
        b = A[:, :3].sum(-1) + 0.5 * noise

        def g(x: Tensor, y: Tensor) -> Tensor:
            return (A[:40] @ y - b[:40]).square().mean() + (softplus(x) * y.square()).mean()

        def f(x: Tensor, y: Tensor) -> Tensor:
            return (A[40:] @ y - b[40:]).square().mean() + 1e-2 * x.square().mean()

        return from_functions(f, g, torch.zeros(12), torch.zeros(12))


class Cleaning(Problem):
    """Weights of 60 samples, a third of them with a wrong label, for a linear classifier."""

    name = "cleaning"

    def build(self) -> Instance:
        A = _normal(self, 100, 5)
        b = (A[:, 0] + A[:, 1] > 0).to(A.dtype)
        b[:20] = 1 - b[:20]

        def g(x: Tensor, y: Tensor) -> Tensor:
            losses = binary_cross_entropy_with_logits(A[:60] @ y, b[:60], reduction="none")
            return (x.sigmoid() * losses).mean() + 0.02 * y.square().sum()

        def f(x: Tensor, y: Tensor) -> Tensor:
            return binary_cross_entropy_with_logits(A[60:] @ y, b[60:]) + 1e-3 * x.square().mean()

        return from_functions(f, g, torch.zeros(60), torch.zeros(5))


class Prices(Problem):
    """A seller sets 8 prices; buyers take what maximises their utility, which bends more for some goods than for others."""

    name = "prices"

    def build(self) -> Instance:
        bend = torch.logspace(0, 1, 8)
        wish = 2 + _normal(self, 8).abs()

        def g(x: Tensor, y: Tensor) -> Tensor:
            return (0.5 * bend * y.square() + (x - wish) * y).sum() + 0.1 * y.sum().square()

        def f(x: Tensor, y: Tensor) -> Tensor:
            return -(x * y).sum() + 0.05 * x.square().sum()

        return from_functions(f, g, torch.zeros(8), torch.zeros(8))


OWN: dict[str, type[Problem]] = {cls.name: cls for cls in (Ridge, Cleaning, Prices)}


def _normal(problem: Problem, *shape: int) -> Tensor:
    drawn = torch.randn(*shape, generator=problem.generator(), dtype=torch.float64)
    return drawn.to(torch.get_default_dtype())


def functions(instance: Instance) -> tuple[Callable[..., Tensor], Callable[..., Tensor], dict[str, Tensor]]:
    """An instance as its owner would have written it: two functions of one point, and their data, which are row numbers."""

    def exact(name: str) -> Callable[..., Tensor]:
        return lambda x, y: instance.functions[name](x[None], y[None]).reshape(())

    def on_rows(name: str) -> Callable[..., Tensor]:
        def value(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
            rows = Rows(batch[None], torch.full((1, len(batch)), 1 / len(batch), dtype=x.dtype))
            return instance.functions[name](x[None], y[None], rows).reshape(())

        return value

    noise = instance.noise
    if isinstance(noise, FiniteSum):
        return on_rows("value_f"), on_rows("value_g"), {
            "data_f": torch.arange(noise.n_f), "data_g": torch.arange(noise.n_g)
        }  # fmt: skip
    return exact("value_f"), exact("value_g"), {}


def known(curve: pd.DataFrame, start: float) -> pd.DataFrame:
    """Without the points where the evaluator says that it could not solve for phi: it states an error above |grad phi(x0)|."""
    return curve[~(curve["grad_phi_error"] > start)]


def first_there(curve: pd.DataFrame, target: float) -> float:
    """The cost at which phi is first so small; infinite if nowhere."""
    there = curve[curve["phi"] <= target]
    return float(there["cost"].iloc[0]) if len(there) else math.inf


def by_hand(name: str, problem: Problem, budget: float) -> Results:
    """All settings of all methods; a method that samples has nothing to draw from where there are no data."""
    noisy = isinstance(problem.build().noise, FiniteSum)
    methods = []
    for method in BY_HAND if noisy else EXACT:
        space = method_of(AlgorithmEntry(name=method), registry(), Grid())
        choices = [space.params(choice) for choice in space.settings(SETTINGS, seed=0)]
        methods += [make(registry().algorithm(method), params) for params in choices]
    return bilevelbench.run(methods, problem, budget=budget, schedule=Schedule(ratio=RATIO), out=STORED / name)


def by_auto(instance: Instance, budget: float) -> tuple[Solution, pd.DataFrame]:
    """The solution, and phi along the way, by the evaluator that sees the runs by hand."""
    visited: list[StepInfo] = []

    def callback(info: StepInfo) -> None:
        if not visited or info.cost >= RATIO * visited[-1].cost:
            visited.append(info)

    f, g, data = functions(instance)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a function that cannot be vectorised is looped over
        got = bilevelbench.solve(
            f, g, instance.x0.reshape(-1), instance.y0.reshape(-1), budget=budget, evaluate="never", callback=callback, **data
        )  # fmt: skip
    evaluator = Evaluator(instance)
    seen = [evaluator(info.x[None], info.y[None]) for info in visited]
    rows = [
        {"cost": info.cost, "phi": float(at.phi), "grad_phi_error": float(at.error)}
        for info, at in zip(visited, seen, strict=True)
    ]
    return got, pd.DataFrame(rows)


def compared(name: str, calls: float, only_hand: bool) -> dict[str, Any]:
    problem = OWN[name]() if name in OWN else make(registry().problem(name), {})
    with default_dtype(torch.float64):
        instance = problem.build()
        budget = calls * max(instance.noise.n_f, instance.noise.n_g)
        results = by_hand(name, problem, budget)
        slope = float(results.curve["grad_phi"].iloc[0])
        seen = known(results.curve, slope)
        start, least = seen["phi"].iloc[0], seen["phi"].min()
        target = start - FRACTION * (start - least)
        costs = {str(trial): first_there(curve, target) for trial, curve in seen.groupby("trial_id", sort=False)}
        best = min(costs, key=costs.__getitem__)
        row = {"problem": name, "by hand": results.runs.set_index("trial_id").loc[best, "label"], "cost": costs[best]}
        if only_hand:
            return row
        got, curve = by_auto(instance, budget)
    auto, searched = first_there(known(curve, slope), target), float(results.runs["cost"].sum())
    return row | {
        "auto": f"{got.algorithm}[{got.search['setting'][got.search['goes_on']].iloc[-1].partition('[')[2]}",
        "auto's cost": auto,
        "of it search": float(got.search["cost"].sum()),
        "ratio": auto / costs[best],
        "with both searches": auto / (costs[best] + searched),
    }


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=(*EMBEDDED, *OWN))
    parser.add_argument("--calls", type=float, default=5_000, help="budget, in calls over all data")
    parser.add_argument("--hand", action="store_true", help="only the runs by hand")
    given = parser.parse_args(arguments)
    names = given.only or [*EMBEDDED, *OWN]
    rows = []
    for name in names:
        rows.append(compared(name, given.calls, given.hand))
        print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    with pd.option_context("display.width", 250, "display.max_columns", None, "display.max_colwidth", 60):
        print(table.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    if not given.hand:
        good = int((table["ratio"] <= TWICE).sum())
        print(f"within {TWICE:g} times the cost of the best method by hand: {good} of {len(table)}")
    return table


if __name__ == "__main__":
    main()
