"""What things cost as work grows: lanes of a pack, dimension, trials of a run, rows of a board. One figure from one file.

    python benchmarks/scaling.py                  measures what benchmarks/scaling.json lacks, and draws
    python benchmarks/scaling.py --only lanes     some of it; --most 1000 nothing larger than that

Times are processor time of this process with one thread, so that other work on the machine disturbs them little. What was
measured is kept at once: a run that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import synthetic
import torch
from matplotlib.figure import Figure
from torch import Tensor
from turns import Steps, fastest

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.run import run_trials
from bilevelbench.leaderboard.build import build
from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import dot
from bilevelbench.model.rounding import one_thread
from bilevelbench.plan.suite import AlgorithmEntry, ProblemEntry, Suite
from bilevelbench.plan.trial import Budget
from bilevelbench.report.contents import Report
from bilevelbench.report.figures.style import despine, settings, svg_file
from bilevelbench.report.formats import html
from bilevelbench.results.store import Store

MEASURED = Path(__file__).parent / "scaling.json"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "scaling.svg"
METHOD, STEPS = "f2ba", 5

#: By panel: its sizes, what is counted on its axis, and what is measured.
SIZES: dict[str, tuple[int, ...]] = {
    "lanes": (1, 4, 16, 64, 256, 1024),
    "dimension": (10, 100, 1000, 10_000, 100_000),
    "trials": (10, 100, 1000, 10_000),
    "rows": (100, 1000, 10_000, 100_000),
}
LABELS = {
    "lanes": ("lanes of a pack", "seconds of a step"),
    "dimension": ("dimension of x and of y", "seconds of a step"),
    "trials": ("settings of a grid", "seconds of the run and its page"),
    "rows": ("trials on a board", "seconds of the build"),
}


def diagonal(dim: int) -> Instance:
    """g = 1/2 Σ d_i y_i² - <x, y>,  f = 1/2 |y - 1|² + 1/2 |x|²: every query takes as many operations as numbers."""
    d = torch.linspace(0.5, 1.0, dim, dtype=torch.float64)

    def both(value: Tensor, x: Tensor) -> Tensor:
        return value.expand(torch.broadcast_shapes(value.shape, x.shape))

    return Instance(
        f=lambda x, y: 0.5 * dot(y - 1, y - 1) + 0.5 * dot(x, x),
        g=lambda x, y: 0.5 * dot(d * y, y) - dot(x, y),
        grad_f_x=lambda x, y: both(x, y),
        grad_f_y=lambda x, y: both(y - 1, x),
        grad_g_x=lambda x, y: both(-y, x),
        grad_g_y=lambda x, y: d * y - x,
        x0=torch.zeros(1, dim, dtype=torch.float64),
        y0=torch.zeros(1, dim, dtype=torch.float64),
    )


def step_of_lanes(lanes: int) -> float:
    instance = make(registry().problem("quadratic"), {}).build()
    method = make(registry().algorithm(METHOD), {}).resolve(instance.constants)
    return _step(PreparedPack(instance, [method] * lanes, range(lanes)))


def step_of_dimension(dim: int) -> float:
    method = make(registry().algorithm(METHOD), {"K": 10, "lam": 10.0, "eta_x": 0.01, "a_y": 0.05, "a_z": 0.5})
    return _step(PreparedPack(diagonal(dim), [method], [0]))


def _step(pack: PreparedPack) -> float:
    (least,) = fastest(Steps(pack, STEPS), rounds=5)
    return least / STEPS


def run_of_trials(trials: int) -> float:
    """A grid of so many settings in this process, from the plan to the page."""
    began, side = time.process_time(), round(trials**0.5)
    while trials % side:
        side -= 1
    values = {"eta_x": np.geomspace(1e-3, 1e-1, side), "lam": np.geomspace(1, 100, trials // side)}
    suite = Suite(
        algorithm=(AlgorithmEntry(name=METHOD, params={name: grid.tolist() for name, grid in values.items()}),),
        problem=(ProblemEntry(name="quadratic"),),
        budget=Budget(steps=STEPS),
    )
    with tempfile.TemporaryDirectory() as folder:
        results = run_trials(suite.trials(registry()), Store(folder), registry(), Execution(jobs=0))
        assert len(results.runs) == trials
        html.document(Report(results))
    return time.process_time() - began


def build_of_rows(rows: int) -> float:
    """The site of so many synthetic trials: up to 50 methods with ten seeds."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "results"
        methods = min(50, rows // 20)
        synthetic.write(source, methods, rows // (methods * 10), 10, points=10)
        began = time.process_time()
        build([source], Path(folder) / "site")
        return time.process_time() - began


MEASURES: dict[str, Callable[[int], float]] = {
    "lanes": step_of_lanes,
    "dimension": step_of_dimension,
    "trials": run_of_trials,
    "rows": build_of_rows,
}


def measure(kinds: list[str], most: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    for kind in kinds:
        for size in SIZES[kind]:
            if str(size) not in found.setdefault(kind, {}) and size <= most:
                found[kind][str(size)] = float(f"{MEASURES[kind](size):.3g}")
                MEASURED.write_text(json.dumps(found, indent=2) + "\n")
                print(f"{kind} {size:,}: {found[kind][str(size)]:g} s", flush=True)
    return found


def draw(found: dict[str, dict[str, float]]) -> Figure:
    """A panel for each kind on log axes; dotted is what would be proportional to the size, through the last point."""
    with settings():
        figure = Figure(figsize=(9.0, 5.4), layout="constrained")
        panels: Any = figure.subplots(2, 2)
        for axes, kind in zip(panels.flat, SIZES, strict=True):
            points = sorted((int(size), seconds) for size, seconds in found.get(kind, {}).items())
            x, label = LABELS[kind]
            axes.set(xscale="log", yscale="log", xlabel=x, ylabel=label)
            axes.grid(alpha=0.15, linewidth=0.6)
            if points:
                at, seconds = np.array(points).T
                axes.plot(at, seconds, "o-", linewidth=1.5, markersize=4, color="#0173b2")
                axes.plot(at, seconds[-1] * at / at[-1], ":", linewidth=1, color="#949494")
        despine(figure)
    return figure


@one_thread()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(SIZES))
    parser.add_argument("--most", type=int, default=100_000, help="no size above this is measured")
    given = parser.parse_args()
    found = measure(given.only or list(SIZES), given.most)
    PICTURE.write_text(svg_file(draw(found)), encoding="utf-8")
    print(f"drawn: {PICTURE}")


if __name__ == "__main__":
    main()
