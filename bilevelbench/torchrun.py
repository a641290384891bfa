"""`torchrun --nproc-per-node 4 -m bilevelbench run ...`: the first process runs the command, the others serve it as agents."""

from __future__ import annotations

import os
from collections.abc import Callable


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def start(command: Callable[[], object]) -> None:
    """Run the command, unless that is another process's and ours is to serve it."""
    if not under_torchrun():
        command()
    elif os.environ["RANK"] == "0":
        from bilevelbench.team import leading_torchrun

        with leading_torchrun():
            command()
    else:
        from bilevelbench.agent import serve_torchrun

        serve_torchrun()
