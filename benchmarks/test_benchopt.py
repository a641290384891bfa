"""Twelve trials of 20,480 steps from the command to the tables, ours over `benchopt run`: SOBA on the same sum, batch 64.

benchopt's solver is jitted JAX (`benchopt_peer`), its trials run one after the other, as they do by default; ours are lanes of
one pack, interpreted and, as the peer's are, compiled (`--compile auto`). Seconds by the clock, the least of two rounds in
turns: for a machine that does nothing else. Nothing is asserted about time here: the ratios go to summary.json. Needs
`bilevelbench[peers]`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import tomli_w
from turns import fastest

from bilevelbench.results.tables import load_results

pytest.importorskip("benchopt", reason="the peer of this benchmark needs benchopt: pip install 'bilevelbench[peers]'")
pytest.importorskip("jax", reason="the peer of this benchmark needs JAX: pip install 'bilevelbench[peers]'")

TRIALS, STEPS = 12, 20_480
PLAN = {
    "algorithm": [{"name": "soba", "params": {"a": 0.1, "b": [1e-3 * 1.3**i for i in range(TRIALS)], "power": 0.0}}],
    "problem": [{"name": "quadratic_sum", "params": {"dim_x": 20, "dim_y": 10, "n": 256, "m": 256}}],
    "budget": {"steps": STEPS},
}


def test_twelve_trials(benchmark, summary, tmp_path, capsys):
    plan, peer = tmp_path / "plan.toml", tmp_path / "peer"
    plan.write_text(tomli_w.dumps(PLAN))
    shutil.copytree(Path(__file__).parent / "benchopt_peer", peer, ignore=shutil.ignore_patterns("__pycache__"))
    made = (tmp_path / str(i) for i in itertools.count())
    folders: list[Path] = []

    def ours(how: str) -> None:
        folders.append(next(made))
        _run("bilevelbench", "run", "--suite", plan, "--compile", how, "-o", folders[-1])

    def theirs() -> None:
        few = ("--max-runs", 100, "--n-repetitions", 1, "--timeout", 3600)
        _run("benchopt", "run", peer, *few, "--no-cache", "--no-plot", "--no-html", "--output", "table")

    works = partial(ours, "never"), partial(ours, "auto"), theirs
    interpreted, compiled, of_peer = benchmark.pedantic(
        fastest, args=works, kwargs={"rounds": 2, "clock": time.perf_counter}, rounds=1
    )
    for folder in folders[-2:]:
        assert set(load_results(folder).runs["steps"]) == {STEPS}
    table = pd.read_parquet(next((peer / "outputs").glob("*.parquet")))
    assert table["solver_name"].nunique() == TRIALS
    # benchopt looks more and more seldom, and not at the end: the last stretch of 1,024 steps follows the last look
    assert (table.groupby("solver_name")["objective_steps"].max() == STEPS - 1024).all()
    summary["benchopt_ratio"], summary["benchopt_ratio_compiled"] = interpreted / of_peer, compiled / of_peer
    with capsys.disabled():
        print(f"\nours {interpreted:.1f} s, compiled {compiled:.1f} s, benchopt {of_peer:.1f} s")


def _run(module: str, *arguments: object) -> None:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
