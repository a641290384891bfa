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

# torch then asks the kernel for huge pages for tensors of 2 MB and more; it reads the variable at its first tensor. No number
# depends on it (docs/decisions/030-the-table-of-speed.md).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

if TYPE_CHECKING:
    from bilevelbench import torch_hypergradient as torch_hypergradient
    from bilevelbench.api import Tuned as Tuned
    from bilevelbench.api import load as load
    from bilevelbench.api import run as run
    from bilevelbench.api import tune as tune
    from bilevelbench.engine.watch import StepInfo as StepInfo
    from bilevelbench.errors import BilevelbenchError as BilevelbenchError
    from bilevelbench.errors import InvalidInput as InvalidInput
    from bilevelbench.errors import MissingConstant as MissingConstant
    from bilevelbench.execute.executor import Done as Done
    from bilevelbench.execute.executor import Execution as Execution
    from bilevelbench.execute.executor import Executor as Executor
    from bilevelbench.execute.executor import run_and_store as run_and_store
    from bilevelbench.model.agents import Agents as Agents
    from bilevelbench.model.algorithm import Algorithm as Algorithm
    from bilevelbench.model.algorithm import Distributed as Distributed
    from bilevelbench.model.claim import Claim as Claim
    from bilevelbench.model.constants import Constant as Constant
    from bilevelbench.model.constants import Constants as Constants
    from bilevelbench.model.constants import bound as bound
    from bilevelbench.model.constants import estimated as estimated
    from bilevelbench.model.constants import exact as exact
    from bilevelbench.model.constraints import Ball as Ball
    from bilevelbench.model.constraints import Box as Box
    from bilevelbench.model.constraints import Simplex as Simplex
    from bilevelbench.model.data_file import DataFile as DataFile
    from bilevelbench.model.instance import Instance as Instance
    from bilevelbench.model.instance import Reference as Reference
    from bilevelbench.model.known import KnownFailure as KnownFailure
    from bilevelbench.model.lanes import PerLane as PerLane
    from bilevelbench.model.lanes import dot as dot
    from bilevelbench.model.lanes import keep as keep
    from bilevelbench.model.lanes import norm as norm
    from bilevelbench.model.lanes import over_points as over_points
    from bilevelbench.model.linear_solvers import Unmetered as Unmetered
    from bilevelbench.model.linear_solvers import conjugate_gradient as conjugate_gradient
    from bilevelbench.model.linear_solvers import neumann_sum as neumann_sum
    from bilevelbench.model.linear_solvers import newton_step as newton_step
    from bilevelbench.model.linear_solvers import richardson as richardson
    from bilevelbench.model.noise import Additive as Additive
    from bilevelbench.model.noise import Affine as Affine
    from bilevelbench.model.noise import Exact as Exact
    from bilevelbench.model.noise import FiniteSum as FiniteSum
    from bilevelbench.model.noise import Rows as Rows
    from bilevelbench.model.own_functions import from_functions as from_functions
    from bilevelbench.model.own_functions import seeded_module as seeded_module
    from bilevelbench.model.problem import Problem as Problem
    from bilevelbench.model.problem import Shared as Shared
    from bilevelbench.oracle.oracle import Oracle as Oracle
    from bilevelbench.oracle.sample import Sample as Sample
    from bilevelbench.oracle.sample import Table as Table
    from bilevelbench.plan.trial import Schedule as Schedule
    from bilevelbench.report.notebook import Results as Results
    from bilevelbench.solving import Solution as Solution
    from bilevelbench.solving import solve as solve

_HOME = {
    "Solution": "solving",
    "load": "api",
    "run": "api",
    "solve": "solving",
    "tune": "api",
    "Tuned": "api",
    "Algorithm": "model.algorithm",
    "Distributed": "model.algorithm",
    "Claim": "model.claim",
    "Constant": "model.constants",
    "Constants": "model.constants",
    "bound": "model.constants",
    "estimated": "model.constants",
    "exact": "model.constants",
    "Ball": "model.constraints",
    "Box": "model.constraints",
    "Simplex": "model.constraints",
    "StepInfo": "engine.watch",
    "Schedule": "plan.trial",
    "Results": "report.notebook",
    "DataFile": "model.data_file",
    "BilevelbenchError": "errors",
    "InvalidInput": "errors",
    "MissingConstant": "errors",
    "Done": "execute.executor",
    "Execution": "execute.executor",
    "Executor": "execute.executor",
    "run_and_store": "execute.executor",
    "KnownFailure": "model.known",
    "PerLane": "model.lanes",
    "dot": "model.lanes",
    "keep": "model.lanes",
    "norm": "model.lanes",
    "over_points": "model.lanes",
    "Unmetered": "model.linear_solvers",
    "conjugate_gradient": "model.linear_solvers",
    "newton_step": "model.linear_solvers",
    "neumann_sum": "model.linear_solvers",
    "richardson": "model.linear_solvers",
    "Additive": "model.noise",
    "Affine": "model.noise",
    "Exact": "model.noise",
    "FiniteSum": "model.noise",
    "Rows": "model.noise",
    "from_functions": "model.own_functions",
    "seeded_module": "model.own_functions",
    "Oracle": "oracle.oracle",
    "Agents": "model.agents",
    "Instance": "model.instance",
    "Problem": "model.problem",
    "Reference": "model.instance",
    "Shared": "model.problem",
    "Sample": "oracle.sample",
    "Table": "oracle.sample",
}

#: Public names that are modules.
_MODULES = ("torch_hypergradient",)

#: `@hookimpl` marks the functions in a plugin package that name its methods, problems, suites and executors.
hookimpl = pluggy.HookimplMarker("bilevelbench")

try:
    __version__ = version("bilevelbench")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__", "hookimpl", *_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"bilevelbench.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'bilevelbench' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"bilevelbench.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, also those that are not loaded yet."""
    return sorted(__all__)
