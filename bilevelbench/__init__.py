"""bilevelbench: benchmarks for bilevel optimisation whose counts can be trusted.

    min over x of phi(x) = f(x, y*(x)),   y*(x) = argmin over y of g(x, y)

The names below are the public interface; the rest is private. They are loaded on first use, so that
`bilevelbench --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pluggy

# A row of MKL's matrix products depends on the other rows unless its strict mode is asked for, which these branches have.
# MKL reads the variable at its first product, so it is set before anything else here (docs/decisions/005-rounding.md).
_branch = os.environ.get("MKL_CBWR", "").upper().removeprefix("BRANCH=").split(",")[0].strip()
os.environ["MKL_CBWR"] = f"{_branch if _branch in ('AVX2', 'AVX512', 'AVX512_E1') else 'AUTO'},STRICT"

if TYPE_CHECKING:
    from bilevelbench.algorithm import Algorithm as Algorithm
    from bilevelbench.algorithm import Distributed as Distributed
    from bilevelbench.api import Solution as Solution
    from bilevelbench.api import run as run
    from bilevelbench.api import solve as solve
    from bilevelbench.claim import Claim as Claim
    from bilevelbench.constants import Constant as Constant
    from bilevelbench.constants import Constants as Constants
    from bilevelbench.constants import bound as bound
    from bilevelbench.constants import estimated as estimated
    from bilevelbench.constants import exact as exact
    from bilevelbench.data import DataFile as DataFile
    from bilevelbench.errors import BilevelbenchError as BilevelbenchError
    from bilevelbench.errors import InvalidInput as InvalidInput
    from bilevelbench.errors import MissingConstant as MissingConstant
    from bilevelbench.known import KnownFailure as KnownFailure
    from bilevelbench.lanes import PerLane as PerLane
    from bilevelbench.lanes import dot as dot
    from bilevelbench.lanes import keep as keep
    from bilevelbench.lanes import norm as norm
    from bilevelbench.lanes import over_points as over_points
    from bilevelbench.linear import conjugate_gradient as conjugate_gradient
    from bilevelbench.linear import neumann_sum as neumann_sum
    from bilevelbench.linear import richardson as richardson
    from bilevelbench.network import Agents as Agents
    from bilevelbench.noise import Additive as Additive
    from bilevelbench.noise import Exact as Exact
    from bilevelbench.noise import FiniteSum as FiniteSum
    from bilevelbench.noise import Rows as Rows
    from bilevelbench.oracle import Oracle as Oracle
    from bilevelbench.problem import Instance as Instance
    from bilevelbench.problem import Problem as Problem
    from bilevelbench.problem import Reference as Reference
    from bilevelbench.problem import Shared as Shared
    from bilevelbench.sample import Sample as Sample
    from bilevelbench.sample import Table as Table

_HOME = {
    "Solution": "api",
    "run": "api",
    "solve": "api",
    "Algorithm": "algorithm",
    "Distributed": "algorithm",
    "Claim": "claim",
    "Constant": "constants",
    "Constants": "constants",
    "bound": "constants",
    "estimated": "constants",
    "exact": "constants",
    "DataFile": "data",
    "BilevelbenchError": "errors",
    "InvalidInput": "errors",
    "MissingConstant": "errors",
    "KnownFailure": "known",
    "PerLane": "lanes",
    "dot": "lanes",
    "keep": "lanes",
    "norm": "lanes",
    "over_points": "lanes",
    "conjugate_gradient": "linear",
    "neumann_sum": "linear",
    "richardson": "linear",
    "Additive": "noise",
    "Exact": "noise",
    "FiniteSum": "noise",
    "Rows": "noise",
    "Oracle": "oracle",
    "Agents": "network",
    "Instance": "problem",
    "Problem": "problem",
    "Reference": "problem",
    "Shared": "problem",
    "Sample": "sample",
    "Table": "sample",
}

#: `@hookimpl` marks the functions in a plugin package that name its methods and problems.
hookimpl = pluggy.HookimplMarker("bilevelbench")

try:
    __version__ = version("bilevelbench")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__", "hookimpl", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bilevelbench' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"bilevelbench.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, also those that are not loaded yet."""
    return sorted(__all__)
