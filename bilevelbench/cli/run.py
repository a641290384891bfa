"""`bilevelbench run`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from bilevelbench.cli.console import interruptible, warn_failures
from bilevelbench.cli.options import (
    ExecutorName,
    Jobs,
    Memory,
    Methods,
    Problems,
    Scheduler,
    override,
    suites_of,
    without_phi,
)
from bilevelbench.engine.agents.torchrun import under_torchrun
from bilevelbench.errors import InvalidInput


def run(
    algorithm: Methods = None,
    problem: Problems = None,
    all_: Annotated[bool, typer.Option("--all", help="Every method on every embedded problem: suite `quick`.")] = False,
    suite: Annotated[str | None, typer.Option(help="A suite by name, or a TOML file.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds 0 to N-1.")] = None,
    budget: Annotated[float | None, typer.Option(help="Cost of a trial, in calls (samples if stochastic).")] = None,
    steps: Annotated[int | None, typer.Option(help="Outer steps of a trial.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Seconds of steps of a trial; a worker that hangs is killed.")
    ] = None,
    target: Annotated[list[float] | None, typer.Option(help="Stop at this norm of grad phi; repeatable.")] = None,
    no_phi: Annotated[
        bool, typer.Option("--no-phi", help="Do not solve the lower level for phi where it has no closed form.")
    ] = False,
    dtype: Annotated[str | None, typer.Option(help="float64 or float32.")] = None,
    jobs: Jobs = None,
    memory: Memory = None,
    timed: Annotated[bool, typer.Option("--timed", help="One trial at a time, one worker: for time axes.")] = False,
    executor: ExecutorName = "local",
    scheduler: Scheduler = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of results; what it holds is not run again.")] = Path(
        "results"
    ),
) -> None:
    """Run methods on problems and print the results; exit code 1 if every trial failed.

    The same command resumes where it was stopped.
    """
    out = out.absolute()  # before any plugin is loaded, which may change the working directory
    jobs = _jobs_under_torchrun(jobs, timed, executor)
    with interruptible():
        from bilevelbench.cli.progress import run_with_progress
        from bilevelbench.discovery.registry import registry
        from bilevelbench.execute.executor import Execution
        from bilevelbench.report.analysis.verdicts import Experiment
        from bilevelbench.results.reached import failed

        execution = Execution(executor, jobs, memory, timed, scheduler=scheduler)
        plugins = registry()
        warn_failures(plugins)
        workers = execution.open(plugins)
        plans = [
            override(plan, seeds=seeds, budget=budget, steps=steps, seconds=seconds, target=target, dtype=dtype)
            for plan in suites_of(plugins, algorithm or [], problem or [], all_, suite)
        ]
        if no_phi:
            plans = [without_phi(plan, target or []) for plan in plans]
        parts = [plan.trials(plugins) for plan in plans]
        trials = list({trial.id: trial for part in parts for trial in part}.values())
        if not trials:
            raise InvalidInput("this plan has no trials: no method meets any problem; name others with -a and -p")
        experiments = [
            Experiment.of(plan.figure, part, plan.description if plan.tuned else "")
            for plan, part in zip(plans, parts, strict=True)
            if plan.figure and part
        ]
        command = "bilevelbench " + shlex.join(sys.argv[1:])
        with workers:
            results = run_with_progress(trials, out, workers, command, experiments)
        if failed(results.runs).all():
            raise typer.Exit(1)


def _jobs_under_torchrun(jobs: int | None, timed: bool, executor: str) -> int | None:
    """torchrun's first process runs the trials itself, and the others are its agents."""
    if not under_torchrun():
        return jobs
    if jobs or timed or executor != "local":
        raise InvalidInput("torchrun's first process runs the trials itself; leave out --jobs, --timed and --executor")
    return 0
