"""What the help texts show: every example works as it is printed; the tutorial; completion in a shell."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import cli

from bilevelbench.cli.app import parser
from bilevelbench.cli.tutorial import STEPS

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "site"))

from command_line import examples, verbs

pytestmark = pytest.mark.whole  # every verb

#: Examples that are not run here, and where they are.
ELSEWHERE = {
    "bilevelbench run --all": "two minutes: the workflow `release` runs it",
    "bilevelbench rates --table 1 --quick": "two minutes: tests/studies/rates",
    "bilevelbench check --all --json": "minutes: tests/testing/test_builtins.py checks all plugins",
    "bilevelbench leaderboard serve site --port 8000": "runs until it is stopped: tests/leaderboard",
    "bilevelbench tutorial": "below",
    "bilevelbench reproduce 007c29450581af9b results": "names a trial of one's own: tests/studies/verification",
}
#: What the examples need to be there: the order of the others.
FIRST = ("bilevelbench new", "bilevelbench run -a", "bilevelbench tune", "bilevelbench run --suite")


def shown() -> list[str]:
    found = list(dict.fromkeys(example for _, verb in verbs(parser()) for example in examples(verb)))
    place = {example: next((n for n, start in enumerate(FIRST) if example.startswith(start)), 9) for example in found}
    return sorted(found, key=lambda example: place[example])


@pytest.mark.slow
def test_every_example_works_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example in shown():
        if example not in ELSEWHERE:
            code, out, err = cli(*shlex.split(example)[1:])
            assert code == 0, f"{example} ended with {code}:\n{out}\n{err}"


def test_the_quick_examples_work_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = [e for e in shown() if e.split()[1] in ("new", "version", "info", "list", "merge") and "merge" not in e]
    assert len(quick) > 4
    for example in quick:
        assert cli(*shlex.split(example)[1:])[0] == 0, example


def test_examples_that_are_not_run_are_still_there():
    assert set(ELSEWHERE) <= set(shown())


@pytest.mark.parametrize("path", [path for path, _ in verbs(parser())])
def test_help_has_an_example_and_no_type_of_python(path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = cli(*path.split()[1:], "--help")
    assert code == 0
    assert "Example" in out
    options = [line for line in out.splitlines() if line.lstrip("│* ").startswith("--")]
    assert options
    assert [line for line in options if re.search(r"<[a-z]", line)] == []


def test_alone_it_says_what_to_do_first():
    code, out, err = cli()
    assert (code, err) == (0, "")
    assert "bilevelbench tutorial" in out
    assert len(out.splitlines()) < 12


def test_the_tutorial_has_four_commands_of_verbs_that_exist():
    known = {path.split()[1] for path, _ in verbs(parser())}
    assert len(STEPS) == 4
    assert {command.split()[0] for _, command in STEPS} <= known


@pytest.mark.slow
def test_the_tutorial_walks_through(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "bilevelbench", "tutorial", "-o", tmp_path / "walk"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for _, command in STEPS:
        assert f"$ bilevelbench {command}" in done.stdout
    assert "mine" in (tmp_path / "walk" / "out" / "index.html").read_text(encoding="utf-8")


def test_a_command_of_the_tutorial_that_fails_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr("bilevelbench.cli.tutorial.STEPS", (("A wrong one.", "info nonsense"), ("Never.", "version")))
    code, out, err = cli("tutorial", "-o", tmp_path)
    assert code == 1
    assert "ended with 2" in err
    assert "Never." not in out


def test_the_shell_completes_verbs_and_names():
    assert cli("list", "methods", "--json")[0] == 0  # whose rows are remembered

    def completed(line: str) -> list[str]:
        words = {
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
            "_BILEVELBENCH_COMPLETE": "complete_bash",
        }
        program = [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'bilevelbench'; from bilevelbench.cli.app import main; main()",
        ]
        done = subprocess.run(program, env={**os.environ, **words}, capture_output=True, text=True)
        return done.stdout.split()

    assert set(completed("bilevelbench tu")) == {"tune", "tutorial"}
    assert "f2ba" in completed("bilevelbench run -a f2b")
    assert "aid" not in completed("bilevelbench run -a f2b")
