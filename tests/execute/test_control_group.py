"""The kernel's help with the processes of a trial: they end in one go, and the group goes with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import all_end

from bilevelbench import api
from bilevelbench.execute import control_group
from bilevelbench.execute.control_group import TASKS, ControlGroup, own_group

#: Enters the group and leaves grandchildren in sessions of their own, which start others until they are ended.
SPREADS = """
import os, sys, time
from bilevelbench.execute.control_group import ControlGroup
ControlGroup(sys.argv[1]).enter()
for _ in range(4):
    if not os.fork():
        os.setsid()
        while True:
            if not os.fork():
                time.sleep(0.02)
                os._exit(0)
            time.sleep(0.005)
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pass
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def group():
    made = ControlGroup.make()
    if made is None:
        pytest.skip("this user cannot make a control group of version 2 here")
    yield made
    made.end()


def members(group):
    return [int(line) for line in Path(group.folder, "cgroup.procs").read_text().split()]


def test_what_spreads_is_ended_in_one_go_and_the_group_is_gone(group):
    command = [sys.executable, "-c", SPREADS, group.folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        pids = members(group)
        assert process.pid in pids
        assert len(pids) >= 5
        assert os.getpid() not in pids
        group.end()
        assert process.wait() == -signal.SIGKILL
    assert not Path(group.folder).exists()
    assert all_end(pids)
    group.end()  # once more does nothing


def test_a_trial_is_in_a_group_that_is_gone_after_it(group, tmp_path):
    """And with it what the trial has left behind in a session of its own."""
    own = own_group()
    before = set(own.iterdir())
    file = tmp_path / "tells_group.py"
    file.write_text(TELLS.format(place=tmp_path / "told"))
    results = api.run(str(file), "quadratic[dim_x=3]", steps=1, jobs=1, out=tmp_path / "out")
    told = (tmp_path / "told").read_text()
    assert results.runs.status.tolist() == ["budget"], results.runs.message.tolist()
    path, pid = told.split()
    assert "/bilevelbench-" in path
    assert all_end([int(pid)])
    assert {place for place in own.iterdir() if place.is_dir()} <= before


TELLS = '''
"""Says which group it is in, and leaves a process behind."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bilevelbench import Algorithm, Oracle


@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor


class TellsGroup(Algorithm):
    name = "tells_group"
    uses = frozenset({{"grad_f"}})

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> State:
        pid = os.fork()
        if not pid:
            os.setsid()
            time.sleep(600)
        group = next(line[3:] for line in Path("/proc/self/cgroup").read_text().split() if line.startswith("0::"))
        Path("{place}").write_text(f"{{group}} {{pid}}")
        return State(x0, y0)

    def step(self, s: State, oracle: Oracle) -> State:
        f_x, _ = oracle.grad_f(s.x, s.y)
        return State(s.x - 0.01 * f_x, s.y)
'''


def test_limits_are_written_where_the_kernel_has_them(tmp_path, monkeypatch):
    """A folder stands in for a parent that was delegated with both controllers."""

    def made(self, *_, **__):
        os.mkdir(self)
        for name in ("cgroup.kill", "cgroup.procs", "pids.max", "memory.max", "memory.oom.group"):
            (self / name).touch()

    monkeypatch.setattr(control_group, "own_group", lambda: tmp_path)
    monkeypatch.setattr(Path, "mkdir", made)
    group = ControlGroup.make(memory=1.5)
    assert group.limits == ["memory", "pids"]
    told = {name: Path(group.folder, name).read_text() for name in ("pids.max", "memory.max", "memory.oom.group")}
    assert told == {"pids.max": str(TASKS), "memory.max": str(3 * 2**29), "memory.oom.group": "1"}


@pytest.mark.parametrize("why", ["no hierarchy", "read-only", "an old kernel"])
def test_without_groups_there_is_none_and_nothing_is_left(why, tmp_path, monkeypatch):
    monkeypatch.setattr(control_group, "own_group", lambda: None if why == "no hierarchy" else tmp_path)
    if why == "read-only":
        monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no")))
    assert ControlGroup.make(memory=1.0) is None
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_does_not_empty_holds_nobody_up_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(control_group, "_ENDING", 0.1)
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "member").touch()
    began = time.monotonic()
    ControlGroup(str(tmp_path / "busy")).end()
    assert time.monotonic() - began < 5
