"""A stored trial, run again in the present environment and held against what is stored."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from bilevelbench.discovery.entry import Entry, make
from bilevelbench.discovery.loose_files import classes_in_file, file_and_class
from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput, faults
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.run import run_trials
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.plan.pairing import obstacle
from bilevelbench.plan.trial import Spec, Trial
from bilevelbench.results.compare import EXACT, GROWING, first_difference
from bilevelbench.results.schema import Results, Tables
from bilevelbench.results.status import Status
from bilevelbench.results.store import Store
from bilevelbench.results.verified import TrialVerdict
from bilevelbench.studies.verification.parameters import on_common_parameters

#: How the message of a trial begins that came to nothing here for reasons that are not its own.
_HERE = ("could not be set up", "its worker process", "hung:")


class CannotRun(Exception):
    """Why a trial cannot be run here, as a sentence."""


class TrialRefused(Exception):
    """Why its own plugin refuses to run a trial, as a sentence: then nobody has run it."""


@dataclass(frozen=True)
class Here:
    """What can be run here: the installed plugins, and the loose files that the caller has named.

    A record names the files of its loose methods by their place on another machine. Those are never looked for: what lies
    there may be anybody's.
    """

    registry: Registry
    files: Mapping[tuple[str, str, str], str] = field(default_factory=dict)  # by (name, file, version)

    @classmethod
    def of(cls, registry: Registry, files: Iterable[str]) -> Here:
        found = {}
        for file in files:
            for named in classes_in_file(file):
                place = f"{Path(file_and_class(file)[0]).resolve()}:{named.__name__}"
                find = registry.algorithm if issubclass(named, Algorithm) else registry.problem
                entry: Entry[Any] = find(place)
                found[entry.value.name, entry.plugin, entry.version] = place
        return cls(registry, found)

    def prepared(self, asked: Mapping[str, Any]) -> Trial:
        """The trial of a record, with loose files where they are here."""
        given = {name: value for name, value in asked.items() if name != "id" and (name != "tuned" or value)}
        try:
            trial = Trial.model_validate(given)
        except ValidationError as error:
            raise CannotRun(f"this version cannot read what it asks for ({faults(error)[:300]})") from None
        if trial.id != asked["id"]:
            raise CannotRun(f"this version reads it as another trial ({trial.id}): it was asked for by an older one")
        algorithm = self._found(trial.algorithm, trial.plugin, trial.plugin_version)
        problem = self._found(trial.problem, trial.problem_plugin, trial.problem_plugin_version)
        return trial.model_copy(update={"algorithm": algorithm, "problem": problem})

    def _found(self, spec: Spec, plugin: str, version: str) -> Spec:
        return Spec(name=spec.name, params=spec.params, file=self.files.get((spec.name, plugin, version), ""))

    def method(self, trial: Trial, params: Mapping[str, Any] | None = None) -> Algorithm:
        """The method of a trial, with its own parameters or with those that it had after defaults were filled in."""
        entry = self._entry("method", trial.algorithm, trial.plugin, trial.plugin_version)
        made: Algorithm = self._made(entry, trial.algorithm.params if params is None else dict(params))
        return made

    def check(self, trial: Trial) -> None:
        """Raise CannotRun or TrialRefused, unless the trial can be run."""
        method = self.method(trial)
        entry = self._entry("problem", trial.problem, trial.problem_plugin, trial.problem_plugin_version)
        problem = self._made(entry, trial.problem.params)
        if reason := obstacle(type(method), type(problem)):
            raise CannotRun(f"{method.name} {reason}")

    def _entry(self, kind: str, spec: Spec, plugin: str, version: str) -> Entry[Any]:
        if not spec.file and plugin.endswith(".py"):
            raise CannotRun(
                f"{spec.name} is a {kind} of the file {plugin} (version {version}), which was not named; read it, and name "
                "it with --file"
            )
        table: Mapping[str, Entry[Any]] = self.registry.algorithms if kind == "method" else self.registry.problems
        if (
            not spec.file and spec.name not in table
        ):  # not by the registry's search, which would run a file of that name
            raise CannotRun(f"{spec.name} is of plugin {plugin!r} {version}, which is not installed")
        find = self.registry.algorithm if kind == "method" else self.registry.problem
        entry: Entry[Any] = find(spec.file) if spec.file else table[spec.name]
        if entry.plugin != plugin:
            raise CannotRun(f"{spec.name} is of plugin {plugin!r}, and here {entry.plugin!r} has that name")
        if entry.version != version:
            raise CannotRun(f"{spec.name} is of {plugin} {version}, and {entry.version} is installed")
        return entry

    @staticmethod
    def _made(entry: Entry[Any], params: dict[str, Any]) -> Any:
        try:
            return make(entry, params)
        except InvalidInput as error:
            raise TrialRefused(f"its plugin refuses what it asks for: {error}") from None


def run_again(trials: Sequence[Trial], registry: Registry, execution: Execution) -> Results:
    """These trials, in a store that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bilevelbench-verify-") as folder:
        return run_trials(trials, Store(folder), registry, execution)


def judge(stored: Tables, here: Tables) -> tuple[TrialVerdict, str]:
    """The verdict on one trial, and why. Each side has its row and its curve."""
    stored, here = on_common_parameters(stored, here)
    (was,), (now,) = (tables[0].to_dict("records") for tables in (stored, here))
    at_fault = [row["status"] == Status.ERROR and str(row["message"]).startswith(_HERE) for row in (was, now)]
    if at_fault == [False, True]:
        return TrialVerdict.NOT_RUN, f"here it {now['message']}"
    if now["status"] == Status.ERROR and was["status"] != Status.ERROR:
        return TrialVerdict.DIFFERS, f"it ended by {was['status']}, and here it failed: {now['message']}"
    # what the clock has ended is compared as far as it goes, which would make a budget of no time a licence
    if (
        now["status"] == Status.TIMEOUT
        and now["steps"] < was["steps"]
        and first_difference(stored, here, GROWING) is None
    ):
        return TrialVerdict.NOT_RUN, f"here its time was over after {now['steps']} of {was['steps']} steps, which agree"
    ends = [(row["status"], row["steps"]) for row in (was, now)]
    if first_difference(stored, here, EXACT) is None:
        if ends[0] == ends[1] or Status.TIMEOUT in (was["status"], now["status"]):
            return TrialVerdict.REPRODUCED, ""
        return TrialVerdict.DIFFERS, (
            f"every evaluation is the same to the last bit, and yet it ends by {was['status']} after {was['steps']} steps, "
            f"here by {now['status']} after {now['steps']}"
        )
    found = first_difference(stored, here, GROWING)
    if found is None:
        return TrialVerdict.ROUNDING, ""
    return TrialVerdict.DIFFERS, (
        f"stored against here, the first column that differs is {found[1]}; {_agreement(stored[1], here[1])}"
    )


def _agreement(stored: pd.DataFrame, here: pd.DataFrame) -> str:
    """How far two curves go together: one that was edited leaves at once, one that is chaotic after many evaluations."""
    relative = GROWING["float64"].relative
    pairs = zip(*(zip(side["step"], side["cost"], side["phi"], strict=True) for side in (stored, here)), strict=False)
    together = 0
    for (step, cost, phi), (step_here, cost_here, phi_here) in pairs:
        near = phi == phi_here or abs(phi - phi_here) <= relative * (1 + step) * max(abs(phi), abs(phi_here))
        if (step, cost) != (step_here, cost_here) or not (near or (phi != phi and phi_here != phi_here)):
            break
        together += 1
    return f"phi agrees at the first {together} of {len(stored)} evaluations"
