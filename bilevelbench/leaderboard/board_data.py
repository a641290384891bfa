"""What a page needs to rank a board again, at another price of a product or among some of the methods."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.leaderboard.boards import WEIGHTS, Board, json_value
from bilevelbench.report.analysis.ranking import CELL, F64, instances, relative

#: Multiples of the best cost at which the profile is drawn.
TAUS = tuple(float(f"{10 ** (n / 16):.4g}") for n in range(49))


def for_scripts(one: Board) -> dict[str, Any]:
    """The counted cells, each with every method's median cost as a function of the price; methods come as on the board.

    `views` are the methods among which a reader may rank, with their intervals at each price.
    """
    methods = list(one.rows["method"])
    views = {"all": one.intervals, **one.within}
    return {
        "methods": list(one.rows["label"]),
        "problems": one.problems,
        "cells": _cells(one, methods),
        "views": {name: _view(tables, methods) for name, tables in views.items()},
        "profile": _profile(one, methods),
    }


def _cells(one: Board, methods: list[str]) -> list[dict[str, Any]]:
    kept = one.counted
    places = {name: n for n, name in enumerate(methods)}
    cells: dict[tuple[str, float], list[Any]] = {}
    problems = one.problems
    ones, twos = (kept[name].to_numpy(dtype=float) for name in ("first_order", "second_order"))
    groups: dict[Any, Any] = kept.groupby([*CELL, "method"]).indices
    for (problem, target, method), part in groups.items():
        cell = cells.setdefault((problem, target), [-1] * len(methods))
        cell[places[method]] = by_price(ones[part], twos[part])
    return [{"p": problems.index(problem), "t": target, "c": cell} for (problem, target), cell in sorted(cells.items())]


def by_price(first: F64, second: F64) -> Any:
    """The median over trials of first + w second for every price w, as the scripts read it.

    -1 if no trial got there, None if the median is infinite, a number if the price does not matter, and otherwise the
    flat list of a, b, w1, a1, b1, ...: a + b w up to w1, a1 + b1 w from there on.
    """
    met = np.isfinite(first)
    middle = {(len(first) - 1) // 2, len(first) // 2}
    if not met.any():
        return -1
    if met.sum() <= max(middle):
        return None
    lines = np.stack([first[met], second[met]], axis=1)
    pieces: list[Any] = []
    for start, inside in _stretches(lines):
        order = np.lexsort((lines[:, 1], lines @ [1.0, inside]))
        a, b = lines[order[sorted(middle)]].mean(0)
        if not pieces or (a, b) != tuple(pieces[-2:]):
            pieces += [*([start] if pieces else []), float(a), float(b)]
    if len(pieces) == 2 and pieces[1] == 0:
        return json_value(pieces[0])
    return [json_value(v) for v in pieces]


def _stretches(lines: F64) -> list[tuple[float, float]]:
    """Where each stretch of prices begins in which no two lines cross, and a price inside of it."""
    low, high = WEIGHTS[0], WEIGHTS[-1]
    order = np.argsort(lines @ [1.0, low], kind="stable")
    ends = [low, high]
    if (np.diff((lines @ [1.0, high])[order]) < 0).any():
        over, under = (np.subtract.outer(lines[:, n], lines[:, n]) for n in (0, 1))
        at = np.divide(-over, under, out=np.full_like(over, np.nan), where=under != 0)
        ends = [low, *np.unique(at[(at > low) & (at < high)]), high]
    return [(float(a), float((a + b) / 2)) for a, b in itertools.pairwise(ends)]


def _view(tables: dict[float, pd.DataFrame], methods: list[str]) -> dict[str, Any]:
    members = [n for n, method in enumerate(methods) if method in tables[1.0].index]
    intervals = []
    for weight, table in tables.items():
        ordered = table.loc[[methods[n] for n in members]]
        ends = {name: [json_value(v) for v in ordered[name]] for name in ("low", "high")}
        intervals.append({"w": weight, **ends, "bands": list(ordered["bands"])})
    same = all(table is tables[1.0] for table in tables.values())
    return {"members": members, "intervals": [{**intervals[0], "w": None}] if same else intervals}


def _profile(one: Board, methods: list[str]) -> dict[str, Any]:
    """By price, of each method how many (problem, target, trial) it solved within each multiple of the best cost."""
    kept, lines, total = one.counted, [], 0
    for weight in one.intervals:
        table = instances(kept, weight) if len(kept) else pd.DataFrame()
        table = table.reindex(columns=methods, fill_value=np.inf)
        ratio, total = np.sort(relative(table.to_numpy(dtype=float)), axis=0), len(table)
        counts = [np.searchsorted(column, TAUS, side="right").tolist() for column in ratio.T]
        lines.append({"w": weight, "n": counts})
    return {"tau": TAUS, "total": total, "lines": lines}
