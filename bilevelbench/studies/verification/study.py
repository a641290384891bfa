"""`bilevelbench verify`: every stored trial is held against what is possible, and a sample is run again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.execute.environment import environment
from bilevelbench.execute.executor import Execution
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.plan.trial import Trial
from bilevelbench.results.compare import GROWING, first_difference
from bilevelbench.results.machine import machine
from bilevelbench.results.packs import read_packs
from bilevelbench.results.schema import Results
from bilevelbench.results.tables import assemble
from bilevelbench.results.verified import VERIFY, JudgedTrial, TrialVerdict, VerifyFile, sums
from bilevelbench.studies.verification.again import CannotRun, Here, TrialRefused, judge, run_again
from bilevelbench.studies.verification.against import copies, differences, official
from bilevelbench.studies.verification.possible import Stored, impossible_of
from bilevelbench.studies.verification.sample import drawn, weights
from bilevelbench.untrusted import MOST_JSON, Refused, parameters, read_bytes

#: Files of a folder that somebody sends in which nobody reads, and why.
_UNREAD = {
    "facts.json": "is not read: what the page says of methods and problems comes from the official folder alone",
    "rates.json": "is not read: measured rates come from the official folder alone",
    VERIFY: "was there before and is not read: this verification has verdicts of its own",
}
_ORDER = (
    TrialVerdict.IMPOSSIBLE,
    TrialVerdict.DIFFERS,
    TrialVerdict.REPRODUCED,
    TrialVerdict.ROUNDING,
    TrialVerdict.NOT_RUN,
)


@dataclass(frozen=True)
class Verification:
    """The verdicts on a folder, the worst first. Trials that can be run and were not drawn are not among them."""

    folder: Path
    seed: int
    sample: int
    trials: int
    judged: tuple[JudgedTrial, ...]

    @property
    def failed(self) -> bool:
        return any(one.verdict.fails for one in self.judged)

    def count(self, *verdicts: TrialVerdict) -> int:
        return sum(one.verdict in verdicts for one in self.judged)

    def sentence(self) -> str:
        """`verified 20 of 400 trials in mine (seed 7): 18 reproduced, 2 within rounding`."""
        said = [f"{self.count(verdict)} {verdict}" for verdict in _ORDER[:-1] if self.count(verdict)]
        confirmed = self.count(TrialVerdict.REPRODUCED, TrialVerdict.ROUNDING)
        rest = ", ".join(said) or "none was run again"
        return f"verified {confirmed} of {self.trials} trials in {self.folder} (seed {self.seed}): {rest}"

    def rows(self) -> list[dict[str, Any]]:
        """For a table: those that were not run for the same reason in one row."""
        grouped: dict[tuple[str, ...], list[JudgedTrial]] = {}
        for one in self.judged:
            alone = one.verdict is not TrialVerdict.NOT_RUN or not one.method
            grouped.setdefault((one.trial,) if alone else (one.method, one.why), []).append(one)
        return [
            {
                "trial": ones[0].trial if len(ones) == 1 else f"{len(ones)} trials",
                "method": ones[0].method,
                "problem": ", ".join(dict.fromkeys(one.problem for one in ones)),
                "seed": "" if len(ones) > 1 or ones[0].seed is None else str(ones[0].seed),
                "verdict": str(ones[0].verdict),
                "what happened": ones[0].why or ones[0].verdict.sentence,
            }
            for ones in grouped.values()
        ]

    def file(self) -> VerifyFile:
        return VerifyFile(
            created=datetime.now(UTC).isoformat(timespec="seconds"), machine=machine(environment()), seed=self.seed,
            sample=self.sample, trials=self.trials, packs=sums(self.folder), verdicts=self.judged,
        )  # fmt: skip


def verify(
    folder: Path, here: Here, execution: Execution, *, sample: int, seed: int, against: Path | None = None
) -> Verification:
    """Judge the trials of a folder. What is impossible or differs from the official folder is not run again."""
    packs, corrupt = read_packs(folder)
    if not packs and not corrupt:
        raise StoreError(
            f"{str(folder)!r} has no packs, and published tables alone do not say what was asked; name a folder that "
            "`bilevelbench run -o` wrote"
        )
    results = assemble(packs, [])
    court = _Court(results, here)
    unreadable = [_unreadable(path, sentence) for path, sentence in corrupt.items()]
    for copy in results.copies:
        if clash := first_difference((results.runs, results.curve), copy, GROWING):
            court.say(clash[0], TrialVerdict.DIFFERS, f"two packs have it; the first column that differs is {clash[1]}")
    court.examine()
    ranked, copied = results, dict[str, str]()
    if against is not None:
        theirs = official(against)
        for trial, why in differences(results, theirs):
            court.say(trial, TrialVerdict.DIFFERS, why)
        copied = copies(results, theirs)
        ranked = _together(results, theirs)
    court.run(_chosen(court, ranked, copied, sample, seed), execution)
    for trial, why in copied.items():
        court.suspect(trial, why)
    unread = [
        JudgedTrial(trial=name, verdict=TrialVerdict.NOT_RUN, why=why)
        for name, why in _UNREAD.items()
        if (folder / name).exists()
    ]
    judged = sorted([*unreadable, *court.judged.values(), *unread], key=lambda one: _ORDER.index(one.verdict))
    lost = sum(len(_ids(path)) for path in corrupt)
    return Verification(folder, seed, sample, len(results.runs) + lost, tuple(judged))


def _chosen(court: _Court, ranked: Results, copied: Mapping[str, str], sample: int, seed: int) -> list[str]:
    """First those whose curve has another name, then by lot."""
    free = set(court.runnable) - court.judged.keys()
    suspects = sorted(free & copied.keys())[:sample]
    worth = weights(ranked) if free else {}
    return suspects + drawn(worth, free - set(suspects), sample - len(suspects), seed)


def _together(mine: Results, theirs: Results) -> Results:
    """Ranks are those of the board on which both stand."""
    others = theirs.without(mine.runs["trial_id"])
    runs, curve = (
        pd.concat(pair, ignore_index=True) for pair in ((mine.runs, others.runs), (mine.curve, others.curve))
    )
    return Results(runs, curve, [])


class _Court:
    """The trials of a folder, what can be run of them, and the verdicts so far; the first verdict on a trial stays."""

    def __init__(self, results: Results, here: Here) -> None:
        self.results, self.here = results, here
        self.rows = {str(row["trial_id"]): row for row in results.runs.to_dict("records")}
        self.curves = dict(iter(results.curve.groupby("trial_id", sort=False)))
        self.asked = {t["id"]: t for record in results.records for t in record.get("trials") or []}
        self.judged: dict[str, JudgedTrial] = {}
        self.runnable: dict[str, Trial] = {}

    def say(self, trial: str, verdict: TrialVerdict, why: str) -> None:
        row = self.rows[trial]
        shown = str(row["label"] or row["algorithm"])
        one = JudgedTrial(
            trial=trial, verdict=verdict, why=why[:4000], method=shown[:4000], problem=str(row["problem"])[:4000],
            seed=int(row["seed"]),
        )  # fmt: skip
        self.judged.setdefault(trial, one)

    def suspect(self, trial: str, why: str) -> None:
        """A curve that has another name: no matter where it was reproduced, and told in any case."""
        known = self.judged.get(trial)
        if known is not None and not (known.verdict.confirms or known.verdict is TrialVerdict.NOT_RUN):
            return
        if known is not None and known.verdict.confirms:
            self.judged[trial] = known.model_copy(update={"why": f"{why}; run again, it is this method's as well"})
            return
        if known is None:  # a method that only leaves saddles has the curve of its sibling where there is none
            self.say(trial, TrialVerdict.NOT_RUN, f"{why}; it was not in the sample, and can be run: give a larger one")
            return
        del self.judged[trial]
        self.say(trial, TrialVerdict.DIFFERS, f"{why}; {known.why}")

    def examine(self) -> None:
        """Every trial, without running it."""
        for trial, row in self.rows.items():
            if trial not in self.asked:
                self.say(trial, TrialVerdict.NOT_RUN, "its pack does not say what was asked")
                continue
            try:
                asked = self.here.prepared(self.asked[trial])
                cannot = self._obstacle(asked)
                impossible = self._impossible(asked, row)
            except TrialRefused as error:
                self.say(trial, TrialVerdict.IMPOSSIBLE, str(error))
            except CannotRun as error:
                self.say(trial, TrialVerdict.NOT_RUN, str(error))
            else:
                if impossible is not None:
                    self.say(trial, TrialVerdict.IMPOSSIBLE, impossible)
                elif cannot is not None:
                    self.say(trial, TrialVerdict.NOT_RUN, cannot)
                else:
                    self.runnable[trial] = asked

    def _obstacle(self, asked: Trial) -> str | None:
        try:
            self.here.check(asked)
        except CannotRun as error:
            return str(error)
        return None

    def _impossible(self, asked: Trial, row: Mapping[Any, Any]) -> str | None:
        curve = self.curves.get(asked.id, self.results.curve.iloc[:0])
        method: Algorithm | None
        try:
            method = self.here.method(asked, _given(row))
        except CannotRun:
            method = None
        return impossible_of(Stored(asked, row, curve), method)

    def run(self, trials: Sequence[str], execution: Execution) -> None:
        if not trials:
            return
        fresh = run_again([self.runnable[trial] for trial in trials], self.here.registry, execution)
        for trial in trials:
            sides = [one.only([trial]) for one in (self.results, fresh)]
            if sides[1].runs.empty:
                self.say(trial, TrialVerdict.NOT_RUN, "it gave no row here")
            else:
                self.say(trial, *judge(*((side.runs, side.curve) for side in sides)))


def _given(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The parameters that a method had, as its row tells them."""
    found = parameters(row["algorithm_params"])
    if found is None:
        raise TrialRefused(f"its algorithm_params are not a JSON object: {str(row['algorithm_params'])[:100]!r}")
    return found


def _unreadable(path: Path, sentence: str) -> JudgedTrial:
    """A pack that is not read at all: what is said of it, without the way out, which is not ours."""
    why = sentence.partition("; the pack is ignored")[0].partition("; until then")[0].replace(f"{path}/", "")
    verdict = TrialVerdict.NOT_RUN if "written by a newer bilevelbench" in why else TrialVerdict.IMPOSSIBLE
    return JudgedTrial(trial=f"pack {path.name}", verdict=verdict, why=why[:4000])


def _ids(path: Path) -> Sequence[Any]:
    """The trials that a pack claims, for counting."""
    try:
        found = json.loads(read_bytes(path / "pack.json", most=MOST_JSON)).get("trial_ids")
    except (Refused, ValueError, AttributeError, RecursionError):  # refused: a pipe, for one, in which nobody writes
        return ()
    return found if isinstance(found, list) else ()


def stored_trial(folder: Path, trial: str) -> tuple[Results, dict[str, Any]]:
    """One trial of a folder, and what it asks."""
    packs, corrupt = read_packs(folder)
    results = assemble(packs, list(corrupt.values()))
    known = [str(name) for name in results.runs["trial_id"]]
    chosen = [name for name in known if name.startswith(trial)] if trial else []
    if len(chosen) != 1:
        what = f"{len(chosen)} trials begin with that" if chosen else f"it holds {len(known)} others"
        raise InvalidInput(
            f"there is no trial {trial!r} in {str(folder)!r}: {what}; ids are in the column trial_id of `runs`"
        )
    asked = next(_described(results, chosen[0]), None)
    if asked is None:
        raise InvalidInput(f"the pack of trial {chosen[0]} does not say what was asked, so it cannot be run again")
    return results.only(chosen), asked


def _described(results: Results, trial: str) -> Iterator[dict[str, Any]]:
    return (one for record in results.records for one in record.get("trials") or [] if one["id"] == trial)
