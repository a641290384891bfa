"""`bilevelbench run`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bilevelbench.cli.console import interruptible, say, terminal, warn_failures
from bilevelbench.cli.options import (
    BudgetLimit,
    CompileSteps,
    Dtype,
    ExecutorName,
    Jobs,
    Memory,
    Methods,
    NoPhi,
    Problems,
    Scheduler,
    StepLimit,
    Targets,
    TimeLimit,
    as_typed,
    override,
    suites_of,
    typed_lists,
    without_phi,
)
from bilevelbench.engine.agents.torchrun import under_torchrun
from bilevelbench.errors import InvalidInput
from bilevelbench.execute.workers import start_server

if TYPE_CHECKING:
    from bilevelbench.discovery.registry import Registry
    from bilevelbench.plan.suite import Suite
    from bilevelbench.plan.trial import Trial
    from bilevelbench.report.analysis.verdicts import Experiment


def run(
    method: Methods = None,
    problem: Problems = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Every method on every embedded problem; the same as `--suite quick`.")
    ] = False,
    suite: Annotated[str | None, typer.Option(help="A suite by name, or a TOML file.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds each trial is run with: 0, 1, ...")] = None,
    budget: BudgetLimit = None,
    steps: StepLimit = None,
    seconds: TimeLimit = None,
    target: Targets = None,
    no_phi: NoPhi = False,
    dtype: Dtype = None,
    compile_: CompileSteps = None,
    jobs: Jobs = None,
    memory: Memory = None,
    part: Annotated[
        str | None, typer.Option(help="k/n: run the k-th of n parts of the trials, for n machines; `merge` joins them.")
    ] = None,
    timed: Annotated[
        bool, typer.Option("--timed", help="One trial at a time in one worker, so that seconds can be compared.")
    ] = False,
    isolate: Annotated[
        bool,
        typer.Option(
            "--isolate", help="Give plugins of others an empty folder, no network, and results that they cannot write."
        ),
    ] = False,
    executor: ExecutorName = "local",
    scheduler: Scheduler = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder of results; a trial that it holds already is not run again.")
    ] = Path("results"),
) -> None:
    """Run methods on problems and print the results; exit code 1 if every trial failed.

    The same command resumes where it was stopped.
    """
    out = out.absolute()  # before any plugin is loaded, which may change the working directory
    jobs = _jobs_under_torchrun(jobs, timed, executor)
    with interruptible():
        wants_workers = executor != "local" or any((jobs, memory, timed, scheduler, isolate, seconds, all_, suite))
        short = not wants_workers and _is_short(method or [], problem or [], seeds, budget, steps)
        if executor == "local" and jobs != 0 and not short:
            start_server()  # its imports take as long as ours, so it is not left for when the trials are known
        from bilevelbench.cli.progress import run_with_progress
        from bilevelbench.discovery.registry import registry
        from bilevelbench.execute.executor import Execution
        from bilevelbench.plan.packs import part_of
        from bilevelbench.plan.pairing import told
        from bilevelbench.results.reached import failed

        execution = Execution(executor, jobs, memory, timed, scheduler=scheduler, isolate=isolate)
        warn_failures(registry())
        plans = [
            override(
                plan,
                seeds=seeds,
                budget=budget,
                steps=steps,
                seconds=seconds,
                target=target,
                dtype=dtype,
                compile=compile_,
            )
            for plan in suites_of(registry(), method or [], problem or [], all_, suite)
        ]
        if no_phi:
            plans = [without_phi(plan, target or []) for plan in plans]
        parts = [plan.trials(registry()) for plan in plans]
        trials = list({trial.id: trial for part in parts for trial in part}.values())
        if not trials:
            raise InvalidInput("this plan has no trials: no method meets any problem; name others with -a and -p")
        if part is not None:
            trials = part_of(trials, registry(), part)
        if short and not any(_needs_worker(trial, registry()) for trial in trials):
            execution = replace(execution, jobs=0)
        workers = execution.open(registry())
        for plan in plans:
            if sentence := told(plan.left_out(registry())):
                say(terminal(), sentence)
        if isolate:
            _tell_missing()
        with workers:
            results = run_with_progress(trials, out, workers, as_typed(), _experiments(plans, parts))
        if failed(results.runs).all():
            raise typer.Exit(1)


def _is_short(
    methods: Sequence[str], problems: Sequence[str], seeds: int | None, budget: float | None, steps: int | None
) -> bool:
    """Whether what was typed is over before a worker has begun."""
    from bilevelbench.plan.trial import CALLS_OF_A_STEP, SHORT

    calls = min(budget or math.inf, CALLS_OF_A_STEP * (steps or math.inf))
    return calls * _settings("-a", methods) * _settings("-p", problems) * (seeds or 1) <= SHORT


def _settings(option: str, texts: Sequence[str]) -> int:
    """How many methods or problems these are, each with every choice of its listed parameters."""
    return sum(math.prod(map(len, lists.values())) for _, lists in typed_lists(option, texts))


def _needs_worker(trial: Trial, registry: Registry) -> bool:
    """Whether it is somebody's that has to be kept apart, or on a problem that may be large."""
    return bool(trial.strangers) or not registry.problem(trial.problem.key).value.embedded


def _tell_missing() -> None:
    from bilevelbench.execute.isolation import missing

    if lacking := missing():
        say(terminal(), f"note: --isolate cannot give {' and '.join(lacking)} here")


def _experiments(plans: Sequence[Suite], parts: Sequence[Sequence[Trial]]) -> list[Experiment]:
    """The figures that the plans reproduce, each with the trials of its plan."""
    from bilevelbench.report.analysis.verdicts import Experiment

    return [
        Experiment.of(plan.figure, part, plan.description if plan.tuned else "")
        for plan, part in zip(plans, parts, strict=True)
        if plan.figure and part
    ]


def _jobs_under_torchrun(jobs: int | None, timed: bool, executor: str) -> int | None:
    """torchrun's first process runs the trials itself, and the others are its agents."""
    if not under_torchrun():
        return jobs
    if jobs or timed or executor != "local":
        raise InvalidInput("torchrun's first process runs the trials itself; leave out --jobs, --timed and --executor")
    return 0
