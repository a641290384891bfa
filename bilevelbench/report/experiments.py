"""Experiments of a paper: what a figure shows, what it is said to show, and whether the runs bear that out.

A suite's `[figure]` table says all three before anything is run. `record` keeps it beside the results, in
`experiments/<name>.json`, with the trials that belong to it: a trial that is missing later is missed. Each claim is held
against a rule (`falls`, `ranking`, `separation`); the verdict is reproduced, not reproduced, or cannot be told.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import pandas as pd
from pydantic import Field, ValidationError, model_validator

from bilevelbench.errors import suggestion
from bilevelbench.report.tables import markdown_text, number, pipe_table, printable, variant
from bilevelbench.results import Results
from bilevelbench.store import EXPERIMENTS, replace_file
from bilevelbench.trial import Frozen, Trial

REPRODUCED, NOT_REPRODUCED, UNTOLD = "reproduced", "not reproduced", "cannot be told"

#: What a trial that ended so has measured is not to be used.
_BROKEN = ("error", "invalid")

Names = Annotated[tuple[str, ...], Field(min_length=1)]


class _Untold(Exception):
    """Why nobody can tell."""


class Line(Frozen):
    """A horizontal line at a number, or where a column of the curve starts (step 0, median over trials)."""

    label: str
    value: float | None = None
    column: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.value is None) == (self.column is None):
            raise ValueError("a line has a value or a column, one of the two")
        return self


class Panel(Frozen):
    """A column of the curve against an axis; `problem` restricts it to one, named with its parameters as on tables."""

    y: str
    x: Literal["step", "cost", "seconds", "first_order"] = "step"
    label: str = ""
    title: str = ""
    scale: Literal["log", "linear"] = "log"
    x_scale: Literal["log", "linear"] = "linear"
    problem: str | None = None
    line: Line | None = None


class Falls(Frozen):
    """In every trial each of `columns` ends `factor` times below its start, and each of `lower` ends below its start.

    A start is the first value that was seen.
    """

    rule: Literal["falls"]
    claim: str
    columns: Names
    factor: float = Field(default=1000.0, gt=1)
    lower: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()

    def judge(self, trials: _Trials) -> tuple[bool, str]:
        methods = self.methods or trials.methods
        outcomes = [self._factor(trials, column, methods) for column in self.columns]
        outcomes += [self._drop(trials, column, methods) for column in self.lower]
        lost = [text for text in map(trials.diverged, methods) if text]
        return all(holds for holds, _ in outcomes), "; ".join([*(text for _, text in outcomes), *lost])

    def _factor(self, trials: _Trials, column: str, methods: Sequence[str]) -> tuple[bool, str]:
        start, end = trials.ends(column, methods)
        factor = start / end
        fell, ended = int((factor >= self.factor).sum()), factor.dropna()
        told = f"from {number(start[ended.index].median())} to {number(end[ended.index].median())} in the median, "
        told += f"by a factor of {_rounded_down(ended.min())} at least"
        how = f"falls {self.factor:,g}-fold"
        return fell == len(start), _counted(trials, column, how, fell, len(start), len(ended), told)

    def _drop(self, trials: _Trials, column: str, methods: Sequence[str]) -> tuple[bool, str]:
        start, end = trials.ends(column, methods)
        drop = start - end
        fell, ended = int((drop > 0).sum()), drop.dropna()
        way = "by" if ended.median() >= 0 else "up by"
        told = f"from {number(start[ended.index].median(), 4)} {way} {number(abs(ended.median()))} in the median"
        return fell == len(start), _counted(trials, column, "falls", fell, len(start), len(ended), told)


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


class _Compared(Frozen):
    """Medians over trials of one column, at the end or at the cost that every trial of the two sides has spent."""

    claim: str
    column: str
    at: Literal["end", "equal_cost"] = "end"

    def medians(
        self, trials: _Trials, sides: Sequence[Sequence[str]], worst: float = math.inf
    ) -> list[dict[str, float]]:
        cost = self.cost(trials, sides)
        return [{m: statistics.median(trials.end(self.column, m, cost).fillna(worst)) for m in side} for side in sides]

    def cost(self, trials: _Trials, sides: Sequence[Sequence[str]]) -> float:
        """Up to which cost trials are looked at."""
        return math.inf if self.at == "end" else trials.common_cost([method for side in sides for method in side])

    def told(self, trials: _Trials, side: Mapping[str, float]) -> str:
        texts = []
        for method, value in side.items():
            lost = trials.diverged(method)
            texts.append(f"{method} {number(value, 4)}" if math.isfinite(value) else f"{method} none")
            texts[-1] += f" ({lost})" if lost else ""
        return ", ".join(texts)

    def what(self, trials: _Trials) -> str:
        name = trials.labels.get(self.column, self.column)
        return f"median {name} at {'the end' if self.at == 'end' else 'equal cost'}"


class Ranking(_Compared):
    """Each of `better` has a better median than each of `worse`."""

    rule: Literal["ranking"]
    better: Names
    worse: Names
    best: Literal["lowest", "highest"] = "lowest"

    def judge(self, trials: _Trials) -> tuple[bool, str]:
        sign = 1.0 if self.best == "lowest" else -1.0
        left, right = self.medians(trials, (self.better, self.worse), sign * math.inf)
        holds = max(sign * v for v in left.values()) < min(sign * v for v in right.values())
        sides = f"{self.told(trials, left)} against {self.told(trials, right)}"
        return holds, f"{self.what(trials)}, {self.best} is best: {sides}"


class Separation(_Compared):
    """Each of `low` has a median below `below`, each of `high` one above `above`."""

    rule: Literal["separation"]
    low: Names
    high: Names
    below: float
    above: float

    def judge(self, trials: _Trials) -> tuple[bool, str]:
        left, right = self.medians(trials, (self.low, self.high))
        if lost := [m for m, v in right.items() if math.isinf(v)]:
            reason = trials.diverged(lost[0]) or f"too few trials of {lost[0]} have a value"
            raise _Untold(f"{reason}, which is neither above nor below {self.above:g}")
        holds = all(v < self.below for v in left.values()) and all(v > self.above for v in right.values())
        cost = self.cost(trials, (self.low, self.high))
        ends = [pd.concat([trials.end(self.column, m, cost) for m in side]) for side in (self.low, self.high)]
        below = f"({int((ends[0] < self.below).sum())} of {len(ends[0])} trials below {self.below:g})"
        above = f"({int((ends[1] > self.above).sum())} of {len(ends[1])} trials above {self.above:g})"
        return (
            holds,
            f"{self.what(trials)}: {self.told(trials, left)} {below} against {self.told(trials, right)} {above}",
        )


Check = Annotated[Falls | Ranking | Separation, Field(discriminator="rule")]


class Figure(Frozen):
    """A figure of a paper: its panels, the claim in the paper's words, and the rules that decide about it."""

    name: str = Field(pattern=r"^[a-z0-9_]{1,48}$")
    title: str
    claim: str
    panel: tuple[Panel, ...] = Field(min_length=1)
    check: tuple[Check, ...] = Field(min_length=1)


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
            problem=printable(trial.problem.name + variant(json.dumps(trial.problem.params, sort_keys=True))),
        )


class Experiment(Frozen):
    """A figure and its trials; `tuning` says how their parameters were found, if they were tuned."""

    figure: Figure
    trials: tuple[Planned, ...] = Field(min_length=1)
    tuning: str = ""

    @classmethod
    def of(cls, figure: Figure, trials: Sequence[Trial], tuning: str = "") -> Experiment:
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
class Outcome:
    """An experiment with the results of its trials and a verdict for each of its claims."""

    experiment: Experiment
    results: Results
    verdicts: list[Verdict]
    tuning: str

    @property
    def figure(self) -> Figure:
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
        """Trials of a method as labelled, or else of an algorithm; it takes all of them to tell anything."""
        mine = self.table[self.table["method"] == name]
        mine = self.table[self.table["algorithm"] == name] if mine.empty else mine
        if mine.empty:
            raise _Untold(f"no trial of {name!r} was asked for{suggestion(name, self.methods)}")
        missing = int((mine["status"] == "").sum())
        if missing:
            raise _Untold(f"{missing} of {len(mine)} trials of {name} are missing; the same command runs them")
        broken = mine[mine["status"].isin(_BROKEN)]
        if len(broken):
            first = broken.iloc[0]
            reason = f"{first['status']}: {printable(first['message'])}"
            raise _Untold(f"{len(broken)} of {len(mine)} trials of {name} failed ({reason})")
        return mine

    def diverged(self, name: str) -> str:
        """`2 of 5 trials diverged`, or nothing."""
        mine = self.of(name)
        lost = int((mine["status"] == "diverged").sum())
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
        sound = mine.loc[mine["status"] != "diverged", "trial_id"]
        return last[last["trial_id"].isin(sound)].set_index("trial_id")[column].reindex(mine["trial_id"])

    def ends(self, column: str, methods: Sequence[str]) -> tuple[pd.Series[float], pd.Series[float]]:
        """Start and end of every trial of some methods."""
        start, end = (pd.concat([at(column, m) for m in methods]) for at in (self.start, self.end))
        return start, end

    def common_cost(self, methods: Sequence[str]) -> float:
        """What every trial has spent that did not diverge."""
        tables = [self.of(m) for m in methods]
        sound = pd.concat([t.loc[t["status"] != "diverged", "trial_id"] for t in tables])
        ends = self.curve[self.curve["trial_id"].isin(sound)].groupby("trial_id")["cost"].max()
        return float(ends.min()) if len(ends) else math.inf

    def _rows(self, column: str, method: str) -> pd.DataFrame:
        if column not in self.curve:
            raise _Untold(f"the curves have no column {column!r}{suggestion(column, self.curve.columns)}")
        rows = self.curve[self.curve["trial_id"].isin(self.of(method)["trial_id"])]
        if rows[column].isna().all():
            raise _Untold(f"{column} was never measured for {method}")
        return rows


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


def _verdict(check: Check, parts: Mapping[str, _Trials]) -> Verdict:
    words, reasons = [], []
    for problem, trials in parts.items():
        try:
            holds, reason = check.judge(trials)
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


def find_outcomes(folder: Path, results: Results) -> tuple[list[Outcome], list[str]]:
    """Every experiment of a folder, judged by its results, and a sentence for each file that cannot be used."""
    outcomes, problems = [], []
    for path in sorted((folder / EXPERIMENTS).glob("*.json")):
        try:
            experiment = Experiment.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            said = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
            where = ".".join(map(str, said["loc"])) or "the file"
            problems.append(f"{path} is no experiment ({where}: {said['msg']}); run its suite again")
            continue
        outcomes.append(outcome(experiment, results, folder))
    return outcomes, problems


def outcome(experiment: Experiment, results: Results, folder: Path) -> Outcome:
    """An experiment, judged by the results of its trials; what `bilevelbench tune` left in the folder is told too."""
    ids = [planned.id for planned in experiment.trials]
    mine = Results(
        results.runs[results.runs["trial_id"].isin(ids)],
        results.curve[results.curve["trial_id"].isin(ids)],
        results.records,
    )
    return Outcome(experiment, mine, judge(experiment, mine), printable(experiment.tuning) or _tuning(folder))


def frame(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row a claim."""
    rows = [
        {"figure": printable(o.figure.title), "claim": v.claim, "verdict": v.word, "by": v.reason}
        for o in outcomes
        for v in o.verdicts
    ]
    return pd.DataFrame(rows, columns=["figure", "claim", "verdict", "by"])


def markdown(one: Outcome, picture: str = "") -> str:
    """The claim, the verdicts and the tuning; `picture` is a path to the figure."""
    figure = one.figure
    lines = [f"### {markdown_text(figure.title)}", "", f"The paper: {markdown_text(figure.claim)}", ""]
    lines += [f"![{figure.name}]({picture})", ""] if picture else []
    lines.append(pipe_table(frame([one]).drop(columns="figure")))
    lines += [f"Tuning: {markdown_text(one.tuning)}", ""] if one.tuning else []
    return "\n".join(lines)


def _tuning(folder: Path) -> str:
    try:
        said = json.loads((folder / "tuning.json").read_text(encoding="utf-8"))
        return printable(said.get("summary", ""))
    except (OSError, ValueError, AttributeError):
        return ""
