"""`bilevelbench list` and `bilevelbench info`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bilevelbench.cli.console import print_rows, warn_failures
from bilevelbench.cli.options import Json
from bilevelbench.errors import UnknownName


def list_(
    what: Annotated[str, typer.Argument(help="methods, problems, suites or executors. Default: all.")] = "all",
    as_json: Json = False,
) -> None:
    """List methods, problems, suites and executors, each with its plugin."""
    kinds = ("methods", "problems", "suites", "executors")
    if what not in (*kinds, "all"):
        raise UnknownName("kind", what, kinds)
    from bilevelbench.discovery.catalogue import catalogue
    from bilevelbench.discovery.registry import registry

    chosen = {kind: rows for kind, rows in catalogue(registry()).items() if what in (kind, "all")}
    warn_failures(registry())
    if as_json:
        typer.echo(json.dumps(chosen[what] if what != "all" else chosen, indent=2))
        return
    for kind, rows in chosen.items():
        print_rows(kind, rows)


def info(
    name: Annotated[str, typer.Argument(help="A method, a problem, or FILE.py.")],
    as_json: Json = False,
) -> None:
    """Describe one method or problem: equations, parameters, queries, claims."""
    from bilevelbench.discovery.catalogue import describe
    from bilevelbench.discovery.registry import registry

    facts = describe(registry(), name)
    typer.echo(json.dumps(facts.as_dict(), indent=2) if as_json else facts.as_text())
