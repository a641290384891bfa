"""What several test files share: trials from text, packs and single runs of them, exact comparison, commands, plugins, HTML."""

from __future__ import annotations

import contextlib
import copy
import io
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from doc_blocks import blocks
from torch import Tensor

from bilevelbench import Algorithm, Instance, Oracle, Problem, Reference, dot
from bilevelbench.cli.app import main
from bilevelbench.discovery.entry import Entry
from bilevelbench.discovery.registry import Registry, registry
from bilevelbench.engine.loop import run_pack
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.model.agents import Part
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.packs import plan
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Budget, Trial
from bilevelbench.plan.trials import make_trial
from bilevelbench.results.schema import MEASURED, Results, curve_frame, runs_frame
from bilevelbench.testing import run_checks


def plugins(*classes: type[Algorithm] | type[Problem]) -> Registry:
    """The installed plugins and these classes."""
    out = copy.copy(registry())
    out.algorithms, out.problems = dict(out.algorithms), dict(out.problems)
    for cls in classes:
        table: dict[str, Any] = out.algorithms if issubclass(cls, Algorithm) else out.problems
        table[cls.name] = Entry(cls, "tests", "1")
    return out


def trial(
    algorithm: str,
    problem: str = "bowl",
    *,
    cost: float | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    among: Registry | None = None,
    **rest: Any,
) -> Trial:
    """One trial from two texts like `f2ba[K=3]`."""
    (a,), (p,) = parse_spec(algorithm), parse_spec(problem)
    return make_trial(among or registry(), a, p, budget=Budget(cost=cost, steps=steps, seconds=seconds), **rest)


def packed(trials: Sequence[Trial], among: Registry | None = None) -> Results:
    """Their tables, all run in one pack; rows in the order of the trials."""
    among = among or registry()
    assert len(plan(trials, among)) == 1, "these trials cannot share a pack"
    return _tables(trials, [tuple(trials)], among)


def alone(trials: Sequence[Trial], among: Registry | None = None) -> Results:
    """Their tables, each run by itself; rows in the order of the trials."""
    return _tables(trials, [(t,) for t in trials], among or registry())


def _tables(trials: Sequence[Trial], packs: Sequence[tuple[Trial, ...]], among: Registry) -> Results:
    results = [run_pack(pack, among) for pack in packs]
    runs = runs_frame([row for result in results for row in result.runs])
    curve = curve_frame([row for result in results for row in result.curve.rows()])
    place = {t.id: i for i, t in enumerate(trials)}
    assert sorted(runs.trial_id) == sorted(place), "each trial has one row"
    runs = runs.sort_values("trial_id", key=lambda ids: ids.map(place), ignore_index=True)
    curve = curve.sort_values(["trial_id", "step"], key=lambda c: c.map(place) if c.name == "trial_id" else c)
    return Results(runs, curve.reset_index(drop=True), [])


def of(results: Results, trials: Sequence[Trial]) -> Results:
    """The rows of these trials."""
    ids = [t.id for t in trials]
    runs, curve = (t[t.trial_id.isin(ids)].reset_index(drop=True) for t in (results.runs, results.curve))
    return Results(runs, curve, [])


def assert_same(a: Results, b: Results) -> None:
    """Equal to the last bit, NaN equal to NaN, in every column that does not depend on the clock or the pack."""
    for left, right in ((a.runs, b.runs), (a.curve, b.curve)):
        pd.testing.assert_frame_equal(
            left.drop(columns=list(MEASURED), errors="ignore"),
            right.drop(columns=list(MEASURED), errors="ignore"),
            check_exact=True,
        )


def prepared(
    method: Algorithm, instance: Instance, seeds: Sequence[int] = (0,), part: Part | None = None
) -> PreparedPack:
    """A lane of the method for each seed, without the runner; `part` is that of an agent."""
    return PreparedPack(instance, [method.resolve(instance.constants)] * len(seeds), seeds, part=part)


def states_of(pack: PreparedPack, steps: int) -> list[Any]:
    """The state at the start and after each step."""
    out = [pack.init()]
    for step in range(1, steps + 1):
        out.append(pack.step(step, out[-1]))
    return out


def iterates(
    method: Algorithm, instance: Instance, steps: int, part: Part | None = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(x, y) at the start and after each step, of one lane."""
    pack = prepared(method, instance, part=part)
    points = (pack.algorithm.point(state) for state in states_of(pack, steps))
    return [(x[0].numpy().copy(), y[0].numpy().copy()) for x, y in points]


def is_running(pid: int) -> bool:
    """Orphans that have ended stay as zombies where the first process of a container does not collect them."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def all_end(pids: Sequence[int], seconds: float = 60) -> bool:
    """Whether these processes are gone, now or soon."""
    deadline = time.monotonic() + seconds
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(is_running(pid) for pid in pids)


def cli(*arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command in this process."""
    out, err, argv, code = io.StringIO(), io.StringIO(), sys.argv, 0
    sys.argv = ["bilevelbench", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = argv
    return code, out.getvalue(), err.getvalue()


def assert_conforms(plugin: Algorithm | Problem | type[Algorithm] | type[Problem]) -> None:
    """It passes the kit, whatever torch's default is; what it is known to fail, or is spared, comes with the reason."""
    with default_dtype(torch.float32):
        found = list(run_checks(plugin))
    failed = [f"{o.check}: {o.message}" for o in found if o.status == "failed"]
    silent = [o.check for o in found if o.status in ("known", "skipped") and not o.message]
    assert not failed, "\n".join(failed)
    assert not silent, f"{', '.join(silent)} without a reason"


class Bowl(Problem):
    """f(x, y) = 1/2 ‖y‖²; g(x, y) = 1/2 ‖y - x‖². So y* = x, phi = 1/2 ‖x‖², grad phi = x; |x0| = 2."""

    name = "bowl"

    def build(self) -> Instance:
        x0 = torch.full((1, 2), 2**0.5)
        return Instance(
            f=lambda x, y: 0.5 * dot(y, y) + 0 * x[..., :1],
            g=lambda x, y: 0.5 * dot(y - x, y - x),
            x0=x0,
            y0=torch.zeros(1, 2),
            constants={"mu": 1.0, "L_g": 2.0, "L_gy": 1.0, "L_f": 1.0, "rho_g": 0.0, "L_phi": 1.0},
            reference=Reference(
                y_star=lambda x: x,
                phi=lambda x: 0.5 * dot(x, x),
                grad_phi=lambda x: x,
                hess_phi=lambda x: torch.eye(2, dtype=x.dtype).expand(*x.shape, 2),
            ),
            metrics={"first": lambda x, y: x[..., :1]},
        )


@dataclass(frozen=True)
class Point:
    x: Tensor
    y: Tensor
    k: int


class Shrink(Algorithm):
    """x <- x - rate (x + g_x(x, y)) with y = 0, so x <- (1 - 2 rate) x: `calls_a_step` calls, the rest of them idle."""

    name = "shrink"
    uses = frozenset({"grad_g_x"})

    rate: float = 0.25
    calls_a_step: int = 1

    def init(self, x0: Tensor, y0: Tensor, oracle: Oracle) -> Point:
        return Point(x0, y0, 0)

    def step(self, s: Point, oracle: Oracle) -> Point:
        for _ in range(self.calls_a_step):
            g_x = oracle.grad_g_x(s.x, s.y)
        return Point(s.x - self.rate * (s.x + g_x), s.y, s.k + 1)

    def calls(self, step: int) -> dict[str, int]:
        return {"grad_g_x": self.calls_a_step}


class Broken(ArithmeticError):
    """Of a user's function itself."""


def breaking(g: Callable[[Tensor, Tensor], Tensor], after: int) -> Callable[[Tensor, Tensor], Tensor]:
    """g, which fails at a call that is neither the first nor part of the look at the start."""
    calls = 0

    def g_that_breaks(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > after:
            raise Broken("nobody knows this point")
        return g(x, y)

    return g_that_breaks


#: On the problem of the guide: one runs away to where phi is flat and |grad phi| is 0 in floating point, one is healthy.
DIVERGES, HEALTHY = "f2ba[eta_x=0.001,a_y=10,a_z=10,lam=10]", "f2ba[eta_x=1,a_y=0.1,a_z=0.1,lam=100]"


def guide_problem(folder: Path) -> Path:
    """The file of `docs/your-problem.md`."""
    page = Path(__file__).resolve().parents[1] / "docs" / "your-problem.md"
    (block,) = (block for block in blocks(page, "your-problem.md") if block.file == "ridge_toy.py")
    (folder / block.file).write_text(block.text)
    return folder / block.file


def guide_command(folder: Path) -> list[str]:
    """The two trials on it, into `folder / out`."""
    methods = ["-a", DIVERGES, "-a", HEALTHY, "-p", str(guide_problem(folder))]
    return ["run", *methods, "--budget", "2000", "--jobs", "0", "-o", str(folder / "out")]


def uncertified(results: Results) -> Results:
    """The same numbers, as if nothing were known about their error."""
    runs, curve = results.runs.assign(certificate="not certified"), results.curve.assign(grad_phi_error=np.nan)
    return Results(runs, curve, results.records)


class Reader(HTMLParser):
    """Tags, attributes, text and cells of a page; complains about tags that do not close."""

    VOID = frozenset({"meta", "br", "img", "link", "hr", "input", "wbr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.cells[-1] += data
