"""bilevelbench from Python: `run` for experiments, `solve` for two functions of your own."""

from __future__ import annotations

import copy
import hashlib
import inspect
import itertools
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from bilevelbench.discovery.entry import Entry, make
from bilevelbench.discovery.registry import Registry, registry
from bilevelbench.engine.agents.leader import dismiss
from bilevelbench.engine.loop import PackRun, run_pack
from bilevelbench.engine.record import PackResult
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.errors import InvalidInput, faults, suggestion
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.run import run_trials
from bilevelbench.model.algorithm import Algorithm, Distributed
from bilevelbench.model.constants import Constant
from bilevelbench.model.noise import Exact
from bilevelbench.model.own_functions import OwnProblem, estimate_curvature, own_problem
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import COLUMNS, TOTALS
from bilevelbench.model.rounding import one_thread
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.packs import plan
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Budget, Schedule, Spec, Trial
from bilevelbench.plan.trials import make_trial
from bilevelbench.results.schema import Results, curve_of, runs_of
from bilevelbench.results.status import Status
from bilevelbench.results.store import Store

Chosen = str | Algorithm | Problem


def run(
    algorithms: Chosen | Sequence[Chosen],
    problems: Chosen | Sequence[Chosen],
    *,
    seeds: int | Sequence[int] = 1,
    budget: float | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    targets: Sequence[float] = (),
    dtype: str = "float64",
    schedule: Schedule | None = None,
    out: str | Path | None = None,
    jobs: int = 0,
) -> Results:
    """Every method on every problem with every seed; `.runs` has one row per trial, `.curve` one per evaluation.

        bilevelbench.run("f2ba[lam=10,100]", "quadratic", steps=200).runs

    Methods and problems are names, files or objects. `budget` is in calls (samples on a stochastic problem). With `out`
    the results are stored there, and what is stored already is not run again. `jobs` worker processes; 0 is this one.
    """
    folder = None if out is None else Path(out).absolute()  # plugins may change the working directory
    plugins = copy.copy(registry())
    plugins.algorithms, plugins.problems = dict(plugins.algorithms), dict(plugins.problems)
    limit = checked_budget(cost=budget, steps=steps, seconds=seconds)
    trials = [
        make_trial(
            plugins, a, p, seed=seed, budget=limit, targets=tuple(targets), schedule=schedule or Schedule(), dtype=dtype,
            label=str(a),
        )
        for p in _specs(problems, plugins)
        for a in _specs(algorithms, plugins)
        for seed in (range(seeds) if isinstance(seeds, int) else seeds)
    ]  # fmt: skip
    if folder is not None:
        return run_trials(trials, Store(folder), plugins, Execution(jobs=jobs))
    if jobs:
        raise InvalidInput(f"jobs = {jobs} needs a folder for the results; set `out`")
    try:
        packs = [run_pack(pack, plugins) for pack in plan(list({t.id: t for t in trials}.values()), plugins)]
    finally:
        dismiss()
    whole = PackResult()
    for pack in packs:
        whole.extend(pack)
    return Results(runs_of(whole.runs).to_pandas(), curve_of(whole.curve.columns).to_pandas(), [])


@dataclass(frozen=True)
class Solution:
    """What `solve` returns. `counts` are oracle calls by column; `certificate` says how phi and grad_phi were obtained.

    x and y have the shape of x0 and y0; of a module they are a state dict: `module.load_state_dict(solution.y)`.
    `message` says how the run ended, and also if x is x0.
    """

    x: Any
    y: Any
    phi: float
    grad_phi: float
    status: str
    message: str
    steps: int
    counts: dict[str, int]
    certificate: str
    params: dict[str, Any]
    curve: pd.DataFrame = field(repr=False)


@one_thread()
def solve(
    f: Callable[..., Tensor],
    g: Callable[..., Tensor],
    x0: Any,
    y0: Any,
    algorithm: str | Algorithm = "f2ba",
    *,
    data_f: Any = None,
    data_g: Any = None,
    batch: int | None = None,
    budget: float | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    constants: Mapping[str, Constant | float] | None = None,
    seed: int = 0,
    errors: Literal["raise", "return"] = "raise",
    **params: Any,
) -> Solution:
    """min over x of f(x, y*(x)), y*(x) = argmin over y of g(x, y), for two torch functions that return a scalar.

        bilevelbench.solve(f, g, x0, y0, algorithm="f2ba", eta_x=0.1, lam=100, steps=500)

    x0 and y0 are tensors, nested dicts, lists or tuples of them, or modules; f and g see that shape, a module with its
    parameters replaced. With `data_f` and `data_g` (tensors, a Dataset or a DataLoader) f and g take a batch as their third
    argument and return the mean over its rows; a method that samples draws `batch` rows a call, by default as many as a
    DataLoader among the data would. Without `constants` the largest curvature of g in y is estimated at the start (marked
    so, and not counted), from which methods take their lower-level steps.

    What f, g or the method raises is raised; with `errors="return"` the Solution has the status `error` and the start. A
    run whose answer is the start, say because its budget covers no step, says so in `message`.
    """
    if errors not in ("raise", "return"):
        raise InvalidInput(f"errors={errors!r}{suggestion(str(errors), ('raise', 'return'))}")
    if steps is None and budget is None and seconds is None:
        steps = 1000
    own = own_problem(f, g, x0, y0, data_f=data_f, data_g=data_g, constants=constants)
    instance = own.instance
    estimate_curvature(instance)
    method = _chosen(algorithm, _with_batch(algorithm, params, batch, own)).resolve(instance.constants)
    trial = Trial(
        algorithm=Spec(name=method.name),
        problem=Spec(name="your functions"),
        seed=seed,
        budget=checked_budget(cost=budget, steps=steps, seconds=seconds),
        targets=() if target is None else (target,),
    )
    with default_dtype(instance.x0.dtype):
        running = PackRun([trial], PreparedPack(instance, [method], [seed], [trial.budget.most]))
        result = running.run()
    if running.error is not None and errors == "raise":
        told = result.runs[0]["message"]
        running.error.add_note(f'{method.name} failed {told}; errors="return" gives its counts and its curve')
        raise running.error
    return _solution(running, result, method, own)


def _with_batch(
    algorithm: str | Algorithm, params: dict[str, Any], batch: int | None, own: OwnProblem
) -> dict[str, Any]:
    """The parameters, with the sizes of a method's mini-batches where they are not among them."""
    if isinstance(algorithm, Algorithm):
        return params if batch is None else {**params, "batch": batch}
    sizes = _batches(registry().algorithm(algorithm).value)
    if batch is not None and isinstance(own.instance.noise, Exact):
        raise InvalidInput(f"batch={batch}: there are no data to draw from; give data_f or data_g")
    if batch is not None and not sizes:
        methods = {name: entry.value for name, entry in registry().algorithms.items()}
        who = sorted(name for name, cls in methods.items() if _batches(cls) and not issubclass(cls, Distributed))
        raise InvalidInput(
            f"batch={batch}: {algorithm} has no parameter of that name; leave it out, or take one of {', '.join(who)}"
        )
    size = own.batch if batch is None else batch
    return params if size is None else {**dict.fromkeys(sizes, size), **params}


def _batches(method: type[Algorithm]) -> list[str]:
    """Its parameters that are sizes of mini-batches, by their names: batch, batch_f, batch_g, ..."""
    return [name for name in method.model_fields if name.split("_")[0] == "batch"]


def _chosen(algorithm: str | Algorithm, params: dict[str, Any]) -> Algorithm:
    if not isinstance(algorithm, Algorithm):
        made: Algorithm = make(registry().algorithm(algorithm), params)
        return made
    if params:
        raise InvalidInput(f"{', '.join(params)}: {algorithm.name} is given as an object; set its parameters there")
    return algorithm


def checked_budget(**limits: Any) -> Budget:
    from pydantic import ValidationError

    try:
        return Budget(**limits)
    except ValidationError as error:
        raise InvalidInput(f"budget: {faults(error)}") from None


def _solution(running: PackRun, result: PackResult, method: Algorithm, own: OwnProblem) -> Solution:
    row = result.runs[0]
    # A target is met by the point that was looked at, which need not be the method's own choice.
    which = "last_" if row["status"] == Status.TARGET else ""
    x, y = running.record.last if which else running.record.answer
    message = row["message"]
    if torch.equal(x.reshape(-1), own.x.flat):
        message += "; the answer is the start: x is x0"
    counts = {name: int(row.get(name, 0)) for name in COLUMNS | TOTALS}
    return Solution(
        x=own.x.answer(x), y=own.y.answer(y), phi=row.get(f"{which}phi", float("nan")),
        grad_phi=row.get(f"{which}grad_phi", float("nan")), status=row["status"], message=message, steps=row["steps"],
        counts=counts, certificate=row["certificate"], params=method.given(), curve=curve_of(result.curve.columns).to_pandas(),
    )  # fmt: skip


def _specs(chosen: Chosen | Sequence[Chosen], plugins: Registry) -> list[Spec]:
    items = [chosen] if isinstance(chosen, (str, Algorithm, Problem)) else list(chosen)
    out: list[Spec] = []
    for item in items:
        if isinstance(item, str):
            out += parse_spec(item)
            continue
        is_method = isinstance(item, Algorithm)
        table: dict[str, Any] = plugins.algorithms if is_method else plugins.problems
        taken = table.setdefault(item.name, Entry(type(item), "this session", _source_version(type(item))))
        if taken.value is not type(item):
            kind = "method" if is_method else "problem"
            raise InvalidInput(
                f"two {kind}s are called {item.name!r}: your class {type(item).__name__} and {taken.value.__name__} "
                f"of plugin {taken.plugin!r}; rename yours"
            )
        out.append(Spec(name=item.name, params=item.model_dump(mode="json", exclude_unset=True)))
    return out


def _source_version(cls: type) -> str:
    """A hash of the source of a class and of those it is made from, so that an edited class is a new one."""
    linecache.checkcache()
    own = itertools.takewhile(lambda base: base not in (Algorithm, Problem), cls.__mro__)
    try:
        source = "".join(inspect.getsource(base) for base in own)
    except (OSError, TypeError):  # typed into an interpreter
        return "unversioned"
    return hashlib.sha256(source.encode()).hexdigest()[:12]
