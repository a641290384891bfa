"""What the command line says."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from bilevelbench.untrusted import visible

if TYPE_CHECKING:
    from rich.console import Console

    from bilevelbench.discovery.registry import Registry

INTERRUPTED = "interrupted; what was finished is stored, and the same command continues from there"


def warn(sentence: object) -> None:
    typer.echo(visible(f"warning: {sentence}"), err=True)


def warn_failures(registry: Registry) -> None:
    for failure in registry.failures:
        warn(failure)


def show(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        print_rows(title, rows)


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        typer.echo(f"{title}: none")
        return
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "family", "oracle"))
    for row in rows:
        table.add_row(*(Text(visible(str(value))) for value in row.values()))
    Console().print(table)


@contextmanager
def interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED, err=True)
        raise typer.Exit(130) from None


def terminal() -> Console:
    """As wide as the terminal, or as COLUMNS says; a log file is as wide as the table."""
    from rich.console import Console

    free = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(width=None if free else 160)


def say(console: Console, text: str) -> None:
    """One line, however long, exactly as it is."""
    from rich.text import Text

    console.print(Text(visible(text)), soft_wrap=True)


def say_cut(console: Console, text: str) -> None:
    """One line, cut off where the terminal ends."""
    from rich.text import Text

    console.print(Text(visible(text)), overflow="ellipsis", no_wrap=True)
