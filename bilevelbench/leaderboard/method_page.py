"""The page of a method: where it stands, what it reached and with which parameters, and its measured rates."""

from __future__ import annotations

from typing import Any

from bilevelbench.leaderboard.collect import MODES, readable_parameters
from bilevelbench.leaderboard.fragments import rate_plot, rate_row
from bilevelbench.leaderboard.settings import SETTINGS
from bilevelbench.leaderboard.site import Site
from bilevelbench.report.analysis.summary import ACCURACIES, cost_text
from bilevelbench.report.text import printable


def method_page(site: Site, method: str) -> dict[str, Any]:
    runs = site.runs[site.runs["method"] == method]
    kind = site.kinds[method]
    fact = site.fact(method, kind["algorithm"])
    results, params = [], []
    for (mode, setting), table in site.tables.items():
        board = f"{SETTINGS[setting].name}, {MODES[mode]}"
        for row in table[table["method"] == method].to_dict("records"):
            chosen = (runs["mode"] == mode) & (runs["setting"] == setting) & (runs["title"] == row["problem"])
            mine = runs[chosen]
            steps = mine["steps"].where(mine["steps"] > 0)
            again: dict[Any, Any] = {**site.again(list(mine["trial_id"])), "mode": board}
            results.append(
                {
                    **row, **again,
                    "costs": [
                        {
                            "value": row[f"cost_to_{eps:g}"],
                            "text": cost_text(row, f"{eps:g}"),
                        }
                        for eps in ACCURACIES
                    ],
                    "per_step": [float((mine[c] / steps).median()) for c in ("first_order", "second_order")],
                }
            )  # fmt: skip
            for text in dict.fromkeys(mine["algorithm_params"]):
                params.append(
                    {"problem": row["problem"], "mode": board, "params": printable(readable_parameters(text))}
                )
    rates = [
        {**rate_row(row), "title": table.title, "plot": rate_plot(row)}
        for table in site.material.rates
        for row in table.rows
        if row["method"] == kind["algorithm"] and method not in site.material.foreign
    ]
    standing = [
        {"mode": MODES[b.mode], "setting": SETTINGS[b.setting].name, "of": len(b.rows), **row}
        for b in site.boards
        for row in b.rows[b.rows["method"] == method].to_dict("records")
    ]
    return {
        "method": method, "kind": kind, "fact": fact, "results": results, "params": params, "rates": rates,
        "standing": standing, "failures": site.failures_of(runs), "environments": site.environments(method),
        "plugin": ", ".join(sorted({printable(f"{p} {v}") for p, v in zip(runs["plugin"], runs["plugin_version"],
                                                                         strict=True)})),
    }  # fmt: skip
