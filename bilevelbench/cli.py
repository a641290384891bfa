"""The command line: thin; every command does its work elsewhere. Nothing imports torch before a command needs it."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilevelbench.errors import BilevelbenchError, InvalidInput, UnknownName
from bilevelbench.torchrun import start, under_torchrun

if TYPE_CHECKING:
    from bilevelbench.dask_executor import DaskExecutor
    from bilevelbench.registry import Registry
    from bilevelbench.suite import Suite

app = typer.Typer(
    name="bilevelbench",
    help="Benchmarks for bilevel optimisation whose counts can be trusted.",
    epilog="Examples: `bilevelbench run --all`\n\n`bilevelbench run -a f2ba -p quadratic --steps 100 -o out`\n\n"
    "`bilevelbench report out --format md`",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

data = typer.Typer(help="Data files of the problems: where they are, get them, check them.", no_args_is_help=True)
app.add_typer(data, name="data")
leaderboard = typer.Typer(help="The leaderboard: a static site of results and measured rates.", no_args_is_help=True)
app.add_typer(leaderboard, name="leaderboard")

_RUN_EXAMPLES = (
    "Examples: `bilevelbench run --all`\n\n"
    "`bilevelbench run -a 'f2ba[K=3,lam=10,100]' -p 'quadratic[dim_x=5]' --steps 50 --seeds 2 -o out`\n\n"
    "`bilevelbench run -a my_method.py -a f2ba -p quadratic --budget 10000 --target 1e-4`"
)
_INTERRUPTED = "interrupted; what was finished is stored, and the same command goes on from there"

Json = Annotated[bool, typer.Option("--json", help="For a script.")]
_NAMED = "NAME, NAME[param=v1,v2,...], FILE.py or FILE.py:Class; repeatable."
Methods = Annotated[list[str] | None, typer.Option("--algorithm", "-a", help=_NAMED)]
Problems = Annotated[list[str] | None, typer.Option("--problem", "-p", help=_NAMED)]


@app.command(epilog=_RUN_EXAMPLES)
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
    dtype: Annotated[str | None, typer.Option(help="float64 or float32.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=0, help="Worker processes; 0 runs in this one. Default: the cores.")
    ] = None,
    memory: Annotated[float | None, typer.Option(help="Limit of a worker's memory, in GiB.")] = None,
    timed: Annotated[bool, typer.Option("--timed", help="One trial at a time, one worker: for time axes.")] = False,
    executor: Annotated[str, typer.Option(help="local, or dask: on a Dask cluster.")] = "local",
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler; without it, a cluster on this machine.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of results; what it holds is not run again.")] = Path(
        "results"
    ),
) -> None:
    """Run methods on problems and print the results; exit code 1 if every trial failed.

    The same command resumes where it was stopped.
    """
    out = out.absolute()  # before any plugin is loaded, which may change the working directory
    jobs = _jobs_under_torchrun(jobs, timed, executor)
    _check_workers(jobs, memory, timed)
    dask = _dask(executor, scheduler, jobs, memory, timed)
    with _interruptible():
        from bilevelbench.progress import run_with_progress
        from bilevelbench.reached import failed
        from bilevelbench.registry import registry
        from bilevelbench.report.experiments import Experiment

        plugins = registry()
        _warn_failures(plugins)
        plans = [
            _override(plan, seeds=seeds, budget=budget, steps=steps, seconds=seconds, target=target, dtype=dtype)
            for plan in _suites(plugins, algorithm or [], problem or [], all_, suite)
        ]
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
        results = run_with_progress(
            trials, out, plugins, jobs=jobs, memory=memory, timed=timed, command=command, experiments=experiments,
            executor=dask,
        )  # fmt: skip
        if failed(results.runs).all():
            raise typer.Exit(1)


@app.command(
    epilog="Examples: `bilevelbench tune -a f2ba -a aid -p quadratic --budget 2000 --trials 36 -o tuning`\n\n"
    "`bilevelbench tune -a 'f2ba[lam=10,100,eta_x=0.1,1]' -p quadratic --search halving --cost 20000`\n\n"
    "`bilevelbench run --suite tuning/best.toml -o tuned`"
)
def tune(
    algorithm: Methods = None,
    problem: Problems = None,
    suite: Annotated[str | None, typer.Option(help="A suite by name, or a TOML file; its table [tune] counts.")] = None,
    by: Annotated[str | None, typer.Option(help="What chooses: phi, or a metric of the problem.")] = None,
    search: Annotated[str | None, typer.Option(help="grid, halving, or tpe (extra `tune`).")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Settings to try, the same for each method.")] = None,
    cost: Annotated[float | None, typer.Option(help="Calls that halving may spend on each method.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds 0 to N-1; the best run on others.")] = None,
    budget: Annotated[float | None, typer.Option(help="Cost of a trial, in calls (samples if stochastic).")] = None,
    steps: Annotated[int | None, typer.Option(help="Outer steps of a trial.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float64 or float32.")] = None,
    jobs: Annotated[int | None, typer.Option(min=0, help="Worker processes; 0 is this one. Default: cores.")] = None,
    as_json: Json = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the search and of best.toml.")] = Path("tuning"),
) -> None:
    """Find parameters with the same budget for every method, and write them as a suite. The same command resumes."""
    out = out.absolute()
    with _interruptible():
        from bilevelbench.registry import registry
        from bilevelbench.tune.command import searched_by, tune_suite

        plugins = registry()
        _warn_failures(plugins)
        plans = _suites(plugins, algorithm or [], problem or [], False, suite)
        if len(plans) > 1:
            raise InvalidInput(f"{suite} includes {len(plans)} suites; tune them one by one")
        limits = {"seeds": seeds, "budget": budget, "steps": steps, "seconds": None, "target": None, "dtype": dtype}
        plan = searched_by(_override(plans[0], **limits), by=by, search=search, trials=trials, cost=cost)
        tune_suite(plan, out, plugins, jobs, as_json)


@app.command("list", epilog="Example: `bilevelbench list algorithms --json`")
def list_(
    what: Annotated[str, typer.Argument(help="algorithms, problems or suites; nothing lists all.")] = "all",
    as_json: Json = False,
) -> None:
    """What there is: methods, problems and suites, each with its plugin."""
    kinds = ("algorithms", "problems", "suites")
    if what not in (*kinds, "all"):
        raise UnknownName("kind", what, kinds)
    from bilevelbench.describe import catalogue
    from bilevelbench.registry import registry

    chosen = {kind: rows for kind, rows in catalogue(registry()).items() if what in (kind, "all")}
    _warn_failures(registry())
    if as_json:
        typer.echo(json.dumps(chosen[what] if what != "all" else chosen, indent=2))
        return
    for kind, rows in chosen.items():
        _print_table(kind, rows)


Names = Annotated[list[str] | None, typer.Argument(help="Names of data files; nothing means all.")]


@data.command("list", epilog="Example: `bilevelbench data list --json`")
def data_list(as_json: Json = False) -> None:
    """Where each data file is, and which problems read it."""
    from bilevelbench.data_command import list_files
    from bilevelbench.registry import registry

    _show("data", list_files(registry()), as_json)


@data.command("fetch", epilog="Example: `bilevelbench data fetch --from ~/Downloads`")
def data_fetch(
    names: Names = None,
    source: Annotated[Path | None, typer.Option("--from", help="A file or folder instead of the network.")] = None,
    as_json: Json = False,
) -> None:
    """Put data files into the cache; each is held against its checksum."""
    from bilevelbench.data_command import fetch_files
    from bilevelbench.registry import registry

    _show("data", fetch_files(registry(), names or [], source), as_json)


@data.command("verify", epilog="Example: `bilevelbench data verify abalone`")
def data_verify(names: Names = None, as_json: Json = False) -> None:
    """Hold the data files that are there against their checksums; exit code 1 if one differs."""
    from bilevelbench.data_command import verify_files
    from bilevelbench.registry import registry

    rows = verify_files(registry(), names or [])
    _show("data", rows, as_json)
    if any(row["ok"] is False for row in rows):
        raise typer.Exit(1)


@app.command(epilog="Example: `bilevelbench info f2ba`")
def info(
    name: Annotated[str, typer.Argument(help="A method, a problem, or FILE.py.")],
    as_json: Json = False,
) -> None:
    """All about one method or problem: equations, parameters, queries, claims."""
    from bilevelbench.describe import describe
    from bilevelbench.registry import registry

    facts = describe(registry(), name)
    typer.echo(json.dumps(facts.as_dict(), indent=2) if as_json else facts.as_text())


@app.command(epilog="Example: `bilevelbench rates --table 1 --quick`")
def rates(
    table: Annotated[int, typer.Option(help="A complexity table of the paper.")] = 1,
    over: Annotated[str, typer.Option(help="eps, or kappa for the condition number.")] = "eps",
    setting: Annotated[str | None, typer.Option(help="Of table 2: partial or full. Default: both.")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", "-m", help="Only these rows; repeatable.")] = None,
    preset: Annotated[
        str,
        typer.Option(help="rate: the theorem's powers of eps with constants of order one; theory: its constants too."),
    ] = "rate",
    quick: Annotated[bool, typer.Option("--quick", help="Shorter ranges and fewer seeds: two minutes.")] = False,
    as_json: Json = False,
    jobs: Annotated[int | None, typer.Option(min=0, help="Worker processes; 0 is this one. Default: cores.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the results.")] = None,
) -> None:
    """Measure the exponents that a table claims, and print them beside the claims."""
    from bilevelbench.rates.command import measure_table

    for name, value, known in (("--over", over, ("eps", "kappa")), ("--preset", preset, ("rate", "theory"))):
        if value not in known:
            raise UnknownName(name, value, known)
    _check_workers(jobs, None, False)
    measure_table(table, over, setting, method or [], preset, quick, as_json, jobs, out)


@app.command(
    epilog="Examples: `bilevelbench report results --format md`\n\n`bilevelbench report results --format latex -o paper/`"
)
def report(
    folder: Annotated[Path, typer.Argument(help="A folder of results, of measured rates, or of both.")],
    format_: Annotated[str, typer.Option("--format", "-f", help="md, csv, latex or html.")] = "md",
    weight: Annotated[float, typer.Option("--hvp-cost", min=0, help="Gradients that one HVP or JVP costs.")] = 1.0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="A file, or a folder, which takes figures too. Default: print; html: the folder."
        ),
    ] = None,
) -> None:
    """Tables and figures of stored results: results, ranks, and claimed beside measured rates."""
    from bilevelbench.report.write import FORMATS, read_report, write_report

    if format_ not in FORMATS:
        raise UnknownName("format", format_, FORMATS)
    found = read_report(folder, weight)
    for problem in found.problems:
        typer.echo(f"warning: {problem}", err=True)
    typer.echo(write_report(found, format_, folder, out), nl=False)


@leaderboard.command(epilog="Example: `bilevelbench leaderboard build results -o site`")
def build(
    folders: Annotated[list[Path], typer.Argument(help="Folders of results, of measured rates, or of both.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The site's folder; a site that is there is replaced.")],
    tuned: Annotated[list[Path] | None, typer.Option(help="Folders of the tuned board; repeatable.")] = None,
) -> None:
    """A static site that needs no network: boards, complexity tables, a page for each problem and each method."""
    from bilevelbench.leaderboard.build import build as build_site

    def warn(sentence: str) -> None:
        typer.echo(f"warning: {sentence}", err=True)

    typer.echo(f"page: {build_site(folders, out, tuned or [], warn=warn).resolve()}")


@leaderboard.command(epilog="Example: `bilevelbench leaderboard facts -o facts`")
def facts(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for facts.json, to be named to `build`.")],
) -> None:
    """What the plugins say of themselves: equations, claims, constants, and the measured price of an HVP."""
    out = out.absolute()
    from bilevelbench.facts import write_facts
    from bilevelbench.registry import registry

    typer.echo(f"facts: {write_facts(registry(), out).resolve()}")


@leaderboard.command(epilog="Example: `bilevelbench leaderboard serve site --port 8000`")
def serve(
    site: Annotated[Path, typer.Argument(help="A site that was built.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
) -> None:
    """Show a site on this machine; Ctrl-C ends it. A site also works opened as a file."""
    from bilevelbench.leaderboard.serve import server

    with server(site, port) as running:
        typer.echo(f"http://127.0.0.1:{running.server_port}/ (Ctrl-C ends)")
        running.serve_forever()


@app.command(epilog="Examples: `bilevelbench check my_method.py`\n\n`bilevelbench check --all --json`")
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Methods, problems, FILE.py or FILE.py:Class.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Everything that is installed.")] = False,
    seconds: Annotated[float, typer.Option(help="For all checks of a name together.")] = 120.0,
    memory: Annotated[float, typer.Option(help="Limit in GiB.")] = 4.0,
    as_json: Json = False,
) -> None:
    """Hold methods and problems against the conformance kit; exit code 1 if a check fails.

    It guards against mistakes, not against malice: the plugins' code is run.
    """
    from bilevelbench.check_command import as_text, check_plugin, counted
    from bilevelbench.registry import registry

    if bool(names) == all_:
        raise InvalidInput(
            "--all and names were given; leave one out" if names else "nothing to check; give a name, a file or --all"
        )
    outcomes = []
    for name in names or [*registry().algorithms, *registry().problems]:
        found = check_plugin(name, seconds, memory)
        outcomes += found
        if not as_json:
            typer.echo(as_text(found))
    typer.echo(json.dumps([o.as_dict() for o in outcomes], indent=2) if as_json else counted(outcomes))
    if any(o.status == "failed" for o in outcomes):
        raise typer.Exit(1)


@app.command(epilog="Examples: `bilevelbench new algorithm my_method --file`\n\n`bilevelbench new problem my_problem`")
def new(
    kind: Annotated[str, typer.Argument(help="algorithm or problem.")],
    name: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits and underscores.")],
    file: Annotated[bool, typer.Option("--file", help="One loose file instead of a distribution.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder it is put into.")] = Path(),
) -> None:
    """Write a method or a problem that already works: a distribution of its own, or one file."""
    from bilevelbench.new_command import new_plugin, next_steps

    typer.echo(next_steps(kind, name, new_plugin(kind, name, file, out)))


@app.command(epilog="Example: `bilevelbench merge mine theirs -o both`")
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Folders of results.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder that takes them all.")],
    compact: Annotated[bool, typer.Option("--compact", help="One pack a folder, day and environment.")] = False,
) -> None:
    """Put results of several folders into one; the same trial with numbers that differ by more than rounding is refused."""
    from bilevelbench.merge import merge as merge_folders
    from bilevelbench.store import Store

    done = merge_folders(folders, out, compact)
    total = len(Store(out).publish().runs)
    for sentence in done.skipped:
        typer.echo(f"warning: left out: {sentence}", err=True)
    packs = f"{done.packs} pack{'' if done.packs == 1 else 's'}"
    confirmed = f"{done.confirmed} were run before on another machine, " if done.confirmed else ""
    typer.echo(
        f"{out} holds {total} trials now: {done.trials} are new, from {packs}, {confirmed}"
        f"and {done.duplicates} were there already, with the same numbers up to rounding"
    )


@app.command(epilog="Example: `bilevelbench doctor --json`")
def doctor(as_json: Json = False) -> None:
    """Is everything in order? Versions, plugins, and one trial from end to end."""
    from bilevelbench.doctor import examine

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
    import bilevelbench

    typer.echo(bilevelbench.__version__)


def _check_workers(jobs: int | None, memory: float | None, timed: bool) -> None:
    """Mistakes that need no plugin to be seen."""
    if memory is not None and not (math.isfinite(memory) and memory > 0):
        raise InvalidInput(f"--memory {memory:g}: a limit is a number of GiB above 0")
    if memory is not None and jobs == 0 and not timed:
        raise InvalidInput("--memory limits worker processes, and --jobs 0 has none; give --jobs 1 or more")


def _jobs_under_torchrun(jobs: int | None, timed: bool, executor: str) -> int | None:
    """torchrun's first process runs the trials itself, and the others are its agents."""
    if not under_torchrun():
        return jobs
    if jobs or timed or executor != "local":
        raise InvalidInput("torchrun's first process runs the trials itself; leave out --jobs, --timed and --executor")
    return 0


def _dask(
    executor: str, scheduler: str | None, jobs: int | None, memory: float | None, timed: bool
) -> DaskExecutor | None:
    """Who runs the packs, if not local worker processes."""
    if executor not in ("local", "dask"):
        raise UnknownName("executor", executor, ("local", "dask"))
    if executor == "local":
        if scheduler is not None:
            raise InvalidInput(f"--scheduler {scheduler} is of Dask; add --executor dask, or leave it out")
        return None
    if timed:
        raise InvalidInput("--timed runs one trial at a time on this machine; leave out --executor dask")
    if jobs is not None and scheduler is not None:
        raise InvalidInput(f"--jobs {jobs}: the cluster at {scheduler} has workers of its own; leave out --jobs")
    if jobs == 0:
        raise InvalidInput("--jobs 0 runs in this process; give --jobs 1 or more Dask workers, or leave out --executor")
    from bilevelbench.dask_executor import DaskExecutor
    from bilevelbench.executor import default_jobs

    return DaskExecutor(default_jobs() if jobs is None else jobs, scheduler, memory)


def _suites(plugins: Registry, algorithms: list[str], problems: list[str], all_: bool, name: str | None) -> list[Suite]:
    """The plans that the options describe. `--all` and `--suite` may be narrowed by -a and -p."""
    from bilevelbench.suite import AlgorithmEntry, ProblemEntry, Suite, load_suites
    from bilevelbench.trial import Budget, parse_lists

    if all_ and name:
        raise InvalidInput("--all is the suite `quick`; give --all or --suite, not both")
    if all_ or name:
        path = plugins.suite(name or "quick")
        try:
            plans = load_suites(path, plugins)
        except UnicodeDecodeError:
            raise InvalidInput(f"suite {path} is no text in UTF-8; save it as such") from None
        except OSError as error:
            raise InvalidInput(f"suite {path} cannot be read: {error.strerror}") from None
    elif algorithms and problems:
        plans = [Suite(budget=Budget(cost=30_000))]
    else:
        raise InvalidInput("say what to run: --all, or --suite NAME, or -a METHOD and -p PROBLEM")
    update: dict[str, Any] = {}
    if algorithms:
        methods = [parse_lists(_single("-a", text)) for text in algorithms]
        update["algorithm"] = tuple(AlgorithmEntry(name=name, params=lists) for name, lists in methods)
    if problems:
        specs = [parse_lists(_single("-p", text)) for text in problems]
        update["problem"] = tuple(ProblemEntry(name=name, params=lists) for name, lists in specs)
    return [plan.model_copy(update=update) for plan in plans]


def _single(option: str, text: str) -> str:
    """One name: several are several options. Commas in brackets separate parameters."""
    names = [name.strip() for name in re.split(r",(?![^\[]*\])", text)]
    if len(names) > 1 and all(names) and not Path(text).is_file():
        each = " ".join(f"{option} {shlex.quote(name)}" for name in names)
        raise InvalidInput(f"{option} {text} names {len(names)} at once; {option} can be repeated: {each}")
    return text


def _override(plan: Suite, **options: Any) -> Suite:
    """Options that were given win over the suite, also over what it says of single problems. Any limit given replaces
    the whole budget."""
    from bilevelbench.api import checked_budget

    update: dict[str, Any] = {}
    of_problems: dict[str, Any] = {}
    limits = {"cost": options["budget"], "steps": options["steps"], "seconds": options["seconds"]}
    given = {name: value for name, value in limits.items() if value is not None}
    if given:
        for name, value in given.items():
            if not math.isfinite(value):
                raise InvalidInput(
                    f"--{'budget' if name == 'cost' else name} {value}: a limit is a finite number above 0"
                )
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
            raise InvalidInput(f"--dtype {options['dtype']}: there is float64 and float32")
        update["dtype"] = options["dtype"]
    if of_problems and plan.problem != "all":
        update["problem"] = tuple(entry.model_copy(update=of_problems) for entry in plan.problem)
    return plan.model_copy(update=update)


def _warn_failures(plugins: Registry) -> None:
    for failure in plugins.failures:
        typer.echo(f"warning: {failure}", err=True)


def _show(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        _print_table(title, rows)


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        typer.echo(f"{title}: none")
        return
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "family", "oracle"))
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row.values()))
    Console().print(table)


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(_INTERRUPTED, err=True)
        raise typer.Exit(130) from None


def main() -> None:
    """Exit codes: 0 fine, 1 a check or every trial failed, 2 a mistake of the caller, 3 a bug, 130 interrupted."""
    try:
        start(app)
    except BilevelbenchError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo(_INTERRUPTED, err=True)
        sys.exit(130)
    except Exception as error:
        if os.environ.get("BILEVELBENCH_DEBUG"):
            raise
        typer.echo(
            f"error: {type(error).__name__}: {error}; this is a bug of bilevelbench or of a plugin, and "
            "BILEVELBENCH_DEBUG=1 in the environment shows where. What was finished is stored",
            err=True,
        )
        sys.exit(3)


if __name__ == "__main__":
    main()
