"""The page: one HTML file with everything inside, for a browser without network."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from bilevelbench.report.figures import convergence
from bilevelbench.report.tables import FAILED, readable, summary
from bilevelbench.results import STATUSES, Results


def write_page(results: Results, path: Path, command: str = "") -> Path:
    """Tables and figures of these results; everything that a plugin or a result says is escaped."""
    environment = Environment(loader=PackageLoader("bilevelbench.report"), autoescape=True, trim_blocks=True)
    table = summary(results)
    people = readable(table)
    problems = []
    for problem in dict.fromkeys(results.runs["problem"]):
        rows = people[table["problem"].str.partition("[")[0] == problem]
        problems.append(
            {
                "name": problem,
                "columns": list(rows.columns),
                "rows": rows.to_numpy().tolist(),
                "figure": Markup(convergence(results, problem)),  # our own SVG: its texts are escaped by matplotlib
            }
        )
    failures = results.runs[results.runs["status"].isin(FAILED)]
    html = environment.get_template("page.html").render(
        trials=len(results.runs),
        methods=results.runs["algorithm"].nunique(),
        problems=problems,
        failures=failures[["algorithm", "problem", "seed", "status", "message"]].to_dict("records"),
        meanings=STATUSES,
        command=command,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    path.write_text(html, encoding="utf-8")
    return path
