"""What `bilevelbench data list|fetch|verify` does: the data files of all registered problems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilevelbench.cli.console import show
from bilevelbench.cli.options import Json
from bilevelbench.errors import InvalidInput, UnknownName
from bilevelbench.untrusted import visible

if TYPE_CHECKING:
    from bilevelbench.discovery.registry import Registry
    from bilevelbench.model.data_file import DataFile

FileRow = dict[str, Any]


def list_files(registry: Registry) -> list[FileRow]:
    """One row per file: its name, the problems that read it, where it is, its licence. Nothing is read."""
    return [_row(file, problems) for file, problems in _known(registry).values()]


def fetch_files(registry: Registry, names: Sequence[str], source: Path | None = None) -> list[FileRow]:
    """Put files into the cache, from `source` or the network; those that are already somewhere are left alone."""
    rows = []
    for file, problems in _chosen(registry, names):
        found = None if source is not None else file.locate()
        if found is None:
            file.fetch(source)
        else:
            file.check(found)
        rows.append(_row(file, problems))
    return rows


def verify_files(registry: Registry, names: Sequence[str]) -> list[FileRow]:
    """Check what is there against its checksum. `ok` is None where nothing is there."""
    rows = []
    for file, problems in _chosen(registry, names):
        found = file.locate()
        row = _row(file, problems) | {"ok": None, "seen": "not here"}
        if found is not None:
            try:
                file.check(found)
                row |= {"ok": True, "seen": f"sha256 {file.sha256}"}
            except InvalidInput as error:
                row |= {"ok": False, "seen": str(error)}
        rows.append(row)
    return rows


def _known(registry: Registry) -> dict[str, tuple[DataFile, list[str]]]:
    known: dict[str, tuple[DataFile, list[str]]] = {}
    for name, entry in sorted(registry.problems.items()):
        for file in entry.value.data_files:
            other, problems = known.setdefault(file.name, (file, []))
            if other.sha256 != file.sha256:
                raise InvalidInput(
                    f"problems {problems[0]!r} and {name!r} mean different files by the name {file.name!r}; rename one"
                )
            problems.append(name)
    return known


def _chosen(registry: Registry, names: Sequence[str]) -> list[tuple[DataFile, list[str]]]:
    known = _known(registry)
    for name in names:
        if name not in known:
            raise UnknownName("data file", name, known)
    return [known[name] for name in names or known]


def _row(file: DataFile, problems: list[str]) -> FileRow:
    found = file.locate()
    return {
        "name": file.name,
        "problems": ", ".join(problems),
        "place": "" if found is None else found.place,
        "path": "" if found is None else str(found.path),
        "licence": file.licence,
    }


data = typer.Typer(
    help="List, fetch and verify the data files of the problems.",
    epilog="Example: `bilevelbench data list`",
    no_args_is_help=True,
)

FileNames = Annotated[list[str] | None, typer.Argument(help="Names of data files. Default: all.")]


@data.command("list", epilog="Example: `bilevelbench data list --json`")
def data_list(as_json: Json = False) -> None:
    """List where each data file is, and which problems read it."""
    from bilevelbench.discovery.registry import registry

    rows = list_files(registry())
    if as_json:
        show("data", rows, as_json)
    for row in () if as_json else rows:  # lines and not a table: paths, licences and lists of problems are long
        where = f"{row['place']}, {row['path']}" if row["path"] else "not here"
        typer.echo(visible(f"{row['name']}: {where}\n  licence: {row['licence']}\n  read by {row['problems']}"))


@data.command("fetch", epilog="Example: `bilevelbench data fetch abalone`")
def data_fetch(
    names: FileNames = None,
    source: Annotated[Path | None, typer.Option("--from", help="A file or folder instead of the network.")] = None,
    as_json: Json = False,
) -> None:
    """Put data files into the cache; each is checked against its checksum."""
    from bilevelbench.discovery.registry import registry

    show("data", fetch_files(registry(), names or [], source), as_json)


@data.command("verify", epilog="Example: `bilevelbench data verify abalone`")
def data_verify(names: FileNames = None, as_json: Json = False) -> None:
    """Check the data files that are there against their checksums; exit code 1 if one differs."""
    from bilevelbench.discovery.registry import registry

    rows = verify_files(registry(), names or [])
    show("data", rows, as_json)
    if any(row["ok"] is False for row in rows):
        raise typer.Exit(1)
