"""What `solve` without any setting costs, beside methods that were tuned by hand: nine problems, one table.

    python benchmarks/auto_portfolio.py                       all nine; --only quadratic --only ridge for some

By hand: every method of `BY_HAND` gets 36 settings, drawn from the grid of `bilevelbench tune`, and the budget. What counts is
the cost at which |grad phi| is first below `--accuracy` times its value at x0, where phi is not above phi(x0), in the best
setting of the best method.
`auto` is one call of `solve` with nothing but the budget; its cost includes its search. `ratio` is one over the other, and
`with both searches` has the cost of the search by hand as well, which nobody has for nothing.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

import bilevelbench
from bilevelbench import FiniteSum, Instance, Problem, Rows, Schedule, Solution, from_functions
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.suite import AlgorithmEntry
from bilevelbench.plan.tuning import Grid
from bilevelbench.studies.tuning.space import method_of

EMBEDDED = ("quadratic", "logcosh", "cosine_kappa", "ridge_abalone", "logreg_wine", "label_cleaning_iris")
BY_HAND = ("f2ba", "aid", "itd", "stocbio", "soba")
SAMPLING = ("stocbio", "soba")
SETTINGS, TWICE = 36, 2.0


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


def first_below(curve: pd.DataFrame, accuracy: float, start: float) -> float:
    """The cost at which |grad phi| is first so small, where phi is not above phi(x0); infinite if nowhere."""
    there = curve[(curve["grad_phi"] <= accuracy) & (curve["phi"] <= start)]
    return float(there["cost"].iloc[0]) if len(there) else math.inf


def by_hand(problem: Problem, budget: float, aim: tuple[float, float]) -> tuple[str, float, float]:
    """The best setting of the best method, its cost, and the cost of all settings."""
    noisy = isinstance(problem.build().noise, FiniteSum)
    best, searched = ("nothing", math.inf), 0.0
    for name in BY_HAND:
        if name in SAMPLING and not noisy:
            continue
        method = method_of(AlgorithmEntry(name=name), registry(), Grid())
        choices = [method.params(choice) for choice in method.settings(SETTINGS, seed=0)]
        results = bilevelbench.run(
            [make(registry().algorithm(name), params) for params in choices], problem, budget=budget
        )
        searched += float(results.runs["cost"].sum())
        for trial, curve in results.curve.groupby("trial_id", sort=False):
            label = results.runs.set_index("trial_id").loc[trial, "label"]
            best = min(best, (str(label), first_below(curve, *aim)), key=lambda pair: pair[1])
    return *best, searched


def by_auto(instance: Instance, budget: float) -> Solution:
    f, g, data = functions(instance)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a function that cannot be vectorised is looped over
        return bilevelbench.solve(
            f, g, instance.x0.reshape(-1), instance.y0.reshape(-1), budget=budget, evaluate=Schedule(), **data
        )


def compared(name: str, calls: float, accuracy: float) -> dict[str, Any]:
    problem = OWN[name]() if name in OWN else make(registry().problem(name), {})
    with default_dtype(torch.float64):
        instance = problem.build()
        budget = calls * max(instance.noise.n_f, instance.noise.n_g)
        got = by_auto(instance, budget)
        start = bilevelbench.run("aid[eta_x=1e-12]", problem, steps=1).curve.iloc[0]
        aim = accuracy * float(start["grad_phi"]), float(start["phi"])
        method, cost, searched = by_hand(problem, budget, aim)
    auto = first_below(got.curve, *aim)
    return {
        "problem": name,
        "by hand": method,
        "cost": cost,
        "auto": f"{got.algorithm}[{got.search['setting'][got.search['goes_on']].iloc[-1].partition('[')[2]}",
        "auto's cost": auto,
        "of it search": float(got.search["cost"].sum()),
        "ratio": auto / cost,
        "with both searches": auto / (cost + searched),
    }


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=(*EMBEDDED, *OWN))
    parser.add_argument("--calls", type=float, default=20_000, help="budget, in calls over all data")
    parser.add_argument("--accuracy", type=float, default=1e-3, help="|grad phi| over its value at x0")
    given = parser.parse_args(arguments)
    names = given.only or [*EMBEDDED, *OWN]
    rows = []
    for name in names:
        rows.append(compared(name, given.calls, given.accuracy))
        print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    with pd.option_context("display.width", 250, "display.max_columns", None, "display.max_colwidth", 60):
        print(table.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    fair = table[table["cost"] < math.inf]  # where nothing by hand gets there, there is nothing to compare
    good = int((fair["ratio"] <= TWICE).sum())
    print(f"within {TWICE:g} times the cost of the best method by hand: {good} of {len(fair)} that were solved by hand")
    return table


if __name__ == "__main__":
    main()
