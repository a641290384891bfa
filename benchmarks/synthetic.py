"""Results that nobody computed, of any size: for measuring what reports and boards cost.

python benchmarks/synthetic.py FOLDER --methods 60 --problems 40 --seeds 10
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from bilevelbench.results.schema import curve_of, runs_of
from bilevelbench.results.store import Store


def write(folder: Path, methods: int, problems: int, seeds: int, points: int = 40, seed: int = 0) -> int:
    """One pack per problem; every third method asks for products, every twentieth trial diverges. Returns the trials."""
    store, rng = Store(folder), np.random.default_rng(seed)
    for problem in range(problems):
        runs, curve = _pack(f"problem{problem:03}", methods, seeds, points, rng)
        record = {"environment": {"cpu": "none: synthetic", "cores": 1, "python": "", "packages": {}}, "commits": {}}
        store.add_tables(runs_of(runs), curve_of(curve), record)
    store.publish()
    return methods * problems * seeds


def _pack(problem: str, methods: int, seeds: int, points: int, rng: np.random.Generator) -> tuple[list, dict]:
    step = np.unique(np.geomspace(1, 3000, points).astype(int))
    runs, parts = [], []
    for method in range(methods):
        first, second = 2 + method % 5, (method % 3 == 0) * (1 + method % 4)
        for seed in range(seeds):
            trial, lost = f"{problem}-{method:05}-{seed:03}", rng.random() < 0.05
            seen = step[: len(step) // 3] if lost else step
            norm = 5.0 * np.exp(-rng.uniform(0.3, 3.0) * seen / 400)
            parts.append({
                "trial_id": [trial] * len(seen), "step": seen, "cost": (first + second) * seen.astype(float),
                "first_order": first * seen, "second_order": second * seen, "seconds": 1e-4 * seen, "phi": norm**2,
                "grad_phi": norm, "grad_phi_error": 0.0 * norm, "g_y": norm / 10,
            })  # fmt: skip
            last = {name: column[-1].item() for name, column in parts[-1].items() if name not in ("trial_id", "step")}
            runs.append({
                **last, "trial_id": trial, "algorithm": f"method{method:05}", "algorithm_params": "{}", "problem": problem,
                "problem_params": "{}", "seed": seed, "status": "diverged" if lost else "budget",
                "message": "x is not finite" if lost else "", "steps": int(seen[-1]), "grad_g": last["first_order"],
                "hvp": last["second_order"], "pack_lanes": 1.0, "best_grad_phi": last["grad_phi"],
                "certificate": "closed form", "plugin": "synthetic", "plugin_version": "1",
            })  # fmt: skip
    return runs, {name: [value for part in parts for value in _plain(part[name])] for name in parts[0]}


def _plain(values: list[str] | np.ndarray) -> list:
    return values.tolist() if isinstance(values, np.ndarray) else values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, usual in (("methods", 60), ("problems", 40), ("seeds", 10)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    given = parser.parse_args()
    print(f"{write(given.folder, given.methods, given.problems, given.seeds):,} trials in {given.folder}")


if __name__ == "__main__":
    main()
