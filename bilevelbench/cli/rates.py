"""`bilevelbench rates` on the command line: run, print the table, write the figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bilevelbench.cli.console import say, terminal
from bilevelbench.cli.options import ExecutorName, Jobs, Json, Memory, Scheduler
from bilevelbench.errors import InvalidInput, UnknownName

if TYPE_CHECKING:
    from rich.console import Console

    from bilevelbench.execute.executor import Execution
    from bilevelbench.plan.trial import Trial
    from bilevelbench.report.analysis.rates import RateRecord
    from bilevelbench.results.schema import Results


def measure_table(
    table: int,
    over: str,
    setting: str | None,
    methods: Sequence[str],
    preset: str,
    quick: bool,
    as_json: bool,
    execution: Execution,
    out: Path | None,
) -> None:
    """With `as_json` the rows alone go to standard output, and progress to standard error."""
    from rich.console import Console

    from bilevelbench.cli.progress import run_missing
    from bilevelbench.discovery.registry import registry
    from bilevelbench.results.store import Store
    from bilevelbench.studies.rates.study import run_rates, write
    from bilevelbench.studies.rates.suite import RateSuite

    name = f"rates_table{table}" + ("_kappa" if over == "kappa" else "")
    # before any plugin is loaded, which may change the working directory
    folder = (out or Path("results") / name).absolute()
    if name not in registry().suites:
        known = sorted(s.removeprefix("rates_") for s in registry().suites if s.startswith("rates_"))
        raise InvalidInput(f"there are no rates for table {table} over {over}; choose from {', '.join(known)}")
    suite = RateSuite.load(registry().suite(name))
    store, console = Store(folder), Console(stderr=True, width=160) if as_json else terminal()

    with execution.open(registry()) as executor:

        def run(trials: Sequence[Trial]) -> Results:
            return run_missing(console, store, trials, executor)

        found = run_rates(suite, registry(), run, methods, quick, preset, setting)
    rows: list[RateRecord] = [m.as_dict() for m in found]
    title = suite.title + (" (quick)" if quick else "")
    write(found, title, folder / "rates.json")
    _write_documents(folder, title, rows)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    print_rates(console, title, rows)
    say(console, f"figure: {(folder / 'rates.svg').resolve()}")


def _write_documents(folder: Path, title: str, rows: Sequence[RateRecord]) -> None:
    from bilevelbench.report.analysis.rates import markdown
    from bilevelbench.report.figures.rates import figure

    (folder / "rates.md").write_text(markdown(title, rows), encoding="utf-8")
    (folder / "rates.svg").write_text(figure(title, rows), encoding="utf-8")


def print_rates(console: Console, title: str, rows: Sequence[RateRecord]) -> None:
    """The paper's table, grouped by oracle, with the measured columns beside the claims."""
    from rich.table import Table
    from rich.text import Text

    from bilevelbench.report.analysis.rates import COLUMNS, cells, notes

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


def rates(
    table: Annotated[int, typer.Option(help="A complexity table of the paper.")] = 1,
    over: Annotated[str, typer.Option(help="eps, or kappa for the condition number.")] = "eps",
    setting: Annotated[str | None, typer.Option(help="Of table 2: partial or full. Default: both.")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", "-a", help="Only these methods; repeatable.")] = None,
    preset: Annotated[
        str,
        typer.Option(help="rate: the theorem's powers of eps with constants of order one; theory: its constants too."),
    ] = "rate",
    quick: Annotated[bool, typer.Option("--quick", help="Shorter ranges and fewer seeds: two minutes.")] = False,
    as_json: Json = False,
    jobs: Jobs = None,
    memory: Memory = None,
    executor: ExecutorName = "local",
    scheduler: Scheduler = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the results.")] = None,
) -> None:
    """Measure the exponents that a table claims, and print them beside the claims."""
    for name, value, known in (("--over", over, ("eps", "kappa")), ("--preset", preset, ("rate", "theory"))):
        if value not in known:
            raise UnknownName(name, value, known)
    from bilevelbench.execute.executor import Execution

    execution = Execution(executor, jobs, memory, scheduler=scheduler)
    measure_table(table, over, setting, method or [], preset, quick, as_json, execution, out)
