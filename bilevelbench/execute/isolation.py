"""What `--isolate` takes away from the process of a trial: the user's working folder, the network, writing to the results.

Network and mounts are namespaces of Linux, which the administrator of a machine may withhold. `missing` says which are.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from bilevelbench.execute.workers import worker_context
from bilevelbench.processes import ignore_sigint_in_children, libc

_NEWNS, _NEWUSER, _NEWNET = 0x20000, 0x10000000, 0x40000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
_ST_FLAGS = 0xE  # nosuid, nodev and noexec of a mount, which a view of it has to keep
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_PATIENCE = 30.0  # seconds for a process that only asks


def isolate(work: Path, read_only: Path) -> list[str]:
    """This process in the folder `work`, without a network, with a view of `read_only` that cannot be written.

    Returns what could not be had, in words. Call it in a process with one thread, before any code of others.
    """
    work.mkdir(exist_ok=True)
    os.chdir(work)
    without = []
    attempts: dict[str, Callable[[], None]] = {
        "no network": _leave_network,
        "a read-only view of the results": functools.partial(_see_read_only, read_only),
    }
    for what, attempt in attempts.items():
        try:
            attempt()
        except (OSError, AttributeError) as error:  # the latter where the C library has no such call
            without.append(f"{what} ({getattr(error, 'strerror', None) or 'only Linux has it'})")
    return without


def _leave_network() -> None:
    """A network of its own, in which this process can reach itself and its agents alone."""
    import fcntl

    _unshare(_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _see_read_only(folder: Path) -> None:
    _unshare(_NEWNS)
    place = os.fsencode(folder)
    libc("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)  # nobody else sees what is mounted here
    libc("mount", place, place, None, _MS_BIND | _MS_REC, None)
    kept = os.statvfs(folder).f_flag & _ST_FLAGS
    libc("mount", None, place, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept, None)


def _unshare(kind: int) -> None:
    try:
        libc("unshare", kind)
    except PermissionError:  # who is not root needs a user namespace, in which they may do it
        uid, gid = os.getuid(), os.getgid()
        libc("unshare", _NEWUSER | kind)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def missing() -> list[str]:
    """What `isolate` cannot give on this machine, in words; tried in a process that then ends."""
    if sys.platform != "linux":
        return ["no network (only Linux has it)", "a read-only view of the results (only Linux has it)"]
    context = worker_context()
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="bilevelbench-") as folder:
        process = context.Process(target=_try, args=(folder, sender), daemon=True)
        with ignore_sigint_in_children():
            process.start()
        sender.close()
        try:
            return list(receiver.recv()) if receiver.poll(_PATIENCE) else ["an answer (the attempt hangs)"]
        except EOFError:
            return ["an answer (the attempt died)"]
        finally:
            process.kill()
            process.join()
            receiver.close()


def _try(folder: str, sender: Connection) -> None:
    sender.send(isolate(Path(folder) / "work", Path(folder)))
