"""`bilevelbench leaderboard build`: the site, as files that a browser opens from a folder, without a network."""

from __future__ import annotations

import glob
import shutil
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.leaderboard.collect import Material, load
from bilevelbench.leaderboard.links import NO_LINKS, Links
from bilevelbench.leaderboard.pages import site_files
from bilevelbench.results.files import OWNED, owned, remove_stale

#: Marks a folder as ours, to be replaced by the next build.
MARK = ".bilevelbench-site"
COMMAND = "make leaderboard"


def build(
    folders: Sequence[Path],
    out: Path,
    tuned: Sequence[Path] = (),
    command: str = COMMAND,
    warn: Callable[[str], None] = lambda _: None,
    links: Links = NO_LINKS,
) -> Path:
    """Read the folders, write the site, return its first page. The same results give the same bytes.

    What could not be used is said to `warn`, and on the page.
    """
    if not folders:
        raise InvalidInput("name at least one folder of results")
    material = load(folders, tuned)
    for note in material.notes:
        warn(note)
    return write_site(material, out, command, links)


def write_site(material: Material, out: Path, command: str = COMMAND, links: Links = NO_LINKS) -> Path:
    """Everything is written beside `out` and takes its name at the end: a site is whole or not there."""
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInput(f"{str(out)!r} exists and was not built by bilevelbench; choose another folder with -o")
    pages = site_files(material, command, links)
    hidden, token = f".{out.resolve().name}", owned()
    new, old = (out.with_name(f"{hidden}{token}{what}") for what in ("new", "old"))
    try:
        new.mkdir(parents=True)
        for name, content in {**pages, **_static()}.items():
            path = new / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
        if out.exists():
            out.rename(old)
        new.rename(out)
        for what in ("new", "old"):
            remove_stale(out.parent, f"{glob.escape(hidden)}{OWNED}{what}")
    except OSError as error:
        if old.exists() and not out.exists():
            old.rename(out)
        raise StoreError(
            f"cannot write the site {str(out)!r}: {error.strerror}; choose another folder with -o"
        ) from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return out / "index.html"


def _static() -> dict[str, str]:
    folder = files("bilevelbench.leaderboard") / "static"
    out = {f"static/{item.name}": item.read_text("utf-8") for item in folder.iterdir() if item.name[0] not in "._"}
    return {**out, MARK: "made by bilevelbench leaderboard build; the next build replaces this folder\n"}
