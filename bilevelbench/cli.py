"""The command line: thin; every command does its work elsewhere. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from bilevelbench.errors import BilevelbenchError, InvalidInput

if TYPE_CHECKING:
    from bilevelbench.registry import Registry
    from bilevelbench.suite import Suite

app = typer.Typer(
    name="bilevelbench",
    help="Benchmarks for bilevel optimisation whose counts can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.command(epilog="Example: `bilevelbench run -a 'f2ba[K=3,lam=10,100]' -p 'quadratic[dim_x=5]' --steps 50 --seeds 2 -o out`")
def run(
    algorithm: Annotated[
        Optional[list[str]],
        typer.Option("--algorithm", "-a", help="NAME, NAME[param=v1,v2,...], FILE.py or FILE.py:Class; repeatable."),
    ] = None,
    problem: Annotated[
        Optional[list[str]], typer.Option("--problem", "-p", help="NAME or NAME[param=v1,v2,...]; repeatable.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every method on every embedded problem: the suite `quick`.")] = False,
    suite: Annotated[Optional[str], typer.Option(help="A suite by name, or a TOML file.")] = None,
    seeds: Annotated[Optional[int], typer.Option(min=1, help="Seeds 0 to N-1.")] = None,
    budget: Annotated[Optional[float], typer.Option(help="Cost of a trial, in calls (samples if stochastic).")] = None,
    steps: Annotated[Optional[int], typer.Option(help="Outer steps of a trial.")] = None,
    seconds: Annotated[Optional[float], typer.Option(help="Seconds of steps of a trial.")] = None,
    target: Annotated[Optional[list[float]], typer.Option(help="Stop where |grad phi| is at most this; repeatable.")] = None,
    dtype: Annotated[Optional[str], typer.Option(help="float64 or float32.")] = None,
    jobs: Annotated[Optional[int], typer.Option(min=0, help="Worker processes; 0 runs in this one. Default: the cores.")] = None,
    memory: Annotated[Optional[float], typer.Option(help="Limit of a worker's memory, in GiB.")] = None,
    timed: Annotated[bool, typer.Option("--timed", help="One trial at a time, one worker: for time axes.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the results; what it holds is not run again.")] = Path(
        "results"
    ),
) -> None:
    """Run methods on problems and print the result table. The same command resumes where it was stopped."""
    from bilevelbench.progress import run_with_progress  # noqa: PLC0415
    from bilevelbench.registry import registry  # noqa: PLC0415

    plugins = registry()
    _warn_failures(plugins)
    plan = _suite(plugins, algorithm or [], problem or [], all_, suite)
    plan = _override(plan, seeds=seeds, budget=budget, steps=steps, seconds=seconds, target=target, dtype=dtype)
    trials = plan.trials(plugins)
    if not trials:
        raise InvalidInput("this plan has no trials: no method meets any problem")
    command = "bilevelbench " + shlex.join(sys.argv[1:])
    run_with_progress(trials, out, plugins, jobs=jobs, memory=memory, timed=timed, command=command)


@app.command("list", epilog="Example: `bilevelbench list algorithms --json`")
def list_(
    what: Annotated[str, typer.Argument(help="algorithms, problems or suites; nothing lists all.")] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="For a script.")] = False,
) -> None:
    """What there is: methods, problems and suites, each with its plugin."""
    from bilevelbench.describe import catalogue  # noqa: PLC0415
    from bilevelbench.registry import registry  # noqa: PLC0415

    kinds = ("algorithms", "problems", "suites")
    if what not in (*kinds, "all"):
        from bilevelbench.errors import UnknownName  # noqa: PLC0415

        raise UnknownName("kind", what, kinds)
    chosen = {kind: rows for kind, rows in catalogue(registry()).items() if what in (kind, "all")}
    if as_json:
        typer.echo(json.dumps(chosen[what] if what != "all" else chosen, indent=2))
        return
    for kind, rows in chosen.items():
        _print_table(kind, rows)
    _warn_failures(registry())


@app.command(epilog="Example: `bilevelbench info f2ba`")
def info(
    name: Annotated[str, typer.Argument(help="A method, a problem, or FILE.py.")],
    as_json: Annotated[bool, typer.Option("--json", help="For a script.")] = False,
) -> None:
    """All about one method or problem: equations, parameters, queries, claims."""
    from bilevelbench.describe import describe  # noqa: PLC0415
    from bilevelbench.registry import registry  # noqa: PLC0415

    facts = describe(registry(), name)
    typer.echo(json.dumps(facts.as_dict(), indent=2) if as_json else facts.as_text())


@app.command(epilog="Example: `bilevelbench report results --format md`")
def report(
    folder: Annotated[Path, typer.Argument(help="A folder of results.")],
    format_: Annotated[str, typer.Option("--format", "-f", help="md, csv or html.")] = "md",
    out: Annotated[Optional[Path], typer.Option("--out", "-o", help="A file; nothing prints it.")] = None,
) -> None:
    """Tables of stored results."""
    from bilevelbench.report.page import write_page  # noqa: PLC0415
    from bilevelbench.report.tables import markdown, summary  # noqa: PLC0415
    from bilevelbench.store import load_results  # noqa: PLC0415

    if format_ not in ("md", "csv", "html"):
        from bilevelbench.errors import UnknownName  # noqa: PLC0415

        raise UnknownName("format", format_, ("md", "csv", "html"))
    results = load_results(folder)
    for problem in results.problems:
        typer.echo(f"warning: {problem}", err=True)
    if format_ == "html":
        path = write_page(results, out or folder / "index.html")
        typer.echo(f"page: {path.resolve()}")
        return
    table = summary(results)
    text = markdown(table) if format_ == "md" else table.to_csv(index=False)
    if out is None:
        typer.echo(text, nl=False)
    else:
        _write(out, text)


@app.command(epilog="Example: `bilevelbench merge mine theirs -o both`")
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Folders of results.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder that takes them all.")],
    skip_corrupt: Annotated[bool, typer.Option("--skip-corrupt", help="Leave unreadable packs out.")] = False,
) -> None:
    """Put results of several folders into one; the same trial with different numbers is refused."""
    from bilevelbench.merge import merge as merge_folders  # noqa: PLC0415

    typer.echo(str(merge_folders(folders, out, skip_corrupt=skip_corrupt)))


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="For a script.")] = False) -> None:
    """Is everything in order? Versions, plugins, and one trial from end to end."""
    from bilevelbench.doctor import examine  # noqa: PLC0415

    findings = examine()
    if as_json:
        typer.echo(json.dumps(findings, indent=2))
    else:
        for finding in findings:
            typer.echo(f"{'ok ' if finding['ok'] else 'BAD'}  {finding['what']}: {finding['seen']}")
    if not all(finding["ok"] for finding in findings):
        raise typer.Exit(1)


@app.command()
def version() -> None:
    """The version."""
    import bilevelbench  # noqa: PLC0415

    typer.echo(bilevelbench.__version__)


def _suite(plugins: Registry, algorithms: list[str], problems: list[str], all_: bool, name: str | None) -> Suite:
    """The plan that the options describe. `--all` and `--suite` may be narrowed by -a and -p."""
    from bilevelbench.suite import AlgorithmEntry, ProblemEntry, Suite  # noqa: PLC0415
    from bilevelbench.trial import Budget, parse_spec  # noqa: PLC0415

    if all_ and name:
        raise InvalidInput("--all is the suite `quick`; give --all or --suite, not both")
    if all_ or name:
        plan = Suite.load(plugins.suite(name or "quick"))
    elif algorithms and problems:
        plan = Suite(budget=Budget(cost=30_000))
    else:
        raise InvalidInput("say what to run: --all, or --suite NAME, or -a METHOD and -p PROBLEM")
    update: dict[str, Any] = {}
    if algorithms:
        specs = [spec for text in algorithms for spec in parse_spec(text)]
        update["algorithm"] = tuple(AlgorithmEntry(name=s.name, params={k: [v] for k, v in s.params.items()}) for s in specs)
    if problems:
        specs = [spec for text in problems for spec in parse_spec(text)]
        update["problem"] = tuple(ProblemEntry(name=s.name, params={k: [v] for k, v in s.params.items()}) for s in specs)
    return plan.model_copy(update=update)


def _override(plan: Suite, **options: Any) -> Suite:
    """Options that were given win over the suite. Any limit given replaces the suite's budget."""
    from bilevelbench.api import checked_budget  # noqa: PLC0415
    from bilevelbench.suite import ProblemEntry  # noqa: PLC0415

    update: dict[str, Any] = {}
    limits = {"cost": options["budget"], "steps": options["steps"], "seconds": options["seconds"]}
    if any(value is not None for value in limits.values()):
        update["budget"] = checked_budget(**limits)
        if plan.problem != "all":
            update["problem"] = tuple(
                ProblemEntry(name=p.name, params=p.params, targets=p.targets) for p in plan.problem
            )
    if options["seeds"] is not None:
        update["seeds"] = options["seeds"]
    if options["target"]:
        if min(options["target"]) <= 0:
            raise InvalidInput(f"--target {min(options['target'])}: a target is a gradient norm above 0")
        update["targets"] = tuple(options["target"])
    if options["dtype"] is not None:
        if options["dtype"] not in ("float64", "float32"):
            raise InvalidInput(f"--dtype {options['dtype']}: there is float64 and float32")
        update["dtype"] = options["dtype"]
    return plan.model_copy(update=update)


def _warn_failures(plugins: Registry) -> None:
    for failure in plugins.failures:
        typer.echo(f"warning: {failure}", err=True)


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in rows[0] if rows else ():
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row.values()))
    Console().print(table)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}; choose another file with -o") from None


def main() -> None:
    """Exit codes: 0 fine, 1 a check failed, 2 a mistake of the caller, 130 interrupted."""
    try:
        app()
    except BilevelbenchError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted; what was finished is stored, and the same command goes on from there", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
