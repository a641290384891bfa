"""A run on the command line: live progress on a terminal, plain lines elsewhere, and the table at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bilevelbench.api import run_trials
from bilevelbench.executor import Done, Progress as Report, default_jobs
from bilevelbench.pack import plan
from bilevelbench.registry import Registry
from bilevelbench.report.page import write_page
from bilevelbench.report.tables import readable, summary
from bilevelbench.results import Results
from bilevelbench.store import Store
from bilevelbench.trial import Trial


def run_with_progress(
    trials: Sequence[Trial],
    out: Path,
    plugins: Registry,
    jobs: int | None = None,
    memory: float | None = None,
    timed: bool = False,
    command: str = "",
) -> Results:
    """Run what is missing in `out`, then print the table and say where the page is."""
    store = Store(out)
    console = Console(width=None if sys.stdout.isatty() else 160)  # a log file is as wide as the table
    done = store.done()
    for problem in store.problems:
        console.print(Text(f"warning: {problem}"))
    missing = [trial for trial in trials if trial.id not in done]
    packs = len(missing) if timed else len(plan(missing, plugins))
    workers = 1 if timed else min(default_jobs() if jobs is None else jobs, max(packs, 1))
    told = f"{len(trials)} trials"
    if len(missing) < len(trials):
        told += f", {len(trials) - len(missing)} of them stored already"
    console.print(f"{told}; {len(missing)} to run in {packs} packs, {workers or 'no'} worker processes -> {out}", highlight=False)
    with _reporter(console, len(missing)) as report:
        results = run_trials(trials, store, plugins, workers, report, memory, alone=timed)
    wanted = {trial.id for trial in trials}
    chosen = Results(
        results.runs[results.runs["trial_id"].isin(wanted)],
        results.curve[results.curve["trial_id"].isin(wanted)],
        results.records,
    )
    print_table(console, chosen)
    page = write_page(chosen, out / "index.html", command)
    console.print(f"tables: {out / 'runs.parquet'}, {out / 'curve.parquet'}", highlight=False, soft_wrap=True)
    console.print(f"page: {page.resolve()}", highlight=False, soft_wrap=True)
    return chosen


@contextmanager
def _reporter(console: Console, total: int) -> Iterator[Report]:
    statuses: Counter[str] = Counter()
    best: dict[str, tuple[str, float]] = {}

    def note(done: Done) -> str:
        statuses.update(done.statuses)
        for problem, seen in done.best.items():
            if seen[1] < best.get(problem, ("", float("inf")))[1]:
                best[problem] = seen
        return ", ".join(f"{n} {s}" for s, n in sorted(statuses.items()))

    if console.is_terminal:
        columns = (
            TextColumn("trials"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[now]}", markup=False),
        )  # fmt: skip
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total, now="starting")

            def live(done: Done) -> None:
                text = note(done)
                leader = "; ".join(f"{p}: {m} {v:.1e}" for p, (m, v) in best.items())
                bar.update(task, advance=done.trials, now=f"{text}  best {leader}")

            yield live
        return
    began, finished = time.monotonic(), 0

    def plain(done: Done) -> None:
        nonlocal finished
        finished += done.trials
        console.print(f"{finished}/{total} trials, {time.monotonic() - began:.0f} s: {note(done)}", highlight=False)

    yield plain


def print_table(console: Console, results: Results) -> None:
    """One table a problem, best method first."""
    people = readable(summary(results))
    for problem, rows in people.groupby("problem", sort=False):
        table = Table(title=Text(str(problem)), title_justify="left", box=None, pad_edge=False)
        columns = [c for c in people.columns if c != "problem"]
        for column in columns:
            table.add_column(Text(column), justify="left" if column in ("method", "ended") else "right", overflow="fold")
        for row in rows[columns].itertuples(index=False):
            table.add_row(*(Text(str(value)) for value in row))
        console.print(table)
        console.print()


