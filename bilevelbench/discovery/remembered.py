"""What `bilevelbench list` prints, remembered in the user's cache: most of its time goes into importing torch and all plugins.

It holds while the plugins, their files, bilevelbench itself and what is installed beside them are the same. Nothing is run by
it, and one that is damaged, outdated or cannot be written is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from bilevelbench.discovery.hookspecs import GROUP
from bilevelbench.model.data_file import cache_folder, keep_in_cache

Catalogue = dict[str, list[dict[str, Any]]]


def remembered() -> Catalogue | None:
    """The rows that `remember` was given, if they still hold."""
    try:
        seal, _, text = (cache_folder() / _name()).read_bytes().partition(b"\n")
        if seal == _seal(text):
            rows: Catalogue = json.loads(text)
            return rows
    except Exception:  # no such file, or metadata of a distribution that cannot be read: the registry says so
        pass
    return None


def remember(rows: Catalogue) -> None:
    """To be called for a registry without failures: a cause of failure may go away without any of these files changing."""
    text = json.dumps(rows).encode()
    with contextlib.suppress(Exception):
        keep_in_cache(_name(), _seal(text) + b"\n" + text)


def _name() -> str:
    """One file per environment, so that they do not overwrite each other's."""
    return f"catalogue-{hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]}.json"


def _seal(text: bytes) -> bytes:
    """A hash of the rows and of all that they depend on."""
    return hashlib.sha256("\n".join(_grounds()).encode() + text).hexdigest().encode()


def _grounds() -> Iterator[str]:
    yield sys.version
    for folder in sys.path:
        if folder.endswith("-packages"):  # whose time changes when a distribution is installed or removed
            yield f"{folder} {_time(folder)}"
    packages = {"bilevelbench"}
    for point in entry_points(group=GROUP):
        assert point.dist is not None
        yield f"{point.dist.name} {point.dist.version} {point.name} {point.value}"
        packages.add(point.module.partition(".")[0])
    for package in sorted(packages):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        yield f"{spec.origin} {_time(spec.origin)}"
        for folder in spec.submodule_search_locations or ():
            yield from _files(Path(folder))


def _files(folder: Path) -> Iterator[str]:
    """Every file below it that may have a say: code, and the names of suites."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for file in sorted(files):
            yield f"{place}/{file} {_time(f'{place}/{file}')}"


def _time(path: str) -> int:
    return os.stat(path).st_mtime_ns if os.path.exists(path) else 0
