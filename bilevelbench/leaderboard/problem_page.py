"""The page of a problem: its result in a sentence, its curves, a table for each board that it is on, and what failed on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from bilevelbench.leaderboard.collect import MODES
from bilevelbench.leaderboard.facts import problem_facts
from bilevelbench.leaderboard.settings import SETTINGS, budget_words
from bilevelbench.leaderboard.site import Site
from bilevelbench.report.analysis.metrics import with_metrics
from bilevelbench.report.analysis.summary import EPS, NORM, exact_rows, readable, span
from bilevelbench.report.text import number
from bilevelbench.untrusted import slug

#: So many curves a problem's page starts with, if it has them: the best of each family, and the next best.
_CURVES = 5
#: Methods whose medians of all these are equal took the same way.
_WAY = ("best_grad_phi", "phi", "first_order", "second_order", "cost")


def problem_page(site: Site, title: str) -> dict[str, Any]:
    name = str(site.runs.loc[site.runs["title"] == title, "problem"].iloc[0])
    boards = {
        key: cheapest_first(table[table["problem"] == title])
        for key, table in site.tables.items()
        if (table["problem"] == title).any()
    }
    families = {method: kind["family"] for method, kind in site.kinds.items()}
    return {
        "title": title, "name": name, "fact": problem_facts(site.material.facts, name),
        "setting": site.kind_of(title),
        "tables": [_table(site, title, *key, rows) for key, rows in boards.items()],
        "script": f"data/problem-{slug(title)}.js", "csv": f"csv/curve-{slug(title)}.csv",
        "chosen": chosen_curves(next(iter(boards.values())), families),
        "failures": [row for row in site.failures if row["title"] == title],
        "hvp": site.material.facts.get("hvp_ratio", {}).get(name),
    }  # fmt: skip


def _table(site: Site, title: str, mode: str, setting: str, exact: pd.DataFrame) -> dict[str, Any]:
    people = with_metrics(site.on_problem[mode, setting][title], exact, readable(exact).drop(columns="problem"))
    rows = [
        {"cells": cells, **site.again(site.trials(mode, setting, title, method))}
        for method, cells in zip(exact["method"], exact_rows(exact, people), strict=True)
    ]
    several = f"{SETTINGS[setting].name}, " if len(site.settings[title]) > 1 else ""
    second = setting == "second-order"
    shown = {NORM: "smallest |∇φ|", EPS: "ε of both conditions"}
    start = span(exact["low_start"].min(), exact["high_start"].max())
    unit = site.paid[mode, setting]
    return {
        "name": several + MODES[mode], "columns": [(c, shown.get(c, c)) for c in people.columns], "rows": rows,
        "answer": problem_answer(exact, site.kinds, unit, second),
        "caption": _caption(people, second, start, unit == "seconds"),
        "budget": budget_words({title: site.budgets[mode, setting].get(title, set())}),
    }  # fmt: skip


def _caption(people: pd.DataFrame, second: bool, start: str, timed: bool) -> str:
    """What the columns that are there mean."""
    if not any(column.startswith("cost to ") for column in people.columns):
        return "Medians over trials, by the problem's own metrics at the end: the norm of the hypergradient was not evaluated."
    held = (
        "the ε for which both conditions of second-order stationarity hold"
        if second
        else "the norm of the hypergradient"
    )
    said = (
        f"Medians over trials. Costs are {'seconds' if timed else 'oracle calls (samples where they are random)'} to a share "
        f"of {held} at the start, "
        f"{start} here; "
        '"7 of 10" and "never" say how many trials got there; methods stand in the order of their cost to the finest share '
        "that they reach in the median"
    )
    if people.isin(["not certified"]).to_numpy().any():
        said += ', "not certified" that it cannot be told, since the problem does not bound the error of the norm'
    return said + "."


def cheapest_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of a summary by the cost to the finest accuracy, then to the next; where nothing was reached, in their own order."""
    costs = _finest_first(rows)
    return rows.sort_values(costs, kind="stable") if costs else rows


def _finest_first(rows: pd.DataFrame) -> list[str]:
    """The columns of costs to an accuracy."""
    return [column for column in rows.columns if column.startswith("cost_to_")][::-1]


def problem_answer(rows: pd.DataFrame, kinds: Mapping[str, Mapping[str, str]], unit: str, second: bool = False) -> str:
    """Who gets furthest for the least, as sentences that hold for these rows of a summary, one for each method."""
    what = "ε" if second else "|∇φ|"
    columns = _finest_first(rows)
    for column in columns:
        cost = rows.set_index("method")[column]
        there = cost[cost < math.inf].sort_values(kind="stable")
        if len(there):
            return " ".join(
                [_cheapest(_goal(column), there, len(rows), kinds, unit), *_without(there, rows, kinds, unit)]
            )
    smallest = rows.loc[rows["best_grad_phi"] < math.inf].sort_values("best_grad_phi", kind="stable")
    if smallest.empty:
        return "No trial has a norm of the hypergradient that counts."
    best = smallest.iloc[0]
    least = f"the smallest {what}, {number(best['best_grad_phi'])}, is that of {_titles([best['method']], kinds)}"
    if (rows["uncertified"] == rows["trials"] - rows["failed"]).all() and (rows["uncertified"] > 0).any():
        return f"No accuracy counts as reached, since the problem does not bound the error of the norm; {least}."
    return f"No method reaches {_goal(columns[-1]) if columns else 'an accuracy'} in half of its trials; {least}."


def _goal(column: str) -> str:
    return f"relative accuracy {column.removeprefix('cost_to_')}"


def _cheapest(goal: str, there: pd.Series[float], count: int, kinds: Mapping[str, Mapping[str, str]], unit: str) -> str:
    least = there.iloc[0]
    first = _titles([str(m) for m in there.index[there == least]], kinds)
    if count == 1:
        return f"{first} alone was run here; it reaches {goal} after {number(least)} {unit}."
    said = f"{_word(unit)} to {goal}: {first}, {number(least)} {unit}"
    if len(there) == 1:
        return f"{said}; no other of {count} methods gets there in the median."
    return f"{said}; {'all' if len(there) == count else len(there)} of {count} methods get there in the median."


def _word(unit: str) -> str:
    return "Fastest" if unit == "seconds" else "Cheapest"


def _without(
    there: pd.Series[float], rows: pd.DataFrame, kinds: Mapping[str, Mapping[str, str]], unit: str
) -> list[str]:
    """The best without second derivatives, where the best has some; nothing where all methods are of one kind."""
    free = [m for m in rows["method"] if kinds[m]["oracle"] == "gradient"]
    winners = [m for m in there.index if there[m] == there.iloc[0]]
    if not free or len(free) == len(rows) or set(winners) & set(free):
        return []
    mine = there[[m for m in there.index if m in set(free)]]
    if mine.empty:
        return ["In the median no method without second derivatives gets there."]
    more = "as long" if unit == "seconds" else "as many"
    times = f"{number(mine.iloc[0] / there.iloc[0])} times {more}" if there.iloc[0] > 0 else f"{number(mine.iloc[0])}"
    return [f"{_word(unit)} without second derivatives: {_titles([str(mine.index[0])], kinds)}, {times}."]


def _titles(methods: Sequence[str], kinds: Mapping[str, Mapping[str, str]]) -> str:
    names = [kinds[m]["title"] for m in methods]
    shown = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} others"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def chosen_curves(rows: pd.DataFrame, family_of: Mapping[str, str]) -> list[str]:
    """The best of each family, then the next best, and never two that took the same way; `rows` have the best first."""
    ways: dict[tuple[float, ...], str] = {}
    for row in rows.to_dict("records"):
        ways.setdefault(tuple(row[name] for name in _WAY), str(row["method"]))
    methods = list(ways.values())
    firsts = list({family_of[m]: m for m in reversed(methods)}.values())
    others = [m for m in methods if m not in firsts]
    wanted = {*firsts, *others[: max(0, _CURVES - len(firsts))]}
    return [m for m in methods if m in wanted]
