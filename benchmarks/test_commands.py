"""What one waits for at a terminal: commands from the return key to their last line.

Seconds by the clock, the least of some rounds, and the same over what `import torch` takes in a process of its own, in turns:
the first is for whoever waits, the second can be compared from one machine to another. Nothing is asserted about time
here: the numbers go to summary.json.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from turns import fastest

from bilevelbench.results.tables import load_results

TRIALS = {"1000": (25, 40), "10000": (100, 100)}


def command(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "bilevelbench", *map(str, arguments)], check=True, capture_output=True)


def import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


@pytest.fixture
def waited(summary, capsys) -> Callable[..., None]:
    def measure(name: str, work: Callable[[], None], rounds: int = 5) -> None:
        seconds, of_torch = fastest(work, import_torch, rounds=rounds, clock=time.perf_counter)
        summary[f"command_{name}_seconds"] = seconds
        summary[f"command_{name}_over_import"] = seconds / of_torch
        with capsys.disabled():
            print(f"\n{name}: {seconds:.2f} s, import torch {of_torch:.2f} s")

    return measure


@pytest.fixture
def folders(tmp_path) -> Iterator[Path]:
    """A new one for each round: what a folder holds is not run again."""
    return (tmp_path / str(i) for i in itertools.count())


def suite(path: Path, sides: tuple[int, int]) -> Path:
    """A grid of F2BA on `quadratic`, five steps each."""
    eta_x, lam = (
        np.geomspace(*ends, side).tolist() for ends, side in zip(((1e-3, 1e-1), (1, 100)), sides, strict=True)
    )
    plan = {
        "algorithm": [{"name": "f2ba", "params": {"eta_x": eta_x, "lam": lam}}],
        "problem": [{"name": "quadratic"}],
        "budget": {"steps": 5},
    }
    path.write_text(tomli_w.dumps(plan))
    return path


def test_list(waited):
    command("list")  # fills the cache
    waited("list", lambda: command("list"))


def test_tiny_trial(waited, folders):
    waited("tiny_trial", lambda: command("run", "-a", "f2ba", "-p", "quadratic", "--steps", 5, "-o", next(folders)))


@pytest.mark.parametrize("trials", TRIALS)
def test_grid(waited, folders, tmp_path, trials):
    plan = suite(tmp_path / "grid.toml", TRIALS[trials])
    made = []

    def run() -> None:
        made.append(next(folders))
        command("run", "--suite", plan, "-o", made[-1])

    waited(f"{trials}_settings", run, rounds=2)
    assert len(load_results(made[-1]).runs) == int(trials)


def test_board(waited, folders, tmp_path):
    command("run", "--suite", suite(tmp_path / "grid.toml", TRIALS["1000"]), "-o", tmp_path / "grid")
    waited(
        "board_1000_settings", lambda: command("leaderboard", "build", tmp_path / "grid", "-o", next(folders)), rounds=2
    )
