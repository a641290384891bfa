"""A control group of Linux, version 2, for the processes of one trial, where this user may make one.

The kernel ends all processes of a group in one go, whatever they start meanwhile. Where groups at this place have the
controllers `memory` and `pids`, it also bounds what they have together, without the fifth of a second between two looks of
the warden. Where no group can be had, the warden alone counts, adds up and ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

#: Processes and threads of a group. The warden ends a trial with far fewer processes, if it gets the time to look.
TASKS = 1024

_ENDING = 5.0  # seconds within which the kernel has to have ended all


@dataclass(frozen=True)
class ControlGroup:
    """The folder is the group: it is there until it is removed."""

    folder: str

    @classmethod
    def make(cls, memory: float | None = None) -> ControlGroup | None:
        """Below the group of this process, with `memory` in GiB for all of its members together; None where it cannot be."""
        parent = own_group()
        if parent is None:
            return None
        folder = parent / f"bilevelbench-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        try:
            folder.mkdir()
        except OSError:  # somebody else's, read-only, or too many
            return None
        group = cls(str(folder))
        if not (folder / "cgroup.kill").exists():  # Linux has it since 5.14
            group.end()
            return None
        group._write("pids.max", TASKS)
        if memory is not None:
            group._write("memory.max", int(memory * 2**30))
            group._write("memory.oom.group", 1)
        return group

    @property
    def limits(self) -> list[str]:
        """What the kernel bounds here for all processes together."""
        return [name for name in ("memory", "pids") if (Path(self.folder) / f"{name}.max").exists()]

    def enter(self) -> None:
        """This process, and with it all that it starts."""
        self._write("cgroup.procs", 0)

    def end(self) -> None:
        """All processes of it, and then the group; nothing happens if it is gone already."""
        folder, until = Path(self.folder), time.monotonic() + _ENDING
        self._write("cgroup.kill", 1)
        while time.monotonic() < until:
            try:
                folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:  # some are still ending
                time.sleep(0.005)

    def _write(self, name: str, number: int) -> None:
        """To a file of the kernel's, if it is there and takes the number; the warden is there as well."""
        with contextlib.suppress(OSError), open(Path(self.folder) / name, "r+", encoding="ascii") as file:
            file.write(str(number))


def own_group() -> Path | None:
    """The folder of the group that this process is in; None where there is no hierarchy of version 2."""
    if sys.platform != "linux":
        return None
    try:
        mounts = [
            line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line
        ]
        paths = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    except OSError:
        return None
    if not mounts or not paths:
        return None
    top, place = mounts[0][3], mounts[0][4]  # the mount may show a part of the hierarchy
    below = os.path.relpath(paths[0], top)
    return None if below.startswith("..") else Path(place) / below
