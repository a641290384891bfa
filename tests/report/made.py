"""Hand-made results: trials with their curves, tables of costs, rows of rates."""

from __future__ import annotations

import pandas as pd

from bilevelbench.results.schema import Results, curve_frame, runs_frame


def results(*trials, records=()):
    """Each trial: a dict of run columns, with `curve` as a list of (first_order, second_order, grad_phi); phi is grad_phi."""
    runs, curve = [], []
    for n, trial in enumerate(trials):
        given = {"problem_params": "{}"} | trial
        points = given.pop("curve", [(1, 0, 2.0), (10, 0, 0.5), (100, 0, 0.05)])
        first, second, _ = points[-1] if points else (0, 0, 0)
        row = {
            "trial_id": f"t{n:03}", "algorithm": "gd", "problem": "quadratic", "seed": n, "status": "budget",
            "best_grad_phi": min((g for *_, g in points), default=None), "phi": 1.0, "first_order": first,
            "grad_g": first, "second_order": second, "cost": float(first + second), "steps": len(points),
        }  # fmt: skip
        runs.append(row | given)
        curve += [
            {"trial_id": f"t{n:03}", "step": s, "cost": a + b, "first_order": a, "second_order": b, "grad_phi": g,
             "phi": g, "grad_phi_error": 0.0, "seconds": 0.5 * s}
            for s, (a, b, g) in enumerate(points)
        ]  # fmt: skip
    return Results(runs_frame(runs), curve_frame(curve), list(records))


def costs(table, second=0.0):
    """A table of costs from {(problem, method): [cost of seed 0, 1, ...]}, or [(first, second), ...]."""
    rows = []
    for (problem, method), values in table.items():
        for seed, value in enumerate(values):
            first, two = value if isinstance(value, tuple) else (value, second)
            rows.append(
                {"trial_id": f"{problem}-{method}-{seed}", "problem": problem, "method": method, "algorithm": method,
                 "seed": seed, "data_seed": "", "repeat": 0, "target": 0.1, "first_order": float(first),
                 "second_order": float(two), "cost": float(first + two), "seconds": 1.0, "steps": 1.0,
                 "failed": False}
            )  # fmt: skip
    return pd.DataFrame(rows)


def rate_row(**given):
    eps = [0.4, 0.2, 0.1]
    points = [{"eps": e, "cost": 3 * e**-2, "steps": e**-2, "second_order": e**-2} for e in eps]
    return {
        "table": 1, "method": "aid", "label": "aid", "setting": "deterministic", "oracle": "HVP", "over": "eps",
        "claimed": 2.0, "tilde": True, "extra": "", "footnote": "", "target": 1.95, "predicted": None, "measured": 2.0,
        "low": 1.9, "high": 2.1, "measured_steps": 2.0, "low_steps": 1.95, "high_steps": 2.05, "log_free": None,
        "low_free": None, "high_free": None, "lower_bound": None, "columns": {}, "tuned": "",
        "log_free_of": "cost", "second_half": None, "local_slopes": [2.0, 2.0], "eps_max": 0.4, "eps_min": 0.1,
        "rule": "hit", "seeds": 4, "success": None, "verdict": "matches", "unreached": [], "necessity": "",
        "noise": "", "needed": "", "against": "", "logarithm": "", "problem": "", "preset": "", "q": None, "largest_eps": None,
        "own_notion": "", "note": "", "points": points,
    } | given  # fmt: skip
