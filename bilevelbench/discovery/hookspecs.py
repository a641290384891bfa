"""What a plugin package may offer. Put `from bilevelbench import hookimpl` and these functions into its `__init__.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bilevelbench.model.algorithm import Algorithm
    from bilevelbench.model.problem import Problem

#: Of the entry points that name plugins, and of the hooks.
GROUP = "bilevelbench"

hookspec = pluggy.HookspecMarker(GROUP)


@hookspec
def bilevelbench_algorithms() -> Iterable[type[Algorithm]]:
    """The package's methods."""
    return ()


@hookspec
def bilevelbench_problems() -> Iterable[type[Problem]]:
    """The package's problems."""
    return ()


@hookspec
def bilevelbench_suites() -> Iterable[Path]:
    """The package's suites, TOML files whose stem is their name."""
    return ()


@hookspec
def bilevelbench_executors() -> Mapping[str, str]:
    """The package's executors: for each name the import path of a subclass of `bilevelbench.Executor`.

        return {"slurm": "my_package.slurm:SlurmExecutor"}

    A path and not the class, because an executor often needs a large library that should be imported only when chosen.
    """
    return {}
