"""The answer of a board in a few sentences, each of which holds for its numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from bilevelbench.report.text import number

_FIRST, _NAMED = 10, 3


def answer(rows: pd.DataFrame, orders: Mapping[float, Sequence[str]], paid: str = "calls") -> str:
    """Who needs the least, who is not behind for sure, who is best without second derivatives, and at which prices.

    `rows` has a method each, best first: `method`, `rank`, `bands` (who shares one with another cannot be told apart from it),
    `relative`, `reached`, `any_hvp`. `orders` has the methods, best first, by the price of a product in gradients. `paid` is
    what a cost counts: calls, samples or seconds.
    """
    if rows.empty or not rows["reached"].max() > 0:
        return "No method reached any of the accuracies." if len(rows) else ""
    if len(rows) == 1:
        only = rows.iloc[0]
        return f"{only['method']} alone was run here; it reached {only['reached']:.0%}."
    if rows["rank"].nunique() == 1:
        why = "" if rows["relative"].min() < math.inf else ": none reached an accuracy in half of its trials"
        return f"All {len(rows)} methods are tied{why}."
    return " ".join(part for part in (_first(rows, paid), _without(rows, paid), _prices(orders)) if part)


def _first(rows: pd.DataFrame, paid: str) -> str:
    least = "Least time" if paid == "seconds" else f"Fewest {paid}"
    best = rows[rows["rank"] == rows["rank"].min()]
    if len(best) > 1:
        return f"{least}: {_names(best['method'])}, tied."
    name, reached, bands = best.iloc[0][["method", "reached", "bands"]]
    said = f"{least}: {name}, {reached:.0%} reached"
    alike = rows.loc[share_a_band(rows, bands) & (rows["method"] != name), "method"]
    return f"{said}; {_names(alike)} cannot be told apart from it." if len(alike) else f"{said}."


def share_a_band(rows: pd.DataFrame, bands: str) -> pd.Series[bool]:
    """Which rows cannot be told apart from one with these bands."""
    return rows["bands"].map(lambda others: not set(bands.split()).isdisjoint(others.split()))


def _without(rows: pd.DataFrame, paid: str) -> str:
    """Nothing where no method multiplies with second derivatives, or all do."""
    gradients = rows[~rows["any_hvp"].astype(bool)]
    if gradients.empty or len(gradients) == len(rows):
        return ""
    best = gradients.iloc[0]
    if best["rank"] == rows["rank"].min():
        return "It needs no second derivatives." if (rows["rank"] == best["rank"]).sum() == 1 else ""
    times = (
        f"{number(best['relative'])} times the least {'time' if paid == 'seconds' else 'cost'}"
        if math.isfinite(best["relative"])
        else "which misses half of the accuracies or more"
    )
    return f"Best without second derivatives: {best['method']}, rank {best['rank']:g}, {times}."


def _prices(orders: Mapping[float, Sequence[str]]) -> str:
    """Whether the price of a product matters for who is first."""
    if len(orders) < 2:
        return ""
    prices = sorted(orders)
    low, high = f"{prices[0]:g}", f"{prices[-1]:g}"
    shown = min(_FIRST, *(len(order) for order in orders.values()))
    if len({tuple(order[:shown]) for order in orders.values()}) == 1:
        who = f"The first {shown} stand" if shown > 1 else "It stands"
        return f"{who} in the same order at every price tried of a product, {low} to {high} gradients."
    leaders = [(name, list(group)) for name, group in itertools.groupby(prices, lambda price: orders[price][0])]
    if len(leaders) == 1:
        return f"Who stands first is the same at every price tried of a product, {low} to {high} gradients."
    said = [f"{name} at {at[0]:g}{f' to {at[-1]:g}' if len(at) > 1 else ''}" for name, at in leaders]
    return f"Who is first depends on what a product costs: of the prices tried, in gradients, {_listed(said)}."


def _names(methods: pd.Series[str]) -> str:
    return _listed([*methods[:_NAMED], *([f"{len(methods) - _NAMED} others"] if len(methods) > _NAMED else [])])


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
