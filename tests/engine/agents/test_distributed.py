"""Teams of agents in real processes: equal iterates, ends of all kinds, agents that are lost, and what is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import all_end, alone, trial

import bilevelbench
from bilevelbench import InvalidInput
from bilevelbench.cli import app
from bilevelbench.cli.app import main
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.agents import leader
from bilevelbench.plan.suite import Suite
from bilevelbench.plan.trial import Budget, Schedule
from bilevelbench.results.tables import load_results

pytestmark = pytest.mark.whole

BAD = Path(__file__).with_name("agents_gone_wrong.py")
TWO = "quadratic_agents[agents=2,dim_x=2,dim_y=3]"
F2BA = "dist_f2ba[K=2,lam=10,eta_x=0.1,a_y=0.2,a_z=0.2]"


@pytest.fixture(autouse=True, scope="module")
def _nobody_stays():
    yield
    leader.dismiss()


def run(algorithm, problem, **rest):
    """One trial, without dismissing the team."""
    results = alone([trial(algorithm, problem, **rest)])
    return results.runs.iloc[0], results.curve


def agents() -> list[int]:
    """The processes of the present team."""
    return [process.pid for process in leader._team._processes] if leader._team else []


# ---------------------------------------------------------------------------------------------------- trials that go well


def test_iterates_are_equal_to_the_last_bit():
    row, curve = run(f"{BAD}:Compare", TWO, steps=30, schedule=Schedule(ratio=1.001))
    assert row.status == "budget"
    assert row.rounds == 60
    assert curve["step"].max() == 30
    assert set(curve["apart"]) == {0.0}


def test_a_team_serves_one_trial_after_the_other():
    first, _ = run(F2BA, TWO, steps=5)
    here = agents()
    assert len(here) == 1
    second, _ = run(F2BA, TWO, steps=5, seed=1)
    assert agents() == here
    assert (first.status, second.status) == ("budget", "budget")
    assert first.phi == second.phi  # nothing is drawn


def test_a_budget_ends_within_a_step():
    """Nine calls a step: the third one does not fit, and its first round was already made."""
    row, _ = run(F2BA, TWO, cost=23)
    assert (row.status, row.steps, row.cost) == ("budget", 2, 23)
    assert row.rounds == 2 * 3 + 1
    again, _ = run(F2BA, TWO, steps=2)  # by the same team
    assert again.phi == row.phi


def test_the_leader_alone_watches_the_clock():
    row, _ = run(F2BA, TWO, seconds=0.05)
    assert row.status == "timeout"
    assert row.steps > 0


def test_a_target_ends_the_trial():
    row, _ = run(F2BA, TWO, steps=500, targets=(0.5,))
    assert row.status == "target"
    assert row.steps < 500


def test_a_method_that_sends_nothing_ends_as_well():
    row, _ = run(f"{BAD}:Silent", TWO, steps=50)
    assert (row.status, row.rounds, row.bytes) == ("budget", 0, 0)
    here = agents()
    assert run(F2BA, TWO, steps=2)[0].status == "budget"
    assert agents() == here


def test_float32():
    row, _ = run(F2BA, TWO, steps=3, dtype="float32")
    assert row.status == "budget"
    assert row.bytes == 3 * (2 * 2 * 3 + 2) * 4


def test_nothing_runs_after_a_run():
    bilevelbench.run(F2BA, TWO, steps=2)
    assert agents() == []


# ---------------------------------------------------------------------------------------------------- agents that are lost

LOST = {
    "Killed": "the process of agent 1 of 2 was killed by signal SIGKILL in the middle of the trial",
    "Raising": "agent 1 of 2 failed: ValueError: the disk of agent 1 is full",
    "Hanging": "an agent gave no answer within 2 seconds",
    "Cheating": r"agent 1 of 2 failed: the meter and the instance's own count differ \(grad_f: 0 at the door, 1 below it",
}


@pytest.mark.parametrize("name", ["Killed", *(pytest.param(n, marks=pytest.mark.slow) for n in LOST if n != "Killed")])
def test_a_lost_agent_is_an_error_in_a_sentence(name, monkeypatch):
    started, start = [], leader._start
    monkeypatch.setattr(leader, "_start", lambda *place: started.append(start(*place)) or started[-1])
    leader.dismiss()
    patience = 2 if name == "Hanging" else 600
    row, curve = run(f"dist_f2ba[K=2,lam=10,eta_x=0.1,timeout={patience}]", f"{BAD}:{name}", steps=99)
    assert row.status == "error"
    assert re.fullmatch(rf"in step \d+: {LOST[name]}.*", row.message)
    assert all_end([process.pid for process in started], seconds=0)
    assert agents() == []
    assert len(curve) > 0  # what was seen before


@pytest.mark.slow
def test_an_agent_that_cannot_be_set_up():
    row, _ = run(F2BA, f"{BAD}:Unbuildable", steps=5)
    assert row.status == "error"
    assert row.message == "could not be set up: agent 1 of 2 failed: ValueError: agent 1 has no data"
    assert agents() == []


def test_agents_end_with_a_leader_that_is_killed(tmp_path):
    program = (
        "import os, signal\nfrom bilevelbench.engine.agents import leader as team\n"
        "made = team.Team(2)\nprint(made._processes[0].pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(told.stdout)
    assert all_end([pid])


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (
            "quadratic",
            "dist_f2ba is run by agents, and quadratic is not shared between agents; choose one that is: "
            "cleaning_cnn_agents, cleaning_cnn_digits_agents, cleaning_fashion_agents, cleaning_mnist_agents, "
            "distill_digits_agents, distill_mnist_agents, label_cleaning_digits_agents, label_cleaning_iris_agents, "
            "logreg_breast_cancer_agents, logreg_covtype_agents, logreg_digits_agents, logreg_wine_agents, quadratic_agents, "
            "quadratic_sum_agents, representation_digits_agents, representation_omniglot_agents",
        ),
        (
            "quadratic_agents[agents=3]",
            "dist_f2ba with agents = 4 on quadratic_agents with agents = 3; leave it out of the method, or write "
            "quadratic_agents[agents=4]",
        ),
    ],
)
def test_refused_before_anything_runs(problem, sentence):
    with pytest.raises(InvalidInput) as error:
        trial("dist_f2ba[agents=4]", problem, steps=1)
    assert str(error.value) == sentence


def test_rows_that_are_neither_dealt_out_evenly_nor_held_by_all():
    row, _ = run(F2BA, f"{BAD}:Uneven", steps=1)
    assert row.status == "error"
    assert row.message.endswith(
        "agent 0 of 2 holds 3 of 10 rows of f and 10 of 10 of g; deal them out evenly, or let every agent hold them all"
    )


def test_an_object_of_this_session():
    class Mine(registry().problem("quadratic_agents").value):
        """A class that no other process knows."""

        name = "mine"

    runs = bilevelbench.run(F2BA, Mine(agents=2), steps=1).runs
    assert runs.status[0] == "error"
    assert "put its class into a file" in runs.message[0]


def test_all_pairs_only_what_fits():
    trials = Suite(problem=({"name": "quadratic"}, {"name": "quadratic_agents"}), budget=Budget(steps=1)).trials(
        registry()
    )
    methods = {
        name: {t.algorithm.name for t in trials if t.problem.name == name} for name in ("quadratic", "quadratic_agents")
    }
    without_sums = {name for name, entry in registry().algorithms.items() if not entry.value.finite_sum_only}
    assert methods["quadratic_agents"] == without_sums
    assert methods["quadratic"] == {name for name in without_sums if not name.startswith("dist_")}


# ---------------------------------------------------------------------------------------------------- commands


def test_command(tmp_path, monkeypatch):
    """Agents of a worker process of the command."""
    arguments = ["run", "-a", F2BA, "-p", TWO, "--steps", "4", "--jobs", "1", "-o", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["bilevelbench", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    runs = load_results(tmp_path).runs
    assert runs.status.tolist() == ["budget"]
    assert runs.rounds.tolist() == [12]


def under_torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "bilevelbench", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )


@pytest.mark.slow
def test_torchrun(tmp_path):
    """The first process writes, the others serve; the same command resumes; a mistake of the caller ends all of them."""
    right = ["run", "-a", F2BA, "-a", "f2ba[K=2]", "-p", TWO, "--steps", "4", "-o", str(tmp_path)]
    first = under_torchrun(*right)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("2 trials; 2 to run in 2 packs, in this process") == 1
    assert load_results(tmp_path).runs.set_index("algorithm").rounds.to_dict() == {"dist_f2ba": 12, "f2ba": 0}
    assert "nothing to run" in under_torchrun(*right).stdout
    wrong = under_torchrun(
        "run", "-a", "dist_f2ba", "-p", "quadratic_agents[agents=3]", "--steps", "1", "-o", str(tmp_path)
    )
    assert wrong.returncode == 1  # every trial failed
    (message,) = load_results(tmp_path).runs.query("status == 'error'").message
    assert "3 agents need 3 processes, and torchrun has started 2; give it --nproc-per-node 3" in message


@pytest.mark.parametrize(("rank", "role"), [(None, "command"), ("0", "lead"), ("1", "serve")])
def test_who_does_what_under_torchrun(rank, role, monkeypatch):
    from contextlib import contextmanager

    from bilevelbench.engine.agents import agent

    seen = []

    @contextmanager
    def lead():
        seen.append("lead")
        yield

    monkeypatch.setattr(leader, "leading_torchrun", lead)
    monkeypatch.setattr(agent, "serve_torchrun", lambda: seen.append("serve"))
    if rank is not None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
        monkeypatch.setenv("RANK", rank)
    app.start(lambda: seen.append("command"))
    assert seen == {"command": ["command"], "lead": ["lead", "command"], "serve": ["serve"]}[role]


def test_torchrun_has_no_workers(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    from bilevelbench.cli.run import _jobs_under_torchrun

    assert _jobs_under_torchrun(None, False, "local") == 0
    with pytest.raises(InvalidInput, match="leave out --jobs, --timed and --executor"):
        _jobs_under_torchrun(2, False, "local")
