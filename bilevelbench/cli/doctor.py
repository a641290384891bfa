"""What `bilevelbench doctor` looks at."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import typer

from bilevelbench.cli.options import Json

if TYPE_CHECKING:
    from bilevelbench.discovery.registry import Registry

Finding = dict[str, Any]


def examine() -> list[Finding]:
    """One finding per item: what, whether it is fine, what was seen."""
    from bilevelbench.discovery.registry import registry
    from bilevelbench.execute.environment import environment

    facts = environment()
    return [
        _finding("python", True, f"{facts['python']} on {facts['platform']}"),
        _finding("machine", True, f"{facts['cpu']}, {facts['cores']} cores, {(facts['memory'] or 0) / 2**30:.1f} GiB"),
        _finding("versions", True, ", ".join(f"{k} {v}" for k, v in facts["packages"].items() if v)),
        *(_finding("plugin", False, str(failure)) for failure in registry().failures),
        _finding("plugins", bool(registry().algorithms), _census(registry())),
        _folder(),
        _trial(registry()),
        _rounding(),
        _isolation(),
    ]


def _census(registry: Registry) -> str:
    return f"{len(registry.algorithms)} methods, {len(registry.problems)} problems, {len(registry.suites)} suites"


def _folder() -> Finding:
    ok = os.access(".", os.W_OK)
    seen = "results can be written here" if ok else "this folder cannot be written; use -o elsewhere"
    return _finding("folder", ok, seen)


def _trial(registry: Registry) -> Finding:
    """F2BA on the quadratic for 20 steps, from end to end, in this process."""
    from bilevelbench.api import run  # torch
    from bilevelbench.results.status import Status

    if "f2ba" not in registry.algorithms or "quadratic" not in registry.problems:
        return _finding("trial", False, "the built-in plugins are not there; install bilevelbench again")
    expected = 20 * (3 * 10 + 3)
    try:
        row = run("f2ba", "quadratic", steps=20).runs.iloc[0]
    except Exception as error:  # whatever is wrong here is a finding
        return _finding("trial", False, f"f2ba on quadratic: {type(error).__name__}: {error}")
    seen = f"f2ba on quadratic: {row['status']}, {row['first_order']} calls in 20 steps, {expected} expected"
    return _finding("trial", bool(row["status"] == Status.BUDGET and row["first_order"] == expected), seen)


def _rounding() -> Finding:
    """Which of the two promises holds here; both are fine."""
    import torch

    from bilevelbench.model.rounding import STEPS, TOLERANCE, keeps_bits

    bits = "a trial's numbers are the same in every pack, to the last bit"
    tolerance = (
        f"the library that multiplies matrices here rounds by the size of a pack; for the first {STEPS} steps a trial's "
        f"numbers agree to {TOLERANCE:g} in every pack"
    )
    if keeps_bits():
        return _finding("rounding", True, f"bits: {bits}")
    if keeps_bits(torch.float64):
        return _finding("rounding", True, f"bits in float64: {bits}; tolerance in float32: {tolerance}")
    return _finding("rounding", True, f"tolerance: {tolerance}")


def _isolation() -> Finding:
    """What code of others is kept from here; what the machine withholds is not a fault of the installation."""
    from bilevelbench.execute.isolation import missing

    contained = (
        "plugins of others run in processes of their own, and all that these start ends with them"
        if sys.platform == "linux"
        else "plugins of others run in processes of their own; what these start in sessions of their own is not found, "
        "and the number of processes has no limit (only Linux has it)"
    )
    lacking = missing()
    told = f"--isolate cannot give {' and '.join(lacking)}" if lacking else "--isolate gives all that it promises"
    return _finding("isolation", True, f"{contained}; {_control_group()}; {told}")


def _control_group() -> str:
    from bilevelbench.execute.control_group import ControlGroup

    group = ControlGroup.make()
    if group is None:
        return "no control group can be made for them, so that they are counted and ended one by one"
    bounded = {"memory": "memory", "pids": "number"}
    limits = [bounded[name] for name in group.limits]
    group.end()
    ends = "the kernel ends them in one go, as a control group"
    return (
        f"{ends}, and bounds their {' and '.join(limits)}" if limits else f"{ends}, which has no limits of its own here"
    )


def _finding(what: str, ok: bool, seen: str) -> Finding:
    return {"what": what, "ok": ok, "seen": seen}


def doctor(as_json: Json = False) -> None:
    """Check the installation: versions, plugins, and one trial from end to end."""
    findings = examine()
    if as_json:
        typer.echo(json.dumps(findings, indent=2))
    else:
        for finding in findings:
            typer.echo(f"{'ok ' if finding['ok'] else 'BAD'}  {finding['what']}: {finding['seen']}")
    if not all(finding["ok"] for finding in findings):
        raise typer.Exit(1)
