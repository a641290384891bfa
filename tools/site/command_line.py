"""The reference of the command line, from the parser itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from fragments import code, prose, table

from bilevelbench.cli.app import parser

#: Examples of the epilog of a command.
_EXAMPLE = re.compile(r"`(bilevelbench[^`]*)`")


def verbs(command: Any, path: str = "bilevelbench") -> Iterator[tuple[str, Any]]:
    """Every verb that does something, with the words that call it."""
    subcommands = getattr(command, "commands", {})
    if not subcommands:
        yield path, command
    for name, verb in subcommands.items():
        yield from verbs(verb, f"{path} {name}")


def examples(command: Any) -> list[str]:
    return _EXAMPLE.findall(command.epilog or "")


def command_line_page() -> str:
    lines = [
        "# Command line",
        "",
        "`bilevelbench VERB --help` prints what this page says of a verb, and `bilevelbench --version` prints the version. "
        "`bilevelbench --install-completion` makes the Tab key complete verbs, "
        "options and the names of methods and problems in bash, zsh, fish and PowerShell.",
        "",
        "A command ends with 0 if all is well, 1 if a check or every trial failed, 2 for a mistake of the caller, 3 for a bug, "
        "and 130 if it was interrupted.",
    ]
    for path, verb in verbs(parser()):
        lines += ["", f"## {path.removeprefix('bilevelbench ')}", "", _paragraphs(verb.help or "")]
        shown = "\n".join(examples(verb))
        lines += ["", f"```bash\n{shown}\n```", "", _parameters(verb)]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{prose(' '.join(part.split()))}</p>" for part in text.split("\n\n"))


def _parameters(verb: Any) -> str:
    rows = []
    context = typer.Context(verb)
    for parameter in verb.get_params(context):
        named = parameter.opts if parameter.opts[0].startswith("-") else [parameter.name.upper()]
        default = getattr(parameter, "default", None)
        shown = (
            code(default) if isinstance(default, int | float | str) and default is not False and default != "" else ""
        )
        rows.append((", ".join(code(name) for name in named), shown, prose(getattr(parameter, "help", "") or "")))
    return table(("option", "default", "meaning"), rows)
