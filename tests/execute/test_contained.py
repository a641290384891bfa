"""Plugins that misbehave, all in one run beside honest trials: what becomes of them, of their processes, and of the others."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import pandas as pd
import psutil
import pyarrow as pa
import pytest
from helpers import cli, is_running
from helpers import trial as named_trial
from test_kill import start, workers

from bilevelbench import api
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import InvalidInput
from bilevelbench.execute.contained import Ended, _stored
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.isolation import missing
from bilevelbench.execute.run import run_trials
from bilevelbench.execute.warden import PROCESSES, TOO_LARGE, Exit, Printed
from bilevelbench.plan.trial import Budget, Spec
from bilevelbench.plan.trials import make_trial
from bilevelbench.results.schema import curve_of, runs_of
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

pytestmark = pytest.mark.whole

GALLERY = Path(__file__).parents[1] / "testing" / "gallery"

#: file -> its status, and a part of what its row says
CAUGHT = {
    "forks_crowd": ("error", f"was ended because it had started more than {PROCESSES} processes"),
    "patches_meter": ("invalid", "the plugin replaced Meter.charge and 1 more: what was counted and measured is not"),
    "patches_code": ("invalid", "the plugin replaced Meter.cost: what was counted and measured is not to be used"),
    "shadows_meter": ("invalid", "the plugin replaced Meter.columns: what was counted and measured is not to be used"),
    "patches_evaluator": ("invalid", "the plugin replaced evaluator.norm: what was counted and measured is not to be"),
    "walks_gc": ("invalid", "the method asked for grad_phi of the problem's Reference, which is for evaluations alone"),
    "presses_ctrl_c": ("error", "KeyboardInterrupt"),
    "raises_base": ("error", "BaseException: enough"),
    "exits_quietly": ("error", "its worker process ended with exit code 0 in the middle of the trial"),
    "prints_much": ("error", "RuntimeError: nothing more to say (prints_much.py:32); it printed last: 'xxx"),
    "changes_returned": ("invalid", "`step` wrote to x of the state that it was given; make a new tensor instead"),
    "ignores_alarm": ("error", "hung: gave no answer long after 0.5 seconds of steps were over"),
    "sleeps_in_extras": ("timeout", "of 0.5 seconds"),
    "opens_files": ("error", "Too many open files"),
    "huge_file": ("error", "File too large"),
    "recurses": ("error", "RecursionError"),
    "segfaults": ("error", "its worker process was killed by signal SIGSEGV in the middle of the trial"),
    "reads_stdin": ("error", "EOFError"),
    "patches_json": ("error", "its worker process handed over rows that cannot be right"),
    "speaks_for_runner": ("error", "its worker process could not run it: nobody may go on \ufffdxxx"),
    "kills_parent": ("error", "its worker process was killed by signal SIGKILL in the middle of the trial"),
}

#: What does no harm beyond its own trial, which is as it would be without.
HARMLESS = (
    "forks",
    "forks_daemons",
    "changes_folder",
    "leaves_thread",
    "writes_to_store",
    "goes_on_in_thread",
    "changes_defaults",
)

#: file -> the sign that it had its way; docs/what-the-meter-cannot-see.md says why
NOT_SEEN = {
    "keeps_two_books": lambda row: row.status == "budget" and row.grad_g_y == 0,
    "asks_uncounted": lambda row: row.status == "budget" and row.grad_g_y == 0,
    "opens_closure": lambda row: row.status == "budget" and row.cost == 0,
    "asks_in_thread": lambda row: row.status == "budget" and row.cost == 0,
    "copies_functions": lambda row: row.status == "budget" and row.grad_g_y == 0,
    "leaves_torch": lambda row: row.status == "budget" and row.grad_g_y == 0,
    "works_in_query": lambda row: row.status == "budget" and row.grad_g_y == 0,
    "patches_torch": lambda row: row.status == "budget" and row.grad_phi < 1e-6,
}

PROBLEM = Spec(name="quadratic", params={"dim_x": 3})


def bad(name):
    budget = Budget(cost=7) if name == "changes_returned" else Budget(steps=3, seconds=0.5 if name in SLOW else None)
    return make_trial(registry(), Spec(name=str(GALLERY / f"{name}.py")), PROBLEM, budget=budget)


SLOW = ("ignores_alarm", "sleeps_in_extras")


def honest():
    """Built-in trials, and two of a plugin of others."""
    ours = [named_trial("f2ba", "quadratic[dim_x=3]", steps=20, seed=seed) for seed in range(2)]
    file = Spec(name=str(GALLERY / "global_randomness.py"))
    return [
        *ours,
        named_trial("aid", "quadratic[dim_x=3]", steps=5),
        make_trial(registry(), file, PROBLEM, budget=Budget(steps=3)),
    ]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Everyone in two workers: the rows by method, the records by method, and the folder of temporary files."""
    here, temporary = os.getcwd(), tmp_path_factory.mktemp("temporary")
    store = Store(tmp_path_factory.mktemp("contained"))
    trials = [*honest(), *(bad(name) for name in (*CAUGHT, *HARMLESS, *NOT_SEEN))]
    assert os.getcwd() == here  # although a plugin goes elsewhere when it is loaded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        patch.setenv("GALLERY_STORE", str(store.folder))
        results = run_trials(trials, store, registry(), Execution(jobs=2, grace=3.0))
    rows = {row.algorithm: row for row in results.runs.itertuples()}
    records = {record["trials"][0]["algorithm"]["name"]: record for record in results.records}
    return results, rows, records, temporary


@pytest.mark.parametrize("name", CAUGHT)
def test_caught_with_the_right_sentence(outcome, name):
    status, words = CAUGHT[name]
    row = outcome[1][name]
    assert row.status == status, row.message
    assert words in row.message


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_to_others(outcome, name):
    row = outcome[1][name]
    assert (row.status, row.steps, row.grad_f, row.grad_g) == ("budget", 3, 3, 3), row.message


@pytest.mark.parametrize("name", NOT_SEEN)
def test_what_nobody_sees_is_listed(outcome, name):
    """Should one of these be seen some day, its place is above, and it leaves the page."""
    assert NOT_SEEN[name](outcome[1][name]), outcome[1][name].message
    page = Path(__file__).parents[2] / "docs" / "what-the-meter-cannot-see.md"
    assert f"`{name}`" in page.read_text(encoding="utf-8")


def test_the_others_have_the_numbers_that_they_have_alone(outcome, tmp_path):
    trials = honest()[:3]
    alone = run_trials(trials, Store(tmp_path), registry(), Execution(jobs=0))
    among = outcome[0].only({trial.id for trial in trials})
    unlike = ["seconds", "peak_memory"]
    for ours, theirs in ((alone.runs, among.runs), (alone.curve, among.curve)):
        drop = [name for name in unlike if name in ours]
        a, b = (table.drop(columns=drop).reset_index(drop=True) for table in (ours, theirs))
        pd.testing.assert_frame_equal(a, b, check_exact=True)


def test_what_was_put_among_the_results_is_named_and_left_out(outcome):
    """It can write there unless it is isolated; the tables are made from packs that can be right."""
    (warning,) = outcome[0].warnings
    assert "0123456789abcdef" in warning
    assert len(outcome[0].runs) == len(CAUGHT) + len(HARMLESS) + len(NOT_SEEN) + len(honest())


@pytest.mark.parametrize("name", ["forks", "forks_daemons", "forks_crowd"])
def test_no_process_is_left(outcome, name):
    pids = [int(line.split()[1]) for line in outcome[2][name]["output"].splitlines() if line.startswith("process ")]
    assert pids
    assert not [pid for pid in pids if is_running(pid)]


def test_no_file_is_left(outcome):
    assert not list(outcome[3].glob("bilevelbench-*"))
    assert not list(Path(tempfile.gettempdir()).glob("left-behind-*"))


def test_what_was_printed_is_kept_up_to_a_limit(outcome):
    output = outcome[2]["prints_much"]["output"]
    assert len(output) < 2**16 + 100
    assert "bytes are left out here" in output
    assert "output" not in outcome[2]["f2ba"]


def test_the_beginning_and_the_end_are_kept():
    printed = Printed()
    for number in range(20_000):
        printed.add(b"%d\n" % number)
    kept = str(printed)
    assert kept.startswith("0\n1\n2\n")
    assert kept.endswith("\n19998\n19999\n")
    first, _, rest = kept.partition("\n[")
    told, _, last = rest.partition(" bytes are left out here]\n")
    assert len(first) + len(last) + int(told.replace(",", "")) == printed.size
    short = Printed()
    short.add(b"one\n")
    assert str(short) == "one\n"


def test_the_terminal_is_not_flooded_and_relative_folders_hold(tmp_path, monkeypatch, capfd):
    """A plugin that goes elsewhere, when it is loaded and in its step, and one that prints 50 MB."""
    monkeypatch.chdir(tmp_path)
    files = [f"-a{GALLERY / name}.py" for name in ("changes_folder", "prints_much")]
    code, out, err = cli("run", *files, "-p", "quadratic[dim_x=3]", "--steps", 2, "--jobs", 1, "-o", "out")
    assert (code, err) == (0, "")
    assert "xxxx" in out  # the end of it, with the sentence
    assert len(out) + sum(map(len, capfd.readouterr())) < 10_000
    assert dict(load_results(tmp_path / "out").runs[["algorithm", "status"]].values) == {
        "changes_folder": "budget",
        "prints_much": "error",
    }


# ---- in this process


def test_a_plugin_that_raises_keyboard_interrupt_has_a_row_here_too():
    row = api.run(str(GALLERY / "presses_ctrl_c.py"), "quadratic", steps=2).runs.iloc[0]
    assert (row.status, "KeyboardInterrupt" in row.message) == ("error", True)


@pytest.mark.parametrize("name", ["patches_meter", "patches_code", "patches_evaluator"])
def test_what_was_replaced_is_put_back(name):
    """The trials that follow in the same process count and measure as before."""
    before = api.run("f2ba", "quadratic", steps=3).runs.iloc[0]
    row = api.run(str(GALLERY / f"{name}.py"), "quadratic", steps=3).runs.iloc[0]
    assert (row.status, CAUGHT[name][1] in row.message) == ("invalid", True)
    after = api.run("f2ba", "quadratic", steps=3).runs.iloc[0]
    assert (after.cost, after.grad_phi) == (before.cost, before.grad_phi)
    assert before.cost > 0


def test_time_in_extras_is_on_the_clock():
    row = api.run(str(GALLERY / "sleeps_in_extras.py"), "quadratic", steps=2).runs.iloc[0]
    assert row.seconds > 0.6


def test_processes_have_no_more_memory_together_than_one_may_have(tmp_path):
    """Six that have 150 MB each."""
    results = run_trials([bad("hogs_together")], Store(tmp_path), registry(), Execution(jobs=1, memory=0.7))
    (row,) = results.runs.itertuples()
    assert (row.status, TOO_LARGE in row.message) == ("error", True), row.message
    pids = [int(line.split()[1]) for line in results.records[0]["output"].splitlines() if line.startswith("process ")]
    assert pids
    assert not [pid for pid in pids if is_running(pid)]


# ---- the program goes first


def test_leaving_early_ends_all_that_was_started(tmp_path):
    trials = [
        bad("leaves_thread"),
        make_trial(registry(), Spec(name=str(GALLERY / "ignores_alarm.py")), PROBLEM, budget=Budget(steps=1)),
    ]
    running = Execution(jobs=2).open(registry())([(trial,) for trial in trials], Store(tmp_path))
    assert next(running).trials == 1
    assert workers(psutil.Process())
    began = time.monotonic()
    running.close()  # as Ctrl-C does
    assert time.monotonic() - began < 15
    assert workers(psutil.Process()) == []


def test_a_program_that_is_killed_leaves_nobody_behind(tmp_path):
    """Only the program itself: what watches its trials notices, and ends them with all that they have started."""
    file, seen = tmp_path / "sleeper.py", tmp_path / "seen"
    text = (GALLERY / "forks_daemons.py").read_text()
    assert text.count("os.wait()") == 1
    file.write_text(text.replace("os.wait()", f"print(os.getpid(), file=open({str(seen)!r}, 'a')); time.sleep(600)"))
    command = ["run", "-a", str(file), "-p", "quadratic", "--steps", "1"]
    process = start(tmp_path / "out", 1, command=command)
    deadline = time.monotonic() + 120
    while not (seen.exists() and seen.read_text().endswith("\n")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    assert int(seen.read_text()) in started
    assert len(started) >= 4  # the server, the warden, the trial's process and what it has started
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while any(map(is_running, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in started if is_running(pid)]


# ---- isolation

PROBE = """
import os, socket
from dataclasses import dataclass
from torch import Tensor
from bilevelbench import Algorithm

@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor

class Probe(Algorithm):
    name = "probe"
    uses = frozenset()

    def init(self, x0, y0, oracle):
        return State(x0, y0)

    def step(self, s, oracle):
        print("folder", os.listdir("."))
        for what, attempt in (("store", self.write), ("network", self.call)):
            try:
                attempt()
            except OSError as error:
                print(what, "refused")
            else:
                print(what, "open")
        open("here", "w").close()
        return s

    def write(self):
        open({place!r}, "w").close()

    def call(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.connect(("192.0.2.1", 9))
"""


def test_isolated(tmp_path):
    out = tmp_path / "out"
    (tmp_path / "probe.py").write_text(PROBE.format(place=str(out / "packs" / "mine")))
    code, _, err = cli(
        "run", "-a", tmp_path / "probe.py", "-p", "quadratic", "--steps", 1, "--jobs", 1, "--isolate", "-o", out
    )
    assert (code, err) == (0, "")
    (record,) = load_results(out).records
    lacking = " ".join(missing())
    wanted = ["folder []", "store open" if "read-only" in lacking else "store refused"]
    if "network" not in lacking:
        wanted.append("network refused")
    assert set(wanted) <= set(record["output"].splitlines())
    assert not Path("here").exists()


# ---- what a plugin's process hands over


def handed(folder, trial, **columns):
    """Rows as a plugin's process may write them, with the right ids; None is no number at all."""
    told = {
        name: getattr(trial, name)
        for name in ("seed", "dtype", "plugin", "plugin_version", "problem_plugin", "problem_plugin_version")
    }
    told |= {"trial_id": trial.id, "algorithm": trial.algorithm.name, "problem": trial.problem.name, "status": "error"}
    runs = runs_of([told | {"problem_params": json.dumps(trial.problem.params), "message": "x"} | columns])
    for name in (name for name, value in columns.items() if value is None):
        at = runs.schema.get_field_index(name)
        runs = runs.set_column(at, runs.schema.field(at), pa.nulls(1, runs.schema.field(at).type))
    record = {"trials": [{"id": trial.id, **trial.model_dump(mode="json")}]}
    Store(folder).add_tables(runs, curve_of({"trial_id": [], "step": []}), record)


@pytest.mark.parametrize("columns", [{}, {"best_grad_phi": None}, {"message": "\u00e9" * 45_000}])
def test_what_is_handed_over_and_stored_can_be_read(tmp_path, columns):
    trial = named_trial("f2ba", "quadratic[dim_x=3]", steps=2)
    handed(tmp_path / "rows", trial, **columns)
    done = _stored(tmp_path / "rows", (trial,), Store(tmp_path / "out"), Exit(0, output="é" * 60_000))
    assert done.statuses == ("error",)
    results = load_results(tmp_path / "out")
    assert (results.warnings, len(results.runs)) == ([], 1)


def test_a_folder_that_cannot_be_listed_is_its_own_failure(tmp_path):
    (tmp_path / "rows").symlink_to(tmp_path / "rows")
    trial = named_trial("f2ba", "quadratic[dim_x=3]", steps=2)
    with pytest.raises(Ended) as ended:
        _stored(tmp_path / "rows", (trial,), Store(tmp_path / "out"), Exit(0))
    assert ended.value.how.cause == "handed over rows that cannot be right"


def test_isolation_needs_a_process():
    with pytest.raises(InvalidInput, match="--isolate needs processes of its own, and --jobs 0 has none"):
        Execution(jobs=0, isolate=True).open(registry())
