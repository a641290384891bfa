"""`bilevelbench tune` on the command line: search, print what was found and what it cost, write the suite to run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilevelbench.cli.console import interruptible, say, terminal, warn_failures
from bilevelbench.cli.options import (
    BudgetLimit,
    Dtype,
    ExecutorName,
    Jobs,
    Json,
    Memory,
    Methods,
    Problems,
    Scheduler,
    StepLimit,
    override,
    suites_of,
)
from bilevelbench.errors import InvalidInput, faults

if TYPE_CHECKING:
    from rich.console import Console

    from bilevelbench.execute.executor import Executor
    from bilevelbench.plan.suite import Suite
    from bilevelbench.plan.trial import Trial
    from bilevelbench.report.analysis.tuning import Tuning
    from bilevelbench.results.schema import Results


def searched_by(suite: Suite, **options: Any) -> Suite:
    """Options that were given win over the suite's table `[tune]`."""
    from pydantic import ValidationError

    from bilevelbench.plan.tuning import Tune

    given = {name: value for name, value in options.items() if value is not None}
    try:
        rule = Tune.model_validate({**suite.tune.model_dump(exclude_unset=True), **given})
    except ValidationError as error:
        raise InvalidInput(faults(error)) from None
    return suite.model_copy(update={"tune": rule})


def tune_suite(suite: Suite, out: Path, executor: Executor, as_json: bool = False) -> None:
    """With `as_json` the record alone goes to standard output, and progress to standard error."""
    from rich.console import Console

    from bilevelbench.cli.progress import run_missing
    from bilevelbench.report.analysis.tuning import TUNING, read_tuning
    from bilevelbench.results.store import Store
    from bilevelbench.studies.tuning.record import BEST, best_suite, tuning_record, write_tuning
    from bilevelbench.studies.tuning.study import run_tuning

    out = out.absolute()
    store, console = Store(out, remember=True), Console(stderr=True, width=160) if as_json else terminal()

    with executor:

        def run(trials: Sequence[Trial]) -> Results:
            return run_missing(console, store, trials, executor)

        done, results = run_tuning(suite, executor.registry, run)
    record = tuning_record(suite, done, results)
    write_tuning(out, record, best_suite(suite, done, record))
    found = read_tuning(out)
    assert found is not None  # it was just written
    drawn = write_figures(found, out)
    if as_json:
        print(json.dumps(record, indent=1, allow_nan=False))
        return
    print_tuning(console, found)
    for path in drawn:
        say(console, f"figure: {path.resolve()}")
    say(console, f"tuning: {(out / TUNING).resolve()}")
    say(console, f"best parameters; run them with: bilevelbench run --suite {out / BEST} -o {out / 'best'}")


def write_figures(tuning: Tuning, folder: Path) -> list[Path]:
    """One per problem, as SVG and PNG; returns the SVGs."""
    from bilevelbench.report.figures import style
    from bilevelbench.report.figures.tuning import tuning_figure

    made = []
    for n, problem in enumerate(tuning.problems, 1):
        figure = tuning_figure(tuning, problem)
        if figure is not None:
            made.append(style.save(figure, folder / f"sensitivity-{n}")[0])
    return made


def print_tuning(console: Console, tuning: Tuning) -> None:
    """One table per problem, in the order of the suite."""
    from rich.table import Table
    from rich.text import Text

    from bilevelbench.report.analysis.tuning import readable, remarks

    people = readable(tuning)
    for problem, rows in people.groupby("problem", sort=False):
        table = Table(title=Text(str(problem)), title_justify="left", box=None, pad_edge=False)
        for column in people.columns[1:]:
            table.add_column(column, justify="left" if column in ("method", "best") else "right", overflow="fold")
        for row in rows.iloc[:, 1:].itertuples(index=False):
            table.add_row(*(Text(str(value)) for value in row))
        console.print(table)
        console.print()
    for remark in remarks(tuning):
        say(console, remark)


def tune(
    method: Methods = None,
    problem: Problems = None,
    suite: Annotated[
        str | None, typer.Option(help="A suite by name, or a TOML file; its table [tune] says how to search.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="What the best setting is chosen by: phi, or a metric of the problem.")
    ] = None,
    search: Annotated[str | None, typer.Option(help="grid, halving, or tpe (extra `tune`).")] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="How many settings are tried, as many for each method.")
    ] = None,
    cost: Annotated[float | None, typer.Option(help="Calls that halving may spend on each method.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many seeds the search uses: 0, 1, ...; what it finds is then run on other seeds."
        ),
    ] = None,
    budget: BudgetLimit = None,
    steps: StepLimit = None,
    dtype: Dtype = None,
    jobs: Jobs = None,
    memory: Memory = None,
    executor: ExecutorName = "local",
    scheduler: Scheduler = None,
    as_json: Json = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder of the search; what it finds is in best.toml there.")
    ] = Path("tuning"),
) -> None:
    """Find parameters with the same budget for every method, and write them as a suite. The same command resumes."""
    out = out.absolute()
    with interruptible():
        from bilevelbench.discovery.registry import registry
        from bilevelbench.execute.executor import Execution

        execution = Execution(executor, jobs, memory, scheduler=scheduler)
        warn_failures(registry())
        workers = execution.open(registry())
        plans = suites_of(registry(), method or [], problem or [], False, suite)
        if len(plans) > 1:
            raise InvalidInput(f"{suite} includes {len(plans)} suites; tune them one by one")
        limits = {"seeds": seeds, "budget": budget, "steps": steps, "seconds": None, "target": None, "dtype": dtype}
        plan = searched_by(override(plans[0], **limits), by=by, search=search, trials=trials, cost=cost)
        tune_suite(plan, out, workers, as_json)
