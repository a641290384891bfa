"""What the site shows, from result folders: trials, measured rates, and what plugins say about themselves.

A folder may hold results (packs or published tables), `rates.json` (measured exponents; its trials are those of the
measurement and stay off the boards), `tuning.json` (trials of a search stay off too), experiments
(whose trials, with settings of their own, stay off the board out of the box) and `facts.json` (equations, claims and
constants, as the plugins declare them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from bilevelbench.errors import StoreError
from bilevelbench.report.analysis.rates import RateTable, in_order, read_rates
from bilevelbench.report.analysis.tuning import TUNING, tuned_trials
from bilevelbench.report.analysis.verdicts import ExperimentOutcome, find_outcomes
from bilevelbench.report.text import printable
from bilevelbench.results.compare import Witness, witnesses
from bilevelbench.results.merge import refuse_disagreement
from bilevelbench.results.schema import CURVE, RUNS, Results, curve_frame, runs_frame
from bilevelbench.results.tables import load_results
from bilevelbench.untrusted import Refused, parameters, read_json

MODES = {"default": "out of the box", "tuned": "tuned"}

_METHOD_FACTS: dict[str, Any] = {
    "family": "", "oracle": "", "text": "", "parameters": [], "claims": [], "step_calls": "",
}  # fmt: skip
_PROBLEM_FACTS: dict[str, Any] = {"text": "", "parameters": [], "constants": []}
_CLAIM: dict[str, Any] = {
    "table": None, "setting": "", "oracle": "", "eps_exp": None, "n_exp": None, "tilde": False, "log_power": 0,
    "kappa_exp": None, "mean_squared_smooth": False, "extra": "",
    "reference": "", "footnote": "", "source": "", "kappa_source": "", "log_source": "",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Material:
    """Results by mode, rate tables, facts, experiments, and a sentence for whatever could not be used."""

    results: dict[str, Results]
    rates: list[RateTable] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    experiments: list[ExperimentOutcome] = field(default_factory=list)


def load(folders: Sequence[Path], tuned: Sequence[Path] = ()) -> Material:
    """The results of `folders`, as tuned where their trials say so and else out of the box; those of `tuned` as tuned."""
    facts: dict[str, Any] = {}
    rates: list[RateTable] = []
    found: dict[str, list[tuple[Path, Results]]] = {mode: [] for mode in MODES}
    experiments: list[ExperimentOutcome] = []
    notes: list[str] = []
    for mode, paths in (("default", folders), ("tuned", tuned)):
        for path in dict.fromkeys(paths):
            if (path / "facts.json").is_file():
                facts = _merged(facts, read_facts(path / "facts.json"))
            if (path / "rates.json").is_file():
                rates.append(read_rates(path / "rates.json"))
            elif not (path / "facts.json").is_file() or _holds_results(path):
                stored = load_results(path)
                refuse_disagreement(witnesses(path, stored))
                outcomes, unusable = find_outcomes(path, stored)
                experiments += outcomes
                notes += [*stored.warnings, *unusable]
                board = _without(stored, outcomes) if mode == "default" else stored
                chosen = set(board.runs["trial_id"]) if mode == "tuned" else tuned_trials(board)
                found["tuned"].append((path, board.only(chosen)))
                if not (path / TUNING).is_file():
                    found["default"].append((path, board.without(chosen)))
    results = {mode: combine(parts) for mode, parts in found.items()}
    return Material(results, in_order(rates), facts, notes, experiments)


def combine(found: Sequence[tuple[Path, Results]]) -> Results:
    """One pair of tables; a trial in two folders counts once, and with numbers that differ by more than rounding it is
    refused. The records of both stay."""
    sources = [Witness(path, _checked(path, results)) for path, results in found]
    refuse_disagreement(sources)
    filled = [source.results for source in sources if not source.results.runs.empty]
    warnings = [sentence for source in sources for sentence in source.results.warnings]
    if not filled:
        return Results(runs_frame([]), curve_frame([]), [], warnings)
    seen: set[str] = set()
    runs, curves, records = [], [], []
    for one in filled:
        fresh = one.without(seen)
        runs.append(fresh.runs)
        curves.append(fresh.curve)
        records += one.records
        seen |= set(one.runs["trial_id"])
    return Results(
        pd.concat(runs, ignore_index=True),
        pd.concat([c for c in curves if not c.empty] or curves[:1], ignore_index=True),
        records,
        warnings,
    )


def read_facts(path: Path) -> dict[str, Any]:
    """`{"methods": {name: ...}, "problems": {name: ...}, "hvp_ratio": {problem: ...}}`; every part may be missing."""
    facts = _json(path)
    for part in ("methods", "problems", "hvp_ratio"):
        table = facts.setdefault(part, {})
        entries = isinstance(table, dict) and (part == "hvp_ratio" or all(isinstance(v, dict) for v in table.values()))
        if not entries:
            raise StoreError(f"{str(path)!r}: {part!r} is not a table of names; write the file again")
    return facts


def method_facts(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the plugin says of a method, with blanks for what did not travel with the results."""
    fact = {**_METHOD_FACTS, **facts.get("methods", {}).get(name, {})}
    return {**fact, "claims": [{**_CLAIM, **claim} for claim in fact["claims"]]}


def problem_facts(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**_PROBLEM_FACTS, **facts.get("problems", {}).get(name, {})}


def provenance(results: Results) -> dict[str, list[dict[str, Any]]]:
    """Date, commits and environment of each trial, by id, once for each that ran it; published tables tell none."""
    out: dict[str, list[dict[str, Any]]] = {}
    for record in results.records:
        environment = record.get("environment") or {}
        packages = environment.get("packages") or {}
        fact = {
            "date": str(record.get("created", ""))[:10],
            "commit": ", ".join(sorted({_short(c) for c in (record.get("commits") or {}).values() if c})),
            "cpu": environment.get("cpu") or "",
            "cores": environment.get("cores") or "",
            "python": environment.get("python") or "",
            "torch": packages.get("torch") or "",
            "version": packages.get("bilevelbench") or "",
            "from": record.get("merged_from") or "",
        }
        told = {key: printable(value) for key, value in fact.items()}
        for trial_id in record.get("trial_ids", []):
            known = out.setdefault(trial_id, [])
            known += [told] if told not in known else []
    return out


def params_of(row: Mapping[Any, Any], column: str = "problem_params") -> dict[str, Any]:
    return parameters(row[column]) or {}


def readable_parameters(text: str) -> str:
    """`K=3, lam=10`, or `default`; six digits are enough to read."""
    params = params_of({"params": text}, "params")
    if not params:
        return text if text not in ("", "{}") else "default"
    return ", ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items())


def _without(results: Results, outcomes: Sequence[ExperimentOutcome]) -> Results:
    return results.without(planned.id for one in outcomes for planned in one.experiment.trials)


def _checked(path: Path, results: Results) -> Results:
    for name, frame, columns in (("runs", results.runs, RUNS), ("curve", results.curve, CURVE)):
        missing = [column for column in columns if column not in frame.columns]
        if missing:
            raise StoreError(
                f"the table `{name}` in {str(path)!r} has no column {missing[0]!r}; publish it again with this version"
            )
    return results


def _holds_results(path: Path) -> bool:
    return (path / "packs").is_dir() or (path / "runs.parquet").is_file()


def _merged(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {part: {**a.get(part, {}), **b[part]} for part in ("methods", "problems", "hvp_ratio")}


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path, path.parent)
    except Refused as refused:
        raise StoreError(f"{str(path)!r} {refused}; write it again") from None


def _short(commit: object) -> str:
    name, plus, dirty = str(commit).partition("+")
    return name[:10] + plus + dirty
