"""What lies beside the pages: data for their scripts, tables to download, and pictures."""

from __future__ import annotations

import pandas as pd

from bilevelbench.leaderboard import boards
from bilevelbench.leaderboard.board_data import for_scripts
from bilevelbench.leaderboard.collect import MODES
from bilevelbench.leaderboard.fragments import script_json
from bilevelbench.leaderboard.settings import SETTINGS
from bilevelbench.leaderboard.site import Site
from bilevelbench.report.comma_table import comma_table
from bilevelbench.report.figures.experiment import experiment_figure
from bilevelbench.report.figures.style import svg_file
from bilevelbench.untrusted import slug


def scripts(site: Site) -> dict[str, str]:
    head = "window.BILEVELBENCH = window.BILEVELBENCH || {};\nwindow.BILEVELBENCH."
    merged = {b.merged.label(first): b.merged.of(first) for b in site.boards for first in b.merged.members}
    titles = {label: " = ".join(site.kinds[name]["title"] for name in names) for label, names in merged.items()}
    data = {
        "boards": {b.key: for_scripts(b) for b in site.boards},
        "looks": {
            **site.looks,
            **{label: {**site.looks[merged[label][0]], "title": title} for label, title in titles.items()},
        },
    }
    out = {"data/board.js": f"{head}board = {script_json(data)};\n"}
    drawn = {mode: results.grouped(site.title_of) for mode, results in site.drawn().items()}
    for title in site.titles:
        here = {mode: groups[title] for mode, groups in drawn.items() if title in groups}
        curves = boards.curves(site.runs[site.runs["title"] == title], here, site.looks)
        out[f"data/problem-{slug(title)}.js"] = f"{head}curves = {script_json(curves)};\n"
    return out


def downloads(site: Site) -> dict[str, str]:
    out = {"csv/runs.csv": comma_table(site.runs.drop(columns="title"))}
    for one in site.boards:
        columns = ["label", "algorithm", "rank", "low", "high", "bands", "mean_rank", "relative", "reached",
                   "trials", "failed"]  # fmt: skip
        out[f"csv/board-{one.key}.csv"] = comma_table(one.rows[columns].rename(columns={"label": "method"}))
        out[f"csv/costs-{one.key}.csv"] = comma_table(one.costs)
        out[f"csv/running-time-{one.key}.csv"] = comma_table(one.times)
    by_problem = {mode: results.grouped(site.title_of) for mode, results in site.results.items()}
    for title in site.titles:
        parts = []
        for mode, groups in by_problem.items():
            if title not in groups:
                continue
            mine = site.runs[(site.runs["title"] == title) & (site.runs["mode"] == mode)]
            chosen = groups[title].curve
            parts.append(chosen.merge(mine[["trial_id", "method", "seed", "mode"]], on="trial_id"))
        table = pd.concat([p for p in parts if not p.empty] or parts[:1], ignore_index=True)
        out[f"csv/curve-{slug(title)}.csv"] = comma_table(table, "%.10g")
    rows = [
        {"title": table.title, **{k: v for k, v in row.items() if not isinstance(v, list)}}
        for table in site.material.rates
        for row in table.rows
    ]
    if rows:
        out["csv/rates.csv"] = comma_table(pd.DataFrame(rows))
    return out


def download_list(site: Site) -> list[tuple[str, str]]:
    """What is not of one board: (file, what it holds)."""
    out = [("csv/runs.csv", f"every trial: {len(site.runs):,} rows")]
    out += [("csv/rates.csv", "measured exponents")] if site.material.rates else []
    return [*out, *((f"csv/curve-{slug(title)}.csv", f"curves on {title}") for title in site.titles)]


def board_downloads(site: Site) -> list[tuple[str, list[tuple[str, str]]]]:
    """(board, its files and what each holds)."""
    holds = {"board": "ranks", "costs": "cost of each trial", "running-time": "expected running times"}
    return [
        (
            f"{SETTINGS[one.setting].name}, {MODES[one.mode]}",
            [(f"csv/{name}-{one.key}.csv", what) for name, what in holds.items()],
        )
        for one in site.boards
    ]


def figures(site: Site) -> dict[str, str]:
    return {picture(n): svg_file(experiment_figure(one)) for n, one in enumerate(site.material.experiments)}


def picture(n: int) -> str:
    return f"figures/experiment-{n}.svg"
