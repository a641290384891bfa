"""The page of a method: where it stands, what it reached and with which parameters, and its measured rates."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from urllib.parse import urlencode

from bilevelbench.leaderboard.claims import rate_plot, rate_row
from bilevelbench.leaderboard.collect import MODES, readable_parameters
from bilevelbench.leaderboard.fragments import grouped
from bilevelbench.leaderboard.settings import SETTINGS, budget_words
from bilevelbench.leaderboard.site import Site
from bilevelbench.report.analysis.summary import ACCURACIES, cost_text
from bilevelbench.report.text import printable

#: What tells apart the rows of a method's page.
_ROW = ["method", "mode", "setting", "title"]


class MethodPages:
    """The pages of all methods. Rows are sorted by method once: a grid has a method for each of a thousand settings."""

    def __init__(self, site: Site) -> None:
        self.site = site
        runs = site.runs
        steps = runs["steps"].where(runs["steps"] > 0)
        spent = runs[_ROW].assign(first=runs["first_order"] / steps, second=runs["second_order"] / steps)
        medians = spent.groupby(_ROW)[["first", "second"]].median()
        self._per_step = dict(zip(medians.index, medians.to_numpy(dtype=float).tolist(), strict=True))
        self._params: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
        self._plugins: dict[str, set[str]] = defaultdict(set)
        columns = [*_ROW, "algorithm_params", "plugin", "plugin_version"]
        for *row, params, plugin, version in runs[columns].itertuples(index=False):
            self._params[tuple(row)][params] = None
            self._plugins[row[0]].add(printable(f"{plugin} {version}"))
        self._tables = {key: grouped(table.to_dict("records"), "method") for key, table in site.tables.items()}
        self._standing: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
        for one in site.boards:
            view = urlencode({"mode": one.mode, "setting": one.setting})
            for place in one.standing():
                ranks = self._standing[place["method"]][SETTINGS[one.setting].name]
                ranks[MODES[one.mode]] = {**place, "of": len(one.rows), "view": view}
        self._budgets = {
            f"{SETTINGS[setting].name}, {MODES[mode]}": budget_words(limits)
            for (mode, setting), limits in site.budgets.items()
        }
        self._failures = grouped(site.failures, "method")
        self._environments = grouped(site.environments, "method")

    def page(self, method: str) -> dict[str, Any]:
        site, kind = self.site, self.site.kinds[method]
        results, params = [], []
        for (mode, setting), table in self._tables.items():
            board = f"{SETTINGS[setting].name}, {MODES[mode]}"
            for row in table.get(method, []):
                key = (method, mode, setting, row["problem"])
                costs = [{"value": row[f"cost_to_{eps:g}"], "text": cost_text(row, f"{eps:g}")} for eps in ACCURACIES]
                again = site.again(site.trials(mode, setting, row["problem"], method))
                results.append({**row, **again, "mode": board, "costs": costs, "per_step": self._per_step[key]})
                params += [
                    {"problem": row["problem"], "mode": board, "params": printable(readable_parameters(text))}
                    for text in self._params[key]
                ]
        rates = [
            {**rate_row(site, row), "title": table.title, "plot": rate_plot(row)}
            for table in site.material.rates
            for row in table.rows
            if row["method"] == kind["algorithm"] and method not in site.material.foreign
        ]
        standing = self._standing.get(method, {})
        return {
            "method": method, "kind": kind, "fact": site.fact(method, kind["algorithm"]),
            "results": results, "params": params, "rates": rates, "standing": standing,
            "modes": [mode for mode in MODES.values() if any(mode in ranks for ranks in standing.values())],
            "budgets": {row["mode"]: self._budgets[row["mode"]] for row in results},
            "failures": self._failures.get(method, []), "environments": self._environments.get(method, []),
            "plugin": ", ".join(sorted(self._plugins[method])), "source": site.links.source(kind["source"]),
        }  # fmt: skip
