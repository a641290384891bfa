"""Files that are either complete or absent."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from bilevelbench.errors import StoreError


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
    temporary = path.with_name(f".tmp-{secrets.token_hex(8)}-{path.name}")
    try:
        write_new(temporary, data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
