"""`bilevelbench rates` on the command line: run, print the table, write the figure."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

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
    from bilevelbench.studies.rates.suite import Preset, RateSuite

_PRESETS = ("rate", "theory", "horizon", "tuned")
_RULES = ("mean", "hit")


def measure_suite(
    name: str,
    suite: RateSuite,
    own: bool,
    methods: Sequence[str],
    setting: str | None,
    preset: Preset,
    quick: bool,
    as_json: bool,
    execution: Execution,
    out: Path | None,
) -> None:
    """With `as_json` the rows alone go to standard output, and progress to standard error."""
    from rich.console import Console

    from bilevelbench.cli.progress import run_missing
    from bilevelbench.discovery.registry import registry
    from bilevelbench.results.provenance import when_and_where
    from bilevelbench.results.store import Store
    from bilevelbench.studies.rates.own import check_accuracy, pilots
    from bilevelbench.studies.rates.study import run_rates, wanted, write

    folder, started = (out or Path("results") / name).absolute(), time.monotonic()
    store, console = Store(folder, remember=True), Console(stderr=True, width=160) if as_json else terminal()

    rows_asked = wanted(suite, methods, setting, quick)
    first = (
        pilots(rows_asked, suite, registry(), preset) if own else []
    )  # before workers start: most mistakes show here
    used: set[str] = set()
    with execution.open(registry()) as executor:

        def run(trials: Sequence[Trial]) -> Results:
            used.update(trial.id for trial in trials)
            return run_missing(console, store, trials, executor)

        if first:
            check_accuracy(first, run)
        found = run_rates(suite, registry(), run, methods, quick, preset, setting)
    rows: list[RateRecord] = [m.as_dict() for m in found]
    title = suite.title + (" (quick)" if quick else "")
    write(found, title, when_and_where(store.load().records, used), folder / "rates.json")
    _write_documents(folder, title, rows)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    print_rates(console, title, rows)
    say(console, f"figure: {(folder / 'rates.svg').resolve()}")
    say(console, f"took {time.monotonic() - started:.0f} s; trials that were stored already took none")


def _bundled(table: str) -> tuple[str, RateSuite]:
    """The suite of a table, by its number or its name."""
    from bilevelbench.discovery.registry import registry
    from bilevelbench.studies.rates.suite import RateSuite

    name = f"rates_table{table}" if table.isdigit() else f"rates_{table}"
    if name not in registry().suites:
        known = (s.removeprefix("rates_").removeprefix("table") for s in registry().suites if s.startswith("rates_"))
        raise UnknownName("--table", table, known)
    return name, RateSuite.load(registry().suite(name))


def _write_documents(folder: Path, title: str, rows: Sequence[RateRecord]) -> None:
    from bilevelbench.report.analysis.rates import markdown
    from bilevelbench.report.figures.rates import figure

    (folder / "rates.md").write_text(markdown(title, rows), encoding="utf-8")
    (folder / "rates.svg").write_text(figure(title, rows), encoding="utf-8")


def print_rates(console: Console, title: str, rows: Sequence[RateRecord]) -> None:
    """The paper's table, grouped by oracle, with the measured columns beside the claims, and what they mean."""
    from rich.table import Table
    from rich.text import Text

    from bilevelbench.report.analysis.rates import COLUMNS, LEGEND, cells, notes

    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    before = ""
    for row in rows:
        oracle, *rest = cells(row)
        table.add_row(Text("" if oracle == before else oracle), *(Text(cell) for cell in rest))
        before = oracle
    console.print(table)
    console.print(Text(LEGEND, style="dim"))
    console.print()
    for note in notes(rows):
        console.print(Text(note))


def rates(
    table: Annotated[
        str | None,
        typer.Option(help="A complexity table: 1, 2, 3, kappa, n, dim, samples, theory or chain. Default: 1."),
    ] = None,
    suite: Annotated[str | None, typer.Option(help="Rows of your own, in a TOML file.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-a",
            help="NAME, NAME[param=value] or FILE.py; with --table: only these rows. May be given several times.",
        ),
    ] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(
            "--problem", "-p", help="Measure on this problem instead of a table: NAME, NAME[param=value] or FILE.py."
        ),
    ] = None,
    eps: Annotated[
        str | None, typer.Option(help="The accuracies, LARGEST:SMALLEST; a single one if --over sweeps something else.")
    ] = None,
    over: Annotated[str, typer.Option(help="What is swept: eps, or a number that the problem has.")] = "eps",
    values: Annotated[
        str | None,
        typer.Option(help="The range LOW:HIGH of what is swept; with --preset horizon, of the number of steps."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds of data and noise, two or more. Default: 4.")
    ] = None,
    rule: Annotated[
        str,
        typer.Option(help="What has to be small: mean, of |grad phi| over the steps, or hit, |grad phi| at one step."),
    ] = "mean",
    steps: Annotated[int | None, typer.Option(min=1, help="Steps after which a trial is given up.")] = None,
    setting: Annotated[str | None, typer.Option(help="For table 2: partial or full. Default: both.")] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="rate: the theorem's powers of eps with constants of order one; theory: its constants too; horizon: set by "
            "the number of steps; tuned: rate with the best x-step."
        ),
    ] = "rate",
    quick: Annotated[bool, typer.Option("--quick", help="For a table: shorter ranges and fewer seeds.")] = False,
    as_json: Json = False,
    jobs: Jobs = None,
    memory: Memory = None,
    executor: ExecutorName = "local",
    scheduler: Scheduler = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder of the results.")] = None,
) -> None:
    """Measure how cost grows with accuracy or with a property of the problem, and print it beside what is claimed.

    The same command resumes where it was stopped.
    """
    for name, value, known in (("--preset", preset, _PRESETS), ("--rule", rule, _RULES)):
        if value not in known:
            raise UnknownName(name, value, known)
    out = None if out is None else out.absolute()  # before any plugin is loaded, which may change the working directory
    from bilevelbench.discovery.registry import registry
    from bilevelbench.execute.executor import Execution
    from bilevelbench.studies.rates.own import Asked, own_suite
    from bilevelbench.studies.rates.suite import RateSuite

    execution = Execution(executor, jobs, memory, scheduler=scheduler)
    chosen, methods = cast("Preset", preset), method or []
    of_own = {"--eps": eps, "--values": values, "--seeds": seeds, "--steps": steps, "--over": over != "eps" or None}
    _check_together(of_own, {"--table": table, "--suite": suite, "--setting": setting}, methods, problem or [], quick)
    if problem:
        asked = Asked(
            methods, problem, eps, over, values, 4 if seeds is None else seeds, chosen,
            cast("Literal['mean', 'hit']", rule), steps or Asked.steps,
        )  # fmt: skip
        name, rows, methods = "rates_own", own_suite(registry(), asked), []
    elif suite:
        name, rows = "rates_own", RateSuite.load(registry().suite(suite))
    else:
        name, rows = _bundled(table or "1")
    measure_suite(name, rows, bool(problem or suite), methods, setting, chosen, quick, as_json, execution, out)


def _check_together(
    of_own: Mapping[str, object], of_tables: Mapping[str, object], methods: list[str], problems: list[str], quick: bool
) -> None:
    """Options of one kind of study that stand with the other."""
    given = {name for name, value in {**of_own, **of_tables, "--quick": quick or None}.items() if value is not None}
    if problems:
        if not methods:
            raise InvalidInput("say which methods to measure: -a METHOD, which can be repeated")
        if wrong := sorted(given - set(of_own)):
            raise InvalidInput(f"{wrong[0]} belongs to the bundled tables; leave it out, or leave out --problem")
    elif wrong := sorted(given & set(of_own)):
        raise InvalidInput(f"{wrong[0]} goes with --problem; the rows of a table have it fixed in their suite")
    if of_tables["--table"] is not None and of_tables["--suite"] is not None:
        raise InvalidInput("--table and --suite both name the rows; give one of them")
