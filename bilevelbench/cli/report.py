"""`bilevelbench report`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bilevelbench.cli.console import warn
from bilevelbench.cli.options import as_typed
from bilevelbench.errors import UnknownName
from bilevelbench.report.formats import FORMATS


def report(
    folder: Annotated[Path, typer.Argument(help="A folder of results, of measured rates, or of both.")],
    format_: Annotated[str, typer.Option("--format", "-f", help=f"One of {', '.join(FORMATS)}.")] = "md",
    weight: Annotated[float, typer.Option("--hvp-cost", min=0, help="How many gradients an HVP or a JVP costs.")] = 1.0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="A file, or a folder, which then has the figures too. Default: print; html: into FOLDER.",
        ),
    ] = None,
) -> None:
    """Write tables and figures of stored results: results, ranks, and claimed beside measured rates."""
    from bilevelbench.report.contents import read_report
    from bilevelbench.report.write import write_report

    if format_ not in FORMATS:
        raise UnknownName("format", format_, FORMATS)
    found = replace(read_report(folder, weight), cite=_cited)
    for warning in found.warnings:
        warn(warning)
    typer.echo(write_report(found, format_, folder, out, as_typed()), nl=False)


def _cited(methods: Iterable[str]) -> dict[str, list[str]]:
    """What these cite, as far as their plugins are installed."""
    from bilevelbench.discovery.catalogue import describe
    from bilevelbench.discovery.registry import registry

    return {name: describe(registry(), name).references for name in methods if name in registry().algorithms}
