"""An honest folder of results, and ways to forge it: every forgery has the right sums and a name that fits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

import bilevelbench
from bilevelbench.model.trial_id import trial_id
from bilevelbench.plan.trial import Schedule
from bilevelbench.results.packs import read_packs, to_parquet
from bilevelbench.results.schema import curve_table, runs_table
from bilevelbench.results.store import Store

SMALL = "quadratic[dim_x=2,dim_y=3]"
NOISY = "quadratic[dim_x=2,dim_y=3,sigma_f=0.1,sigma_g=0.1]"
COUNTS = ("grad_f", "grad_g", "grad_f_x", "grad_f_y", "grad_g_x", "grad_g_y", "first_order")


def honest_results(folder: Path) -> Path:
    """Two methods on an exact problem, and one that samples on a noisy one; two seeds each."""
    looks = Schedule(ratio=1.5)
    for method, problem in (("f2ba", SMALL), ("aid", SMALL), ("soba[batch=4]", NOISY)):
        bilevelbench.run(method, problem, seeds=2, budget=400, targets=[1e-9], schedule=looks, out=folder)
    return folder


@dataclass
class Draft:
    """A pack that can still be changed."""

    runs: pd.DataFrame
    curve: pd.DataFrame
    record: dict[str, Any]

    @property
    def method(self) -> str:
        return str(self.record["trials"][0]["algorithm"]["name"])

    def ask_for(self, **changes: Any) -> None:
        """Other trials, with ids, rows and curves that belong to them."""
        ids = {}
        for trial in self.record["trials"]:
            old = trial["id"]
            for name, value in changes.items():
                trial[name] = {**trial[name], **value} if isinstance(value, dict) else value
            trial["id"] = ids[old] = trial_id(trial)
        self.runs["trial_id"], self.curve["trial_id"] = (t["trial_id"].map(ids) for t in (self.runs, self.curve))
        for name in ("plugin", "plugin_version", "label"):
            if name in changes:
                self.runs[name] = changes[name]
        if "algorithm" in changes:
            self.runs["algorithm"] = changes["algorithm"]["name"]
        self.record["trial_ids"] = sorted(ids.values())


def drafts(folder: Path) -> list[Draft]:
    return [
        Draft(pack.runs.to_pandas(), pack.curve.to_pandas(), dict(pack.record)) for pack in read_packs(Path(folder))[0]
    ]


def put(into: Path, draft: Draft, tables: list[pa.Table] | None = None) -> Path:
    tables = tables or [runs_table(draft.runs), curve_table(draft.curve)]
    store = Store(into)
    return store.packs / store.place(draft.record, [to_parquet(table) for table in tables])


def cheaper(draft: Draft, share: int) -> None:
    """The same progress at a fraction of the calls, everywhere."""
    for name in (*COUNTS, "cost"):
        draft.runs[name] //= share
    draft.runs["first_order"] = draft.runs["grad_f"] + draft.runs["grad_g"]
    draft.runs["cost"] = draft.runs["first_order"].astype(float)
    draft.curve["first_order"] //= share
    draft.curve["cost"] = draft.curve["first_order"].astype(float)
    for name in ("cost", "first_order"):
        ends = draft.curve["trial_id"].map(draft.runs.set_index("trial_id")[name])
        draft.curve[name] = draft.curve[name].clip(upper=ends)


def swap_numbers(draft: Draft, other: Draft) -> None:
    """The rows and curves of another method under this one's name."""
    ids = dict(zip(other.runs["trial_id"], draft.runs["trial_id"], strict=True))
    keep = ["trial_id", "algorithm", "algorithm_params", "label", "plugin", "plugin_version"]
    runs = other.runs.copy()
    runs[keep] = draft.runs[keep].to_numpy()
    draft.runs, draft.curve = runs, other.curve.assign(trial_id=other.curve["trial_id"].map(ids))
