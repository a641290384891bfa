"""`bilevelbench list` and `bilevelbench info`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from bilevelbench.cli.console import print_rows, say, say_cut, terminal, warn_failures
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
    chosen = {kind: rows for kind, rows in _catalogue().items() if what in (kind, "all")}
    if as_json:
        typer.echo(json.dumps(chosen[what] if what != "all" else chosen, indent=2))
        return
    for kind, rows in chosen.items():
        if kind == "methods":
            _print_methods(rows)
        else:
            print_rows(kind, rows)


def _catalogue() -> dict[str, list[dict[str, Any]]]:
    """As remembered, or from the registry, with warnings about plugins that are left out."""
    from bilevelbench.discovery.remembered import remember, remembered

    if (known := remembered()) is not None:
        return known
    from bilevelbench.discovery.catalogue import catalogue
    from bilevelbench.discovery.registry import registry

    rows = catalogue(registry())
    warn_failures(registry())
    if not registry().failures:
        remember(rows)
    return rows


def _print_methods(rows: list[dict[str, Any]]) -> None:
    """By family, and in it by the settings of the claims: one line per method, with its plugin if it is not a built-in one."""
    from bilevelbench.model.family import FAMILIES, family_of

    console = terminal()
    width = max((len(row["name"]) for row in rows), default=0)
    for family in FAMILIES:
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if family_of(row["family"]) == family:
                groups.setdefault(", ".join(row["settings"]) or "no claim", []).append(row)
        if groups:
            say(console, f"methods: {family}")
        for setting in sorted(groups, key=lambda setting: (setting == "no claim", setting == "agents", setting)):
            say(console, f"  {setting}")
            for row in groups[setting]:
                foreign = "" if row["plugin"].startswith("bilevelbench ") else f"({row['plugin']}) "
                say_cut(console, f"    {row['name']:<{width}}  {row['oracle']:<8}  {foreign}{row['what']}")


def info(
    name: Annotated[str, typer.Argument(help="A method, a problem, or FILE.py.")],
    as_json: Json = False,
) -> None:
    """Describe one method or problem: equations, parameters, queries, claims."""
    from bilevelbench.discovery.catalogue import describe
    from bilevelbench.discovery.registry import registry

    facts = describe(registry(), name)
    typer.echo(json.dumps(facts.as_dict(), indent=2) if as_json else facts.as_text())
