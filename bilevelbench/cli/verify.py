"""`bilevelbench verify` and `bilevelbench reproduce`."""

from __future__ import annotations

import math
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilevelbench.cli.console import interruptible, print_rows, warn_failures
from bilevelbench.cli.options import Jobs, Memory
from bilevelbench.errors import InvalidInput

if TYPE_CHECKING:
    from bilevelbench.plan.trial import Trial
    from bilevelbench.results.schema import Results

Files = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        help="A loose file of the results' methods or problems, which you have read; may be given several times.",
    ),
]


def verify(
    folder: Annotated[Path, typer.Argument(help="A folder of results that somebody sends in.")],
    sample: Annotated[int, typer.Option(min=0, help="How many trials are run again.")] = 20,
    against: Annotated[
        Path | None, typer.Option(help="The official results: their folder, or a folder of such folders.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The seed that draws the sample. Default: another one each time.")
    ] = None,
    file: Files = None,
    jobs: Jobs = None,
    memory: Memory = None,
    seconds: Annotated[
        float, typer.Option(help="How many seconds a trial may take here; one that takes longer counts as not run.")
    ] = 3600.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file for the verdicts. Default: verify.json in the folder.")
    ] = None,
    table: Annotated[Path | None, typer.Option(help="Also write the table to this file, as Markdown.")] = None,
) -> None:
    """Check that stored trials are possible, and run a sample of them again; exit code 1 if one differs or is impossible.

    The sample is drawn by a seed that is printed, more often among the trials that decide ranks.
    """
    from bilevelbench.discovery.registry import registry
    from bilevelbench.execute.executor import Execution
    from bilevelbench.results.verified import VERIFY, write_verified
    from bilevelbench.studies.verification.again import Here
    from bilevelbench.studies.verification.study import verify as judge

    folder, out = folder.absolute(), (out or folder / VERIFY).absolute()
    with interruptible():
        warn_failures(registry())
        chosen = secrets.randbelow(2**31) if seed is None else seed
        typer.echo(f"seed of the sample: {chosen}")
        found = judge(
            folder, Here.of(registry(), file or []), Execution(jobs=jobs, memory=memory, patience=seconds),
            sample=sample, seed=chosen, against=None if against is None else against.absolute(),
        )  # fmt: skip
    print_rows("verdicts", _printable(found.rows()))
    typer.echo(found.sentence())
    write_verified(out, found.file())
    if table is not None:
        _write_table(table, found.rows(), found.sentence().replace(str(folder), folder.name))
    typer.echo(f"verdicts: {out}")
    if found.failed:
        raise typer.Exit(1)


def reproduce(
    trial: Annotated[str, typer.Argument(help="The id of a trial, or how it begins.")],
    folder: Annotated[Path, typer.Argument(help="The folder of results that holds it.")] = Path("results"),
    file: Files = None,
) -> None:
    """Run one stored trial again, and show what is stored beside what comes out; exit code 1 if it differs."""
    from bilevelbench.discovery.registry import registry
    from bilevelbench.execute.executor import Execution
    from bilevelbench.studies.verification.again import CannotRun, Here, TrialRefused, judge, run_again
    from bilevelbench.studies.verification.study import stored_trial

    shown, folder = folder, folder.absolute()
    with interruptible():
        warn_failures(registry())
        stored, asked = stored_trial(folder, trial)
        here = Here.of(registry(), file or [])
        try:
            prepared = here.prepared(asked)
            here.check(prepared)
        except (CannotRun, TrialRefused) as error:
            raise InvalidInput(f"trial {asked['id']} cannot be run here: {error}") from None
        typer.echo(f"command: bilevelbench reproduce {prepared.id} {shown}")
        typer.echo(f"in Python: {_in_python(prepared)}")
        fresh = run_again([prepared], here.registry, Execution(jobs=0))
    typer.echo(f"parameters: {stored.runs['algorithm_params'].iloc[0]}")
    print_rows("stored and here", _printable(_beside(stored, fresh)))
    verdict, why = judge((stored.runs, stored.curve), (fresh.runs, fresh.curve))
    typer.echo(f"{verdict}: {why or verdict.sentence}")
    if verdict.fails:
        raise typer.Exit(1)


def _beside(stored: Results, fresh: Results) -> list[dict[str, Any]]:
    """The columns of `runs` that say what came out, and how far they are apart."""
    from bilevelbench.results.schema import REAL, RUNS, VOLATILE

    names = [
        name for name in list(RUNS)[list(RUNS).index("status") :] if name not in VOLATILE | {"label", "schema_version"}
    ]
    rows = []
    for name in names:
        was, now = (side.runs[name].tolist()[0] for side in (stored, fresh))
        if RUNS[name] == REAL:
            same = was == now or (math.isnan(was) and math.isnan(now))
            apart = "" if same else f"{abs(was - now) / max(abs(was), abs(now)):.1e}"
            rows.append({"column": name, "stored": f"{was:.17g}", "here": f"{now:.17g}", "difference": apart})
        elif was or now:
            rows.append({"column": name, "stored": was, "here": now, "difference": "" if was == now else "yes"})
    return rows


def _in_python(trial: Trial) -> str:
    """The same trial for somebody who has no folder."""
    method, problem = (str(spec.model_copy(update={"name": spec.key})) for spec in (trial.algorithm, trial.problem))
    limits = trial.budget.model_dump(exclude_none=True)
    options = {"seeds": [trial.seed], **{"budget" if k == "cost" else k: v for k, v in limits.items()}}
    options |= {"targets": list(trial.targets)} if trial.targets else {}
    options |= {"dtype": trial.dtype} if trial.dtype != "float64" else {}
    options |= {"compile": trial.compile} if trial.compile != "never" else {}
    told = ", ".join(f"{name}={value!r}" for name, value in options.items())
    schedule = trial.schedule.model_dump(exclude_defaults=True)
    inside = ", ".join(f"{name}={value!r}" for name, value in schedule.items())
    told += f", schedule=bilevelbench.Schedule({inside})" if schedule else ""
    return f"bilevelbench.run({method!r}, {problem!r}, {told})"


def _printable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from bilevelbench.report.text import printable

    return [{name: printable(value) for name, value in row.items()} for row in rows]


def _write_table(path: Path, rows: list[dict[str, Any]], sentence: str) -> None:
    """For a comment on a pull request."""
    import pandas as pd

    from bilevelbench.report.pipe_table import markdown_text, pipe_table
    from bilevelbench.results.files import replace_file

    text = f"{markdown_text(sentence)}\n\n" + (pipe_table(pd.DataFrame(rows)) if rows else "")
    replace_file(path.absolute(), text.encode("utf-8", "replace"))
