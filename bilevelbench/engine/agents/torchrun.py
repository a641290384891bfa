"""`torchrun --nproc-per-node 4 -m bilevelbench run ...`: the first process runs the command, the others serve it as agents."""

from __future__ import annotations

import os


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ
