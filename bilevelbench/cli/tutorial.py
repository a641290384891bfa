"""`bilevelbench tutorial`: four commands, each shown, explained and run, in a folder of their own."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

#: What a command is for, and the command.
STEPS = (
    (
        "Run two methods on one problem, with 3000 calls each. A row says how close a method came and what that cost.",
        "run -a f2ba -a aid -p 'quadratic[dim_x=5]' --budget 3000 --seeds 2 --jobs 0 -o out",
    ),
    ("Write a method of your own: one file that already works and says what to change.", "new method mine --file"),
    ("Check it. A check that fails says what was expected, what was seen and how to fix it.", "check mine.py"),
    (
        "Run it beside the others. They are stored and not run again; the page in out/index.html has all three.",
        "run -a mine.py -a f2ba -a aid -p 'quadratic[dim_x=5]' --budget 3000 --seeds 2 --jobs 0 -o out",
    ),
)


def tutorial(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to work in, which is kept. Default: a temporary one.")
    ] = None,
) -> None:
    """Walk through four commands: run two methods, write one of your own, check it, and compare it with them."""
    folder = Path(tempfile.mkdtemp(prefix="bilevelbench-tutorial-")) if out is None else out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    typer.echo(f"Four commands, in {folder}. Each takes a few seconds.")
    for number, (sentence, command) in enumerate(STEPS, 1):
        typer.echo(f"\n{number}. {sentence}\n\n$ bilevelbench {command}\n")
        if sys.stdin.isatty():
            typer.prompt("Press Enter to run it", default="", show_default=False, prompt_suffix=" ")
        done = subprocess.run([sys.executable, "-m", "bilevelbench", *shlex.split(command)], cwd=folder, check=False)
        if done.returncode:
            typer.echo(
                f"this command ended with {done.returncode}; `bilevelbench doctor` looks for the reason", err=True
            )
            raise typer.Exit(1)
    page = folder / "out" / "index.html"
    typer.echo(
        f"\nThat is all. Open {page} in a browser, change {folder / 'mine.py'} and run the last command again."
        f"\nDelete {folder} when you are done."
    )
