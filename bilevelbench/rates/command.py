"""`bilevelbench rates` on the command line: run, print the table, write the figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bilevelbench.errors import InvalidInput
from bilevelbench.executor import lasting_workers
from bilevelbench.progress import run_missing, say, terminal
from bilevelbench.rates.run import run_rates, write
from bilevelbench.rates.suite import RateSuite
from bilevelbench.registry import registry
from bilevelbench.report.rates import COLUMNS, Row, cells, figure, markdown, notes
from bilevelbench.results import Results
from bilevelbench.store import Store
from bilevelbench.trial import Trial


def measure_table(
    table: int,
    over: str,
    setting: str | None,
    methods: Sequence[str],
    preset: str,
    quick: bool,
    as_json: bool,
    jobs: int | None,
    out: Path | None,
) -> None:
    """With `as_json` the rows alone go to standard output, and progress to standard error."""
    name = f"rates_table{table}" + ("_kappa" if over == "kappa" else "")
    folder = (
        out or Path("results") / name
    ).absolute()  # before any plugin is loaded, which may change the working directory
    plugins = registry()
    if name not in plugins.suites:
        known = sorted(s.removeprefix("rates_") for s in plugins.suites if s.startswith("rates_"))
        raise InvalidInput(f"there are no rates for table {table} over {over}; there is {', '.join(known)}")
    suite = RateSuite.load(plugins.suite(name))
    store, console = Store(folder), Console(stderr=True, width=160) if as_json else terminal()

    with lasting_workers(jobs) as workers:

        def run(trials: Sequence[Trial]) -> Results:
            return run_missing(console, store, trials, plugins, jobs, executor=workers)

        found = run_rates(suite, plugins, run, methods, quick, preset, setting)
    rows: list[Row] = [m.as_dict() for m in found]
    title = suite.title + (" (quick)" if quick else "")
    write(found, title, folder / "rates.json")
    (folder / "rates.md").write_text(markdown(title, rows), encoding="utf-8")
    (folder / "rates.svg").write_text(figure(title, rows), encoding="utf-8")
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    print_rates(console, title, rows)
    say(console, f"figure: {(folder / 'rates.svg').resolve()}")


def print_rates(console: Console, title: str, rows: Sequence[Row]) -> None:
    """The paper's table, grouped by oracle, with the measured columns beside the claims."""
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    before = ""
    for row in rows:
        oracle, *rest = cells(row)
        table.add_row(Text("" if oracle == before else oracle), *(Text(cell) for cell in rest))
        before = oracle
    console.print(table)
    console.print()
    for note in notes(rows):
        console.print(Text(note))
