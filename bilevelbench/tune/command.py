"""`bilevelbench tune` on the command line: search, print what was found and what it cost, write the suite to run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bilevelbench.errors import InvalidInput
from bilevelbench.executor import lasting_workers
from bilevelbench.progress import run_missing, say, terminal
from bilevelbench.registry import Registry, faults
from bilevelbench.report import figures
from bilevelbench.report.tuning import Tuning, read_tuning, readable, remarks, sensitivity_figure
from bilevelbench.results import Results
from bilevelbench.store import Store
from bilevelbench.suite import Suite
from bilevelbench.trial import Trial
from bilevelbench.tune.run import tune
from bilevelbench.tune.settings import Tune
from bilevelbench.tune.write import BEST, TUNING, best_suite, tuning_record, write_tuning


def searched_by(suite: Suite, **options: Any) -> Suite:
    """Options that were given win over the suite's table `[tune]`."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        rule = Tune.model_validate({**suite.tune.model_dump(exclude_unset=True), **given})
    except ValidationError as error:
        raise InvalidInput(faults(error)) from None
    return suite.model_copy(update={"tune": rule})


def tune_suite(suite: Suite, out: Path, plugins: Registry, jobs: int | None = None, as_json: bool = False) -> None:
    """With `as_json` the record alone goes to standard output, and progress to standard error."""
    out = out.absolute()
    store, console = Store(out), Console(stderr=True, width=160) if as_json else terminal()

    with lasting_workers(jobs) as workers:

        def run(trials: Sequence[Trial]) -> Results:
            results = run_missing(console, store, trials, plugins, jobs, executor=workers)
            if not {trial.id for trial in trials} <= set(results.runs["trial_id"]):  # a damaged table, found by reading
                results = run_missing(console, store, trials, plugins, jobs, executor=workers)
            return results

        done, results = tune(suite, plugins, run)
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
    """One a problem, as SVG and PNG; the SVGs."""
    made = []
    for n, problem in enumerate(tuning.problems, 1):
        figure = sensitivity_figure(tuning, problem)
        if figure is not None:
            made.append(figures.save(figure, folder / f"sensitivity-{n}")[0])
    return made


def print_tuning(console: Console, tuning: Tuning) -> None:
    """One table a problem, in the order of the suite."""
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
