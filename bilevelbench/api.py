"""bilevelbench from Python: `run` for experiments, `solve` for two functions of your own."""

from __future__ import annotations

import copy
import hashlib
import inspect
import itertools
import linecache
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from pydantic import ValidationError
from torch import Tensor

from bilevelbench.discovery.entry import Entry, make
from bilevelbench.discovery.registry import Registry, registry
from bilevelbench.display import shown
from bilevelbench.engine.agents.leader import dismiss
from bilevelbench.engine.loop import PackRun, run_pack
from bilevelbench.engine.outer import MakeOptimizer, OuterOptimizer, with_unit_step
from bilevelbench.engine.record import PackResult
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.engine.watch import SHARE, CallbackFailed, Evaluate, StepInfo, Watch, pace_of
from bilevelbench.errors import InvalidInput, faults, suggestion
from bilevelbench.execute.executor import Execution
from bilevelbench.execute.run import run_trials
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.constants import Constant, Constants
from bilevelbench.model.constraints import Projection, projection_of
from bilevelbench.model.instance import Instance
from bilevelbench.model.lower_curvature import estimate_curvature
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import COLUMNS, TOTALS
from bilevelbench.model.rounding import one_thread
from bilevelbench.model.torch_state import default_dtype, placed
from bilevelbench.plan.packs import plan
from bilevelbench.plan.spec_text import parse_spec
from bilevelbench.plan.trial import Budget, Schedule, Spec, Trial
from bilevelbench.plan.trials import make_trial
from bilevelbench.report.notebook import Results, ShownSolution
from bilevelbench.results.schema import curve_of, runs_of
from bilevelbench.results.status import Status
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results

Chosen = str | Algorithm | Problem

#: Keywords that people know from elsewhere, and what says the same here.
_ELSEWHERE = {
    "verbose": "progress=True shows a bar, and a callback is told of every step",
    **dict.fromkeys(("max_iter", "maxiter", "iterations", "epochs"), "it is steps= here"),
    "tol": "it is target= here, a length of grad phi",
    "timeout": "it is seconds= here",
    "bounds": "project=bilevelbench.Box(low, high) keeps x between them",
}


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
    progress: bool | None = None,
) -> Results:
    """Every method on every problem with every seed; `.runs` has one row per trial, `.curve` one per evaluation.

        bilevelbench.run("f2ba[lam=10,100]", "quadratic", steps=200).runs

    Methods and problems are names, files or objects. `budget` is in calls (samples on a stochastic problem). With `out`
    the results are stored there, and what is stored already is not run again. `jobs` worker processes; 0 is this one.
    `progress=True` shows how far it is, as does None where somebody watches.
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
    trials = list({t.id: t for t in trials}.values())
    if folder is None and jobs:
        raise InvalidInput(f"jobs = {jobs} needs a folder for the results; set `out`")
    whole, finished = PackResult(), 0
    with shown("trials", len(trials), progress, counted=True) as tell:

        def told(done: int, what: str) -> None:
            nonlocal finished
            finished += done
            tell(finished, what)

        if folder is not None:
            execution = Execution(jobs=jobs)
            results = run_trials(
                trials, Store(folder), plugins, execution, lambda done: told(done.trials, ", ".join(done.best))
            )
            return Results.of(results)
        try:
            for pack in plan(trials, plugins):
                whole.extend(run_pack(pack, plugins))
                told(len(pack), f"{pack[0].algorithm.name} on {pack[0].problem.name}")
        finally:
            dismiss()
    return Results(runs_of(whole.runs).to_pandas(), curve_of(whole.curve.columns).to_pandas(), [])


def load(folder: str | Path) -> Results:
    """The results in a folder that `run` or `bilevelbench run` has written."""
    return Results.of(load_results(folder))


@dataclass(frozen=True)
class Solution(ShownSolution):
    """What `solve` returns. `counts` are oracle calls by column; `certificate` says how phi and grad_phi were obtained.

    `message` says how the run ended, and also if x is x0.
    """

    x: Tensor
    y: Tensor
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
    f: Callable[[Tensor, Tensor], Tensor],
    g: Callable[[Tensor, Tensor], Tensor],
    x0: Tensor,
    y0: Tensor,
    algorithm: str | Algorithm = "f2ba",
    *,
    budget: float | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    constants: Mapping[str, Constant | float] | None = None,
    seed: int = 0,
    errors: Literal["raise", "return"] = "raise",
    evaluate: Evaluate | Schedule = "auto",
    progress: bool | None = None,
    callback: Callable[[StepInfo], object] | None = None,
    project: Projection | None = None,
    outer_optimizer: MakeOptimizer | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **params: Any,
) -> Solution:
    """min over x of f(x, y*(x)), y*(x) = argmin over y of g(x, y), for two torch functions that return a scalar.

        bilevelbench.solve(f, g, x0, y0, algorithm="f2ba", eta_x=0.1, lam=100, steps=500)

    x0 and y0 may have any shape; f and g see that shape. Without `constants` the largest curvature of g in y is estimated
    at the start (marked so, and not counted), from which methods take their lower-level steps.

    `seconds` is for the whole call; a step that has begun is finished. `evaluate` says when the lower level is solved for phi:
    "auto" spends at most a tenth of the time on it, of short runs half a second on the way and half a second at the answer;
    "end" solves at the answer, "never" not at all, and a Schedule where it says, whatever that takes. `progress=True` shows
    how far the run is, as does None where somebody watches. `callback(info)` is told of each step, and ends the run by
    returning True; Ctrl-C ends it with what there is. `project` confines x to a set: `Box`, `Simplex`, `Ball`, or a function
    that gives the nearest point for an x in its own shape; `grad_phi` is then the length of x - P(x - grad phi). An
    `outer_optimizer`, torch.optim.Adam or a function that makes one of [x], moves x by the hypergradients that the method
    estimates. x0 and y0 are moved to `device` and `dtype`.

    What f, g or the method raises is raised; with `errors="return"` the Solution has the status `error` and the start. A
    run whose answer is the start, say because its budget covers no step, says so in `message`.
    """
    if errors not in ("raise", "return"):
        raise InvalidInput(f"errors={errors!r}{suggestion(str(errors), ('raise', 'return'))}")
    began = time.perf_counter()
    x0, y0 = placed(x0, device, dtype), placed(y0, device, dtype)
    if x0.device != y0.device:
        raise InvalidInput(f"x0 is on {x0.device} and y0 on {y0.device}; move one of them, or say which: device='cpu'")
    if steps is None and budget is None and seconds is None:
        steps = 1000
    limits = checked_budget(cost=budget, steps=steps, seconds=seconds)
    schedule, pace = pace_of(evaluate)
    instance = _instance_of(f, g, x0, y0, constants or {}, began + SHARE * (seconds or math.inf))
    if project is not None:
        instance.project = projection_of(project, instance.x0, lambda x: x.reshape(x0.shape), lambda x: _vector(x, x0))
    method = _chosen(algorithm, params, outer_optimizer is not None).resolve(instance.constants)
    trial = _trial(
        algorithm=Spec(name=method.name),
        problem=Spec(name="your functions"),
        seed=seed,
        budget=limits,
        targets=() if target is None else (target,),
        schedule=schedule,
    )
    with default_dtype(x0.dtype), shown(method.name, 1.0, progress) as tell:
        watch = Watch(limits, pace, began, tell, callback, lambda x, y: (x.reshape(x0.shape), y.reshape(y0.shape)))
        outer = None if outer_optimizer is None else OuterOptimizer(outer_optimizer)
        pack = PreparedPack(instance, [method], [seed], [trial.budget.most], outer=outer)
        running = PackRun([trial], pack, watch)
        try:
            result = running.run()
        except CallbackFailed as failed:
            raise failed.__cause__ or failed from None
    if running.error is not None and errors == "raise":
        told = result.runs[0]["message"]
        running.error.add_note(f'{method.name} failed {told}; errors="return" gives its counts and its curve')
        raise running.error
    return _solution(running, result, method, x0, y0)


def _instance_of(
    f: Callable[[Tensor, Tensor], Tensor],
    g: Callable[[Tensor, Tensor], Tensor],
    x0: Tensor,
    y0: Tensor,
    constants: Mapping[str, Constant | float],
    until: float = math.inf,
) -> Instance:
    if x0.dtype != y0.dtype or x0.dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"x0 is {x0.dtype} and y0 {y0.dtype}; give both as float64, or both as float32")
    instance = Instance(f=_one_lane(f, "f", x0, y0), g=_one_lane(g, "g", x0, y0), x0=x0.reshape(-1), y0=y0.reshape(-1))
    with instance.uncounted():  # a mistake in f or g is found here, before anything runs
        instance.value_f(instance.x0[None], instance.y0[None])
        instance.value_g(instance.x0[None], instance.y0[None])
    instance.constants = Constants(constants, "your functions")
    estimate_curvature(instance, until)
    return instance


def _vector(x: Any, x0: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or x.shape != x0.shape:
        seen = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InvalidInput(f"the projection made {seen} of an x of shape {tuple(x0.shape)}; it has to keep the shape")
    return x.reshape(-1)


def _trial(**fields: Any) -> Trial:
    try:
        return Trial(**fields)
    except ValidationError as error:
        raise InvalidInput(faults(error)) from None


def _chosen(algorithm: str | Algorithm, params: dict[str, Any], is_driven: bool = False) -> Algorithm:
    """`is_driven`: an optimiser makes the x-step."""
    for name in params.keys() & _ELSEWHERE.keys():
        raise InvalidInput(f"solve has no {name!r}: {_ELSEWHERE[name]}")
    if not isinstance(algorithm, Algorithm):
        entry = registry().algorithm(algorithm)
        made: Algorithm = make(entry, with_unit_step(entry.value, params) if is_driven else params)
        return made
    if is_driven:
        raise InvalidInput(f"outer_optimizer sets the x-step of {algorithm.name}; give it by name, with its parameters")
    if params:
        raise InvalidInput(f"{', '.join(params)}: {algorithm.name} is given as an object; set its parameters there")
    return algorithm


def checked_budget(**limits: Any) -> Budget:
    try:
        return Budget(**limits)
    except ValidationError as error:
        raise InvalidInput(f"budget: {faults(error)}") from None


def _solution(running: PackRun, result: PackResult, method: Algorithm, x0: Tensor, y0: Tensor) -> Solution:
    row = result.runs[0]
    # A target is met by the point that was looked at, which need not be the method's own choice.
    which = "last_" if row["status"] == Status.TARGET else ""
    x, y = running.record.last if which else running.record.answer
    message = row["message"]
    if torch.equal(x.reshape(-1), x0.reshape(-1)):
        message += "; the answer is the start: x is x0"
    project, start = running.pack.instance.project, running.pack.instance.x0.reshape(1, -1)
    if project is not None and not torch.equal(project(start), start):
        message += "; x0 is not in the set, and the run began where it is projected to"
    counts = {name: int(row.get(name, 0)) for name in COLUMNS | TOTALS}
    return Solution(
        x=x.reshape(x0.shape), y=y.reshape(y0.shape), phi=row.get(f"{which}phi", float("nan")),
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


def _one_lane(function: Callable[[Tensor, Tensor], Tensor], name: str, x0: Tensor, y0: Tensor) -> Callable[..., Tensor]:
    def over_one_lane(x: Tensor, y: Tensor) -> Tensor:
        value = function(x.reshape(x0.shape), y.reshape(y0.shape))
        if not isinstance(value, Tensor):
            raise InvalidInput(f"{name} returned {type(value).__name__}; it has to return a torch tensor, one number")
        if value.numel() != 1:
            raise InvalidInput(f"{name} returned a tensor of shape {tuple(value.shape)}; it has to return one number")
        return value.reshape(1, 1)

    return over_one_lane
