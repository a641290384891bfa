"""`solve`: two functions of one's own, with variables of any shape."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd
import torch
from pydantic import ValidationError
from torch import Tensor

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.display import Tell, shown
from bilevelbench.engine.loop import PackRun
from bilevelbench.engine.outer import MakeOptimizer, OuterOptimizer, with_unit_step
from bilevelbench.engine.record import PackResult
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.engine.watch import SHARE, CallbackFailed, Evaluate, Pace, StepInfo, Watch, pace_of
from bilevelbench.errors import InvalidInput, faults, suggestion
from bilevelbench.model.algorithm import Algorithm, Distributed
from bilevelbench.model.constants import Constant
from bilevelbench.model.constraints import Projection, projection_of
from bilevelbench.model.instance import Instance
from bilevelbench.model.noise import Exact, PassOrder
from bilevelbench.model.own_functions import OwnProblem, estimate_curvature, own_problem
from bilevelbench.model.queries import COLUMNS, TOTALS
from bilevelbench.model.rounding import one_thread
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.oracle.meter import Spent
from bilevelbench.plan.trial import Schedule, Spec, Trial, checked_budget
from bilevelbench.report.notebook import ShownSolution
from bilevelbench.results.schema import curve_of
from bilevelbench.results.status import Status
from bilevelbench.studies.auto.contenders import Contender, alone, batch_sizes, portfolio
from bilevelbench.studies.auto.search import Search, Winner

AUTO = "auto"
DRIVEN = "aid"  # with an optimiser for x there is no step to look for
_RETRIES = 3  # of a run that diverges with a step that the search has found

#: Keywords that people know from elsewhere, and what says the same here.
_ELSEWHERE = {
    "verbose": "progress=True shows a bar, and a callback is told of every step",
    **dict.fromkeys(("max_iter", "maxiter", "iterations", "epochs"), "it is steps= here"),
    "tol": "it is target= here, a length of grad phi",
    "timeout": "it is seconds= here",
    "bounds": "project=bilevelbench.Box(low, high) keeps x between them",
    "options": "a method's parameters are keywords of solve",
}


@dataclass(frozen=True)
class Solution(ShownSolution):
    """What `solve` returns. `counts` are oracle calls by column; `certificate` says how phi and grad_phi were obtained.

    x and y have the shape of x0 and y0; of a module they are a state dict: `module.load_state_dict(solution.y)`. f and g
    are the functions there, phi is f(x, y*(x)). `message` says how the run ended, and also if x is x0. `search` has one row
    for each setting and round of the search, if there was one: its own steps, its cost, f after further lower-level steps
    (`score`, see docs/solve.md) and whether it went on. The search is part of `counts`, and of the cost in `curve`.
    """

    x: Any
    y: Any
    f: float
    g: float
    phi: float
    grad_phi: float
    status: str
    message: str
    steps: int
    counts: dict[str, int]
    certificate: str
    algorithm: str
    params: dict[str, Any]
    curve: pd.DataFrame = field(repr=False)
    search: pd.DataFrame = field(repr=False)


@one_thread()
def solve(
    f: Callable[..., Tensor],
    g: Callable[..., Tensor],
    x0: Any,
    y0: Any,
    algorithm: str | Algorithm = AUTO,
    *,
    data_f: Any = None,
    data_g: Any = None,
    batch: int | None = None,
    order: PassOrder = "replacement",
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
    """Minimise `f(x, y*(x))` over x, `y*(x) = argmin over y of g(x, y)`, for two torch functions that return a scalar.

        bilevelbench.solve(f, g, x0, y0)
        bilevelbench.solve(f, g, x0, y0, algorithm="f2ba", eta_x=0.1, lam=100, steps=500)

    "auto" tries a few methods, with x-steps and penalties over decades, and goes on with the best from where it is; that takes
    at most a quarter of the budget and of the seconds, and is counted. Parameters that are given stay, and leave the methods
    that have them. A method that is named gets an x-step in the same way, unless it has one.

    x0 and y0 are tensors, nested dicts, lists or tuples of them, or modules; f and g see that shape, a module with its
    parameters replaced. With `data_f` and `data_g` (tensors, a Dataset or a DataLoader) f and g take a batch as their third
    argument and return the mean over its rows; a method that samples draws `batch` rows a call, by default as many as a
    DataLoader among the data would, independently or, with `order="epoch"`, in shuffled passes over the data. Without
    `constants` the largest curvature of g in y is estimated at the start (marked so, and not counted), from which methods
    take their lower-level steps.

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
    if steps is None and budget is None and seconds is None:
        steps = 1000
    limits = checked_budget(budget=budget, steps=steps, seconds=seconds)
    schedule, pace = pace_of(evaluate)
    own = own_problem(
        f, g, x0, y0, data_f=data_f, data_g=data_g, constants=constants, device=device, dtype=dtype, order=order
    )
    instance = own.instance
    estimate_curvature(instance, began + SHARE * (seconds or math.inf))
    if project is not None:
        instance.project = projection_of(
            project, instance.x0, own.x.given, functools.partial(own.x.vector, "what the projection returns")
        )
    title = algorithm if isinstance(algorithm, str) else algorithm.name
    trial = _trial(
        algorithm=Spec(name=title),
        problem=Spec(name="your functions"),
        seed=seed,
        budget=limits,
        targets=() if target is None else (target,),
        schedule=schedule,
    )
    contenders = _contenders(algorithm, params, batch, own, outer_optimizer is not None)
    with default_dtype(instance.x0.dtype), shown(title, 1.0, progress) as tell:
        call = _Call(own, trial, pace, began, tell, callback, outer_optimizer)
        if isinstance(contenders, Algorithm):
            return call.solution(contenders, None, errors)
        search = Search(instance, seed, limits, began, tell)
        found = _found(search, contenders, errors)
        got = call.solution(found.method, found, errors)
        for _ in range(_RETRIES):
            if not found.steps or got.status != Status.DIVERGED:
                break
            found = search.gentler(found, call.spent)
            got = call.solution(found.method, found, errors)
        return got


class _Call:
    """One call of `solve`: everything but the method."""

    def __init__(
        self,
        own: OwnProblem,
        trial: Trial,
        pace: Pace,
        began: float,
        tell: Tell,
        callback: Callable[[StepInfo], object] | None,
        outer: MakeOptimizer | None,
    ) -> None:
        self._own, self._trial, self._pace, self._began, self._tell = own, trial, pace, began, tell
        self._callback, self._outer = callback, outer
        self.spent = Spent()

    def solution(self, method: Algorithm, found: Winner | None, errors: str) -> Solution:
        """The run of a method from the start, or from where a search has left it."""
        own, trial = self._own, self._trial
        watch = Watch(
            trial.budget, self._pace, self._began, self._tell, self._callback, lambda x, y: (own.x.answer(x), own.y.answer(y))
        )  # fmt: skip
        outer = None if self._outer is None else OuterOptimizer(self._outer)
        pack = PreparedPack(own.instance.apart(), [method], [trial.seed], [trial.budget.most], outer=outer)
        if found is not None:
            pack.oracle.meter.add(found.spent)
            watch.is_interrupted = found.is_interrupted
        running = PackRun([trial], pack, watch, None if found is None else found.begun)
        try:
            result = running.run()
        except CallbackFailed as failed:
            raise failed.__cause__ or failed from None
        self.spent = pack.oracle.meter.spent()
        if running.error is not None and errors == "raise":
            told = result.runs[0]["message"]
            running.error.add_note(f'{method.name} failed {told}; errors="return" gives its counts and its curve')
            raise running.error
        return _solution(running, result, method, own, found)


def _found(search: Search, contenders: list[Contender], errors: str) -> Winner:
    """A function that fails in the search fails for the method as well, where `errors` says what becomes of it."""
    try:
        return search(contenders)
    except InvalidInput:
        raise
    except Exception as error:
        if errors == "raise":
            error.add_note(
                "it failed in the search for a method and its steps, which algorithm= and its parameters leave out"
            )
            raise
        return search.unsearched(contenders)


def _contenders(
    algorithm: str | Algorithm, params: dict[str, Any], batch: int | None, own: OwnProblem, is_driven: bool
) -> Algorithm | list[Contender]:
    """What a search is to choose among, or a method that needs none. `is_driven`: an optimiser makes the x-step."""
    for name in params.keys() & _ELSEWHERE.keys():
        raise InvalidInput(f"solve has no {name!r}: {_ELSEWHERE[name]}")
    constants, noise = own.instance.constants, own.instance.noise
    if batch is not None and isinstance(noise, Exact):
        raise InvalidInput(f"batch={batch}: there are no data to draw from; give data_f or data_g")
    if algorithm == AUTO and not is_driven:
        return portfolio(params, own.batch if batch is None else batch, noise)
    chosen = DRIVEN if algorithm == AUTO else algorithm
    method = _chosen(chosen, _with_batch(chosen, params, batch, own), is_driven)
    contender = alone(method, constants)
    return method.resolve(constants) if contender is None else [contender]


def _with_batch(
    algorithm: str | Algorithm, params: dict[str, Any], batch: int | None, own: OwnProblem
) -> dict[str, Any]:
    """The parameters, with the sizes of a method's mini-batches where they are not among them."""
    if isinstance(algorithm, Algorithm):
        return params if batch is None else {**params, "batch": batch}
    sizes = batch_sizes(registry().algorithm(algorithm).value)
    if batch is not None and not sizes:
        methods = {name: entry.value for name, entry in registry().algorithms.items()}
        who = sorted(name for name, cls in methods.items() if batch_sizes(cls) and not issubclass(cls, Distributed))
        raise InvalidInput(
            f"batch={batch}: {algorithm} draws no mini-batches; leave it out, or take one of {', '.join(who)}"
        )
    size = own.batch if batch is None else batch
    return params if size is None else {**dict.fromkeys(sizes, size), **params}


def _trial(**fields: Any) -> Trial:
    try:
        return Trial(**fields)
    except ValidationError as error:
        raise InvalidInput(faults(error)) from None


def _chosen(algorithm: str | Algorithm, params: dict[str, Any], is_driven: bool = False) -> Algorithm:
    """`is_driven`: an optimiser makes the x-step."""
    if not isinstance(algorithm, Algorithm):
        entry = registry().algorithm(algorithm)
        made: Algorithm = make(entry, with_unit_step(entry.value, params) if is_driven else params)
        return made
    if is_driven:
        raise InvalidInput(f"outer_optimizer sets the x-step of {algorithm.name}; give it by name, with its parameters")
    if params:
        raise InvalidInput(f"{', '.join(params)}: {algorithm.name} is given as an object; set its parameters there")
    return algorithm


def _solution(
    running: PackRun, result: PackResult, method: Algorithm, own: OwnProblem, found: Winner | None
) -> Solution:
    row, instance = result.runs[0], own.instance
    # A target is met by the point that was looked at, which need not be the method's own choice.
    which = "last_" if row["status"] == Status.TARGET else ""
    x, y = running.record.last if which else running.record.answer
    message, start = row["message"], instance.x0.reshape(1, -1)
    if torch.equal(x.reshape(1, -1), start):
        message += "; the answer is the start: x is x0"
    if instance.project is not None and not torch.equal(instance.project(start), start):
        message += "; x0 is not in the set, and the run began where it is projected to"
    if found is not None:
        message += f"; {found.message}"
    counts = {name: int(row.get(name, 0)) for name in COLUMNS | TOTALS}
    f, g = (math.nan, math.nan) if row["status"] == Status.ERROR else _values(instance, x, y)
    return Solution(
        x=own.x.answer(x), y=own.y.answer(y), f=f, g=g, phi=row.get(f"{which}phi", float("nan")),
        grad_phi=row.get(f"{which}grad_phi", float("nan")), status=row["status"], message=message, steps=row["steps"],
        counts=counts, certificate=row["certificate"], algorithm=method.name, params=method.given(),
        curve=curve_of(result.curve.columns).to_pandas(), search=pd.DataFrame() if found is None else found.table,
    )  # fmt: skip


def _values(instance: Instance, x: Tensor, y: Tensor) -> tuple[float, float]:
    """f and g at the answer, which nobody pays for."""
    at = x.reshape(1, -1), y.reshape(1, -1)
    try:
        with torch.no_grad(), instance.uncounted():
            return float(instance.value_f(*at)), float(instance.value_g(*at))
    except KeyboardInterrupt:  # the answer is there, and more important
        return math.nan, math.nan
