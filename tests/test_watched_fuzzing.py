"""The readers that are written in Python, fuzzed by what they do with an input; in `make soak` alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = 20_000


@pytest.mark.long
@pytest.mark.parametrize("kind", ["selection", "suite", "record", "picture", "text"])
def test_whatever_atheris_finds_is_taken_or_refused(kind, tmp_path):
    pytest.importorskip(
        "atheris", reason="atheris is not installed; `pip install atheris==3.0.0` (Linux), as soak.yml does"
    )
    script = Path(__file__).with_name("watched_fuzzing.py")
    command = [sys.executable, str(script), kind, str(RUNS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # a find is written there
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(rf"^Done {RUNS} runs", done.stderr, re.M)
    print(f"{kind}: {RUNS} inputs")
