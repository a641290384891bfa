"""The condition number by a plain program: rows of `rates --table kappa` on ranges that would take hours there.

    python benchmarks/washboard.py "aid (richardson), tuned" 8 16 32 64
    python benchmarks/washboard.py "acc_f2ba, tuned, no restarts" 16 32 64 128 --eps 0.5
    python benchmarks/washboard.py "f2ba, tuned" 8 16 32 --joint

Loops, penalty, seeds and the rule are those of the row, by its label; the methods are written anew in `washboard.c`. At each
kappa the longest x-step that gets there is found by bisection to two percent; of that one and of a few shorter ones the best
counts. `--joint` also takes the best K between 1.5 and 8 kappa. Needs a C compiler, `cc`.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.plan.trial import Trial
from bilevelbench.studies.rates.plan import plan_row
from bilevelbench.studies.rates.presets import built
from bilevelbench.studies.rates.suite import RateRow, RateSuite

_FINE = 1 / 32  # of a doubling
_SHORTER = (1, 2, 4, 8)  # than the longest that works, in those
_MOST = 10_000_000
_JOINT = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)  # times kappa

#: Steps, or 0, with an x-step and at most so many steps.
Run = Callable[[float, int], int]


def compiled(folder: Path) -> ctypes.CDLL:
    source = Path(__file__).with_suffix(".c")
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit(f"{source.name} needs a C compiler, cc, and there is none on the path")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", folder / "w.so", source, "-lm"], check=True)
    library = ctypes.CDLL(str(folder / "w.so"))
    library.aid.restype = library.f2ba.restype = ctypes.c_long
    return library


def plain(library: ctypes.CDLL, trial: Trial, eps: float) -> Run:
    """The method of this trial, with its parameters but for the x-step, on its data."""
    problem = make(registry().problem(trial.problem.name), trial.problem.params)
    p, real, whole = trial.algorithm.params, ctypes.c_double, ctypes.c_long
    mu = 1 / problem.kappa
    start = (real(mu), real(problem.width()), real(problem.q))
    x1 = real(float(built(problem).x0[0, 0]))

    def run(eta: float, most: int) -> int:
        if trial.algorithm.name == "aid":
            loops = (whole(p["D"]), whole(p["N"]), real(p["a"]), real(eta))
            return int(library.aid(*start, *loops, x1, real(eps), whole(most)))
        root = math.sqrt(p["a_y"] * mu / 2)
        beta = (1 - root) / (1 + root) if p.get("momentum") == "nesterov" else 0.0
        loops = (whole(p["K"]), real(p["lam"]), real(p["a_y"]), real(beta), real(eta), real(p.get("theta", 1.0)))
        return int(library.f2ba(*start, *loops, x1, real(eps), whole(most)))

    return run


def best(runs: list[Run], eta: float, most: int) -> tuple[float, float]:
    """The x-step with the fewest steps in the geometric mean over seeds, and those; from half of eta on."""

    def steps(power: float, most: int) -> float:
        found = [run(eta * 2**power, most) for run in runs]
        return math.exp(sum(map(math.log, found)) / len(found)) if all(found) else math.inf

    low = -1.0
    while math.isinf(least := steps(low, most)):
        low -= 1
    high = low + 1
    while steps(high, math.ceil(least)) < math.inf:
        low, high = high, high + 1
    while high - low > _FINE:
        middle = (low + high) / 2
        low, high = (middle, high) if steps(middle, math.ceil(least)) < math.inf else (low, middle)
    tried = {power: steps(power, math.ceil(least)) for power in (low, *(low - n * _FINE for n in _SHORTER))}
    power = min(tried, key=lambda one: tried[one])
    return eta * 2**power, tried[power]


def tuned(library: ctypes.CDLL, trials: list[Trial], eps: float, eta: float, most: int) -> tuple[float, ...]:
    """The fewest calls of these trials, with steps, x-step and K or D."""
    runs = [plain(library, trial, eps) for trial in trials]
    found, steps = best(runs, eta, most)
    params = trials[0].algorithm.params
    calls = steps * (2 + params["D"] + params["N"] if "D" in params else 3 + 3 * params["K"])
    twice = [run(2 * found, 4 * round(steps)) for run in runs]
    return calls, steps, found, params.get("K", params.get("D")), max(twice) if all(twice) else math.inf


def measured(row: RateRow, suite: RateSuite, kappas: list[float], library: ctypes.CDLL, joint: bool) -> None:
    points: list[tuple[float, ...]] = []
    for kappa in kappas:
        planned = [p.trial for p in plan_row(row, suite, registry(), "tuned", grid=[kappa], factor=row.tuned_from)]
        given = planned[0].algorithm.params
        choices = [given | {"K": round(times * kappa)} for times in _JOINT] if joint else [given]
        most = _MOST if not points else round(30 * points[-1][1] * (kappa / points[-1][0]) ** 3)
        calls, steps, eta, loop, twice = min(
            tuned(library, [_with(trial, params) for trial in planned], row.at_eps, given["eta_x"], most)
            for params in choices
        )
        log = loop / kappa**row.over_power if row.over else 1.0
        points.append((kappa, steps, calls, calls / log))
        told = f"kappa {kappa:g}: {steps:.0f} steps, {calls:.4g} calls, loops of {loop:.0f}, x-step {eta:.4g}"
        then = f"{twice:.0f} steps" if twice < math.inf else "not in four times the steps"
        print(f"{told}, of twice the length {then}", flush=True)
    logs = np.log(np.array(points))
    names = ["steps", "calls"] + ["calls without the logarithm of the loop"] * bool(row.over and not joint)
    for column, name in enumerate(names, 1):
        local = np.diff(logs[:, column]) / np.diff(logs[:, 0])
        slope = np.polyfit(logs[:, 0], logs[:, column], 1)[0]
        print(f"{name}: slope {slope:.3f}, from one to the next {' '.join(f'{s:.3f}' for s in local)}")


def _with(trial: Trial, params: dict[str, Any]) -> Trial:
    return trial.model_copy(update={"algorithm": trial.algorithm.model_copy(update={"params": params})})


def main() -> None:
    suite = RateSuite.load(registry().suite("rates_kappa"))
    rows = {row.label: row for row in suite.row if row.preset == "tuned" and not row.tuned_over}
    known = [label for label in rows if label.startswith(("aid (rich", "f2ba", "pf2ba", "acc_f2ba"))]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("label", choices=[label for label in known if not label.startswith("f2bsa")])
    parser.add_argument("kappa", type=float, nargs="+")
    parser.add_argument("--eps", type=float)
    parser.add_argument("--loops", type=float, help="this share of the K of the theorem, if not that of the row")
    parser.add_argument("--joint", action="store_true", help="K is tuned as well")
    asked = parser.parse_args()
    row = rows[asked.label]
    times = row.times if asked.loops is None else {"K": asked.loops}
    with tempfile.TemporaryDirectory() as folder:
        row = row.model_copy(update={"at_eps": asked.eps or row.at_eps, "times": times})
        measured(row, suite, asked.kappa, compiled(Path(folder)), asked.joint)


if __name__ == "__main__":
    main()
