"""What the server that forks worker processes imports: all that a worker needs, but of the plugins only the built-in ones."""

from __future__ import annotations

import contextlib
from importlib.metadata import entry_points

import scipy.special  # noqa: F401 (a pack asks for it when it begins)

import bilevelbench.execute.local  # noqa: F401
from bilevelbench.discovery.hookspecs import GROUP

with contextlib.suppress(Exception):  # a plugin that is broken is reported by the workers, which try again
    for point in entry_points(group=GROUP):
        if point.dist is not None and point.dist.name == "bilevelbench":
            point.load()
