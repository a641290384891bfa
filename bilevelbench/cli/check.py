"""`bilevelbench check`: the conformance kit in a worker process, so that a plugin that hangs or eats memory ends alone."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilevelbench.cli.options import Json
from bilevelbench.errors import BilevelbenchError, InvalidInput, UnknownName
from bilevelbench.processes import cause_of_death

if TYPE_CHECKING:
    from bilevelbench.discovery.registry import Registry
    from bilevelbench.testing.outcome import Outcome

#: Importing torch and the installed plugins, on a slow machine; not part of the plugin's time.
_START = 300.0
_MARKS = {"passed": "ok   ", "failed": "FAIL ", "known": "known", "skipped": "skip "}


def check_plugin(name: str, seconds: float = 120.0, memory: float = 4.0, deep: bool = False) -> list[Outcome]:
    """Every check of a method or problem: NAME, NAME[param=value], FILE.py (all that it holds) or FILE.py:Class.

    `seconds` are for all checks together, `memory` is in GiB. A mistake of the caller is an InvalidInput.
    """
    from bilevelbench.discovery.loose_files import file_and_class, is_file
    from bilevelbench.execute.workers import with_environment, worker_context

    for option, value in (("--seconds", seconds), ("--memory", memory)):
        if not (math.isfinite(value) and value > 0):
            raise InvalidInput(f"{option} {value:g}: a limit is a number above 0")
    spec = _one(name)
    file, _ = file_and_class(spec.name)
    if is_file(spec.name) and not Path(file).is_file():
        raise InvalidInput(f"file {file!r} does not exist; check the path")
    context = worker_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=with_environment(_work), args=(name, memory, deep, sender), daemon=True)
    process.start()
    sender.close()
    try:
        return _listen(receiver, process, spec.name, seconds, memory)
    finally:
        process.kill()
        process.join()
        receiver.close()


def as_text(outcomes: Sequence[Outcome]) -> str:
    """One line per check, below the name."""
    lines: list[str] = []
    title = ""
    for outcome in outcomes:
        if title != (title := f"{outcome.plugin} ({outcome.kind})"):
            lines.append(title)
        message = f": {outcome.message}" if outcome.message else ""
        lines.append(f"  {_MARKS[outcome.status]}  {outcome.check}{message}")
    return "\n".join(lines)


def counted(outcomes: Sequence[Outcome]) -> str:
    """How many passed, failed, and so on."""
    counts = {status: sum(o.status == status for o in outcomes) for status in _MARKS}
    words = {"passed": "passed", "failed": "failed", "known": "known to fail", "skipped": "skipped"}
    return ", ".join(f"{count} {words[status]}" for status, count in counts.items() if count)


def _one(name: str) -> Any:
    from bilevelbench.plan.spec_text import parse_spec

    specs = parse_spec(name)
    if len(specs) != 1:
        raise InvalidInput(f"{name!r} names {len(specs)} sets of parameters; check one at a time")
    return specs[0]


def _listen(receiver: Connection, process: Any, name: str, seconds: float, memory: float) -> list[Outcome]:
    """What the worker tells, and what its silence means."""
    from bilevelbench.testing.outcome import Outcome

    outcomes: list[Outcome] = []
    plugin, kind, current, ahead = Path(name).name, "file", "loads", list[str]()
    deadline = time.monotonic() + _START
    while True:
        if not receiver.poll(max(0.0, deadline - time.monotonic())):
            failure = (
                f"expected an end of all checks within {seconds:g} seconds; saw none, {current!r} was going on; look for a "
                "loop that does not end, or give more with --seconds"
            )
            break
        try:
            message, *rest = receiver.recv()
        except EOFError:
            process.join()
            failure = (
                f"expected a plugin that leaves its process alone; saw that it {cause_of_death(process.exitcode)}; look at "
                f"what {current!r} runs, and for memory: the limit is --memory {memory:g} GiB"
            )
            break
        if message == "ready":
            deadline = time.monotonic() + seconds
        elif message == "plugin":
            plugin, kind, ahead = rest
        elif message == "begin":
            current = rest[0]
        elif message == "end":
            outcomes.append(Outcome(**rest[0]))
            ahead = [check for check in ahead if check != outcomes[-1].check]
        elif message == "mistake":
            raise InvalidInput(rest[0])
        else:
            return outcomes
    ahead = [check for check in ahead if check != current]
    outcomes.append(Outcome(plugin, kind, current, "failed", failure))  # type: ignore[arg-type]
    return outcomes + [Outcome(plugin, kind, check, "skipped", f"{current!r} did not end") for check in ahead]  # type: ignore[arg-type]


def _work(name: str, memory: float, deep: bool, sender: Connection) -> None:
    """In the worker. What a plugin prints goes to stderr: stdout is the report's."""
    from bilevelbench.discovery.registry import registry
    from bilevelbench.execute.workers import start_worker

    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        start_worker(memory)
        from bilevelbench.testing.checks.common import kind_of, title_of
        from bilevelbench.testing.kit import checks_for, run_checks

        sender.send(("ready",))
        for plugin in _plugins(registry(), name, sender):
            names = [check.name for check in checks_for(plugin, deep)]
            sender.send(("plugin", title_of(plugin), kind_of(plugin), names))
            for outcome in run_checks(plugin, lambda check: sender.send(("begin", check)), deep):
                sender.send(("end", outcome.as_dict()))
        sender.send(("done",))
    except BilevelbenchError as error:
        sender.send(("mistake", str(error)))


def _plugins(registry: Registry, name: str, sender: Connection) -> list[Any]:
    """The methods and problems that the name means, made with its parameters; a file that does not load is an outcome."""
    from bilevelbench.discovery.entry import make
    from bilevelbench.discovery.loose_files import classes_in_file, file_and_class, is_file
    from bilevelbench.testing.checks.common import usual_parameters
    from bilevelbench.testing.outcome import Outcome

    spec = _one(name)
    if is_file(spec.name):
        try:
            classes = classes_in_file(spec.name)
        except UnknownName:
            raise
        except InvalidInput as error:
            failed = Outcome(
                Path(spec.name).name, "file", "loads", "failed", f"expected a file that can be used; saw {error}"
            )
            sender.send(("end", failed.as_dict()))
            return []
        file, _ = file_and_class(spec.name)
        entries = [_entry(registry, cls, file) for cls in classes]
    else:
        tables: tuple[dict[str, Any], ...] = (registry.algorithms, registry.problems)
        entries = [table[spec.name] for table in tables if spec.name in table]
        failures = [
            failure for failure in registry.failures if spec.name in (failure.plugin, failure.plugin.split("-")[-1])
        ]
        for failure in failures:
            told = f"expected a plugin that can be used; saw {failure.reason}; fix it and install it again"
            sender.send(("end", Outcome(failure.plugin, "file", "loads", "failed", told).as_dict()))
        if not entries and not failures:
            raise UnknownName(
                "method or problem", spec.name, [*registry.algorithms, *registry.problems], registry._hint()
            )
    return [make(entry, spec.params or usual_parameters(entry.value)) for entry in entries]


def _entry(registry: Registry, cls: type, file: str) -> Any:
    from bilevelbench.model.algorithm import Algorithm

    find = registry.algorithm if issubclass(cls, Algorithm) else registry.problem
    return find(f"{file}:{cls.__name__}")


def check(
    names: Annotated[list[str] | None, typer.Argument(help="Methods, problems, FILE.py or FILE.py:Class.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Everything that is installed.")] = False,
    seconds: Annotated[float, typer.Option(help="How long all checks of one name may take.")] = 120.0,
    memory: Annotated[float, typer.Option(help="Memory limit in GiB.")] = 4.0,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also count by torch what a method computes past the oracle; takes longer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check methods and problems with the conformance kit; exit code 1 if a check fails.

    It guards against mistakes, not against malice: the plugins' code is run.
    """
    from bilevelbench.discovery.registry import registry

    if bool(names) == all_:
        raise InvalidInput(
            "--all and names were given; leave one out" if names else "nothing to check; give a name, a file or --all"
        )
    outcomes = []
    for name in names or [*registry().algorithms, *registry().problems]:
        found = check_plugin(name, seconds, memory, deep)
        outcomes += found
        if not as_json:
            typer.echo(as_text(found))
    typer.echo(json.dumps([o.as_dict() for o in outcomes], indent=2) if as_json else counted(outcomes))
    if any(o.status == "failed" for o in outcomes):
        raise typer.Exit(1)
