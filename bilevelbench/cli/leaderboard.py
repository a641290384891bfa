"""`bilevelbench leaderboard`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bilevelbench.cli.console import warn

leaderboard = typer.Typer(
    help="The leaderboard: a static site of results and measured rates.",
    epilog="Example: `bilevelbench leaderboard build out -o site`",
    no_args_is_help=True,
)


@leaderboard.command(epilog="Example: `bilevelbench leaderboard build out -o site`")
def build(
    folders: Annotated[list[Path], typer.Argument(help="Folders of results, of measured rates, or of both.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The site's folder; a site that is there is replaced.")],
    tuned: Annotated[
        list[Path] | None,
        typer.Option(help="A folder whose trials belong to the tuned board; may be given several times."),
    ] = None,
    repository: Annotated[str, typer.Option(help="The address of the repository, which the pages link to.")] = "",
    docs: Annotated[
        str, typer.Option(help="The documentation, which the pages link to: an address, or a file beside them.")
    ] = "",
    address: Annotated[
        str, typer.Option(help="The address at which the site will be published; previews of links to it need it.")
    ] = "",
) -> None:
    """Build a static site that needs no network: boards, complexity tables, a page for each problem and each method."""
    from bilevelbench.leaderboard.build import build as build_site
    from bilevelbench.leaderboard.links import Links

    links = Links(repository, docs, address)
    typer.echo(f"page: {build_site(folders, out, tuned or [], warn=warn, links=links).resolve()}")


@leaderboard.command(epilog="Example: `bilevelbench leaderboard facts -o facts`")
def facts(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder for facts.json; give it to `build` beside the results.")
    ],
) -> None:
    """Write what the plugins say about themselves: equations, claims, constants, and the measured price of an HVP."""
    out = out.absolute()
    from bilevelbench.discovery.facts import write_facts
    from bilevelbench.discovery.registry import registry
    from bilevelbench.execute.environment import environment, plugin_commit
    from bilevelbench.results.provenance import made_words, origin

    here = {
        "created": datetime.now(UTC).isoformat(),
        "environment": environment(),
        "commits": {"bilevelbench": plugin_commit(__file__)},
    }
    typer.echo(f"facts: {write_facts(registry(), out, made_words([origin(here)])).resolve()}")


@leaderboard.command(epilog="Example: `bilevelbench leaderboard serve site --port 8000`")
def serve(
    site: Annotated[Path, typer.Argument(help="A site that was built.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8000,
) -> None:
    """Show a site on this machine; Ctrl-C ends it. A site also works opened as a file."""
    from bilevelbench.leaderboard.serve import server

    with server(site, port) as running:
        typer.echo(f"http://127.0.0.1:{running.server_port}/ (Ctrl-C ends)")
        running.serve_forever()
