"""The published results, and the same results as another processor would have computed them: other last digits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bilevelbench.results.packs import read_packs, to_parquet
from bilevelbench.results.schema import CURVE, REAL, RUNS, SCHEMA_VERSION, VOLATILE, curve_table, runs_table, upgrade
from bilevelbench.results.store import Store

OFFICIAL = Path(__file__).parents[1] / "leaderboard" / "results" / "official"
ULP = "ulp"


def nudge(values, by, rng):
    """Each by one unit in the last place, up or down, or by a relative error of at most `by`, and at least half of it."""
    sign = rng.choice([-1.0, 1.0], np.shape(values))
    if by == ULP:
        return np.where(np.isfinite(values) & (values != 0), np.nextafter(values, sign * np.inf), values)
    return values * (1 + by * sign * rng.uniform(0.5, 1.0, np.shape(values)))


def nudged_parameters(text, by, rng):
    params = json.loads(text)
    return json.dumps({k: float(nudge(v, by, rng)) if isinstance(v, float) else v for k, v in params.items()})


def nudged(runs, curve, by, only=None, seed=0):
    """Every computed number of two tables, or those of one column (`runs.phi`), with other digits; counts stay."""
    rng = np.random.default_rng(seed)
    computed = {
        **{f"runs.{n}": (runs, n) for n, t in RUNS.items() if t == REAL and n not in (*VOLATILE, "cost")},
        **{f"curve.{n}": (curve, n) for n in curve if CURVE.get(n, REAL) == REAL and n not in ("seconds", "cost")},
    }
    out = {"runs": runs.copy(), "curve": curve.copy()}
    for key, (frame, name) in computed.items():
        if only in (None, key) and name != "second_order_samples":  # which is a count
            out[key.split(".")[0]][name] = nudge(frame[name].to_numpy(), by, rng)
    if only in (None, "runs.algorithm_params"):
        out["runs"]["algorithm_params"] = [nudged_parameters(text, by, rng) for text in runs["algorithm_params"]]
    return out["runs"], out["curve"]


def copy_folder(source, into, by=None, cpu=None, methods=None, only=None):
    """The packs of a folder, or the trials of some methods in them, with other digits and of another processor."""
    store = Store(into)
    for pack in read_packs(Path(source))[0]:
        runs, curve = upgrade(pack.runs.to_pandas(), pack.curve.to_pandas(), pack.record["schema_version"])
        if methods is not None:
            runs = runs[runs["algorithm"].isin(methods)].reset_index(drop=True)
            curve = curve[curve["trial_id"].isin(runs["trial_id"])].reset_index(drop=True)
        if runs.empty:
            continue
        if by is not None:
            runs, curve = nudged(runs, curve, by, only)
        ids = sorted(runs["trial_id"])
        record = {
            **pack.record,
            "schema_version": SCHEMA_VERSION,
            "trial_ids": ids,
            "trials": [t for t in pack.record["trials"] if t["id"] in set(ids)],
        }
        if cpu is not None:
            record["environment"] = {**record["environment"], "cpu": cpu}
        store.place(record, [to_parquet(runs_table(runs)), to_parquet(curve_table(curve))])
    return store
