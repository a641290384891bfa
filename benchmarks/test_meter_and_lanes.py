"""What the meter and the lanes cost: one F2BA step on `ridge_abalone`, one thread, the best of many rounds.

Ratios are of minima, taken in turns within one run, so that a noisy machine disturbs both sides alike. Nothing is
asserted about time here: the numbers go to summary.json.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_problems import RidgeAbalone

from bilevelbench.discovery.registry import registry
from bilevelbench.engine.loop import run_pack
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.model.queries import QUERIES
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.trial import Budget, Spec
from bilevelbench.plan.trials import make_trial

STEPS = 20


class Stepper:
    """F2BA, K = 10, from a fixed state: `trials` lanes padded as in a run; `raw` asks the derivatives without any meter."""

    def __init__(self, trials: int, raw: bool = False) -> None:
        with default_dtype(torch.float64):
            instance = RidgeAbalone().build()
        grid = [
            F2BA(lam=10.0 ** (1 + i % 4), eta_x=1e-4 * (1 + i // 4)).resolve(instance.constants) for i in range(trials)
        ]
        self.pack = PreparedPack(instance, grid, range(trials), [1e15] * trials, wide=True)
        oracle = self.pack.oracle
        if raw:
            for query in F2BA.uses & QUERIES.keys():  # the method names a sample, here always None
                setattr(oracle, query, lambda x, y, sample, ask=instance._raw[query]: ask(x, y))
            oracle.repeat = lambda times: iter([True] * 10)
            oracle.mean = lambda *tensors: tensors if len(tensors) > 1 else tensors[0]
        self.raw = raw
        self.state = self.pack.init()

    def __call__(self) -> None:
        state, pack = self.state, self.pack
        if self.raw:
            for _ in range(STEPS):
                state = pack.algorithm.step(state, pack.oracle)
            return
        for k in range(1, STEPS + 1):
            state = pack.step(k, state)
            pack.check_counts()


def fastest(trials: int, raw: bool, rounds: int = 200) -> float:
    """Seconds of `STEPS` steps, the best of many rounds, in a process of its own.

    In one process the two sides would share the interpreter's inline caches, which a second kind of oracle spoils; a real
    run has only one kind.
    """
    code = (
        "import sys, time, torch; sys.path.insert(0, sys.argv[1]); torch.set_num_threads(1); torch.set_grad_enabled(False)\n"
        "from test_meter_and_lanes import Stepper\n"
        f"stepper, best = Stepper({trials}, raw={raw}), float('inf')\n"
        f"for _ in range({rounds}):\n"
        "    start = time.perf_counter(); stepper(); best = min(best, time.perf_counter() - start)\n"
        "print(best)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def ratio(above: tuple[int, bool], below: tuple[int, bool], turns: int = 5) -> float:
    """Minimum over minimum; the two sides take turns."""
    pairs = [(fastest(*above), fastest(*below)) for _ in range(turns)]
    return min(a for a, _ in pairs) / min(b for _, b in pairs)


@pytest.mark.parametrize(("trials", "raw"), [(1, True), (1, False), (36, False), (360, False)])
def test_f2ba_step(benchmark, trials, raw):
    stepper = Stepper(trials, raw)
    benchmark.extra_info["microseconds_per_step"] = "divide by " + str(STEPS)
    benchmark.pedantic(stepper, rounds=60, warmup_rounds=5)


def test_meter_overhead(benchmark, summary):
    """A metered step over the same step on the raw derivatives, one lane."""
    summary["meter_overhead_ratio"] = benchmark.pedantic(ratio, args=((1, False), (1, True)), rounds=1)


def test_lanes(benchmark, summary):
    """36 trials in one pack over one trial."""
    summary["lanes36_ratio"] = benchmark.pedantic(ratio, args=((36, False), (1, False)), rounds=1)


def test_runner_share(benchmark, summary):
    """The runner's loop and evaluations on top of the steps, over 2,000 steps of one trial."""
    trial = make_trial(registry(), Spec(name="f2ba"), Spec(name="ridge_abalone"), budget=Budget(steps=2000))
    result = benchmark.pedantic(run_pack, args=((trial,), registry()), rounds=3)
    summary["runner_share"] = result.total_seconds / result.step_seconds - 1
