"""The example of a third party: its wheel is built, installed beside bilevelbench, and seen wherever a plugin is seen."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pandas as pd
import pytest
from doc_blocks import blocks, run_blocks
from setuptools import find_packages

pytestmark = pytest.mark.whole

SOURCE = Path(__file__).parents[2] / "plugins" / "example_thirdparty"


def call(command, env=None, cwd=None, timeout=600):
    return subprocess.run(
        [str(part) for part in command], env=env, cwd=cwd, capture_output=True, text=True, timeout=timeout
    )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Built from a copy, without a network: setuptools of this environment makes it."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    done = call([*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, folder / "source"])
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


class Installed:
    """bilevelbench with the example beside it."""

    def __init__(self, python, env):
        self.python, self.env = python, env

    def run(self, *arguments, cwd=None):
        return call([self.python, "-m", "bilevelbench", *arguments], self.env, cwd)

    def ok(self, *arguments, cwd=None):
        done = self.run(*arguments, cwd=cwd)
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def beside(wheel, tmp_path_factory):
    """The quick form: the wheel unpacked into a folder on the path, which is what an installation comes to."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    return Installed(sys.executable, {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="session")
def environment(wheel, tmp_path_factory):
    """A fresh virtual environment. bilevelbench and torch, too large to install again, are taken from this one."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    assert call([sys.executable, "-m", "venv", "--without-pip", folder]).returncode == 0
    (site,) = folder.glob("lib/python*/site-packages")
    here = {str(Path(distribution("torch").locate_file("")).resolve()), *_paths_of("bilevelbench")}
    site.joinpath("parent.pth").write_text("".join(f"import site; site.addsitedir({p!r})\n" for p in sorted(here)))
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")} | {"OMP_NUM_THREADS": "1"}
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    done = call([*pip, "install", "--no-deps", "--no-index", wheel], env)
    assert done.returncode == 0, done.stderr
    return Installed(python, env)


def _paths_of(name):
    """Where a distribution is found, also one that was installed for development."""
    return {str(Path(distribution(name).locate_file("")).resolve())}


# ---------------------------------------------------------------------------------------------------- quick form


def test_wheel_holds_what_it_says(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        points = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert "[bilevelbench]" in points
    assert "License-Expression: MIT" in metadata
    assert "Requires-Dist: bilevelbench" in metadata
    packages = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert packages == {"bilevelbench_example"}, "an outsider's wheel brings its own package and nothing else"


def test_uses_public_names_only():
    """An outsider has no way in but `from bilevelbench import ...` and the kit."""
    for path in SOURCE.rglob("*.py"):
        for module in re.findall(r"^\s*(?:from|import) (bilevelbench[\w.]*)", path.read_text(encoding="utf-8"), re.M):
            own = module.startswith("bilevelbench_example")
            assert own or module in ("bilevelbench", "bilevelbench.testing"), f"{path.name} imports {module}"


def test_is_no_part_of_the_main_distribution():
    main = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    found = main["tool"]["setuptools"]["packages"]["find"]
    packages = [
        p for where in found["where"] for p in find_packages(SOURCE.parents[1] / where, include=found["include"])
    ]
    assert "bilevelbench_problems" in packages
    assert not [p for p in packages if "example" in p]


def test_is_listed_with_its_plugin(beside):
    found = json.loads(beside.ok("list", "--json"))
    for kind, name in (("methods", "averaged"), ("problems", "denoise")):
        (row,) = [row for row in found[kind] if row["name"] == name]
        assert "bilevelbench-example" in json.dumps(row)
        assert len(found[kind]) > 5, "the built-in ones are there as well"


def test_runs_and_stands_on_the_board(beside, tmp_path):
    """The built-in method on its problem, its method on a built-in problem, both together; then the site."""
    beside.ok("run", "-a", "averaged", "-a", "f2ba", "-p", "denoise", "-p", "quadratic", "--steps", "20", "--jobs", "0",
              "-o", "out", cwd=tmp_path)  # fmt: skip
    runs = pd.read_parquet(tmp_path / "out" / "runs.parquet")
    assert set(zip(runs["algorithm"], runs["problem"], strict=True)) == {
        (a, p) for a in ("averaged", "f2ba") for p in ("denoise", "quadratic")
    }
    assert set(runs["status"]) == {"budget"}
    mine = runs[runs["algorithm"] == "averaged"]
    assert set(mine["plugin"]) == {"bilevelbench-example"}
    assert set(mine["plugin_version"]) == {"0.1.0"}
    assert list(mine["second_order"]) == [40, 40]
    assert list(mine["cost"]) == [20 * 4] * 2  # four calls a step; without noise a batch of 16 is one exact answer
    beside.ok("leaderboard", "build", "out", "-o", "site", cwd=tmp_path)
    board = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "averaged" in board
    assert "denoise" in board
    assert (tmp_path / "site" / "method" / "averaged.html").is_file()


# ---------------------------------------------------------------------------------------------------- as it is done


@pytest.mark.slow
def test_its_readme_in_a_fresh_environment(environment, tmp_path, monkeypatch):
    """Every command that its README shows."""
    monkeypatch.chdir(tmp_path)

    def command(arguments):
        done = environment.run(*arguments)
        return done.returncode, done.stdout + done.stderr

    page = blocks(SOURCE / "README.md", "README.md")
    printed = dict(run_blocks(page, command))
    assert {words.split()[1] for words in printed} == {"list", "info", "check", "run", "leaderboard"}
    assert "averaged" in printed["bilevelbench list"]
    for name in ("averaged", "denoise"):  # a failed check would have ended with 1
        told = printed[f"bilevelbench check {name}"]
        assert int(re.search(r"^(\d+) passed", told, re.M)[1]) >= 14, told
    assert "averaged" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert [b.reason for b in page if b.reason] == [
        "installs; the test does it from a wheel",
        "the test suite of the plugin, which the test runs by itself",
    ]


@pytest.mark.slow
def test_its_own_tests_pass(environment, tmp_path):
    """pytest as its authors run it, from a copy of its tests: the package comes from the wheel."""
    shutil.copytree(SOURCE / "tests", tmp_path / "tests")
    shutil.copy(SOURCE / "pyproject.toml", tmp_path)
    done = call([environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], environment.env, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\b(6|7)\d passed", done.stdout), done.stdout[-300:]


@pytest.mark.slow
def test_four_commands_as_programs(environment, tmp_path):
    """From `new method` to a row on a local board, each command a process of its own, as a new user types them."""
    environment.ok("new", "method", "my_method", "--file", cwd=tmp_path)
    environment.ok("check", "my_method.py", cwd=tmp_path)
    environment.ok("run", "-a", "my_method.py", "-p", "quadratic", "--steps", "50", "-o", "out", cwd=tmp_path)
    environment.ok("leaderboard", "build", "out", "-o", "site", cwd=tmp_path)
    assert "my_method" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    rows = pd.read_csv(tmp_path / "site" / "csv" / "board-default-deterministic.csv")
    assert list(rows["algorithm"]) == ["my_method"]
