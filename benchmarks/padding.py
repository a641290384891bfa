"""What the three copies that pad a single trial cost, and what a lane of a full pack costs, each over the trial by itself.

    python benchmarks/padding.py [PROBLEM ...]

A step of F2BA, processor time, the fastest of some rounds in turns. Where the first number is about four and the second about
one, lanes bring nothing: such a problem declares `max_lanes = 1`, and its trials run alone, without copies.
"""

from __future__ import annotations

import sys

import torch
from turns import Steps, fastest

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.setup import PreparedPack, build_instance
from bilevelbench.model.rounding import one_thread
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Budget, Spec
from bilevelbench.plan.trials import make_trial

METHOD, STEPS, ROUNDS, FULL = "f2ba", 2, 5, 16


def steps(problem: Spec, lanes: int) -> Steps:
    plugins = registry()
    of = Budget(steps=STEPS)
    trials = [make_trial(plugins, Spec(name=METHOD), problem, seed=seed, budget=of) for seed in range(lanes)]
    with default_dtype(torch.float64):
        instance = build_instance(make(plugins.problem(problem.name), problem.params), trials)
    method = make(plugins.algorithm(METHOD), {"K": 2}).resolve(instance.constants.at(0))
    return Steps(PreparedPack(instance, [method] * lanes, range(lanes)), STEPS)


@one_thread()
def main(names: list[str]) -> None:
    for name in names or [key for key, entry in registry().problems.items() if entry.value.max_lanes > 1]:
        (problem,) = parse_spec(name)
        try:
            one, four, full = fastest(*(steps(problem, lanes) for lanes in (1, 4, FULL)), rounds=ROUNDS)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:90]}", flush=True)
            continue
        told = f"one {1e3 * one / STEPS:.2f} ms; padded {four / one:.2f}; a lane of {FULL} {full / FULL / one:.2f}"
        print(f"{name}: {told}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
