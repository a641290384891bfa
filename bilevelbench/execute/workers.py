"""How worker processes begin. On Linux they are forks of a server that has imported torch and the built-in plugins.

A process that starts afresh takes two seconds of a processor for these imports, a fork takes none. The server forks safely: it
has run nothing but imports, and the only threads that those start belong to OpenBLAS and jemalloc, which stop them before a
fork by themselves. Third-party plugins are imported in the worker, since nobody knows what their imports do.

The server lasts as long as the process that started it.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing import connection
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any

from bilevelbench.processes import ignore_sigint_in_children, limit_memory

#: Variables that libraries or Python read when they are loaded, which in a fork was long ago, begin like this.
_READ_AT_LOADING = (
    "ARROW_", "ATEN_", "CUDA_", "DNNL_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_",
    "PYTHON", "PYTORCH_", "TORCH_",
)  # fmt: skip

#: scikit-learn sets these when it is imported, here as in a worker.
_SET_BY_IMPORTS = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")

#: The exit code that multiprocessing makes up for a fork whose server has died before it.
SERVER_LOST = 255


def worker_context() -> ForkServerContext | SpawnContext:
    """Forks of the server, where there can be one and it was loaded with the settings that hold now; else fresh processes."""
    if sys.platform != "linux" or multiprocessing.parent_process() is not None:  # a Dask worker leaves no server behind
        return multiprocessing.get_context("spawn")
    if _settings_of_server() != _settings(os.environ):
        return multiprocessing.get_context("spawn")
    return multiprocessing.get_context("forkserver")


def start_server() -> None:
    """Let the server import while this process still plans."""
    worker_context()


@functools.cache
def _settings_of_server() -> dict[str, str] | None:
    """Those with which it is loaded; the first call starts it. None without a server: its socket needs room in TMPDIR."""
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload(["bilevelbench.execute.preloaded"])
    try:
        with ignore_sigint_in_children():
            forkserver.ensure_running()
    except OSError:
        return None
    return _settings(os.environ)


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_LOADING) and name not in _SET_BY_IMPORTS
    }


def with_environment(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for a worker, which then has the environment of this process and not that of the server."""
    return functools.partial(_call, dict(os.environ), function)


def _call(environment: dict[str, str], function: Callable[..., Any], *arguments: Any) -> Any:
    os.environ.clear()
    os.environ.update(environment)
    return function(*arguments)


def start_worker(memory: float | None) -> None:
    """A worker for built-in plugins: nobody else's code is loaded here."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the time limit of a pack, which ends this process
    from bilevelbench.discovery.registry import registry_of

    registry_of(frozenset())  # now, and not within the time limit of the first pack
    settle(memory)


def settle(memory: float | None) -> None:
    """What every process that is to run trials does first, whichever way it was started."""
    import numpy as np

    from bilevelbench.oracle.draws import normal_quantile

    normal_quantile()  # a method that draws by itself is not to wait for it on its clock
    np.random.seed(random.SystemRandom().getrandbits(32))  # forks of one server would all draw the same
    gc.freeze()  # what is imported stays: the collector need not look through it again and again
    gc.enable()
    sys.excepthook = sys.__excepthook__  # that of the server is for workers that cannot begin
    if memory is not None:
        limit_memory(memory)


def _end_with_parent() -> None:
    """A killed parent leaves no worker that computes for nobody; what it has stored is whole.

    A killed server leaves none either: the parent takes its workers for dead, and gives their packs to others.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    ends: list[Any] = [parent.sentinel]
    if hasattr(os, "pidfd_open") and os.getppid() != parent.pid:
        ends.append(os.pidfd_open(os.getppid()))
    connection.wait(ends)
    os._exit(1)
