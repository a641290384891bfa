"""Files that are either complete or absent."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import platform
import re
import secrets
import shutil
from pathlib import Path

from bilevelbench.errors import StoreError
from bilevelbench.processes import is_alive

_STALE_SECONDS = 3600.0  # what a live writer has not finished is milliseconds old, a whole site seconds
#: The names that `owned` makes, for glob and by their parts.
OWNED = f"-{'[0-9a-f]' * 8}-[0-9]*-{'[0-9a-f]' * 12}-"
_OWNED = re.compile(r"-([0-9a-f]{8})-([0-9]{1,9})-[0-9a-f]{12}-")


def replace_file(path: Path, data: bytes) -> None:
    """Write a file of a result folder at once: a reader finds the old one or the new one, whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, data)
        sync_folder(path.parent)
    except OSError as error:
        raise StoreError(cannot_write(path.parent, error)) from error


def write_new(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".tmp{owned()}{path.name}")
    try:
        write_new(temporary, data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    remove_stale(path.parent, f".tmp{OWNED}{glob.escape(path.name)}")


def owned() -> str:
    """For the name of what is not finished: the machine and the process at work on it, and a number that is drawn once."""
    return f"-{_here()}-{os.getpid()}-{secrets.token_hex(6)}-"


def remove_stale(folder: Path, names: str) -> None:
    """What killed processes have left: it names one of this machine that is gone, or it is old.

    Old is what was left long before the last change of its folder: by the clock of the files, since ours may jump.
    """
    for path in folder.glob(names):
        with contextlib.suppress(OSError):  # another one was faster
            if _is_dead(path.name) or folder.stat().st_mtime - path.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_dead(name: str) -> bool:
    owner = _OWNED.search(name)
    return owner is not None and owner[1] == _here() and not is_alive(int(owner[2]))


def _here() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def sync_folder(path: Path) -> None:
    """Make names durable, not only contents."""
    if os.name == "nt":  # which cannot open a folder
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_WAY_OUT = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EACCES: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that you may write to",
    errno.ENOTDIR: "choose another folder, a file is in the way",
    errno.EEXIST: "choose another folder, a file is in the way",
}


def cannot_write(folder: Path, error: OSError) -> str:
    way_out = _WAY_OUT.get(error.errno or 0, "fix that or choose another folder")
    return (
        f"cannot write to the result folder {str(folder)!r}: {error.strerror or error}; {way_out} and run the same "
        "command again (what is stored stays)"
    )
