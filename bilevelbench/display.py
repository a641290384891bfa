"""How far something has come: a bar in a terminal and in a notebook, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

#: Seconds between two lines where nobody watches.
PAUSE = 10.0

#: Told how much is done, and a few words on it; None leaves what was said before.
Tell = Callable[[float | None, str], None]


def is_watched(console: Console) -> bool:
    """Whether somebody sees a bar move."""
    return console.is_terminal or console.is_jupyter


@contextmanager
def shown(what: str, total: float, progress: bool | None, counted: bool = False) -> Iterator[Tell]:
    """On stderr, if `progress` asks for it or, where it is None, if somebody watches."""
    console = Console(stderr=True)
    if progress or (progress is None and is_watched(console)):
        with bar(console, what, total, counted) as tell:
            yield tell
    else:
        yield lambda done, now: None


@contextmanager
def bar(console: Console, what: str, total: float, counted: bool = False) -> Iterator[Tell]:
    """`counted`: the total is a number of things that are called `what`; otherwise it is a share."""
    if not is_watched(console):
        yield _Lines(console, what, total, counted)
        return
    line = Column(no_wrap=True, overflow="ellipsis")
    columns = (
        TextColumn(what, markup=False), BarColumn(bar_width=20), MofNCompleteColumn() if counted else TaskProgressColumn(),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[now]}", markup=False, table_column=line),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("", total=total, now="starting")
        yield lambda done, now: display.update(task, completed=done, now=now)


class _Lines:
    """A line every `PAUSE` seconds, and one at the end."""

    def __init__(self, console: Console, what: str, total: float, counted: bool) -> None:
        self._console, self._what, self._total, self._counted = console, what, total, counted
        self._began = self._said = time.monotonic()
        self._done = 0.0

    def __call__(self, done: float | None, now: str) -> None:
        self._done = self._done if done is None else done
        at, is_over = time.monotonic(), self._done >= self._total
        if not is_over and at - self._said < PAUSE:
            return
        self._said, took = at, at - self._began
        left = ""
        if 0 < self._done < self._total:
            left = f", about {_span(took * (self._total - self._done) / self._done)} left"
        share = f"{self._done / self._total:.0%}"
        come = f"{self._done:.0f}/{self._total:.0f} {self._what}" if self._counted else f"{self._what} {share}"
        self._console.print(Text(f"{come}, {_span(took)}{left}: {now}"), soft_wrap=True)


def _span(seconds: float) -> str:
    """Two digits of a time are enough for an estimate."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
