"""The board as a heat map of methods by problems, who beats whom, and expected running times: cells of tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from bilevelbench.leaderboard.boards import Board, curve_name
from bilevelbench.report.analysis.ranking import by_problem, medians, power, uncounted, wins
from bilevelbench.report.analysis.summary import span
from bilevelbench.report.text import number, superscripts

#: Who beats whom is shown for so many methods at most: the table grows with their square, and a grid has a thousand.
_MOST_BEATEN = 60
#: Costs over the best one's at which the colour of a cell changes; board.js has them too.
LEVELS = (1.05, 2.0, 5.0, 10.0, 30.0, 100.0)


def level(ratio: float) -> int:
    """0 for the best, 6 for more than a hundred times its cost."""
    return sum(ratio > limit for limit in LEVELS)


def ratio_text(ratio: float) -> str:
    """1.0, 3.4, 45, 1,200: short enough for a cell."""
    return f"{ratio:.1f}" if ratio < 10 else number(ratio)


def short_names(problems: Sequence[str]) -> list[str]:
    """Problems without their parameters, where that tells them apart: a column of the board has no room for more."""
    short = [problem.partition("[")[0] for problem in problems]
    return [name if short.count(name) == 1 else problem for name, problem in zip(short, problems, strict=True)]


def heat_map(one: Board, problem_file: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """By method a cell for each problem: its text, colour, what a reader is told beside it and where its curve is."""
    ratios, times = by_problem(one.costs), _running_times(one)
    count = one.counted.drop_duplicates(["problem", "target"]).groupby("problem").size()
    middle = medians(one.counted).lt(math.inf).groupby(level="problem").sum()
    middle = middle.reindex(columns=list(one.rows["method"]), fill_value=0)  # also where nothing is counted
    out: dict[str, list[dict[str, Any]]] = {}
    for method in one.rows["method"]:
        names = [curve_name(name, one.mode) for name in one.merged.of(method)]
        state = urlencode([("m", name) for name in names])
        cells = []
        for problem in one.problems:
            ratio = float(ratios.loc[method, problem]) if method in ratios.index else math.nan
            reached = int(middle.loc[problem, method]) if problem in middle.index else 0
            told = f"{reached} of {count[problem]} accuracies" if problem in count else "no accuracy is counted"
            cells.append(
                {
                    "value": ratio if math.isfinite(ratio) else math.inf,
                    "text": ratio_text(ratio) if math.isfinite(ratio) else "",
                    "level": level(ratio) if math.isfinite(ratio) else "",
                    "told": told + times.get((problem, method), ""),
                    "link": f"{problem_file[problem]}#{state}",
                }
            )
        out[method] = cells
    return out


def _running_times(one: Board) -> dict[tuple[str, str], str]:
    """By problem and method the expected running time to the finest accuracy that a trial reached."""
    table = one.times
    finest = table[table["successes"] > 0].sort_values("target").drop_duplicates(["problem", "method"])
    keys = zip(finest["problem"], finest["method"], strict=True)
    values = zip(finest["expected"], finest["target"], strict=True)
    return {
        key: f"; expected running time {number(expected)} to {superscripts(power(target))}"
        for key, (expected, target) in zip(keys, values, strict=True)
    }


def win_matrix(one: Board) -> list[tuple[str, list[dict[str, Any]]]]:
    """By method, as on the board: the share of counted cells on which it beats each other one, and if they are `apart`."""
    rows = one.rows.head(_MOST_BEATEN)
    methods = list(rows["method"])
    shares = wins(one.costs).reindex(index=methods, columns=methods, fill_value=0.0).to_numpy()
    bands = [set(text.split()) for text in rows["bands"]]
    return [
        (
            label,
            [{"share": shares[n, m], "self": n == m, "apart": not bands[n] & bands[m]} for m in range(len(methods))],
        )
        for n, label in enumerate(rows["label"])
    ]


def running_time_tables(one: Board) -> list[dict[str, Any]]:
    """For each problem the accuracies, also as norms, and by method the expected running time to each."""
    absolute = one.costs.groupby(["problem", "target"])["absolute"].agg(["min", "max"])
    lost = uncounted(one.costs)
    missing = set(zip(lost["problem"], lost["target"], strict=True))
    found = {
        (problem, target, method): (expected, successes, trials)
        for problem, target, method, trials, successes, expected in one.times.itertuples(index=False)
    }
    out = []
    for problem in one.problems:
        targets = sorted(absolute.loc[problem].index, reverse=True)
        heads = [
            {
                "power": superscripts(power(t)),
                "norm": _norm(*absolute.loc[(problem, t)]),
                "counted": (problem, t) not in missing,
            }
            for t in targets
        ]
        rows = [
            (label, [_time(*found.get((problem, t, method), (math.inf, 0, 0))) for t in targets])
            for method, label in zip(one.rows["method"], one.rows["label"], strict=True)
        ]
        out.append({"problem": problem, "heads": heads, "rows": rows})
    return out


def _norm(low: float, high: float) -> str:
    return span(low, high) if math.isfinite(low) else "unknown"


def _time(expected: float, successes: int, trials: int) -> dict[str, Any]:
    """An expected running time; how many trials got there is shown where not all did."""
    return {
        "value": expected,
        "text": number(expected) if math.isfinite(expected) else "never",
        "some": f"{successes} of {trials}" if 0 < successes < trials else "",
    }
