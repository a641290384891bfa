"""What the server that forks worker processes imports: all that a worker needs, but of the plugins only the built-in ones."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from importlib.metadata import entry_points
from types import TracebackType

from bilevelbench.discovery.hookspecs import GROUP

gc.disable()  # until a worker begins: imports make little garbage, and a page that the collector touches is no longer shared


def _nobody_waits(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A pool that is closed while its workers begin takes their queues away: then there is nothing to say."""
    if not issubclass(kind, FileNotFoundError | EOFError):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _nobody_waits  # until a worker begins

for module in ("bilevelbench.execute.local", "scipy.special"):  # a worker asks for the second when it begins
    importlib.import_module(module)

with contextlib.suppress(Exception):  # a plugin that is broken is reported by the workers, which try again
    for point in entry_points(group=GROUP):
        if point.dist is not None and point.dist.name == "bilevelbench":
            point.load()
