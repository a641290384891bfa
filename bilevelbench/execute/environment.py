"""What a result was made with: versions, processor, threads. The name of the machine is nobody's business."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "bilevelbench", "torch", "numpy", "scipy", "scikit-learn", "pandas", "pyarrow", "pydantic", "pluggy", "pebble",
)  # fmt: skip
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def environment() -> dict[str, Any]:
    """Plain JSON values; what is not known is None. Imports nothing heavy: versions come from the metadata."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": _platform(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": _cores(),
        "memory": _memory(),
        "threads": {name: os.environ.get(name) for name in THREADS},
        "packages": dict(_versions()),
    }


@functools.cache
def _versions() -> dict[str, str | None]:
    return {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@functools.cache
def _platform() -> str:
    return platform.platform()


@functools.cache
def _cpu(cpuinfo: str = "/proc/cpuinfo") -> str | None:
    try:
        with open(cpuinfo, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or None


def _cores() -> int | None:
    """What this process may use, which in a container or under taskset is less than what there is."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


@functools.cache
def plugin_commit(path: str | Path) -> str | None:
    """The git commit of the working tree that holds the source file `path`, "+dirty" behind it if that is not all.

    None without git, outside of a repository, and for a file that git ignores (a package that is installed in a `.venv`
    inside someone's repository is not of that repository). Dirty: a tracked file of the tree is changed, or `path`
    itself is not tracked; untracked files elsewhere, such as results, do not count.
    """
    try:
        file = Path(path).resolve()
        tree = _git(file.parent, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
        own = _git(file.parent, "status", "--porcelain=v2", "--ignored", "--untracked-files=all", "--", str(file))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    commits = [line.split()[-1] for line in tree if line.startswith("# branch.oid ")]
    if not commits or commits[0] == "(initial)" or any(line.startswith("!") for line in own):
        return None
    changed = own or [line for line in tree if not line.startswith("#")]
    return commits[0] + ("+dirty" if changed else "")


def _git(folder: Path, *arguments: str) -> list[str]:
    # inside a git hook GIT_DIR and its kin point to another repository
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=1, check=True)
    return done.stdout.splitlines()
