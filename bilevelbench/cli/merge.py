"""`bilevelbench merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bilevelbench.cli.console import warn


def merge(
    folders: Annotated[list[Path], typer.Argument(help="Folders of results.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder that gets all of them.")],
    compact: Annotated[
        bool, typer.Option("--compact", help="Join packs: one for each folder, day and environment.")
    ] = False,
) -> None:
    """Put results of several folders into one; the same trial with numbers that differ by more than rounding is refused."""
    from bilevelbench.results.merge import merge as merge_folders
    from bilevelbench.results.store import Store

    done = merge_folders(folders, out, compact)
    total = len(Store(out).publish().runs)
    for sentence in done.skipped:
        warn(f"left out: {sentence}")
    packs = f"{done.packs} pack{'' if done.packs == 1 else 's'}"
    confirmed = f"{done.confirmed} were run before on another machine, " if done.confirmed else ""
    typer.echo(
        f"{out} holds {total} trials now: {done.trials} are new, from {packs}, {confirmed}"
        f"and {done.duplicates} were there already, with the same numbers up to rounding"
    )
