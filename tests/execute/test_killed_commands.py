"""`run`, `merge`, `report` and `leaderboard build`, killed at any moment: every row once, and nothing unreadable."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole


def killed(folder, trials, kills):
    seed = random.SystemRandom().randrange(10**6)
    command = [sys.executable, str(Path(__file__).with_name("killer.py")), str(folder / "kills"), trials, kills, seed]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"seed {seed}: {found}")
    assert sum(found[name] for name in found if name != "rounds") >= kills
    return found


@pytest.mark.slow  # test_kill.py kills a run always
def test_a_few_kills(tmp_path):
    killed(tmp_path, trials=30, kills=10)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))  # each takes minutes, and can be repeated alone
def test_five_hundred_kills_over_three_hundred_trials(tmp_path, part):
    found = killed(tmp_path, trials=300, kills=50)
    assert min(found[name] for name in ("run", "merge", "report", "leaderboard")) >= 5
