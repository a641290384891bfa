"""What four usual changes cost: each is made in a scratch worktree, tried there, and its `git diff --stat` is printed.

    python tools/change_cost.py

A change that touches more files of the core than its `limit`, or that does not work, ends this with an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = "bilevelbench/"


@dataclass(frozen=True)
class Change:
    """`edits` are (file, line, new lines behind it), `files` are new; `trial` is a script that fails unless it works."""

    name: str
    limit: int  # files of the core
    trial: str
    edits: tuple[tuple[str, str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()


CHANGES = (
    Change(
        "a new query kind: products with the upper level's Hessian",
        limit=3,
        edits=(
            (
                "bilevelbench/model/queries.py",
                '        Query("jvp_g_xy", "g", 2, ("x",), "jvp"),\n',
                '        Query("hvp_f_yy", "f", 2, ("y",), "hvp_f"),\n',
            ),
            ("bilevelbench/oracle/oracle.py", "    value_g: BlockQuery\n", "    hvp_f_yy: ProductQuery\n"),
        ),
        trial="""
import torch
from bilevelbench.model.instance import Instance
from bilevelbench.oracle.oracle import Oracle
from bilevelbench.results.schema import RUNS

one = torch.ones(1, 2, dtype=torch.float64)
cubes = lambda x, y: (y**3).sum(-1, keepdim=True) + 0 * x.sum(-1, keepdim=True)
oracle = Oracle(Instance(f=cubes, g=cubes, x0=one[0], y0=one[0]), frozenset({"hvp_f_yy"}), [0])
oracle.begin_step(1)
assert torch.equal(oracle.hvp_f_yy(one, 2 * one, one), 12 * one)
counts = oracle.meter.columns()
assert counts["hvp_f"][0] == counts["second_order"][0] == 1 and "hvp_f" in RUNS
""",
    ),
    Change(
        "a new executor: one pack after the other in this process",
        limit=1,
        files=(
            (
                "bilevelbench/execute/serial.py",
                '''"""One pack after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bilevelbench import hookimpl
from bilevelbench.execute.executor import Done, Execution, Executor, run_and_store
from bilevelbench.plan.packs import Pack
from bilevelbench.results.store import Store


class SerialExecutor(Executor):
    @classmethod
    def check(cls, execution: Execution) -> None:
        pass

    def where(self, packs: int) -> str:
        return "one after the other"

    def __call__(self, packs: Sequence[Pack], store: Store) -> Iterator[Done]:
        for pack in packs:
            yield run_and_store(pack, store, self.registry)


@hookimpl
def bilevelbench_executors() -> dict[str, str]:
    return {"serial": "bilevelbench.execute.serial:SerialExecutor"}
''',
            ),
        ),
        edits=(
            (
                "pyproject.toml",
                'bilevelbench_suites = "bilevelbench_suites"\n',
                'serial_executor = "bilevelbench.execute.serial"\n',
            ),
        ),
        trial="""
import tempfile, tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from bilevelbench.discovery.registry import Registry
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.run import run_trials
from bilevelbench.plan.trial import Budget, Spec
from bilevelbench.plan.trials import make_trial
from bilevelbench.results.store import Store

points = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"]["bilevelbench"]
registry = Registry.from_entry_points([EntryPoint(name, value, "bilevelbench") for name, value in points.items()])
trial = make_trial(registry, Spec(name="f2ba"), Spec(name="quadratic"), budget=Budget(steps=3))
with tempfile.TemporaryDirectory() as folder:
    results = run_trials([trial], Store(Path(folder)), registry, Execution(executor="serial"))
assert list(results.runs["steps"]) == [3]
""",
    ),
    Change(
        "a new report format: JSON",
        limit=1,
        files=(
            (
                "bilevelbench/report/formats/json.py",
                '''"""`--format json`: the rows of a report."""

from __future__ import annotations

from bilevelbench.report.analysis.summary import summary
from bilevelbench.report.contents import Report

default_file: str | None = None


def document(report: Report, command: str = "") -> str:
    return str(summary(report.results).to_json(orient="records")) + "\\n"


def files(report: Report, command: str = "") -> dict[str, str]:
    return {"report.json": document(report, command)}
''',
            ),
        ),
        trial="""
import json, sys, tempfile
import bilevelbench
from bilevelbench.cli.app import main

with tempfile.TemporaryDirectory() as folder:
    bilevelbench.run("f2ba", "quadratic", steps=3, out=folder)
    sys.argv = ["bilevelbench", "report", folder, "--format", "json", "-o", folder + "/report.json"]
    try:
        main()
    except SystemExit as end:
        assert not end.code
    with open(folder + "/report.json") as file:
        assert json.load(file)[0]["method"] == "f2ba"
""",
    ),
    Change(
        "a new column of `runs`: steps per second",
        limit=3,
        edits=(
            ("bilevelbench/results/schema.py", '    "rounds": COUNT,\n', '    "steps_per_second": REAL,\n'),
            (
                "bilevelbench/results/schema.py",
                'MEASURED = frozenset({"seconds", "peak_memory", "pack_lanes"})\n',
                'MEASURED |= {"steps_per_second"}\n',
            ),
            (
                "bilevelbench/engine/record.py",
                '            "seconds": progress.seconds,\n',
                '            "steps_per_second": progress.step / progress.seconds,\n',
            ),
        ),
        trial="""
import bilevelbench

row = bilevelbench.run("f2ba", "quadratic", steps=3).runs.iloc[0]
assert abs(row["steps_per_second"] * row["seconds"] - 3) < 1e-9
""",
    ),
)


def git(*arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def make(change: Change, tree: Path) -> None:
    for name, text in change.files:
        (tree / name).write_text(text, encoding="utf-8")
    for name, line, new in change.edits:
        text = (tree / name).read_text(encoding="utf-8")
        if text.count(line) != 1:
            raise SystemExit(
                f"{change.name}: {name} has the line {line.strip()!r} {text.count(line)} times; say where now"
            )
        (tree / name).write_text(text.replace(line, line + new), encoding="utf-8")


def cost(change: Change, tree: Path, tried: bool) -> int:
    """Core files that this change touches in a clean `tree`, which is clean again afterwards."""
    make(change, tree)
    git("add", "--all", cwd=tree)
    touched = git("diff", "--cached", "--name-only", cwd=tree).split()
    print(f"{change.name}\n{git('diff', '--cached', '--stat', cwd=tree)}", flush=True)
    if tried:
        paths = os.pathsep.join((str(tree), str(tree / "plugins")))
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", change.trial], cwd=tree, env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"{change.name}: it does not work")
    git("reset", "--hard", "--quiet", cwd=tree)
    return sum(name.startswith(CORE) for name in touched)


def main(tried: bool = True) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "scratch"
        git("worktree", "add", "--quiet", "--detach", str(tree), "HEAD")
        try:
            costs = {change: cost(change, tree, tried) for change in CHANGES}
        finally:
            git("worktree", "remove", "--force", str(tree))
    for change, files in costs.items():
        print(f"{files} core files of at most {change.limit}: {change.name}")
    if dear := [change.name for change, files in costs.items() if files > change.limit]:
        raise SystemExit(f"too dear: {'; '.join(dear)}")


if __name__ == "__main__":
    main()
