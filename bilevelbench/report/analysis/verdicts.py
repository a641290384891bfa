"""Experiments of a paper: what a figure shows, what it is said to show, and whether the runs bear that out.

A suite's `[figure]` table says all three before anything is run. `record` keeps it beside the results, in
`experiments/<name>.json`, with the trials that belong to it: a trial that is missing later is missed. Each claim is held
against a rule (`falls`, `ranking`, `separation`); the verdict is reproduced, not reproduced, or cannot be told.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic import Field, ValidationError

from bilevelbench.errors import StoreError, suggestion
from bilevelbench.plan.figure import Compared, Falls, FigureCheck, PaperFigure, Ranking, Separation
from bilevelbench.plan.trial import Frozen, Trial
from bilevelbench.report.analysis.tuning import read_tuning
from bilevelbench.report.pipe_table import markdown_text, pipe_table
from bilevelbench.report.text import number, printable
from bilevelbench.results.files import replace_file
from bilevelbench.results.schema import Results
from bilevelbench.results.status import Status
from bilevelbench.results.store import EXPERIMENTS
from bilevelbench.untrusted import Refused, read_json

REPRODUCED, NOT_REPRODUCED, UNTOLD = "reproduced", "not reproduced", "cannot be told"


class _Untold(Exception):
    """Why a claim cannot be judged."""


def _counted(trials: _Trials, column: str, how: str, fell: int, count: int, ended: int, told: str) -> str:
    """`phi falls in 2 of 3 trials (..., of 2 that have an end)`: what is told is about those that have one."""
    of = "" if ended == count else f", of {ended} that have an end"
    told = f"{told}{of}" if ended else "none has an end"
    return f"{trials.labels.get(column, column)} {how} in {fell} of {count} trials ({told})"


def _rounded_down(factor: float) -> str:
    """To two digits, for a sentence that says `at least`."""
    if not math.isfinite(factor) or factor == 0:
        return "∞" if factor == math.inf else number(factor)
    unit = 10.0 ** (math.floor(math.log10(abs(factor))) - 1)
    return number(math.floor(factor / unit * (1 + 1e-12)) * unit)


class Planned(Frozen):
    """A trial of a figure, as tables name it."""

    id: str
    method: str
    algorithm: str
    problem: str

    @classmethod
    def of(cls, trial: Trial) -> Planned:
        return cls(
            id=trial.id,
            method=printable(trial.label or trial.algorithm.name),
            algorithm=trial.algorithm.name,
            problem=printable(trial.problem.variant),
        )


class Experiment(Frozen):
    """A figure and its trials; `tuning` says how their parameters were found, if they were tuned."""

    figure: PaperFigure
    trials: tuple[Planned, ...] = Field(min_length=1)
    tuning: str = ""

    @classmethod
    def of(cls, figure: PaperFigure, trials: Sequence[Trial], tuning: str = "") -> Experiment:
        return cls(figure=figure, trials=tuple(map(Planned.of, trials)), tuning=tuning)


@dataclass(frozen=True)
class Verdict:
    """What became of one claim, and the numbers that say so."""

    claim: str
    word: str
    reason: str

    @property
    def sentence(self) -> str:
        return f"{self.word.capitalize()}: {self.reason}."


@dataclass(frozen=True, eq=False)
class ExperimentOutcome:
    """An experiment with the results of its trials and a verdict for each of its claims."""

    experiment: Experiment
    results: Results
    verdicts: list[Verdict]
    tuning: str

    @property
    def figure(self) -> PaperFigure:
        return self.experiment.figure


@dataclass(frozen=True, eq=False)
class _Trials:
    """The trials of a figure on one problem; `table` has those planned, with an empty status where one is missing."""

    table: pd.DataFrame
    curve: pd.DataFrame
    labels: dict[str, str]

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.table["method"]))

    def of(self, name: str) -> pd.DataFrame:
        """Trials of a method as labelled, or else by its name; it takes all of them to tell anything."""
        mine = self.table[self.table["method"] == name]
        mine = self.table[self.table["algorithm"] == name] if mine.empty else mine
        if mine.empty:
            raise _Untold(f"no trial of {name!r} was asked for{suggestion(name, self.methods)}")
        missing = int((mine["status"] == "").sum())
        if missing:
            raise _Untold(f"{missing} of {len(mine)} trials of {name} are missing; the same command runs them")
        broken = mine[mine["status"].isin([status for status in Status if status.broken])]
        if len(broken):
            first = broken.iloc[0]
            reason = f"{first['status']}: {printable(first['message'])}"
            raise _Untold(f"{len(broken)} of {len(mine)} trials of {name} failed ({reason})")
        return mine

    def diverged(self, name: str) -> str:
        """`2 of 5 trials diverged`, or nothing."""
        mine = self.of(name)
        lost = int((mine["status"] == Status.DIVERGED).sum())
        return f"{lost} of {len(mine)} trials of {name} diverged" if lost else ""

    def start(self, column: str, method: str) -> pd.Series[float]:
        rows = self._rows(column, method)
        first = rows.dropna(subset=[column]).drop_duplicates("trial_id")
        return first.set_index("trial_id")[column].reindex(self.of(method)["trial_id"])

    def end(self, column: str, method: str, cost: float = math.inf) -> pd.Series[float]:
        """The last value up to a cost; NaN for a trial that diverged."""
        rows = self._rows(column, method)
        last = rows[rows["cost"] <= cost].drop_duplicates("trial_id", keep="last")
        mine = self.of(method)
        sound = mine.loc[mine["status"] != Status.DIVERGED, "trial_id"]
        return last[last["trial_id"].isin(sound)].set_index("trial_id")[column].reindex(mine["trial_id"])

    def ends(self, column: str, methods: Sequence[str]) -> tuple[pd.Series[float], pd.Series[float]]:
        """Start and end of every trial of some methods."""
        start, end = (pd.concat([at(column, m) for m in methods]) for at in (self.start, self.end))
        return start, end

    def common_cost(self, methods: Sequence[str]) -> float:
        """What every trial has spent that did not diverge."""
        tables = [self.of(m) for m in methods]
        sound = pd.concat([t.loc[t["status"] != Status.DIVERGED, "trial_id"] for t in tables])
        ends = self.curve[self.curve["trial_id"].isin(sound)].groupby("trial_id")["cost"].max()
        return float(ends.min()) if len(ends) else math.inf

    def _rows(self, column: str, method: str) -> pd.DataFrame:
        if column not in self.curve:
            raise _Untold(f"the curves have no column {column!r}{suggestion(column, self.curve.columns)}")
        rows = self.curve[self.curve["trial_id"].isin(self.of(method)["trial_id"])]
        if rows[column].isna().all():
            raise _Untold(f"{column} was never measured for {method}")
        return rows


def _held(check: FigureCheck, trials: _Trials) -> tuple[bool, str]:
    """Whether what a rule asks for is so, and the numbers that say it."""
    if isinstance(check, Falls):
        return _judge_falls(check, trials)
    if isinstance(check, Ranking):
        return _judge_ranking(check, trials)
    return _judge_separation(check, trials)


def _judge_falls(check: Falls, trials: _Trials) -> tuple[bool, str]:
    methods = check.methods or trials.methods
    outcomes = [_factor(check, trials, column, methods) for column in check.columns]
    outcomes += [_drop(check, trials, column, methods) for column in check.lower]
    lost = [text for text in map(trials.diverged, methods) if text]
    return all(holds for holds, _ in outcomes), "; ".join([*(text for _, text in outcomes), *lost])


def _factor(check: Falls, trials: _Trials, column: str, methods: Sequence[str]) -> tuple[bool, str]:
    start, end = trials.ends(column, methods)
    factor = start / end
    fell, ended = int((factor >= check.factor).sum()), factor.dropna()
    told = f"from {number(start[ended.index].median())} to {number(end[ended.index].median())} in the median, "
    told += f"by a factor of {_rounded_down(ended.min())} at least"
    how = f"falls {check.factor:,g}-fold"
    return fell == len(start), _counted(trials, column, how, fell, len(start), len(ended), told)


def _drop(check: Falls, trials: _Trials, column: str, methods: Sequence[str]) -> tuple[bool, str]:
    start, end = trials.ends(column, methods)
    drop = start - end
    fell, ended = int((drop > 0).sum()), drop.dropna()
    way = "by" if ended.median() >= 0 else "up by"
    told = f"from {number(start[ended.index].median(), 4)} {way} {number(abs(ended.median()))} in the median"
    return fell == len(start), _counted(trials, column, "falls", fell, len(start), len(ended), told)


def _medians(
    check: Compared, trials: _Trials, sides: Sequence[Sequence[str]], worst: float = math.inf
) -> list[dict[str, float]]:
    cost = _cost(check, trials, sides)
    return [{m: statistics.median(trials.end(check.column, m, cost).fillna(worst)) for m in side} for side in sides]


def _cost(check: Compared, trials: _Trials, sides: Sequence[Sequence[str]]) -> float:
    """Up to which cost trials are looked at."""
    return math.inf if check.at == "end" else trials.common_cost([method for side in sides for method in side])


def _told(check: Compared, trials: _Trials, side: Mapping[str, float]) -> str:
    texts = []
    for method, value in side.items():
        lost = trials.diverged(method)
        texts.append(f"{method} {number(value, 4)}" if math.isfinite(value) else f"{method} none")
        texts[-1] += f" ({lost})" if lost else ""
    return ", ".join(texts)


def _what(check: Compared, trials: _Trials) -> str:
    name = trials.labels.get(check.column, check.column)
    return f"median {name} at {'the end' if check.at == 'end' else 'equal cost'}"


def _judge_ranking(check: Ranking, trials: _Trials) -> tuple[bool, str]:
    sign = 1.0 if check.best == "lowest" else -1.0
    left, right = _medians(check, trials, (check.better, check.worse), sign * math.inf)
    holds = max(sign * v for v in left.values()) < min(sign * v for v in right.values())
    sides = f"{_told(check, trials, left)} against {_told(check, trials, right)}"
    return holds, f"{_what(check, trials)}, {check.best} is best: {sides}"


def _judge_separation(check: Separation, trials: _Trials) -> tuple[bool, str]:
    left, right = _medians(check, trials, (check.low, check.high))
    if lost := [m for m, v in right.items() if math.isinf(v)]:
        reason = trials.diverged(lost[0]) or f"too few trials of {lost[0]} have a value"
        raise _Untold(f"{reason}, which is neither above nor below {check.above:g}")
    holds = all(v < check.below for v in left.values()) and all(v > check.above for v in right.values())
    cost = _cost(check, trials, (check.low, check.high))
    ends = [pd.concat([trials.end(check.column, m, cost) for m in side]) for side in (check.low, check.high)]
    below = f"({int((ends[0] < check.below).sum())} of {len(ends[0])} trials below {check.below:g})"
    above = f"({int((ends[1] > check.above).sum())} of {len(ends[1])} trials above {check.above:g})"
    return (
        holds,
        f"{_what(check, trials)}: {_told(check, trials, left)} {below} against {_told(check, trials, right)} {above}",
    )


def judge(experiment: Experiment, results: Results) -> list[Verdict]:
    """A verdict for each claim. On several problems it has to hold on each of them."""
    figure = experiment.figure
    known = results.runs.set_index("trial_id")[["status", "message"]]
    table = pd.DataFrame([planned.model_dump() for planned in experiment.trials]).rename(columns={"id": "trial_id"})
    table = table.join(known, on="trial_id").fillna({"status": "", "message": ""})
    labels = {panel.y: panel.label for panel in figure.panel if panel.label}
    curve = results.curve.sort_values("step", kind="stable")
    parts = {str(problem): _Trials(part, curve, labels) for problem, part in table.groupby("problem", sort=False)}
    return [_verdict(check, parts) for check in figure.check]


def _verdict(check: FigureCheck, parts: Mapping[str, _Trials]) -> Verdict:
    words, reasons = [], []
    for problem, trials in parts.items():
        try:
            holds, reason = _held(check, trials)
            words.append(REPRODUCED if holds else NOT_REPRODUCED)
        except _Untold as untold:
            words.append(UNTOLD)
            reason = str(untold)
        reasons.append(f"on {problem}, {reason}" if len(parts) > 1 else reason)
    word = next(w for w in (NOT_REPRODUCED, UNTOLD, REPRODUCED) if w in words)
    return Verdict(printable(check.claim), word, printable("; ".join(reasons)))


def record(experiment: Experiment, folder: Path) -> Path:
    """Keep it in a folder of results; one that is there under its name is replaced at once."""
    path = folder / EXPERIMENTS / f"{experiment.figure.name}.json"
    replace_file(path, (experiment.model_dump_json(indent=1) + "\n").encode("utf-8", "replace"))
    return path


def find_outcomes(folder: Path, results: Results) -> tuple[list[ExperimentOutcome], list[str]]:
    """Every experiment of a folder, judged by its results, and a sentence for each file that cannot be used."""
    outcomes, warnings = [], []
    for path in sorted((folder / EXPERIMENTS).glob("*.json")):
        try:
            experiment = Experiment.model_validate(read_json(path, folder))
        except Refused as refused:
            warnings.append(f"{path} {refused}; run its suite again")
            continue
        except ValidationError as error:
            said = error.errors()[0]
            where = ".".join(map(str, said["loc"])) or "the file"
            warnings.append(f"{path} is not an experiment ({where}: {said['msg']}); run its suite again")
            continue
        outcomes.append(outcome(experiment, results, folder))
    return outcomes, warnings


def outcome(experiment: Experiment, results: Results, folder: Path) -> ExperimentOutcome:
    """An experiment, judged by the results of its trials; what `bilevelbench tune` left in the folder is told too."""
    mine = results.only(planned.id for planned in experiment.trials)
    return ExperimentOutcome(experiment, mine, judge(experiment, mine), printable(experiment.tuning) or _tuning(folder))


def frame(outcomes: Sequence[ExperimentOutcome]) -> pd.DataFrame:
    """One row per claim."""
    rows = [
        {"figure": printable(o.figure.title), "claim": v.claim, "verdict": v.word, "by": v.reason}
        for o in outcomes
        for v in o.verdicts
    ]
    return pd.DataFrame(rows, columns=["figure", "claim", "verdict", "by"])


def markdown(one: ExperimentOutcome, picture: str = "") -> str:
    """The claim, the verdicts and the tuning; `picture` is a path to the figure."""
    figure = one.figure
    lines = [f"### {markdown_text(figure.title)}", "", f"The paper: {markdown_text(figure.claim)}", ""]
    lines += [f"![{figure.name}]({picture})", ""] if picture else []
    lines.append(pipe_table(frame([one]).drop(columns="figure")))
    lines += [f"Tuning: {markdown_text(one.tuning)}", ""] if one.tuning else []
    return "\n".join(lines)


def _tuning(folder: Path) -> str:
    try:
        found = read_tuning(folder)
    except StoreError:  # which the report says itself
        return ""
    return found.summary if found else ""
