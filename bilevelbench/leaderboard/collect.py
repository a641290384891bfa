"""What the site shows, from result folders: trials, measured rates, and what plugins say about themselves.

A folder may hold results (packs or published tables), `rates.json` (measured exponents; its trials are those of the
measurement and stay off the boards), `tuning.json` (trials of a search stay off too), experiments
(whose trials, with settings of their own, stay off the board out of the box), `facts.json` (equations, claims and
constants, as the plugins declare them) and `verify.json` (which trials were run again).

Where the first folder lies in one that is called `official`, the folders outside of that were sent in. What they say beside
their trials is not read, their trials stand under names that nobody else has, and what is wrong with one of
them is a note on the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bilevelbench.errors import BilevelbenchError, StoreError
from bilevelbench.leaderboard.clock import TIMED, timed_trials
from bilevelbench.leaderboard.facts import merged_facts, read_facts
from bilevelbench.leaderboard.names import Names
from bilevelbench.report.analysis.rates import RateTable, in_order, read_rates
from bilevelbench.report.analysis.tuning import TUNING, Tuning, read_tuning, tuned_trials
from bilevelbench.report.analysis.verdicts import ExperimentOutcome, find_outcomes
from bilevelbench.report.text import printable
from bilevelbench.results.compare import Witness, witnesses
from bilevelbench.results.merge import refuse_disagreement
from bilevelbench.results.provenance import origin
from bilevelbench.results.schema import CURVE, RUNS, Results, curve_frame, runs_frame
from bilevelbench.results.tables import load_results
from bilevelbench.results.verified import TrialVerdict, read_verified
from bilevelbench.untrusted import parameters

MODES = {"default": "out of the box", "tuned": "tuned", TIMED: "by the clock"}

#: The folder whose folders are trusted.
OFFICIAL = "official"


@dataclass(frozen=True, eq=False)
class Material:
    """Results by mode, rate tables, facts, experiments, and a sentence for whatever could not be used.

    `verdicts` and `places` are those of trials, by id: whether one was verified, and the folder that it is in. `foreign` are
    the methods that facts and rates are not about, although they may have a name that is described there. `searches` are those
    of tuned boards, each with the trials that its parameters were run in. `marked`: boards tell verified trials from others,
    since some were verified or sent in.
    """

    results: dict[str, Results]
    rates: list[RateTable] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    experiments: list[ExperimentOutcome] = field(default_factory=list)
    verdicts: dict[str, TrialVerdict] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    foreign: frozenset[str] = frozenset()
    searches: list[tuple[frozenset[str], Tuning]] = field(default_factory=list)
    marked: bool = False


def load(folders: Sequence[Path], tuned: Sequence[Path] = ()) -> Material:
    """The results of `folders`, as tuned or timed where they say so and else out of the box; those of `tuned` as tuned."""
    named = [(mode, path) for mode, paths in (("default", folders), ("tuned", tuned)) for path in dict.fromkeys(paths)]
    sent = sent_in([path for _, path in named])
    collection = _Collection()
    for mode, path in sorted(named, key=lambda one: one[1] in sent):  # names belong to the official folders first
        if path not in sent:
            collection.add_official(mode, path)
            continue
        try:
            collection.add_sent(mode, path)
        except BilevelbenchError as error:
            collection.notes.append(f"the folder {_shown(path)} was sent in and cannot be shown: {error}")
    return collection.material()


class _Collection:
    """What was read so far."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.rates: list[RateTable] = []
        self.found: dict[str, list[tuple[Path, Results]]] = {mode: [] for mode in MODES}
        self.experiments: list[ExperimentOutcome] = []
        self.notes: list[str] = []
        self.verdicts: dict[str, TrialVerdict] = {}
        self.places: dict[str, str] = {}
        self.names = Names()
        self.accepted: list[Witness] = []
        self.searches: list[tuple[frozenset[str], Tuning]] = []
        self.sent_in = False

    def add_official(self, mode: str, path: Path) -> None:
        if (path / "facts.json").is_file():
            self.facts = merged_facts(self.facts, read_facts(path / "facts.json"))
        if (path / "rates.json").is_file():
            self.rates.append(read_rates(path / "rates.json"))
        elif not (path / "facts.json").is_file() or _holds_results(path):
            stored = load_results(path)
            own = witnesses(path, stored)
            refuse_disagreement(own)
            self.accepted += own
            outcomes, unusable = find_outcomes(path, stored)
            self.experiments += outcomes
            self.notes += unusable
            self._take(mode, path, replace(stored, runs=self.names.official(stored.runs)), outcomes)
            if (tuning := read_tuning(path)) is not None:
                self.searches.append((frozenset(stored.runs["trial_id"]), tuning))

    def add_sent(self, mode: str, path: Path) -> None:
        self.sent_in = True
        stored = load_results(path)
        own = witnesses(path, _checked(path, stored))
        refuse_disagreement(own)
        for one in own:
            for known in self.accepted:
                refuse_disagreement([known, one])
        self.accepted += own
        outcomes, _ = find_outcomes(path, stored)  # trials of an experiment are on no board, whoever ran them
        for name in ("facts.json", "rates.json"):
            if (path / name).exists():
                self.notes.append(f"{_shown(path)}/{name} is not read: that is the official folder's to say")
        fresh = stored.without(self.places)  # a trial that another folder holds is confirmed, by the records alone
        self._take(mode, path, replace(fresh, runs=self.names.sent(_shown(path), fresh.runs)), outcomes)

    def _take(self, mode: str, path: Path, stored: Results, outcomes: Sequence[ExperimentOutcome]) -> None:
        verdicts, note = read_verified(path)
        self.notes += [*stored.warnings, *([note] if note else [])]
        for trial in stored.runs["trial_id"]:
            if trial not in self.places:  # the first folder that holds a trial is the one that is shown
                self.places[trial] = _shown(path)
                if trial in verdicts:
                    self.verdicts[trial] = verdicts[trial]
        board = _without(stored, outcomes) if mode == "default" else stored
        chosen = set(board.runs["trial_id"]) if mode == "tuned" else tuned_trials(board)
        self.found["tuned"].append((path, board.only(chosen)))
        alone = timed_trials(board) - chosen
        self.found[TIMED].append((path, board.only(alone)))
        if not (path / TUNING).is_file():
            self.found["default"].append((path, board.without(chosen | alone)))

    def material(self) -> Material:
        results = {mode: combine(parts) for mode, parts in self.found.items()}
        return Material(
            results, in_order(self.rates), self.facts, self.notes, self.experiments, self.verdicts, self.places,
            frozenset(self.names.foreign), self.searches, self.sent_in or bool(self.verdicts),
        )  # fmt: skip


def sent_in(folders: Sequence[Path]) -> set[Path]:
    """The folders that lie outside of the folder `official` in which the first one lies; none if it lies in no such one."""
    first = folders[0].absolute()
    roots = [parent for parent in (first, *first.parents) if parent.name == OFFICIAL]
    if not roots:
        return set()
    return {path for path in folders if roots[0] not in (path.absolute(), *path.absolute().parents)}


def _shown(path: Path) -> str:
    """A folder as a page names it: as it was typed, and without the place of somebody's home."""
    return path.name if path.is_absolute() else path.as_posix()


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
    runs, curves = [], []
    for one in filled:
        fresh = one.without(seen)
        runs.append(fresh.runs)
        curves.append(fresh.curve)
        seen |= set(one.runs["trial_id"])
    return Results(
        pd.concat(runs, ignore_index=True),
        pd.concat([c for c in curves if not c.empty] or curves[:1], ignore_index=True),
        [record for source in sources for record in source.results.records],
        warnings,
    )


def provenance(*results: Results) -> dict[str, list[dict[str, Any]]]:
    """Date, commits and environment of each trial, by id, once for each that ran it; published tables tell none."""
    out: dict[str, list[dict[str, Any]]] = {}
    for record in (record for one in results for record in one.records):
        told = {key: printable(value) for key, value in origin(record).items()}
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
