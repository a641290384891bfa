"""The command line: thin; every command does its work elsewhere. Nothing imports torch before a command needs it."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from bilevelbench.cli.check import check
from bilevelbench.cli.console import INTERRUPTED
from bilevelbench.cli.data import data
from bilevelbench.cli.doctor import doctor
from bilevelbench.cli.leaderboard import leaderboard
from bilevelbench.cli.list_info import info, list_
from bilevelbench.cli.merge import merge
from bilevelbench.cli.new import new
from bilevelbench.cli.rates import rates
from bilevelbench.cli.report import report
from bilevelbench.cli.run import run
from bilevelbench.cli.tune import tune
from bilevelbench.cli.tutorial import tutorial
from bilevelbench.cli.verify import reproduce, verify
from bilevelbench.engine.agents.torchrun import under_torchrun
from bilevelbench.errors import BilevelbenchError
from bilevelbench.untrusted import visible

_FIRST = """\
bilevelbench compares methods for bilevel optimisation and counts every call that they make.

To begin with:  bilevelbench tutorial         four commands, explained and run, in a temporary folder
Example:        bilevelbench run -a f2ba -a aid -p quadratic --budget 3000 -o out
What there is:  bilevelbench list             methods, problems, suites
One of them:    bilevelbench info f2ba        equations, parameters, claims
Your own:       bilevelbench new method mine --file
Everything:     bilevelbench --help
"""

#: New objects between two searches for garbage among them, and how many searches of a younger kind between two of an older one;
#: the oldest kind looks through everything. Python's own numbers are 700, 10 and 10.
_BETWEEN_COLLECTIONS = (10_000, 10, 100)

app = typer.Typer(
    name="bilevelbench",
    help="Benchmarks for bilevel optimisation whose counts can be trusted.",
    epilog="Examples: `bilevelbench tutorial`\n\n`bilevelbench run --all`\n\n"
    "`bilevelbench run -a f2ba -p quadratic --steps 100 -o out`\n\n`bilevelbench report out --format md`",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def first(
    context: typer.Context,
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Benchmarks for bilevel optimisation whose counts can be trusted."""
    if context.invoked_subcommand is None:
        typer.echo(_FIRST, nl=False)


app.command(epilog="Example: `bilevelbench tutorial`")(tutorial)

app.add_typer(data, name="data")
app.add_typer(leaderboard, name="leaderboard")

_RUN_EXAMPLES = (
    "Examples: `bilevelbench run --all`\n\n"
    "`bilevelbench run -a 'f2ba[K=3,lam=10,100]' -p 'quadratic[dim_x=5]' --steps 50 --seeds 2 -o out`\n\n"
    "`bilevelbench run -a my_method.py -a f2ba -p quadratic --budget 10000 --target 1e-2 -o out`"
)

app.command(epilog=_RUN_EXAMPLES)(run)

app.command(
    epilog="Examples: `bilevelbench tune -a f2ba -a aid -p quadratic --budget 2000 --trials 36 -o tuning`\n\n"
    "`bilevelbench tune -a 'f2ba[lam=10,100,eta_x=0.1,1]' -p quadratic --search halving --cost 20000 -o halving`\n\n"
    "`bilevelbench run --suite tuning/best.toml -o tuned`"
)(tune)

app.command("list", epilog="Example: `bilevelbench list methods --json`")(list_)

app.command(epilog="Example: `bilevelbench info f2ba`")(info)

app.command(epilog="Example: `bilevelbench rates --table 1 --quick`")(rates)

app.command(
    epilog="Examples: `bilevelbench report out --format md`\n\n`bilevelbench report out --format latex -o paper/`"
)(report)

app.command(epilog="Examples: `bilevelbench check my_method.py`\n\n`bilevelbench check --all --json`")(check)

app.command(epilog="Examples: `bilevelbench new method my_method --file`\n\n`bilevelbench new problem my_problem`")(new)

app.command(epilog="Example: `bilevelbench merge out tuned -o both`")(merge)

app.command(
    epilog="Examples: `bilevelbench verify out --sample 3`\n\n`bilevelbench verify out --against both --seed 7`"
)(verify)

app.command(epilog="Example: `bilevelbench reproduce 007c29450581af9b results`")(reproduce)

app.command(epilog="Example: `bilevelbench doctor --json`")(doctor)


@app.command(epilog="Example: `bilevelbench version`")
def version() -> None:
    """Print the version, as `--version` does."""
    import bilevelbench

    typer.echo(bilevelbench.__version__)


def parser() -> Any:
    """The command with all its verbs. Help shows the value of an option by the option's name, and nothing for a flag, which
    takes none: the types that typer would show are Python's."""
    command = typer.main.get_command(app)
    for verb in _verbs(command):
        for option in verb.get_params(typer.Context(verb)):
            if option.param_type_name == "option":
                flag = getattr(option, "is_flag", False)
                option.metavar = "" if flag else max(option.opts, key=len).strip("-").upper()
    return command


def _verbs(command: Any) -> Iterator[Any]:
    yield command
    for verb in getattr(command, "commands", {}).values():
        yield from _verbs(verb)


def main() -> None:
    """Exit codes: 0 fine, 1 a check or every trial failed, 2 a mistake of the caller, 3 a bug, 130 interrupted."""
    with _seldom_collected():
        _main()


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """A short command mostly imports, which leaves little garbage: to look through all of torch for it, again and again and
    once more at the end, takes a sixth of its time."""
    before = gc.get_threshold()
    gc.set_threshold(*_BETWEEN_COLLECTIONS)
    atexit.register(gc.freeze)  # what is there then goes with the process
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _main() -> None:
    try:
        start(parser())
    except BilevelbenchError as error:
        typer.echo(visible(f"error: {error}"), err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED, err=True)
        sys.exit(130)
    except Exception as error:
        if os.environ.get("BILEVELBENCH_DEBUG"):
            raise
        typer.echo(
            f"error: {type(error).__name__}: {visible(str(error))}; this is a bug in bilevelbench or in a plugin; set "
            "BILEVELBENCH_DEBUG=1 in the environment to see where. Finished trials are stored",
            err=True,
        )
        sys.exit(3)


def start(command: Callable[[], object]) -> None:
    """Run the command, unless another process runs it and this one serves it."""
    if not under_torchrun():
        command()
    elif os.environ["RANK"] == "0":
        from bilevelbench.engine.agents.leader import leading_torchrun

        with leading_torchrun():
            command()
    else:
        from bilevelbench.engine.agents.agent import serve_torchrun

        serve_torchrun()


if __name__ == "__main__":
    main()
