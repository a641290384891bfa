"""README.md: the output that it shows is real, and from nothing it leads to a figure in under ten commands."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from doc_blocks import blocks
from helpers import cli

from bilevelbench.discovery.registry import registry

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[1]
README = blocks(ROOT / "README.md", "README.md")


def test_the_output_at_the_top_is_what_its_command_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    command, shown = README[:2]
    assert (command.language, shown.language) == ("bash", "text")
    code, out, err = cli(*shlex.split(command.text)[1:])
    assert (code, err) == (0, "")
    printed = [" ".join(line.split()) for line in out.splitlines()]
    for line in shown.text.splitlines():
        assert " ".join(line.split()) in printed
    assert "never" not in shown.text


def test_it_says_how_many_methods_and_problems_there_are():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    there = [
        sum(entry.plugin == "bilevelbench" for entry in kind.values())
        for kind in (registry().algorithms, registry().problems)
    ]
    assert "bilevelbench has {} methods and {} problems".format(*there) in text


def test_the_picture_is_there_and_is_wide_enough_to_read():
    head = (ROOT / "docs" / "pictures" / "board.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(head[16:20], "big") > 1000


def from_nothing() -> list[str]:
    """The first line of the installation, and the commands below `Your method on your problem`."""
    (install,) = [block for block in README if block.text.startswith("python3 -m venv")]
    (mine,) = [block for block in README if "bilevelbench new method" in block.text]
    return [*install.commands()[0].split(" && "), *mine.commands()]


def test_from_nothing_to_a_figure_takes_fewer_than_ten_commands():
    commands = from_nothing()
    assert len(commands) < 10
    assert commands[-1].startswith("bilevelbench report")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, without a network: setuptools of this environment makes it."""
    folder = tmp_path_factory.mktemp("wheel")
    left_out = shutil.ignore_patterns(".git", ".venv*", "build", "*_cache", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "source", ignore=left_out)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--no-index", "-w", folder, folder / "source"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel):
    """Templates, scripts, suites and data are named in pyproject.toml by hand; only users would miss one that was forgotten."""
    left_out = {"__pycache__", "bilevelbench_example"}
    wanted = {
        path.relative_to(root).as_posix()
        for root, pattern in ((ROOT, "bilevelbench/**/*"), (ROOT / "plugins", "bilevelbench_*/**/*"))
        for path in root.glob(pattern)
        if path.is_file() and not left_out & set(path.parts)
    }
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == wanted


@pytest.mark.slow
def test_from_nothing_to_a_figure_in_a_fresh_environment(wheel, tmp_path):
    """The commands as a reader types them, in a shell, in an environment that has the dependencies and no bilevelbench."""
    dependencies = str(Path(distribution("torch").locate_file("")).resolve())
    lines = []
    for command in from_nothing():
        if command.startswith(
            "pip install"
        ):  # without the network: the wheel, and the dependencies of this environment
            written = f"open(site.getsitepackages()[0] + '/dependencies.pth', 'w').write({dependencies!r})"
            lines.append(f"pip install --no-deps --no-index {shlex.quote(str(wheel))}")
            lines.append(f"python -c {shlex.quote(f'import site; {written}')}")
        else:
            lines.append(command)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert list((tmp_path / "paper").rglob("*.svg"))
    table = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "paper").rglob("*.tex"))
    assert "my_method" in table.replace("\\", "")
