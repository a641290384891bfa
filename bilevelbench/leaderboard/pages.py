"""The pages of the site and the files beside them, by name: what `build` writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from bilevelbench.leaderboard import boards
from bilevelbench.leaderboard.boards import Board, make_board
from bilevelbench.leaderboard.collect import (
    MODES,
    Material,
    method_facts,
    parameters,
    problem_facts,
    provenance,
)
from bilevelbench.leaderboard.fragments import (
    bands,
    exact_text,
    hvp_ratio,
    number_text,
    polyline,
    rate_plot,
    rate_row,
    rate_table,
    script_json,
    slug,
    times,
)
from bilevelbench.leaderboard.settings import SETTINGS, budget_words, of_setting, settings, standing_words
from bilevelbench.model.family import FAMILIES, family_of
from bilevelbench.report.analysis.failures import failures
from bilevelbench.report.analysis.summary import ACCURACIES, cost_text, exact_cell, readable, summary, titled
from bilevelbench.report.figures.experiment import CAPTION, experiment_figure
from bilevelbench.report.figures.style import svg_file
from bilevelbench.report.formats.text import printable
from bilevelbench.results import reached
from bilevelbench.results.schema import Results, runs_frame
from bilevelbench.results.status import Status


@dataclass
class Site:
    """All files of the site from its material."""

    material: Material
    command: str
    looks: dict[str, dict[str, Any]] = field(default_factory=dict)

    def files(self) -> dict[str, str]:
        results = {mode: r for mode, r in self.material.results.items() if not r.runs.empty}
        self.results = results
        self.runs = pd.concat(
            [
                titled(r.runs).assign(mode=mode, setting=settings(r, self.material.facts).to_numpy())
                for mode, r in results.items()
            ]
            or [titled(runs_frame([])).assign(mode="", setting="")],
            ignore_index=True,
        )
        self.origin = {k: v for r in results.values() for k, v in provenance(r).items()}
        self.titles = list(dict.fromkeys(sorted(self.runs["title"])))
        self.methods = sorted(set(self.runs["method"]))
        self._unique_names()
        self.kinds = self._kinds()
        self.looks = self._looks()
        self.ratio = hvp_ratio(self.material.facts)
        self.settings = {
            title: [name for name in SETTINGS if name in set(group)]
            for title, group in self.runs.groupby("title")["setting"]
        }
        self.parts = dict(self._parts())
        self.boards = [
            make_board(part, mode, setting, self._titles(mode, setting), self.ratio)
            for (mode, setting), part in self.parts.items()
        ]
        self.tables = {key: summary(part) for key, part in self.parts.items()}
        environment = Environment(
            loader=PackageLoader("bilevelbench.leaderboard"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
        )
        environment.filters["number"] = number_text
        environment.filters["exact"] = exact_text
        environment.filters["times"] = times
        self.jinja = environment
        return {**self._pages(), **self._scripts(), **self._downloads(), **self._figures()}

    # ---- what is shared by the pages

    def _unique_names(self) -> None:
        """Links; two names that differ only in what a file name cannot show get different files."""
        self.problem_file = {title: f"problem/{slug(title)}.html" for title in self.titles}
        self.method_file = {method: f"method/{slug(method)}.html" for method in self.methods}

    def _kinds(self) -> dict[str, dict[str, str]]:
        """Family and oracle kind of each method: as declared, else as the meter saw it."""
        out = {}
        for method, group in self.runs.groupby("method"):
            algorithm = str(group["algorithm"].iloc[0])
            fact = method_facts(self.material.facts, algorithm)
            seen = "HVP" if (group["second_order"] > 0).any() else "gradient"
            oracle = fact["oracle"]
            family = str(fact["family"])
            out[str(method)] = {
                "algorithm": algorithm,
                "oracle": oracle if oracle in ("gradient", "HVP") else seen,
                "declared": "yes" if oracle in ("gradient", "HVP") else "",
                "family": family_of(family),
                "family_name": family or "not declared",
            }
        return out

    def _looks(self) -> dict[str, dict[str, Any]]:
        """Colour by family; dash and marker tell the methods of a family apart."""
        count: Counter[str] = Counter()
        out = {}
        for method in self.methods:
            family = self.kinds[method]["family"]
            out[method] = {"family": family, "dash": count[family] % 4, "marker": count[family] % 5}
            count[family] += 1
        return out

    def _parts(self) -> Iterator[tuple[tuple[str, str], Results]]:
        """The trials of each mode and setting, held to the accuracy of that setting."""
        for mode, setting in ((m, s) for m in self.results for s in SETTINGS):
            mine = self.runs[(self.runs["mode"] == mode) & (self.runs["setting"] == setting)]
            if not mine.empty:
                yield (mode, setting), of_setting(self.results[mode], mine["trial_id"], setting)

    def _titles(self, mode: str, setting: str) -> list[str]:
        mine = self.runs[(self.runs["mode"] == mode) & (self.runs["setting"] == setting)]
        return sorted(set(mine["title"]))

    # ---- pages

    def _pages(self) -> dict[str, str]:
        shared = {
            "nav": [
                ("index.html", "Overview"),
                ("tables.html", "The paper's tables"),
                ("experiments.html", "The paper's experiments"),
                ("counting.html", "How it is counted"),
                ("data.html", "Data"),
            ],
            "lead": self._lead(),
            "command": printable(self.command),
            "notes": self.material.notes,
            "problem_file": self.problem_file,
            "method_file": self.method_file,
            "kinds": self.kinds,
            "families": [f for f in FAMILIES if any(k["family"] == f for k in self.kinds.values())],
            "ratio": self.ratio,
            "accuracies": [f"{eps:g}" for eps in ACCURACIES],
        }
        rates = [rate_table(table) for table in self.material.rates]
        pages = {
            "index.html": self._render("index.html", "", shared, boards=[self._board(b) for b in self.boards],
                                       settings_names={key: s.name for key, s in SETTINGS.items()}, modes=MODES,
                                       rates=rates, titles=self.titles,
                                       problem_settings={t: self._kind_of(t) for t in self.titles},
                                       measured=self.material.facts.get("hvp_ratio", {})),
            "tables.html": self._render("tables.html", "", shared, rates=rates),
            "experiments.html": self._render("experiments.html", "", shared, caption=CAPTION,
                                             experiments=self._experiments()),
            "counting.html": self._render("counting.html", "", shared, statuses=list(Status),
                                          failed=[status for status in Status if status.failed],
                                          weights=[f"{w:g}" for w in boards.WEIGHTS]),
            "data.html": self._render("data.html", "", shared, environments=self._environments(),
                                      confirmed=sum(int((r.confirmations() > 1).sum()) for r in self.results.values()),
                                      downloads=self._download_list()),
        }  # fmt: skip
        for title in self.titles:
            pages[self.problem_file[title]] = self._render("problem.html", "../", shared, **self._problem(title))
        for method in self.methods:
            pages[self.method_file[method]] = self._render("method.html", "../", shared, **self._method(method))
        return pages

    def _render(self, template: str, root: str, shared: Mapping[str, Any], **values: Any) -> str:
        return self.jinja.get_template(template).render(root=root, page=template, **shared, **values)

    def _lead(self) -> dict[str, Any]:
        origins = [o for ones in self.origin.values() for o in ones]
        dates = sorted({o["date"] for o in origins if o["date"]})
        return {
            "trials": len(self.runs),
            "methods": len(self.methods),
            "problems": len(self.titles),
            "failed": int(reached.failed(self.runs).sum()),
            "dates": f"{dates[0]} to {dates[-1]}"
            if len(dates) > 1
            else (dates or ["on a day that was not recorded"])[0],
            "machines": sorted({f"{o['cpu']}, {o['cores']} cores" for o in origins if o["cpu"]})[:3],
            "commits": sorted({c for o in origins for c in o["commit"].split(", ") if c})[:3],
        }

    def _board(self, one: Board) -> dict[str, Any]:
        part = self.parts[one.mode, one.setting]
        sparks = boards.sparklines(part, sorted(one.costs["problem"].unique()))
        lowest = min((min(s) for s in sparks.values()), default=-1.0)
        rows = []
        n = len(one.rows)
        for record in one.rows.to_dict("records"):
            row: dict[str, Any] = {str(key): value for key, value in record.items()}
            trial_ids = one.runs.loc[one.runs["method"] == row["method"], "trial_id"]
            dates = sorted({o["date"] for t in trial_ids for o in self.origin.get(t, []) if o["date"]})
            spark = sparks.get(row["method"])
            rows.append(
                {
                    **row,
                    **self.kinds[row["method"]],
                    "bar": ((row["low"] - 1) / max(n - 1, 1) * 56 + 2, (row["high"] - row["low"]) / max(n - 1, 1) * 56),
                    "mark": (row["rank"] - 1) / max(n - 1, 1) * 56 + 2,
                    "spark": polyline(spark, min(lowest, -0.5)) if spark else "",
                    "fell": spark[-1] if spark else None,
                    "date": dates[-1] if dates else "",
                }
            )
        return {
            "key": one.key, "mode": one.mode, "setting": one.setting, "rows": rows,
            "problems": sorted(one.costs["problem"].unique()), "count": n,
            "seeds": int(one.runs.groupby(["title", "method"]).size().max()),
            "profile": boards.profile_table(one), "bands": bands([row["group"] for row in rows]),
            "text": self._board_text(one, part),
        }  # fmt: skip

    def _board_text(self, one: Board, part: Results) -> str:
        """What the setting is, the budget, and who stands there and why."""
        claims = {
            str(row["method"]): method_facts(self.material.facts, str(row["algorithm"]))["claims"]
            for row in one.rows.sort_values("method").to_dict("records")
        }
        said = (
            SETTINGS[one.setting].what, budget_words(part, part.runs["trial_id"]), standing_words(one.setting, claims)
        )  # fmt: skip
        return printable(" ".join(said))

    def _kind_of(self, title: str) -> str:
        """`deterministic`, or `deterministic and second-order` for a problem on two boards."""
        return " and ".join(SETTINGS[name].name for name in self.settings[title])

    def _problem(self, title: str) -> dict[str, Any]:
        name = str(self.runs.loc[self.runs["title"] == title, "problem"].iloc[0])
        fact = problem_facts(self.material.facts, name)
        tables = []
        for (mode, setting), table in self.tables.items():
            exact = table[table["problem"] == title]
            if exact.empty:
                continue
            people = readable(exact).drop(columns="problem")
            rows = [
                [(c, v, exact_cell(exact.iloc[i], c)) for c, v in zip(people.columns, row, strict=True)]
                for i, row in enumerate(people.itertuples(index=False))
            ]
            several = f"{SETTINGS[setting].name}, " if len(self.settings[title]) > 1 else ""
            measure = {"|grad phi|": "eps of both conditions"} if setting == "second-order" else {}
            columns = [(c, measure.get(c, c)) for c in people.columns]
            uncertified = people.isin(["not certified"]).to_numpy().any()
            tables.append({"name": several + MODES[mode], "setting": setting, "columns": columns, "rows": rows,
                           "uncertified": uncertified})  # fmt: skip
        ranked = self._ranked(title)
        return {
            "title": title, "name": name, "fact": fact, "setting": self._kind_of(title), "tables": tables,
            "script": f"data/problem-{slug(title)}.js", "csv": f"csv/curve-{slug(title)}.csv", "chosen": ranked[:6],
            "failures": self._failures(self.runs[self.runs["title"] == title]),
            "hvp": self.material.facts.get("hvp_ratio", {}).get(name),
        }  # fmt: skip

    def _ranked(self, title: str) -> list[str]:
        """Methods on the problem, best first: those that the figure starts with."""
        table = next(t for t in self.tables.values() if (t["problem"] == title).any())
        return list(table.loc[table["problem"] == title, "method"])

    def _method(self, method: str) -> dict[str, Any]:
        runs = self.runs[self.runs["method"] == method]
        kind = self.kinds[method]
        fact = method_facts(self.material.facts, kind["algorithm"])
        results, params = [], []
        for (mode, setting), table in self.tables.items():
            board = f"{SETTINGS[setting].name}, {MODES[mode]}"
            for row in table[table["method"] == method].to_dict("records"):
                chosen = (runs["mode"] == mode) & (runs["setting"] == setting) & (runs["title"] == row["problem"])
                mine = runs[chosen]
                steps = mine["steps"].where(mine["steps"] > 0)
                results.append(
                    {
                        **row, "mode": board,
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
                    params.append({"problem": row["problem"], "mode": board, "params": printable(parameters(text))})
        rates = [
            {**rate_row(row), "title": table.title, "plot": rate_plot(row)}
            for table in self.material.rates
            for row in table.rows
            if row["method"] == kind["algorithm"]
        ]
        standing = [
            {"mode": MODES[b.mode], "setting": SETTINGS[b.setting].name, "of": len(b.rows), **row}
            for b in self.boards
            for row in b.rows[b.rows["method"] == method].to_dict("records")
        ]
        return {
            "method": method, "kind": kind, "fact": fact, "results": results, "params": params, "rates": rates,
            "standing": standing, "failures": self._failures(runs), "environments": self._environments(method),
            "plugin": ", ".join(sorted({printable(f"{p} {v}") for p, v in zip(runs["plugin"], runs["plugin_version"],
                                                                             strict=True)})),
        }  # fmt: skip

    def _experiments(self) -> list[dict[str, Any]]:
        return [
            {
                "title": printable(one.figure.title), "claim": printable(one.figure.claim), "verdicts": one.verdicts,
                "tuning": one.tuning, "id": f"experiment-{n}", "picture": _picture(n),
            }
            for n, one in enumerate(self.material.experiments)
        ]  # fmt: skip

    def _figures(self) -> dict[str, str]:
        return {_picture(n): svg_file(experiment_figure(one)) for n, one in enumerate(self.material.experiments)}

    def _failures(self, runs: pd.DataFrame) -> list[dict[str, Any]]:
        """One row for all trials that failed alike; each with its sentence."""
        table = failures(runs, "mode")
        return table.assign(mode=table["mode"].map(MODES)).to_dict("records")  # type: ignore[return-value]

    def _environments(self, method: str | None = None) -> list[dict[str, Any]]:
        runs = self.runs if method is None else self.runs[self.runs["method"] == method]
        keys = ("date", "commit", "cpu", "cores", "python", "torch", "version", "from")
        unknown = dict.fromkeys(keys, "")
        counts: Counter[tuple[str, ...]] = Counter()
        for trial_id, name in zip(runs["trial_id"], runs["method"], strict=True):
            for origin in self.origin.get(trial_id, [unknown]):
                counts[(name, *(origin[key] for key in keys))] += 1
        return [
            {"method": key[0], **dict(zip(keys, key[1:], strict=True)), "trials": n}
            for key, n in sorted(counts.items())
        ]

    # ---- data

    def _scripts(self) -> dict[str, str]:
        head = "window.BILEVELBENCH = window.BILEVELBENCH || {};\nwindow.BILEVELBENCH."
        data = {
            "boards": {b.key: boards.for_scripts(b) for b in self.boards},
            "looks": self.looks,
            "oracles": {m: k["oracle"] for m, k in self.kinds.items()},
        }
        out = {"data/board.js": f"{head}board = {script_json(data)};\n"}
        for title in self.titles:
            curves = boards.curves(self.runs[self.runs["title"] == title], self.results, self.looks)
            out[f"data/problem-{slug(title)}.js"] = f"{head}curves = {script_json(curves)};\n"
        return out

    def _downloads(self) -> dict[str, str]:
        out = {"csv/runs.csv": self.runs.drop(columns="title").to_csv(index=False)}
        for one in self.boards:
            columns = ["method", "algorithm", "rank", "low", "high", "group", "mean_rank", "relative", "reached",
                       "trials", "failed", "hvps"]  # fmt: skip
            out[f"csv/board-{one.key}.csv"] = one.rows[columns].to_csv(index=False)
            out[f"csv/costs-{one.key}.csv"] = one.costs.to_csv(index=False)
        for title in self.titles:
            parts = []
            for mode, r in self.results.items():
                mine = self.runs[(self.runs["title"] == title) & (self.runs["mode"] == mode)]
                chosen = r.only(mine["trial_id"]).curve
                parts.append(chosen.merge(mine[["trial_id", "method", "seed", "mode"]], on="trial_id"))
            table = pd.concat([p for p in parts if not p.empty] or parts[:1], ignore_index=True)
            out[f"csv/curve-{slug(title)}.csv"] = table.to_csv(index=False, float_format="%.10g")
        rows = [
            {"title": table.title, **{k: v for k, v in row.items() if not isinstance(v, list)}}
            for table in self.material.rates
            for row in table.rows
        ]
        if rows:
            out["csv/rates.csv"] = pd.DataFrame(rows).to_csv(index=False)
        return out

    def _download_list(self) -> list[tuple[str, str]]:
        out = [("csv/runs.csv", f"every trial: {len(self.runs)} rows")]
        for one in self.boards:
            name = f"{MODES[one.mode]}, {SETTINGS[one.setting].name}"
            out.append((f"csv/board-{one.key}.csv", f"the board, {name}"))
            out.append((f"csv/costs-{one.key}.csv", f"cost of each trial to each accuracy, {name}"))
        out += [(f"csv/curve-{slug(title)}.csv", f"curves on {title}") for title in self.titles]
        return [*out, *([("csv/rates.csv", "measured exponents")] if self.material.rates else [])]


def _picture(n: int) -> str:
    return f"figures/experiment-{n}.svg"
