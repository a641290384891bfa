"""Results made by hand: cheap to build, and with a ranking that depends on the price of a Hessian-vector product."""

from __future__ import annotations

import json

import numpy as np

from bilevelbench.leaderboard.collect import Material
from bilevelbench.report.analysis.rates import read_rates
from bilevelbench.results.schema import Results, curve_frame, runs_frame

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(2)>'
BREAK = "</script><!-- {{ 7 * 7 }} \u2028 & 'quotes' \\u003c"


def make_results(methods, problems, seeds, points=10, seed=0, prefix="t"):
    """`methods`: {label: (gradients a step, products a step, speed)}; `problems`: {name: parameters}."""
    rng = np.random.default_rng(seed)
    runs, curve = [], []
    for problem, params in problems.items():
        for label, (first, second, speed) in methods.items():
            for s in range(seeds):
                trial = f"{prefix}{len(runs):06}"
                rate = speed * float(rng.uniform(0.7, 1.3))
                failed = speed < 0
                for k in range(points):
                    step = int(3 * 1.9**k)
                    value = 5.0 * float(np.exp(-abs(rate) * step / 200))
                    curve.append(
                        {
                            "trial_id": trial, "step": step, "first_order": first * step, "second_order": second * step,
                            "cost": float((first + second) * step), "seconds": 1e-4 * step, "grad_phi": value,
                            "phi": value**2, "grad_phi_error": 0.0, "g_y": value / 10,
                        }
                    )  # fmt: skip
                    if failed and k == 3:
                        break
                last = curve[-1]
                runs.append(
                    {
                        "trial_id": trial, "algorithm": label, "label": label, "problem": problem,
                        "algorithm_params": json.dumps({"K": 3, "lam": 0.1234567890123}),
                        "problem_params": json.dumps(params), "seed": s,
                        "status": "diverged" if failed else "budget",
                        "message": f"x is not finite after step {last['step']} {SCRIPT}" if failed else "",
                        "steps": last["step"], "first_order": last["first_order"], "grad_g": last["first_order"],
                        "second_order": last["second_order"], "cost": last["cost"], "seconds": last["seconds"],
                        "pack_lanes": 1.0, "best_grad_phi": last["grad_phi"], "phi": last["phi"],
                        "grad_phi": last["grad_phi"], "plugin": "hand", "plugin_version": "1",
                    }
                )  # fmt: skip
    ids = [run["trial_id"] for run in runs]
    record = {
        "created": "2026-03-04T05:06:07+00:00", "trial_ids": ids, "trials": [], "commits": {"m": "0123456789abcdef"},
        "environment": {"cpu": f"Imaginary {SCRIPT}", "cores": 3, "python": "3.11.7", "packages": {"torch": "2.13.0"}},
    }  # fmt: skip
    return Results(runs_frame(runs), curve_frame(curve), [record])


#: HVP methods need few steps' worth of gradients and many products: first when a product is cheap, last when it is dear.
METHODS = {
    "gd": (3, 0, 1.0),
    "slow": (3, 0, 0.35),
    "batch": (8, 0, 1.6),
    "newton": (1, 2, 1.3),
    "cg": (2, 5, 2.6),
    SCRIPT: (4, 0, 0.9),
    IMAGE: (2, 1, 0.8),
    BREAK: (5, 1, 0.7),
    "lost": (2, 0, -1.0),
}
PROBLEMS = {"bowl": {}, "valley": {"dim": 5}, f"ridge {SCRIPT}": {"note": IMAGE}, "noisy": {"sigma_g": 0.5}}

FACTS = {
    "methods": {
        "gd": {
            "family": "penalty", "oracle": "gradient", "text": f"GD.\n\n    x <- x - eta d   {SCRIPT}",
            "parameters": [{"name": "eta", "default": None, "what": f"step {IMAGE}"}],
            "claims": [{"table": 1, "setting": "deterministic", "oracle": "gradient", "eps_exp": 2.0, "tilde": True,
                        "kappa_exp": 4.0, "extra": "ell", "reference": f"Somebody {SCRIPT}", "footnote": ""}],
        },
        "newton": {"family": "implicit", "oracle": "HVP", "text": "Newton."},
        SCRIPT: {"family": SCRIPT, "oracle": SCRIPT, "text": SCRIPT},
    },
    "problems": {"bowl": {"text": f"f = {SCRIPT}", "constants": [{"name": "mu", "value": 1.5, "kind": "exact"}]}},
    "hvp_ratio": {"bowl": 1.8, "valley": 2.2},
}  # fmt: skip

RATE = {
    "table": 1, "method": "gd", "label": "gd", "setting": "deterministic", "oracle": "gradient", "claimed": 2,
    "tilde": True, "extra": "ell", "footnote": SCRIPT, "target": 1.95, "predicted": 1.97, "measured": 2.2, "low": 2.1,
    "high": 2.3, "measured_steps": 1.95, "low_steps": 1.9, "high_steps": 2.0, "log_free": 1.95, "log_free_of": "steps",
    "local_slopes": [1.9, 2.0], "eps_max": 0.2, "eps_min": 0.02, "rule": "mean", "seeds": 8, "verdict": "matches",
    "unreached": [], "necessity": "", "own_notion": "", "note": "", "success": None, "over": "eps",
    "points": [{"eps": 0.2, "cost": 100.0, "steps": 10}, {"eps": 0.02, "cost": 12000.0, "steps": 1000}],
}  # fmt: skip
UNMEASURED = RATE | {
    "method": SCRIPT, "label": SCRIPT, "oracle": "HVP", "measured": None, "low": None, "high": None, "points": [],
    "measured_steps": None, "low_steps": None, "high_steps": None, "log_free": None, "eps_max": None, "eps_min": None,
    "local_slopes": [], "verdict": "not reached",
}  # fmt: skip


def material(folder):
    """Everything at once: two modes, two settings, facts, rates."""
    (folder / "rates.json").write_text(json.dumps({"title": f"Table 1 {SCRIPT}", "rows": [UNMEASURED, RATE]}))
    plain = make_results(METHODS, PROBLEMS, seeds=5)
    some = {name: METHODS[name] for name in ("gd", "newton", "cg")}
    tuned = make_results(some, {"bowl": {}}, seeds=3, seed=1, prefix="u")
    note = f"pack {SCRIPT} cannot be read"
    return Material({"default": plain, "tuned": tuned}, [read_rates(folder / "rates.json")], FACTS, [note])
