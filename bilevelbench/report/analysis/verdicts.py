"""Experiments of a paper: what a figure shows, what it is said to show, and whether the runs bear that out.

A suite's `[figure]` table says all three before anything is run. `record` keeps it beside the results, in
`experiments/<name>.json`, with the trials that belong to it: a trial that is missing later is missed. Each claim is held
against a rule (`falls`, `ranking`, `separation`; `judgement.py`) on every problem and for every rival by itself; the verdict is
reproduced, tied, not reproduced, confounded, or cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic import Field, ValidationError

from bilevelbench.errors import StoreError
from bilevelbench.plan.figure import FigureCheck, PaperFigure
from bilevelbench.plan.trial import Frozen, Trial
from bilevelbench.report.analysis.experiment_trials import PlannedTrials
from bilevelbench.report.analysis.judgement import findings
from bilevelbench.report.analysis.summary import data_seeds
from bilevelbench.report.analysis.tuning import read_tuning
from bilevelbench.report.pipe_table import markdown_text, pipe_table
from bilevelbench.report.text import printable
from bilevelbench.results.files import replace_file
from bilevelbench.results.provenance import when_and_where
from bilevelbench.results.schema import Results
from bilevelbench.results.store import EXPERIMENTS
from bilevelbench.untrusted import Refused, read_json


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
    """What became of one claim on one problem against one rival, and the numbers that say so: a row of a table.

    `seeds` are the trials of a side, or the pairs of trials that were compared; 0 where nothing could be told.
    """

    claim: str
    problem: str
    ours: str
    theirs: str
    seeds: int
    word: str
    reason: str

    @property
    def sentence(self) -> str:
        return f"{self.word.capitalize()}: {self.reason}."


@dataclass(frozen=True, eq=False)
class ExperimentOutcome:
    """An experiment with the results of its trials, and the verdicts on its claims."""

    experiment: Experiment
    results: Results
    verdicts: list[Verdict]
    tuning: str

    @property
    def figure(self) -> PaperFigure:
        return self.experiment.figure

    @property
    def made(self) -> str:
        """When, from which commit and on what machine."""
        return printable(when_and_where(self.results.records, self.results.runs["trial_id"]))


def judge(experiment: Experiment, results: Results) -> list[Verdict]:
    """The verdicts on each claim, on every problem and for every rival by itself."""
    figure = experiment.figure
    runs = results.runs.assign(data_seed=data_seeds(results.runs))
    known = runs.set_index("trial_id")[["status", "message", "seed", "data_seed"]]
    table = pd.DataFrame([planned.model_dump() for planned in experiment.trials]).rename(columns={"id": "trial_id"})
    table = table.join(known, on="trial_id").fillna({"status": "", "message": ""})
    labels = {panel.y: panel.label for panel in figure.panel if panel.label}
    curve = results.curve.sort_values("step", kind="stable")
    parts = {str(problem): PlannedTrials(part, curve, labels) for problem, part in table.groupby("problem", sort=False)}
    return [verdict for check in figure.check for verdict in _verdicts(check, parts)]


def _verdicts(check: FigureCheck, parts: Mapping[str, PlannedTrials]) -> Iterator[Verdict]:
    for problem, trials in parts.items():
        for found in findings(check, trials):
            where = f"on {problem}, " if len(parts) > 1 else ""
            claim, on, ours, theirs = map(printable, (check.claim, problem, found.ours, found.theirs))
            yield Verdict(claim, on, ours, theirs, found.seeds, found.word, printable(where + found.reason))


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
    """One row per verdict."""
    columns = ["figure", "claim", "problem", "ours", "theirs", "seeds", "verdict", "by"]
    rows = [
        (printable(o.figure.title), v.claim, v.problem, v.ours, v.theirs, v.seeds, v.word, v.reason)
        for o in outcomes
        for v in o.verdicts
    ]
    return pd.DataFrame(rows, columns=columns)


def markdown(one: ExperimentOutcome, picture: str = "") -> str:
    """The claim, the verdicts and the tuning; `picture` is a path to the figure."""
    figure = one.figure
    lines = [f"### {markdown_text(figure.title)}", "", f"The paper: {markdown_text(figure.claim)}", ""]
    lines += [f"![{figure.name}]({picture})", ""] if picture else []
    lines.append(pipe_table(frame([one]).drop(columns=["figure", "by"])))
    lines += [f"- {markdown_text(v.claim)}: {markdown_text(v.sentence)}" for v in one.verdicts] + [""]
    lines += [f"Tuning: {markdown_text(one.tuning)}", ""] if one.tuning else []
    lines += [f"Run {markdown_text(one.made)}.", ""] if one.made else []
    return "\n".join(lines)


def _tuning(folder: Path) -> str:
    try:
        found = read_tuning(folder)
    except StoreError:  # which the report says itself
        return ""
    return found.summary if found else ""
