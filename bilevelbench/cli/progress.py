"""A run on the command line: live progress on a terminal, a line now and then elsewhere, and the results at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bilevelbench.cli.console import say, terminal
from bilevelbench.display import bar
from bilevelbench.execute.executor import Done, Executor, OnDone
from bilevelbench.execute.run import outstanding, run_packs
from bilevelbench.plan.trial import Trial
from bilevelbench.report.analysis.failures import not_compiled, sentences
from bilevelbench.report.analysis.intervals import ranking
from bilevelbench.report.analysis.metrics import with_metrics
from bilevelbench.report.analysis.summary import (
    MAPPED,
    RANKING,
    TARGETS,
    measure_column,
    readable,
    readable_board,
    start_words,
    summary,
    titled,
)
from bilevelbench.report.analysis.verdicts import Experiment, outcome, record
from bilevelbench.report.contents import Report
from bilevelbench.report.write import write_report
from bilevelbench.results.reached import is_mapping
from bilevelbench.results.schema import Results
from bilevelbench.results.store import Store

#: How many methods of the ranking, kinds of failures and methods on a problem are shown; the page has them all.
_FIRST, _FAILURES, _ROWS = 5, 20, 100


def run_with_progress(
    trials: Sequence[Trial],
    out: Path,
    executor: Executor,
    command: str = "",
    experiments: Sequence[Experiment] = (),
) -> Results:
    """Run what is missing in `out`, then print tables, the verdicts on `experiments`, the ranking and what failed."""
    store = Store(out)
    out = store.folder
    console = terminal()
    for experiment in experiments:  # first, so that a run that was stopped is known to lack trials
        record(experiment, out)
    wanted = {trial.id for trial in trials}
    results = run_missing(console, store, trials, executor)
    chosen = results.only(wanted)
    print_table(console, chosen)
    outcomes = [outcome(experiment, chosen, out) for experiment in experiments]
    for one in outcomes:
        say(console, one.figure.title)
        for verdict in one.verdicts:
            say(console, f"  {verdict.claim}: {verdict.sentence}")
    write_report(Report(chosen, experiments=outcomes), "html", out, out / "index.html", command)
    say(console, f"tables: {out / 'runs.parquet'}, {out / 'curve.parquet'}")
    say(console, f"page: {out / 'index.html'}")
    print_ranking(console, chosen)
    print_failures(console, chosen)
    for sentence in not_compiled(chosen.runs)[:_FAILURES]:
        say(console, f"note: {sentence}")
    return chosen


def run_missing(console: Console, store: Store, trials: Sequence[Trial], executor: Executor) -> Results:
    """Run what the store does not hold, and report progress."""
    results, wanted = _run_once(console, store, trials, executor)
    if not wanted <= set(results.runs["trial_id"]):
        # A table that is damaged inside is only found when it is read; it is known now, and its trials run again.
        results, _ = _run_once(console, store, trials, executor)
    return results


def _run_once(
    console: Console, store: Store, trials: Sequence[Trial], executor: Executor
) -> tuple[Results, frozenset[str]]:
    todo = outstanding(trials, store, executor)
    for warning in store.warnings:
        say(console, f"warning: {warning}")
    told = _count(len(todo.wanted), "trial")
    if todo.trials < len(todo.wanted):
        told += f", {len(todo.wanted) - todo.trials} of them stored already"
    packs = len(todo.packs)
    where = f"{todo.trials} to run in {_count(packs, 'pack')}, {executor.where(packs)}" if packs else "nothing to run"
    say(console, f"{told}; {where} -> {store.folder}")
    with _reporter(console, todo.trials) as report:
        return run_packs(todo.packs, store, executor, report), todo.wanted


def _count(n: int, thing: str, plural: str = "s") -> str:
    return f"{n} {thing}{'' if n == 1 else plural}"


@contextmanager
def _reporter(console: Console, total: int) -> Iterator[OnDone]:
    statuses: Counter[str] = Counter()
    best: dict[str, tuple[str, float]] = {}

    def note(done: Done) -> str:
        """How trials ended so far, and the best method on the problem that was just run."""
        statuses.update(done.statuses)
        text = ", ".join(f"{n} {s}" for s, n in sorted(statuses.items()))
        for problem, seen in done.best.items():
            best[problem] = min(seen, best.get(problem, seen), key=lambda pair: pair[1])
            text += f"; best on {problem}: {best[problem][0]}, {best[problem][1]:.1e}"
        return text

    finished = 0
    with bar(console, "trials", total, counted=True) as tell:

        def report(done: Done) -> None:
            nonlocal finished
            finished += done.trials
            tell(finished, note(done))

        yield report


def print_ranking(console: Console, results: Results) -> None:
    """The first methods over all problems; nothing where there is one method, and a sentence where nothing tells them apart."""
    if titled(results.runs)["method"].nunique() < 2:
        return
    found = ranking(results, TARGETS)
    if not (found["reached"] > 0).any():
        say(console, "No method reached an accuracy that counts, so there is no ranking.")
        return
    board = readable_board(found)
    room = console.width - 2 * len(board.columns) - sum(max(len(c), 10) for c in board.columns if c != "method")
    table = Table(title=Text(RANKING), title_justify="left", box=None, pad_edge=False)
    for column in board.columns:
        table.add_column(Text(column), justify="left" if column == "method" else "right", no_wrap=True)
    for row in board.head(_FIRST).itertuples(index=False):
        cells = zip(board.columns, map(str, row), strict=True)
        table.add_row(*(Text(_at_commas(text, max(16, room)) if name == "method" else text) for name, text in cells))
    console.print(table)
    if len(board) > _FIRST:
        say(console, f"{_count(len(board) - _FIRST, 'more method')} on the page")


def print_failures(console: Console, results: Results) -> None:
    """A sentence for each way in which trials failed."""
    told = sentences(results.runs)
    for sentence in told[:_FAILURES]:
        say(console, f"failed: {sentence}")
    if len(told) > _FAILURES:
        say(console, f"failed: {_count(len(told) - _FAILURES, 'more kind')} of failure on the page")


def print_table(console: Console, results: Results) -> None:
    """One table per problem, best method first; the page has all rows.

    Numbers are never broken; a method's name only at its commas.
    """
    exact = summary(results)
    people = readable(exact)
    for problem, rows in people.groupby("problem", sort=False):
        if (rows[measure_column(rows)] == "–").all():  # the problem's metrics are then all that there is to see
            rows = with_metrics(results, exact[exact["problem"] == problem], rows)
        columns = [c for c in rows.columns if c != "problem" and (c != "trials" or console.width >= 100)]
        rest = sum(2 + max(_width(_header(c)), *map(_width, rows[c].astype(str))) for c in columns[1:-1])
        ended = min(24, max(map(len, rows["ended"])))
        room = max(16, console.width - rest - ended - 2)
        table = Table(title=Text(str(problem)), title_justify="left", box=None, pad_edge=False)
        for column in columns:
            words = column in ("method", "ended")
            table.add_column(
                Text(_header(column)), justify="left" if words else "right", no_wrap=column != "ended", vertical="top",
                overflow="fold",
            )  # fmt: skip
        for row in rows[columns].head(_ROWS).itertuples(index=False):
            method, *others = map(str, row)
            table.add_row(Text(_at_commas(method, room)), *(Text(value) for value in others))
        console.print(table)
        if len(rows) > _ROWS:
            more = len(rows) - _ROWS
            say(
                console,
                f"{_count(more, 'more method')} on {problem}: {'it is' if more == 1 else 'they are'} on the page",
            )
        console.print()
    if told := start_words(exact):
        say(console, f"{told[0].upper()}{told[1:]}.")
    if mapped := int(is_mapping(results.runs).sum()):
        say(console, MAPPED.format(f"In {mapped} of {len(results.runs)} trials"))


def _header(column: str) -> str:
    """On two lines where it has two parts; the names of metrics have underscores."""
    return re.sub(r"(cost to|HVP \+|\|grad) |(?<=_)(?=\w)", r"\1\n", column)


def _width(text: str) -> int:
    return max(map(len, text.splitlines()), default=0)


def _at_commas(text: str, room: int) -> str:
    """The same text on lines of at most `room`: broken at commas, and cut on the left where that does not do."""
    lines = [""]
    for part in text.replace(",", ",\0").split("\0"):
        if lines[-1].strip() and len(lines[-1]) + len(part) > room:
            lines.append("  ")
        lines[-1] += part
    return "\n".join(line if len(line) <= room else "…" + line[1 - room :] for line in lines)
