"""The command line, mostly in this process; as a program where that is the point."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys

import pandas as pd
import pytest
from helpers import cli

import bilevelbench
from bilevelbench.discovery.registry import PluginFailure, registry
from bilevelbench.report.analysis.summary import summary
from bilevelbench.report.formats.md import summary_table
from bilevelbench.results.packs import to_json
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

EXAMPLE = ["run", "-a", "f2ba[K=3,lam=10,100,1000]", "-p", "quadratic[dim_x=5]", "--steps", "50", "--seeds", "2"]
RUNS = [
    "trial_id", "algorithm", "algorithm_params", "problem", "problem_params", "seed", "status", "message", "steps",
    "grad_f", "grad_g", "grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y", "hvp", "jvp", "value", "first_order",
    "second_order", "cost", "seconds", "pack_lanes", "phi", "grad_phi", "last_grad_phi", "best_grad_phi",
    "plugin", "plugin_version", "schema_version",
]  # fmt: skip
CURVE = ["trial_id", "step", "first_order", "second_order", "seconds", "phi", "grad_phi"]
UNLIKE = ["seconds", "peak_memory"]  # what two runs of one trial may differ in

METHOD = '''
from dataclasses import dataclass
from torch import Tensor
from bilevelbench import Algorithm

@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor

class {cls}(Algorithm):
    """Descent on f, which fails where it is told to."""
    name = "{cls}"
    uses = frozenset({{"grad_f"}})
    eta: float = 0.1
    mode: str = ""

    def init(self, x0, y0, oracle):
        return State(x0, y0)

    def step(self, s, oracle):
        if self.mode == "raise":
            raise ValueError("<b>on purpose</b>")
        if self.mode == "exit":
            raise SystemExit(4)
        if self.mode == "cheat":
            oracle.hvp_g_yy(s.x, s.y, s.y)
        f_x, f_y = oracle.grad_f(s.x, s.y)
        if self.mode == "blowup":
            f_x = f_x / 0 * 0
        return State(s.x - self.eta * f_x, s.y - self.eta * f_y)
'''


def refused(*arguments):
    """The sentence of a command that is the caller's mistake."""
    code, _, err = cli(*arguments)
    assert code == 2, err
    assert "Traceback" not in err
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", err).split())


def tables(folder):
    runs, curve = (pd.read_parquet(folder / f"{name}.parquet") for name in ("runs", "curve"))
    return runs.drop(columns=UNLIKE), curve.drop(columns="seconds")


def assert_equal_tables(a, b):
    for left, right in zip(tables(a), tables(b), strict=True):
        pd.testing.assert_frame_equal(left, right, check_exact=True)


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.glob("packs/*/*"))}


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The command of the README as a program, with worker processes."""
    folder = tmp_path_factory.mktemp("example")
    command = [os.path.join(os.path.dirname(sys.executable), "bilevelbench"), *EXAMPLE, "-o", "out"]
    env = {**os.environ, "PYTHONWARNINGS": "error"}
    env.pop("COLUMNS", None)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder / "out", done.stdout


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Trials that end in many ways, in this process."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "mine.py").write_text(METHOD.format(cls="Mine"))
    spec = f"{folder / 'mine.py'}[mode=raise,exit,cheat,blowup,fine]"
    code, out, err = cli("run", "-a", spec, "-p", "quadratic", "--steps", 20, "--jobs", 0, "-o", folder / "out")
    assert (code, err) == (0, "")
    return folder / "out", out


# ---- help


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["report", "--help"], []])
def test_help_does_not_import_torch(arguments):
    code = (
        f"import sys; sys.argv[1:] = {arguments!r}\n"
        "from bilevelbench.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'pandas'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Example" in done.stdout


def test_as_a_module():
    command = [sys.executable, "-X", "importtime", "-m", "bilevelbench", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert "bilevelbench run --all" in done.stdout
    assert "| typer" in done.stderr.replace("|   ", "| ")
    assert not re.search(r"\|\s+torch\b", done.stderr)


@pytest.mark.parametrize("command", ["run", "list", "info", "report", "merge", "doctor"])
def test_every_command_has_an_example(command):
    code, out, _ = cli(command, "--help")
    assert code == 0
    assert f"bilevelbench {command}" in " ".join(out.split())
    assert "Example" in out


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_version(asked):
    assert cli(asked) == (0, f"{bilevelbench.__version__}\n", "")


# ---- run


@pytest.mark.whole
def test_the_example_makes_two_tables_and_a_page(example):
    folder, out = example
    runs, curve = (pd.read_parquet(folder / f"{name}.parquet") for name in ("runs", "curve"))
    assert set(RUNS) <= set(runs.columns)
    assert set(CURVE) <= set(curve.columns)
    assert len(runs) == 6
    assert set(runs["status"]) == {"budget"}
    assert set(runs["steps"]) == {50}
    assert set(runs["first_order"]) == {50 * (3 * 3 + 3)}
    assert set(runs["second_order"]) == {0}
    assert set(runs["pack_lanes"]) == {6.0}
    assert (runs["grad_f"] + runs["grad_g"]).equals(runs["first_order"])
    assert {json.loads(p)["lam"] for p in runs["algorithm_params"]} == {10.0, 100.0, 1000.0}
    assert set(curve["trial_id"]) == set(runs["trial_id"])
    assert (folder / "index.html").read_text().startswith("<!doctype html>")
    assert f"6 trials; 6 to run in 1 pack, in 1 worker process -> {folder}" in out
    assert "6/6 trials" in out
    assert "f2ba[K=3,lam=1000]" in out
    assert "\x1b" not in out  # plain lines where there is no terminal


@pytest.mark.whole
def test_the_same_command_again_runs_nothing(example):
    folder, _ = example
    before, table = stamps(folder), (folder / "runs.parquet").read_bytes()
    code, out, err = cli(*EXAMPLE, "-o", folder)
    assert (code, err) == (0, "")
    assert "6 trials, 6 of them stored already; nothing to run" in out
    assert stamps(folder) == before
    assert (folder / "runs.parquet").read_bytes() == table


@pytest.mark.whole
def test_two_folders_two_ways_one_table(example, tmp_path):
    code, out, err = cli(*EXAMPLE, "--jobs", 0, "-o", tmp_path / "b")
    assert (code, err) == (0, "")
    assert "in this process" in out
    assert_equal_tables(example[0], tmp_path / "b")


def test_a_larger_command_runs_only_what_is_new(tmp_path):
    small = ["run", "-a", "f2ba[K=2]", "-p", "quadratic[dim_x=3]", "--steps", 5, "--jobs", 0, "-o", tmp_path]
    assert cli(*small)[0] == 0
    before = stamps(tmp_path)
    code, out, _ = cli(*small, "--seeds", 3)
    assert code == 0
    assert "3 trials, 1 of them stored already; 2 to run" in out
    assert before.items() <= stamps(tmp_path).items()


def test_what_happens_inside_a_run_is_a_row(mixed):
    folder, out = mixed
    runs = pd.read_parquet(folder / "runs.parquet").assign(
        mode=lambda r: [json.loads(p)["mode"] for p in r["algorithm_params"]]
    )
    status = dict(zip(runs["mode"], runs["status"], strict=True))
    message = dict(zip(runs["mode"], runs["message"], strict=True))
    assert (status["raise"], status["exit"], status["blowup"], status["fine"]) == (
        "error",
        "error",
        "diverged",
        "budget",
    )
    assert status["cheat"] in ("error", "invalid")
    assert "ValueError: <b>on purpose</b>" in message["raise"]
    assert "SystemExit: 4" in message["exit"]
    assert "hvp_g_yy" in message["cheat"]
    assert "Traceback" not in out
    page = (folder / "index.html").read_text()
    assert "&lt;b&gt;on purpose&lt;/b&gt;" in page
    assert "<b>" not in page


def test_a_target_ends_a_trial_and_wins_over_the_suite(tmp_path):
    suite = tmp_path / "s.toml"
    suite.write_text(
        'targets = [1e-9]\nbudget = {cost = 5000}\nalgorithm = [{name = "aid"}]\n'
        'problem = [{name = "quadratic", targets = [1e-8], budget = {cost = 50}}]\n'
    )
    code, _, err = cli(
        "run", "--suite", suite, "--target", 1, "--target", 10, "--budget", 5000, "--jobs", 0, "-o", tmp_path / "o"
    )
    assert (code, err) == (0, "")
    (row,) = load_results(tmp_path / "o").runs.to_dict("records")
    assert row["status"] == "target"
    assert row["last_grad_phi"] <= 1


def test_a_suite_can_be_narrowed(tmp_path):
    code, _, _ = cli("run", "--all", "-a", "f2ba", "-p", "quadratic", "--steps", 2, "--jobs", 0, "-o", tmp_path)
    assert code == 0
    assert set(load_results(tmp_path).runs["algorithm"]) == {"f2ba"}


def test_a_path_with_brackets_is_only_a_path(tmp_path):
    folder = tmp_path / "[/bold]x[red]"
    code, out, err = cli("run", "-a", "f2ba", "-p", "quadratic", "--steps", 1, "--jobs", 0, "-o", folder)
    assert (code, err) == (0, "")
    assert str(folder) in out


@pytest.mark.whole
def test_a_pseudo_terminal_gets_live_progress(tmp_path):
    master, slave = pty.openpty()
    command = [sys.executable, "-W", "error", "-m", "bilevelbench", *EXAMPLE, "--jobs", "0", "-o", str(tmp_path / "o")]
    env = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.PIPE, env=env)
    os.close(slave)
    seen = b""
    while True:
        ready, _, _ = select.select([master], [], [], 120)
        try:
            data = os.read(master, 65536) if ready else b""
        except OSError:  # the other end is closed
            data = b""
        if not data:
            break
        seen += data
    os.close(master)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "\x1b[" in seen.decode()  # live
    assert "f2ba[K=3,lam=100]" in text
    assert "0/6" in text


@pytest.mark.parametrize("width", [80, 120, 160])
@pytest.mark.quick_cases(1)
def test_the_table_fits_and_breaks_no_words(mixed, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    folder, _ = mixed
    spec = f"{folder.parent / 'mine.py'}[mode=raise,exit,cheat,blowup,fine]"
    code, out, _ = cli("run", "-a", spec, "-p", "quadratic", "--steps", 20, "-o", folder)
    assert code == 0
    table = out[out.index("\nquadratic") + 1 : out.index("\ntables:")].splitlines()
    header = " ".join(table[1].split() + table[2].split())
    for word in ("method", "|grad", "phi|", "cost", "0.001", "gradients", "HVP", "JVP", "ended"):
        assert word in header
    body = "\n".join(table[3:])
    for mode in ("raise", "exit", "cheat", "blowup", "fine"):
        assert f"mode={mode}]" in body
    assert max(map(len, table)) <= width
    assert len(re.findall(r"\d (budget|error|invalid|diverged)", body)) == 5
    assert "never" in body


# ---- mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-a", "f2bb", "-p", "quadratic"], "unknown method 'f2bb'; did you mean 'f2ba'?"),
        (["-a", "f2ba", "-p", "quadratik"], "unknown problem 'quadratik'; did you mean 'quadratic'?"),
        (["-a", "F2BA", "-p", "quadratic"], "unknown method 'F2BA'; did you mean 'f2ba'?"),
        (["-a", "f2ba,aid", "-p", "quadratic"], "names 2 at once; -a can be repeated: -a f2ba -a aid"),
        (["-a", "f2ba[K=3,lam=1,2], aid", "-p", "quadratic"], "-a can be repeated: -a 'f2ba[K=3,lam=1,2]' -a aid"),
        (["-a", "f2ba", "-p", "quadratic,chain"], "-p can be repeated: -p quadratic -p chain"),
        (["--suite", "quik"], "unknown suite 'quik'; did you mean 'quick'?"),
        (["--suite", "gone.toml"], "suite file 'gone.toml' does not exist"),
        (["-a", "f2ba[lamm=1]", "-p", "quadratic"], "f2ba has no parameter 'lamm'; did you mean 'lam'?"),
        (["-a", "f2ba[lam=-1]", "-p", "quadratic"], "f2ba: lam = -1: input should be greater than 0"),
        (["-a", "f2ba", "-p", "quadratic[dim_x=0]"], "quadratic: dim_x = 0: input should be greater than 0"),
        (["-a", "f2ba[lam=10", "-p", "quadratic"], "cannot read 'f2ba[lam=10'"),
        (["-a", "", "-p", "quadratic"], "cannot read ''"),
        (["-a", "f2ba", "-p", "quadratic", "--steps", "0"], "steps = 0: input should be greater than 0"),
        (["-a", "f2ba", "-p", "quadratic", "--steps", "-5"], "steps = -5: input should be greater than 0"),
        (["-a", "f2ba", "-p", "quadratic", "--budget", "-1"], "budget = -1.0: input should be greater than 0"),
        (["-a", "f2ba", "-p", "quadratic", "--budget", "0"], "budget = 0.0: input should be greater than 0"),
        (["-a", "f2ba", "-p", "quadratic", "--budget", "inf"], "--budget inf: a limit is a finite number above 0"),
        (["-a", "f2ba", "-p", "quadratic", "--seconds", "nan"], "--seconds nan: a limit is a finite number"),
        (["-a", "f2ba", "-p", "quadratic", "--seconds", "-2"], "seconds = -2.0: input should be greater than 0"),
        (["-a", "f2ba", "-p", "quadratic", "--target", "0"], "--target 0: a target is a gradient norm above 0"),
        (["-a", "f2ba", "-p", "quadratic", "--target", "1", "--target", "nan"], "--target nan: a target is"),
        (["-a", "f2ba", "-p", "quadratic", "--dtype", "float16"], "--dtype float16: choose float64 or float32"),
        (["-a", "f2ba", "-p", "quadratic", "--memory", "-1"], "--memory -1: a limit is a number of GiB above 0"),
        (["-a", "f2ba", "-p", "quadratic", "--memory", "1", "--jobs", "0"], "--memory limits worker processes"),
        (["-a", "f2ba", "-p", "quadratic", "--seeds", "0"], "Invalid value for '--seeds'"),
        (["-a", "f2ba", "-p", "quadratic", "--jobs", "-1"], "Invalid value for '--jobs'"),
        (["-a", "f2ba", "-p", "quadratic", "--steps", "many"], "Invalid value for '--steps'"),
        (["--no-such-option"], "No such option"),
        (["--all", "--suite", "quick"], "give --all or --suite, not both"),
        (["-a", "f2ba"], "say what to run: --all, or --suite NAME, or -a METHOD and -p PROBLEM"),
        ([], "say what to run"),
        (["-a", "gone.py", "-p", "quadratic"], "method file 'gone.py' does not exist"),
        (["-a", "f2ba", "-p", "gone.py:P"], "problem file 'gone.py' does not exist"),
    ],
)
def test_mistakes_are_sentences(arguments, words, tmp_path):
    assert words in refused("run", *arguments, "-o", tmp_path / "o")
    assert not (tmp_path / "o").exists()  # nothing is made before everything is checked


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def broken(:", "failed to load: SyntaxError"),
        ("raise SystemExit(1)", "failed to load: SystemExit: 1"),
        ("x = 1", "should hold one Algorithm class; it holds none"),
        (METHOD.format(cls="A") + METHOD.format(cls="B"), "it holds A, B; name one as"),
    ],
)
def test_files_that_hold_no_method(text, words, tmp_path):
    (tmp_path / "mine.py").write_text(text)
    sentence = refused("run", "-a", tmp_path / "mine.py", "-p", "quadratic", "-o", tmp_path / "o")
    assert words in sentence
    assert "mine.py" in sentence


def test_one_class_of_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(METHOD.format(cls="A") + METHOD.format(cls="B"))
    arguments = ["-p", "quadratic", "--steps", 1, "--jobs", 0, "-o", tmp_path / "o"]
    assert cli("run", "-a", f"{tmp_path / 'mine.py'}:B", *arguments)[0] == 0
    assert "unknown class" in refused("run", "-a", f"{tmp_path / 'mine.py'}:C", *arguments)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"= nonsense", "is not valid TOML"),
        pytest.param(b"\xff\xfe", "is not valid UTF-8; save it as UTF-8", id="not UTF-8"),
        (b"[budget]\nsteps = 0", "budget.steps = 0"),
        (b"bogus = 1\n[budget]\nsteps = 1", "bogus = 1"),
        (b'algorithm = [{name = "f2bb"}]\n[budget]\nsteps = 1', "did you mean 'f2ba'?"),
        (b"algorithm = []\n[budget]\nsteps = 1", "this plan has no trials"),
    ],
)
def test_suites_that_cannot_be_used(content, words, tmp_path):
    (tmp_path / "s.toml").write_bytes(content)
    assert words in refused("run", "--suite", tmp_path / "s.toml", "-o", tmp_path / "o")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        sentence = refused("run", "-a", "f2ba", "-p", "quadratic", "--steps", 1, "--jobs", 0, "-o", out)
        assert f"cannot write to the result folder '{out}'" in sentence
        assert "choose another folder, a file is in the way" in sentence


def test_a_broken_plugin_is_a_warning_and_the_rest_works(tmp_path, monkeypatch):
    monkeypatch.setattr(registry(), "failures", [PluginFailure("acme", "failed to import acme: No module named 'jax'")])
    code, _, err = cli("run", "-a", "f2ba", "-p", "quadratic", "--steps", 1, "--jobs", 0, "-o", tmp_path)
    assert (code, err) == (0, "warning: plugin 'acme': failed to import acme: No module named 'jax'\n")
    assert "plugin 'acme': failed to import" in refused("run", "-a", "acme_method", "-p", "quadratic")
    code, out, _ = cli("doctor")
    assert code == 1
    assert "BAD  plugin: plugin 'acme': failed to import" in out


def test_a_bug_is_one_line_too(monkeypatch, tmp_path):
    monkeypatch.setenv("BILEVELBENCH_CACHE", str(tmp_path))  # no list is remembered there
    monkeypatch.setattr("bilevelbench.discovery.catalogue.catalogue", lambda _: 1 / 0)
    code, _, err = cli("list")
    assert code == 3
    assert err.startswith("error: ZeroDivisionError: division by zero; this is a bug")
    monkeypatch.setenv("BILEVELBENCH_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli("list")


# ---- damage


DATA = ["run", "-a", "f2ba", "-p", "quadratic[data_seed=0,1]", "--steps", 5, "--jobs", 0, "-o"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    assert cli(*DATA, folder)[0] == 0
    return folder


@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("pack.json", "cut"),
        ("pack.json", "flip"),
        ("runs.parquet", "cut"),
        ("runs.parquet", "flip"),
        ("curve.parquet", "flip"),
    ],
)
def test_a_damaged_result_is_named_and_run_again(sound, tmp_path, where, how):
    folder = tmp_path / "store"
    shutil.copytree(sound, folder)
    victim, other = sorted((folder / "packs").iterdir())
    kept = (other / "pack.json").read_bytes()
    data = bytearray((victim / where).read_bytes())
    if how == "cut":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 1
    (victim / where).write_bytes(data)
    code, out, err = cli(*DATA, folder)
    assert (code, err) == (0, "")
    assert f"{victim / where}" in out
    assert "the same command runs its trials again" in out
    assert "2 trials, 1 of them stored already; 1 to run" in out
    assert_equal_tables(folder, sound)
    assert (other / "pack.json").read_bytes() == kept
    assert list((folder / "packs").glob("*.corrupt-0"))  # kept for whoever wants to know
    assert Store(folder).done() == set(load_results(sound).runs["trial_id"])


def test_a_pack_that_claims_a_trial_it_does_not_have_is_run_again(sound, tmp_path):
    """With all sums right: as a program that writes packs by itself may leave it."""
    folder = tmp_path / "store"
    shutil.copytree(sound, folder)
    victim, other = sorted((folder / "packs").iterdir())
    record = json.loads((victim / "pack.json").read_text())
    tables = [(other / name).read_bytes() for name in ("runs.parquet", "curve.parquet")]
    shutil.rmtree(victim)
    Store(folder).place(record, tables)
    code, out, err = cli(*DATA, folder)
    assert (code, err) == (0, "")
    assert f"has no row of trial {record['trial_ids'][0]!r}, which pack.json lists" in out
    assert "2 trials, 1 of them stored already; 1 to run" in out
    assert_equal_tables(folder, sound)
    assert "2 of them stored already; nothing to run" in cli(*DATA, folder)[1]


def newer(path):
    record = json.loads((path / "pack.json").read_text())
    (path / "pack.json").write_bytes(to_json({**record, "schema_version": 99}))


def truncated(path):
    (path / "pack.json").write_bytes((path / "pack.json").read_bytes()[:99])


def mistyped(path):
    record = json.loads((path / "pack.json").read_text())
    (path / "pack.json").write_bytes(to_json({**record, "environment": [1, 2]}))


@pytest.mark.parametrize("hurt", [newer, truncated, mistyped])
@pytest.mark.quick_cases(1)
def test_one_bad_pack_is_a_warning_in_every_command(sound, tmp_path, hurt):
    folder = tmp_path / "store"
    shutil.copytree(sound, folder)
    victim = min((folder / "packs").iterdir())
    hurt(victim)
    for command in (
        ["report", folder],
        ["merge", folder, "-o", tmp_path / "merged"],
        ["leaderboard", "build", folder, "-o", tmp_path / "site"],
    ):
        code, _, err = cli(*command)
        assert code == 0, (command, err)
        assert err.startswith("warning: ")
        assert str(victim / "pack.json") in err
    assert len(load_results(tmp_path / "merged").runs) == 1
    code, out, err = cli(*DATA, folder)
    assert (code, err) == (0, "")
    assert f"{victim / 'pack.json'}" in out
    assert "2 trials, 1 of them stored already; 1 to run" in out
    assert_equal_tables(folder, sound)


def test_a_folder_of_which_nothing_can_be_read_is_an_error(sound, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(sound, folder)
    for path in (folder / "packs").iterdir():
        newer(path)
    for command in (
        ["report", folder],
        ["merge", folder, "-o", tmp_path / "merged"],
        ["leaderboard", "build", folder, "-o", tmp_path / "site"],
    ):
        assert "none of the 2 packs in" in refused(*command)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize("jobs", [0, 1])
@pytest.mark.parametrize("when", ["as it is loaded", "in a step"])
def test_a_method_that_changes_the_working_directory(tmp_path, monkeypatch, jobs, when):
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    go = f"import os; os.chdir({str(away)!r})"
    text = METHOD.format(cls="Wanderer")
    text = (
        f"{go}\n{text}"
        if when == "as it is loaded"
        else text.replace("        f_x, f_y", f"        {go}\n        f_x, f_y")
    )
    (tmp_path / "wanderer.py").write_text(text)
    monkeypatch.chdir(home)
    method = ["run", "-a", tmp_path / "wanderer.py", "-p", "quadratic[data_seed=0,1]", "--steps", 3]
    code, _, err = cli(*method, "--jobs", jobs, "-o", "out")
    assert (code, err) == (0, "")
    assert sorted(path.name for path in (home / "out").iterdir()) == [
        "curve.parquet",
        "index.html",
        "packs",
        "runs.parquet",
    ]
    assert load_results(home / "out").runs["status"].tolist() == ["budget"] * 2
    assert list(away.iterdir()) == []


# ---- list, info, doctor


def test_list():
    code, out, _ = cli("list")
    assert code == 0
    for word in ("methods", "problems", "suites", "f2ba", "quadratic", "quick", "bilevelbench"):
        assert word in out
    assert "quadratic" not in cli("list", "suites")[1]
    rows = json.loads(cli("list", "methods", "--json")[1])
    assert {"name", "family", "settings", "oracle", "what", "plugin"} <= set(rows[0])
    assert set(json.loads(cli("list", "--json")[1])) == {"methods", "problems", "suites", "executors"}
    assert [row["name"] for row in json.loads(cli("list", "executors", "--json")[1])] == ["dask", "local"]
    assert "unknown kind 'method'; did you mean 'methods'?" in refused("list", "method")


def test_list_groups_methods_by_family_and_setting_with_one_line_for_each(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("list", "methods")[1].splitlines()
    assert max(map(len, lines)) <= 80
    where, family, setting = {}, "", ""
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            family = line.removeprefix("methods: ")
        elif depth == 2:
            setting = line.strip()
        else:
            where[line.split()[0]] = family, setting
    rows = json.loads(cli("list", "methods", "--json")[1])
    assert set(where) == {row["name"] for row in rows}
    assert len(lines) <= len(rows) + 30
    for name, place in {
        "aid": ("implicit", "deterministic"),
        "f2sa": ("penalty", "deterministic, partial, full"),
        "saba": ("implicit", "finite_sum"),
        "random_search": ("zeroth-order", "no claim"),
        "dist_f2ba": ("penalty", "agents"),
    }.items():
        assert where[name] == place


def test_info_cites(tmp_path):
    cited = json.loads(cli("info", "tpe", "--json")[1])["references"]
    assert [words.split(",")[0] for words in cited] == ["Bergstra", "Akiba"]
    out = cli("info", "hoag")[1]
    assert '\nReferences:\n  Pedregosa, "Hyperparameter optimization with approximate gradient", ICML 2016' in out
    assert "SIAM J. Optim. 2023" in json.loads(cli("info", "ttsa", "--json")[1])["references"][0]
    assert json.loads(cli("info", "dist_aid", "--json")[1])["references"][0].startswith("Ji, Yang, Liang, ")
    (tmp_path / "mine.py").write_text(METHOD.format(cls="Mine"))
    assert "References" not in cli("info", tmp_path / "mine.py")[1]


def test_info(tmp_path):
    code, out, _ = cli("info", "f2ba")
    assert code == 0
    for word in ("F2BA", "lam", "default 1000.0", "grad_g_y", "eps^-2", "Chen, Ma, Zhang"):
        assert word in out
    assert json.loads(cli("info", "quadratic", "--json")[1])["kind"] == "problem"
    (tmp_path / "mine.py").write_text(METHOD.format(cls="Mine"))
    assert "Descent on f" in cli("info", tmp_path / "mine.py")[1]
    assert "unknown method or problem 'f2bb'; did you mean 'f2ba'?" in refused("info", "f2bb")


def test_doctor():
    code, out, _ = cli("doctor")
    assert code == 0
    assert "660 calls in 20 steps" in out
    assert "BAD" not in out
    findings = json.loads(cli("doctor", "--json")[1])
    assert all(finding["ok"] for finding in findings)


# ---- report and merge


def test_report(mixed, tmp_path):
    folder, _ = mixed
    table = summary(load_results(folder))
    code, out, err = cli("report", folder)
    assert (code, err) == (0, "")
    assert out.startswith(summary_table(table))
    _, numbers, _ = cli("report", folder, "--format", "csv")
    written = pd.read_csv(io.StringIO(numbers))
    told = dict(zip(written.pop("method"), written.pop("failures"), strict=True))
    pd.testing.assert_frame_equal(written, table.drop(columns="method"), check_exact=True)
    assert {"ValueError: <b>on purpose</b>" in str(told[m]) for m in told if "raise" in m} == {True}
    assert {pd.isna(told[m]) for m in told if "fine" in m} == {True}
    assert cli("report", folder, "-f", "md", "-o", tmp_path / "t.md")[0] == 0
    assert (tmp_path / "t.md").read_text() == out
    _, out, _ = cli("report", folder, "-f", "html", "-o", tmp_path / "p.html")
    assert out == f"written: {tmp_path / 'p.html'}\n"
    assert "<svg" in (tmp_path / "p.html").read_text()


def test_reports_that_cannot_be_made(mixed, tmp_path):
    assert "unknown format 'mdd'; did you mean 'md'?" in refused("report", mixed[0], "-f", "mdd")
    assert "does not exist; run `bilevelbench run --all" in refused("report", tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    assert "is empty; run" in refused("report", tmp_path / "empty")
    (tmp_path / "begun" / "packs").mkdir(parents=True)
    assert "no results" in refused("report", tmp_path / "begun", "-f", "html")
    (tmp_path / "file").touch()
    assert "is not a folder" in refused("report", tmp_path / "file")
    for form in ("md", "csv", "html"):
        sentence = refused("report", mixed[0], "-f", form, "-o", tmp_path / "file" / "x")
        assert "cannot write" in sentence
        assert "choose another file with -o" in sentence


@pytest.mark.whole
def test_merge(example, mixed, tmp_path):
    code, out, err = cli("merge", example[0], mixed[0], "-o", tmp_path / "both")
    assert (code, err) == (0, "")
    assert f"{tmp_path / 'both'} holds 11 trials now: 11 are new, from 6 packs, and 0 were there already" in out
    assert len(pd.read_parquet(tmp_path / "both" / "runs.parquet")) == 11
    code, out, _ = cli("merge", example[0], "-o", tmp_path / "both")
    assert "0 are new, from 0 packs, and 6 were there already, with the same numbers" in out
    assert "nothing to merge" in refused("merge", tmp_path / "both", "-o", tmp_path / "both")
    assert "has no packs to merge" in refused("merge", tmp_path / "gone", "-o", tmp_path / "both")


@pytest.mark.whole
def test_merge_of_damaged_packs(example, mixed, tmp_path):
    for name, folder in (("lost", example[0]), ("bad", mixed[0])):
        shutil.copytree(folder, tmp_path / name)
        victim = min((tmp_path / name / "packs").iterdir())
        (victim / "pack.json").write_text("{}")
    assert "none of the 1 packs in" in refused("merge", tmp_path / "lost", "-o", tmp_path / "both")
    assert not (tmp_path / "both").exists()
    code, out, err = cli("merge", tmp_path / "bad", "-o", tmp_path / "both")
    assert code == 0
    assert "warning: left out: " in err
    assert "4 are new, from 4 packs" in out


# ---- data


def test_data_commands_know_the_bundled_file():
    code, out, _ = cli("data", "list", "--json")
    assert code == 0
    abalone = next(row for row in json.loads(out) if row["name"] == "abalone")
    assert abalone["place"] == "bundled"
    _, told, _ = cli("data", "list")
    assert f"abalone: bundled, {abalone['path']}\n  licence: {abalone['licence']}\n  read by ridge_abalone" in told
    assert cli("data", "verify", "abalone")[0] == 0
    code, _, err = cli("data", "verify", "abalon")
    assert code == 2
    assert "did you mean 'abalone'" in err
