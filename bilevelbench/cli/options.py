"""Options that several commands share, and the plans that they describe."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from bilevelbench.errors import InvalidInput

if TYPE_CHECKING:
    from bilevelbench.discovery.registry import Registry
    from bilevelbench.plan.suite import Suite

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_NAMED = "NAME, NAME[param=v1,v2,...], FILE.py or FILE.py:Class; may be given several times."


def _begins(kind: str) -> Callable[[str], list[str]]:
    """Completes a name in the shell, from the list that `bilevelbench list` has remembered: torch would take too long."""

    def names(incomplete: str) -> list[str]:
        from bilevelbench.discovery.remembered import remembered

        return [row["name"] for row in (remembered() or {}).get(kind, []) if row["name"].startswith(incomplete)]

    return names


Methods = Annotated[list[str] | None, typer.Option("--method", "-a", help=_NAMED, autocompletion=_begins("methods"))]
Problems = Annotated[list[str] | None, typer.Option("--problem", "-p", help=_NAMED, autocompletion=_begins("problems"))]

# What a trial is given, for the commands that plan trials.
BudgetLimit = Annotated[
    float | None,
    typer.Option("--budget", help="What a trial may cost, in calls; where answers are sampled, in samples."),
]
StepLimit = Annotated[int | None, typer.Option("--steps", help="How many outer steps a trial may make.")]
TimeLimit = Annotated[
    float | None,
    typer.Option("--seconds", help="Seconds that the steps of a trial may take; a worker that hangs is killed."),
]
Targets = Annotated[
    list[float] | None,
    typer.Option("--target", help="Stop a trial at this norm of grad phi; may be given several times."),
]
NoPhi = Annotated[
    bool, typer.Option("--no-phi", help="Do not solve the lower level for phi where it has no closed form.")
]
CompileSteps = Annotated[
    str | None,
    typer.Option(
        "--compile", help="auto, never or always: compile steps to C++, which rounds differently. Default: never."
    ),
]
Dtype = Annotated[str | None, typer.Option("--dtype", help="float64 or float32.")]

# Where trials run, for every command that runs any; together they are an `Execution`.
Jobs = Annotated[
    int | None, typer.Option(min=0, help="Worker processes; 0 runs in this process. Default: one for each core.")
]
Memory = Annotated[float | None, typer.Option(help="Memory limit of each worker, in GiB.")]
ExecutorName = Annotated[str, typer.Option("--executor", help="local, dask, or one that a plugin adds.")]
Scheduler = Annotated[
    str | None, typer.Option(help="The address of a Dask scheduler. Default: a cluster on this machine.")
]


def suites_of(
    registry: Registry, algorithms: list[str], problems: list[str], all_: bool, name: str | None
) -> list[Suite]:
    """The plans that the options describe. `--all` and `--suite` may be narrowed by -a and -p."""
    from bilevelbench.plan.suite import AlgorithmEntry, ProblemEntry, Suite, load_suites
    from bilevelbench.plan.trial import Budget

    if all_ and name:
        raise InvalidInput("--all is the suite `quick`; give --all or --suite, not both")
    if all_ or name:
        plans = load_suites(registry.suite(name or "quick"), registry)
    elif algorithms and problems:
        plans = [Suite(budget=Budget(cost=30_000))]
    else:
        raise InvalidInput("say what to run: --all, or --suite NAME, or -a METHOD and -p PROBLEM")
    update: dict[str, Any] = {}
    if algorithms:
        methods = typed_lists("-a", algorithms)
        update["algorithm"] = tuple(AlgorithmEntry(name=name, params=lists) for name, lists in methods)
    if problems:
        specs = typed_lists("-p", problems)
        update["problem"] = tuple(ProblemEntry(name=name, params=lists) for name, lists in specs)
    return [plan.model_copy(update=update) for plan in plans]


def typed_lists(option: str, texts: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The name and the lists of parameters of each method or problem that this option names."""
    from bilevelbench.plan.spec_text import parse_lists

    return [parse_lists(_single(option, text)) for text in texts]


def _single(option: str, text: str) -> str:
    """One name: several are several options. Commas in brackets separate parameters."""
    names = [name.strip() for name in re.split(r",(?![^\[]*\])", text)]
    if len(names) > 1 and all(names) and not Path(text).is_file():
        each = " ".join(f"{option} {shlex.quote(name)}" for name in names)
        raise InvalidInput(f"{option} {text} names {len(names)} at once; {option} can be repeated: {each}")
    return text


def override(plan: Suite, **options: Any) -> Suite:
    """Options that were given win over the suite, also over what it says of single problems. Any limit given replaces
    the whole budget."""
    from bilevelbench.plan.trial import Compile, checked_budget

    update: dict[str, Any] = {}
    of_problems: dict[str, Any] = {}
    given = {name: options[name] for name in ("budget", "steps", "seconds") if options[name] is not None}
    if given:
        for name, value in given.items():
            if not math.isfinite(value):
                raise InvalidInput(f"--{name} {value}: a limit is a finite number above 0")
        update["budget"] = checked_budget(**given)
        of_problems["budget"] = None
    if options["seeds"] is not None:
        update["seeds"] = options["seeds"]
    if options["target"]:
        for value in options["target"]:
            if not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"--target {value:g}: a target is a gradient norm above 0")
        update["targets"] = tuple(options["target"])
        of_problems["targets"] = None
    if options["dtype"] is not None:
        if options["dtype"] not in ("float64", "float32"):
            raise InvalidInput(f"--dtype {options['dtype']}: choose float64 or float32")
        update["dtype"] = options["dtype"]
    if (how := options.get("compile")) is not None:
        if how not in get_args(Compile):
            raise InvalidInput(f"--compile {how}: choose {', '.join(get_args(Compile))}")
        update["compile"] = how
    return plan.model_copy(update={**update, **_each_problem(plan, of_problems)})


def _each_problem(plan: Suite, change: dict[str, Any]) -> dict[str, Any]:
    """What a plan says of single problems, with this change to each."""
    changed = {
        name: tuple(entry.model_copy(update=change) for entry in getattr(plan, name)) for name in ("override", "also")
    }
    if plan.problem != "all":
        changed["problem"] = tuple(entry.model_copy(update=change) for entry in plan.problem)
    return changed


def without_phi(plan: Suite, targets: list[float]) -> Suite:
    """A plan that solves no lower level. Its own targets go, unless they are held against something else."""
    if targets and plan.schedule.on is None:
        raise InvalidInput(
            f"--target {targets[0]:g} is held against |grad phi|, which --no-phi leaves out; drop one of them"
        )
    update: dict[str, Any] = {"schedule": plan.schedule.without_phi()}
    if plan.schedule.on is None:
        update |= {"targets": (), **_each_problem(plan, {"targets": None})}
    return plan.model_copy(update=update)


def as_typed() -> str:
    """The command that runs."""
    return "bilevelbench " + shlex.join(sys.argv[1:])
