"""Files of the repository that name versions, fragments and folders agree with each other."""

import ast
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = (line.split("#")[0].strip().split("==") for line in lines if line.split("#")[0].strip())
    return {plain(name): version for name, version in pins}


def test_every_dependency_has_an_exact_version():
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {plain(re.split(r"[\[<>=;\s]", dependency)[0]) for dependency in wanted} - {"bilevelbench"}
    assert names - set(pinned()) == set()


def locked() -> dict[str, set[str]]:
    """The versions of the lock file by name; it has several of one where systems differ."""
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", (ROOT / "requirements.lock").read_text("utf-8"), re.M):
        versions.setdefault(plain(name), set()).add(version)
    return versions


def test_the_lock_file_has_the_versions_of_the_constraints():
    """`make lock` writes it again. Beside them it has what torch brings on other systems."""
    found = locked()
    assert {name: found[name] for name in pinned() if name in found and found[name] != {pinned()[name]}} == {}
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    names = {plain(re.split(r"[\[<>=;\s]", dependency)[0]) for dependency in wanted} - {"bilevelbench"}
    assert names <= set(found)
    beside = {name for name in found if name not in pinned()}
    assert {n for n in beside if not n.startswith(("nvidia-", "cuda-"))} <= {
        "colorama",
        "httpx2-jsfetch",
        "setuptools",
        "triton",
    }


def test_everything_in_the_lock_file_has_a_checksum_and_no_address():
    text = (ROOT / "requirements.lock").read_text("utf-8")
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.M)[1:]
    assert len(entries) >= len(locked())
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:60]
    assert "://" not in text
    assert "index" not in text


def test_hooks_have_the_versions_of_the_constraints():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    pins = [pin for repo in config["repos"] for hook in repo["hooks"] for pin in hook["additional_dependencies"]]
    assert {pin.split("==")[0] for pin in pins} == {"ruff", "codespell"}
    for pin in pins:
        name, version = pin.split("==")
        assert version == pinned()[name]


def test_the_citation_has_the_version_of_the_project_and_its_date_in_the_changelog():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["keywords"] == PROJECT["project"]["keywords"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {citation['version']} ({citation['date-released']})\n" in changes


def test_every_page_of_the_guides_is_in_the_navigation():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = set(re.findall(r"[\w/-]+\.md", yaml.dump(config["nav"])))
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {name for name in there - named if not name.startswith("decisions/")} == set()


def test_every_fragment_is_of_a_known_type():
    types = {one["directory"] for one in PROJECT["tool"]["towncrier"]["type"]}
    for fragment in (ROOT / "changes").glob("*.md"):
        assert fragment.name.split(".")[1:] in [[kind, "md"] for kind in types], fragment.name


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_templates_can_be_read_and_call_targets_that_exist(path):
    text = path.read_text(encoding="utf-8")
    assert isinstance(yaml.safe_load(text), dict)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets


def test_the_boards_that_are_rebuilt_are_all_that_are_published():
    text = (ROOT / ".github" / "workflows" / "rebuild.yml").read_text(encoding="utf-8")
    settings = yaml.safe_load(text)["jobs"]["boards"]["strategy"]["matrix"]["setting"]
    assert sorted(settings) == sorted(path.stem for path in (ROOT / "leaderboard" / "suites").glob("*.toml"))
    assert f"for setting in {' '.join(settings)}; do" in text
    tuned = yaml.safe_load(text)["jobs"]["tuned"]["strategy"]["matrix"]["setting"]
    assert tuned == settings
    assert all((ROOT / "leaderboard" / "suites" / "small" / f"{setting}.toml").is_file() for setting in tuned)


def test_the_rates_that_are_rebuilt_are_all_that_are_published():
    published = sorted(
        path.parent.name for path in (ROOT / "leaderboard" / "results" / "official").glob("*/rates.json")
    )
    text = (ROOT / ".github" / "workflows" / "rebuild.yml").read_text(encoding="utf-8")
    tables = yaml.safe_load(text)["jobs"]["rates"]["strategy"]["matrix"]["table"]
    assert sorted(f"rates{table}" for table in tables) == published
    for place in (text, (ROOT / "Makefile").read_text(encoding="utf-8")):
        assert f"for table in {' '.join(tables)}; do" in place


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_may_do_little_and_run_actions_by_commit(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}  # a job that needs more says so itself
    for job in workflow["jobs"].values():
        assert set(job.get("permissions", {}).values()) <= {"read", "write"}
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step["uses"]


def test_who_runs_code_of_strangers_may_write_nothing_and_who_may_write_runs_none():
    runs, writes = (
        yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
        for name in ("verify.yml", "verify-comment.yml")
    )
    assert runs["permissions"] == {"contents": "read"}
    assert set(runs[True]) == {"pull_request"}  # `on`, as YAML 1.1 reads it; its token can only read, also from a fork
    (job,) = writes["jobs"].values()
    assert job["permissions"] == {"actions": "read", "pull-requests": "write"}
    assert [step["uses"].split("@")[0] for step in job["steps"] if "uses" in step] == ["actions/download-artifact"]
    for workflow in (runs, writes):  # what a stranger chose reaches a shell by the environment, not as part of a script
        (job,) = workflow["jobs"].values()
        assert not [step for step in job["steps"] if "${{" in step.get("run", "")]


def _git(folder, *arguments):
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_workflow_tells_whoever_merges_what_it_did_not_verify(tmp_path):
    """Its script, where somebody adds verdicts of his own, a link, commands as names, and official results."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "verify.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    (script,) = [step["run"] for step in job["steps"] if step.get("id") == "verify"]
    results, tool = tmp_path / "leaderboard" / "results", tmp_path / ".venv" / "bin" / "bilevelbench"
    tool.parent.mkdir(parents=True)
    tool.write_text('#!/bin/sh\ntest ! -e "$2/verify.json" && echo "verified $2" > table.md\n')
    tool.chmod(0o755)
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "commit", "-q", "--allow-empty", "-m", "before")
    for name in ("official", "honest", "mallory", "x;touch harm", "$(touch harm)"):
        (results / name).mkdir(parents=True)
        (results / name / "pack").write_text(name)
    (results / "mallory" / "verify.json").write_text("{}")
    (results / "link").symlink_to("official")
    _git(tmp_path, "add", "leaderboard")
    _git(tmp_path, "commit", "-q", "-m", "theirs")
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env={**os.environ, "NUMBER": "7"}, check=False)
    assert done.returncode == 1
    said = (tmp_path / "comment" / "body.md").read_text(encoding="utf-8")
    assert said.count("verified leaderboard/results/") == 2  # honest and mallory, whose verdicts were taken away
    for words in ("changes official results", "results/mallory/verify.json` says", "results/link` is a link"):
        assert said.count(words) == 1, said
    assert said.count("A folder of results is named with letters") == 2
    shutil.copy(ROOT / "Makefile", tmp_path)
    show = ["make", "-s", "--eval", "show:;@printf '%s\\n' $(SUBMITTED)", "show"]
    shown = subprocess.run(show, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert shown.split() == [f"leaderboard/results/{name}" for name in ("honest", "link", "mallory")]
    assert not (tmp_path / "harm").exists()


def test_the_guide_for_contributors_names_every_folder_and_no_other():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)/` \|", text, re.M))
    folders = {path.parent.name for path in (ROOT / "bilevelbench").glob("*/__init__.py")}
    assert named == folders
    for path in re.findall(r"`((?:bilevelbench|plugins|tests|docs|benchmarks)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("path", sorted((ROOT / "bilevelbench").rglob("*.py")), ids=lambda path: str(path.name))
def test_modules_and_functions_stay_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 350
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert {node.name: code_lines(node) for node in functions if code_lines(node) > 50} == {}


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without the signature and the docstring: what a function with many options has to say first."""
    first, *rest = function.body
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    body = rest if is_docstring and rest else function.body
    return function.end_lineno - body[0].lineno + 1


def test_no_two_public_classes_of_the_core_share_a_name():
    homes: dict[str, list[str]] = {}
    for path in sorted((ROOT / "bilevelbench").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
