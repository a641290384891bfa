"""What test_processors.py runs in processes of its own: does the promise of `bilevelbench doctor` hold there? A line each.

python other_processor.py < CASES: a line of JSON per case, {"order": "first" or "late", "environment": {...}}; the order says
whether bilevelbench or a product of torch comes first. MKL and torch read their variables at their first product, so each
case is a fork of one process that has imported everything and multiplied nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

import torch
from helpers import alone, of, packed, trial

import bilevelbench
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.record import PackResult
from bilevelbench.model.rounding import STEPS, keeps_bits
from bilevelbench.plan.trial import Schedule
from bilevelbench.testing.kit import checks_for
from bilevelbench.testing.stepper import unlike

METHODS = (
    "f2ba[lam={lam},K={n},eta_x=0.1]",
    "aid[solver=cg,D={n},N=3,eta_x={eta}]",
    "itd[D=4,eta_x={eta}]",
    "bome[K={n},xi_x={eta}]",
    "pzobo[Q=3,D={n},h=0.01,eta_x={eta}]",
    "pzobo[Q=2,D={n},h=0.01,eta_x={eta},warm_start=false]",
    "pzobo_s[Q=3,D=4,h=0.01,batch_g=4,batch_f=6,eta_x={eta},a=0.3]",
    "pzobo_s[Q=2,D=3,h=0.5,batch_g=9,batch_f=2,eta_x={eta},a=0.3,common_batches=false]",
)
PROBLEMS = (
    "quadratic[sigma_f=0.1,sigma_g=0.1]",
    "quadratic[dim_x=5,dim_y=9,sigma_f=0.1,sigma_g=0.1]",
    "tail_anchor[tails=3,anchors=2,c=0.5,sigma_f=0.1,sigma_g=0.1]",
)
CHECKED = ("pzobo", "pzobo_s", "aid", "f2ba")
CHECKS = ("lanes", "same_seed_same_bits", "step_is_repeatable")  # of the kit: those that look at bits


def broken_promises() -> list[str]:
    """In words, of packs of five, ten and twelve."""
    found = []
    for problem in PROBLEMS:
        for method in METHODS:
            chosen = [
                trial(
                    method.format(lam=10 + i, n=1 + i % 4, eta=0.1 / (1 + i)),
                    problem,
                    steps=STEPS - i % 3,
                    seed=i,
                    schedule=Schedule(ratio=1.4),
                )
                for i in range(12)
            ]
            by_themselves = alone(chosen[-5:-3])
            for width in (5, 10, 12):
                together = of(packed(chosen[-width:]), chosen[-5:-3])
                found += [
                    f"{method} on {problem} in {width} lanes: {d}"
                    for d in unlike(*map(_rows, (together, by_themselves)))
                ]
    return found


def _rows(results) -> PackResult:
    out = PackResult(runs=results.runs.to_dict("records"))
    out.curve.extend({name: column.tolist() for name, column in results.curve.items()})
    return out


def failed_checks() -> list[str]:
    methods = [registry().algorithm(name).value() for name in CHECKED]
    outcomes = [check(method) for method in methods for check in checks_for(method) if check.name in CHECKS]
    return [f"{o.plugin}: {o.check}: {o.message}" for o in outcomes if o.status != "passed"]


def seen(order: str, environment: dict[str, str]) -> dict[str, object]:
    for name in ("MKL_CBWR", "ATEN_CPU_CAPABILITY"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    if order == "late":
        torch.ones(8, 8) @ torch.ones(8, 8)
    importlib.reload(bilevelbench)  # what it does first of all: it asks for a strict mode
    return {
        "mode": os.environ["MKL_CBWR"],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "keeps_bits": {"float64": keeps_bits(torch.float64), "float32": keeps_bits(torch.float32)},
        "has_mkl": torch.backends.mkl.is_available(),
        "broken": broken_promises(),
        "failed": failed_checks(),
    }


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            print(json.dumps(seen(**json.loads(line))), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{line.strip()}: the process of this case ended with an error")
