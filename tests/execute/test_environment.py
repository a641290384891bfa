from __future__ import annotations

import json
import platform
import subprocess

import pytest

from bilevelbench.execute.environment import _cpu, environment, plugin_commit


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository with one commit of one plugin; results of earlier tests are forgotten."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    plugin_commit.cache_clear()
    git(tmp_path, "init", "-q")
    (tmp_path / "method.py").write_text("a = 1\n")
    (tmp_path / "helper.py").write_text("b = 1\n")
    (tmp_path / ".gitignore").write_text("venv/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_environment_is_plain_json_and_says_what_matters():
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert found["python"] == platform.python_version()
    assert found["packages"]["torch"]
    assert found["packages"]["bilevelbench"]
    assert found["cores"] >= 1
    assert found["memory"] is None or found["memory"] > 2**20


def test_environment_does_not_name_the_host():
    assert "node" not in environment()
    assert "host" not in " ".join(environment())


def test_threads_are_read_when_asked(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment()["threads"]["OMP_NUM_THREADS"] == "3"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert environment()["threads"]["OMP_NUM_THREADS"] is None


def test_cpu_model_is_read_from_cpuinfo(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 9000: fast\n")
    assert _cpu(str(tmp_path / "cpuinfo")) == "Abacus 9000: fast"
    assert _cpu(str(tmp_path / "missing")) == (platform.processor() or None)


def test_commit_of_a_clean_tree(tree):
    (tree / "results.txt").write_text("untracked files elsewhere do not count")
    assert plugin_commit(tree / "method.py") == git(tree, "rev-parse", "HEAD").strip()


@pytest.mark.parametrize("changed", ["method.py", "helper.py", "new.py"])
def test_changed_tree_is_dirty(tree, changed):
    (tree / changed).write_text("a = 2\n")
    plugin = changed if changed == "new.py" else "method.py"
    assert plugin_commit(tree / plugin) == git(tree, "rev-parse", "HEAD").strip() + "+dirty"


def test_answer_is_cached(tree):
    before = plugin_commit(tree / "method.py")
    (tree / "method.py").write_text("a = 2\n")
    assert plugin_commit(tree / "method.py") == before


def test_no_commit_for_ignored_missing_or_foreign_files(tree, tmp_path_factory):
    installed = tree / "venv" / "plugin.py"
    installed.parent.mkdir()
    installed.write_text("")
    assert plugin_commit(installed) is None
    assert plugin_commit(tree / "no" / "such" / "file.py") is None
    assert plugin_commit(tmp_path_factory.mktemp("outside") / "plugin.py") is None
    assert plugin_commit("nul\0byte.py") is None


def test_no_commit_before_the_first_one(tmp_path):
    git(tmp_path, "init", "-q")
    assert plugin_commit(tmp_path / "method.py") is None


def test_no_commit_without_git(tree, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert plugin_commit(tree / "method.py") is None


def test_a_slow_git_is_given_up(tree, monkeypatch):
    def run(*_, timeout, **__):
        raise subprocess.TimeoutExpired("git", timeout)

    monkeypatch.setattr(subprocess, "run", run)
    assert plugin_commit(tree / "method.py") is None


def test_a_hook_s_git_dir_does_not_mislead(tree, monkeypatch):
    commit = git(tree, "rev-parse", "HEAD").strip()
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert plugin_commit(tree / "method.py") == commit
