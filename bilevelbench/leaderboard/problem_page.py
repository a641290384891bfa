"""The page of a problem: a table for each board that it is on, its curves and what failed on it."""

from __future__ import annotations

from typing import Any

from bilevelbench.leaderboard.collect import MODES
from bilevelbench.leaderboard.facts import problem_facts
from bilevelbench.leaderboard.settings import SETTINGS
from bilevelbench.leaderboard.site import Site
from bilevelbench.report.analysis.summary import exact_rows, readable
from bilevelbench.untrusted import slug


def problem_page(site: Site, title: str) -> dict[str, Any]:
    name = str(site.runs.loc[site.runs["title"] == title, "problem"].iloc[0])
    fact = problem_facts(site.material.facts, name)
    tables = []
    for (mode, setting), table in site.tables.items():
        exact = table[table["problem"] == title]
        if exact.empty:
            continue
        people = readable(exact).drop(columns="problem")
        rows = [
            {"cells": cells, **site.again(site.trials(mode, setting, title, method))}
            for method, cells in zip(exact["method"], exact_rows(exact, people), strict=True)
        ]
        several = f"{SETTINGS[setting].name}, " if len(site.settings[title]) > 1 else ""
        measure = {"|grad phi|": "eps of both conditions"} if setting == "second-order" else {}
        columns = [(c, measure.get(c, c)) for c in people.columns]
        uncertified = people.isin(["not certified"]).to_numpy().any()
        tables.append({"name": several + MODES[mode], "setting": setting, "columns": columns, "rows": rows,
                       "uncertified": uncertified})  # fmt: skip
    ranked = _ranked(site, title)
    return {
        "title": title, "name": name, "fact": fact, "setting": site.kind_of(title), "tables": tables,
        "script": f"data/problem-{slug(title)}.js", "csv": f"csv/curve-{slug(title)}.csv", "chosen": ranked[:6],
        "failures": [row for row in site.failures if row["title"] == title],
        "hvp": site.material.facts.get("hvp_ratio", {}).get(name),
    }  # fmt: skip


def _ranked(site: Site, title: str) -> list[str]:
    """Methods on the problem, best first: those that the figure starts with."""
    table = next(t for t in site.tables.values() if (t["problem"] == title).any())
    return list(table.loc[table["problem"] == title, "method"])
