"""`bilevelbench new`: what it writes runs, passes the kit and can be packaged; what it must not do it does not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from bilevelbench import InvalidInput, api
from bilevelbench.cli.new import KINDS, new_plugin, next_steps
from bilevelbench.discovery.registry import registry
from bilevelbench.errors import UnknownName
from bilevelbench.results.tables import load_results
from bilevelbench.testing import run_checks

pytestmark = pytest.mark.whole


def loaded(kind, path):
    return (registry().algorithm if kind == "method" else registry().problem)(str(path)).value


@pytest.mark.parametrize("kind", KINDS)
def test_loose_file_passes_every_check(kind, tmp_path):
    path = new_plugin(kind, "my_first", file=True, folder=tmp_path)
    assert path == tmp_path / "my_first.py"
    cls = loaded(kind, path)
    assert (cls.name, cls.__name__) == ("my_first", "MyFirst")
    found = list(run_checks(cls))
    assert not [(o.check, o.message) for o in found if o.status == "failed"]
    assert sum(o.status == "passed" for o in found) >= 15


@pytest.mark.parametrize("kind", KINDS)
def test_loose_file_solves_something(kind, tmp_path):
    path = str(new_plugin(kind, "my_first", file=True, folder=tmp_path))
    chosen = (path, "quadratic") if kind == "method" else ("f2ba", path)
    row = api.run(*chosen, steps=2000, targets=[1e-2]).runs.iloc[0]
    assert row.status == "target", row.message


def test_the_command_runs_a_loose_file(tmp_path):
    path = new_plugin("method", "my_first", file=True, folder=tmp_path)
    command = [sys.executable, "-m", "bilevelbench", "run", "-a", str(path), "-p", "quadratic", "--steps", "20"]
    done = subprocess.run(
        [*command, "--jobs", "0", "-o", "out"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "my_first" in done.stdout


@pytest.mark.parametrize("kind", ["method", pytest.param("problem", marks=pytest.mark.slow)])
def test_distribution(kind, tmp_path):
    """The files are there, pyproject names the entry point, and the plugin's own test passes from its own folder."""
    root = new_plugin(kind, "my_first", folder=tmp_path)
    assert root == tmp_path / "bilevelbench-my-first"
    written = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert written == [
        *([".github/workflows/board.yml"] if kind == "method" else []),
        ".github/workflows/ci.yml",
        ".gitignore",
        "README.md",
        "bilevelbench_my_first/__init__.py",
        "bilevelbench_my_first/my_first.py",
        "pyproject.toml",
        "tests/test_my_first.py",
    ]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert project["project"]["name"] == "bilevelbench-my-first"
    assert project["project"]["entry-points"]["bilevelbench"] == {"my_first": "bilevelbench_my_first"}
    assert project["tool"]["setuptools"]["packages"] == ["bilevelbench_my_first"]
    for path in root.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert not [word for word in ("plugin_name", "PluginName", "plugin-name") if word in text], path
    workflow = (root / ".github/workflows/ci.yml").read_text()
    for command in ("pytest", "bilevelbench check my_first", "bilevelbench run", "--format html"):
        assert command in workflow
    hook = "bilevelbench_algorithms" if kind == "method" else "bilevelbench_problems"
    offers = f"import bilevelbench_my_first as p; print([c.name for c in p.{hook}()])"
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    options = {"cwd": root, "env": env, "capture_output": True, "text": True, "timeout": 300}
    assert subprocess.run([sys.executable, "-c", offers], **options).stdout.strip() == "['my_first']"
    tested = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], **options)
    assert tested.returncode == 0, tested.stdout
    assert "failed" not in tested.stdout
    assert "passed" in tested.stdout


def commands(workflow: Path) -> dict[str, list[str]]:
    """What each job of a workflow runs."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}


def test_the_board_of_a_method_runs_nobody_else(tmp_path):
    workflow = new_plugin("method", "my_first", folder=tmp_path) / ".github/workflows/board.yml"
    asked = commands(workflow)
    assert asked["smoke"][1:] == ["bilevelbench check my_first", "bilevelbench run --suite smoke -a my_first -o smoke"]
    assert [line for line in asked["board"] if " run " in line] == [
        "bilevelbench run --suite published/leaderboard/suites/deterministic.toml -a my_first -o mine"
    ]
    steps = yaml.safe_load(workflow.read_text())["jobs"]["board"]["steps"]
    (fetched,) = [step["with"] for step in steps if step.get("with", {}).get("path") == "published"]
    assert fetched["repository"] == "${{ vars.BILEVELBENCH_REPOSITORY }}"
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]) for step in job["steps"] if "uses" in step)


@pytest.mark.slow
def test_the_commands_of_the_board_work_as_printed(tmp_path):
    """With the published packs of a few boards, and their suite with a smaller budget."""
    root = new_plugin("method", "my_first", folder=tmp_path)
    here, published = Path(__file__).parents[2] / "leaderboard", root / "published" / "leaderboard"
    for name in ("deterministic", "facts"):
        shutil.copytree(here / "results" / "official" / name, published / "results" / "official" / name)
    (published / "suites").mkdir()
    suite = (here / "suites" / "deterministic.toml").read_text().replace("cost = 50000", "cost = 500")
    (published / "suites" / "deterministic.toml").write_text(suite)
    installed = tmp_path / "site-packages"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(installed),
    ]
    env = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    subprocess.run([*pip, str(root)], check=True, env=env, timeout=300)
    asked = commands(root / ".github/workflows/board.yml")
    for command in (*asked["smoke"], *asked["board"]):
        if command.startswith("pip "):
            continue
        line = command.replace("bilevelbench ", f"{sys.executable} -m bilevelbench ", 1)
        done = subprocess.run(line, shell=True, cwd=root, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
    assert (root / "board" / "index.html").is_file()
    names = {path.stem for path in (root / "board" / "method").iterdir()}
    assert {"my_first", "f2ba"} <= names
    assert set(load_results(root / "mine").runs["algorithm"]) == {"my_first"}


def test_a_name_that_holds_the_templates_words(tmp_path):
    path = new_plugin("method", "my_plugin_name", folder=tmp_path)
    text = (path / "bilevelbench_my_plugin_name" / "__init__.py").read_text()
    assert "from bilevelbench_my_plugin_name.my_plugin_name import MyPluginName" in text


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (
            "method",
            "my-method",
            "'my-method' is not a valid name for a Python file: lower-case letters, digits and _; try 'my_method'",
        ),
        ("method", "2fast", "try 'm_2fast'"),
        ("method", "Fancy", "try 'fancy'"),
        ("method", "../up", "try 'up'"),
        ("method", "", "try 'mine'"),
        ("method", "class", "try 'my_class'"),
        ("method", "<b>", "try 'b'"),
        ("method", "random", "a file called random.py would hide the Python module 'random'; try 'my_random'"),
        ("method", "f2ba", "there is a method 'f2ba' already, of plugin 'bilevelbench'; try 'my_f2ba'"),
        (
            "problem",
            "quadratic",
            "there is a problem 'quadratic' already, of plugin 'bilevelbench'; try 'my_quadratic'",
        ),
        ("method", "oracle", "a class Oracle would hide one that the file imports; try 'my_oracle'"),
        ("method", "methods", "there is a package bilevelbench_methods already; try 'my_methods'"),
    ],
)
@pytest.mark.parametrize("file", [True, False])
def test_names_that_are_refused(kind, name, words, file, tmp_path):
    with pytest.raises(InvalidInput) as caught:
        new_plugin(kind, name, file=file, folder=tmp_path)
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_kind_that_there_is_not(tmp_path):
    with pytest.raises(UnknownName, match="unknown kind of plugin 'methode'; did you mean 'method'"):
        new_plugin("methode", "mine", folder=tmp_path)


@pytest.mark.parametrize("file", [True, False])
def test_nothing_is_overwritten(file, tmp_path):
    path = new_plugin("method", "my_first", file=file, folder=tmp_path)
    kept = path if file else path / "README.md"
    kept.write_text("mine")
    with pytest.raises(InvalidInput, match="exists already and is left as it is"):
        new_plugin("method", "my_first", file=file, folder=tmp_path)
    assert kept.read_text() == "mine"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InvalidInput, match=r"cannot write .*; choose another place with -o"):
        new_plugin("method", "my_first", folder=tmp_path / "taken")


def test_next_steps_can_be_typed(tmp_path):
    file = new_plugin("problem", "my_first", file=True, folder=tmp_path)
    assert f"bilevelbench run -p {file} -a f2ba --steps 100 -o out" in next_steps("problem", "my_first", file)
    folder = new_plugin("method", "my_first", folder=tmp_path)
    told = next_steps("method", "my_first", folder)
    assert f"pip install -e {folder}" in told
    assert "bilevelbench run -a my_first -p quadratic --steps 100 -o out" in told
