"""An instance from two functions of one's own: written for one point, with variables of any shape, with or without data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from bilevelbench.errors import InvalidInput
from bilevelbench.model.constants import Constant, Constants, estimated
from bilevelbench.model.instance import Instance
from bilevelbench.model.lower_curvature import lower_curvatures
from bilevelbench.model.noise import Exact, FiniteSum, Noise, PassOrder
from bilevelbench.model.one_lane import OneLane
from bilevelbench.model.own_checks import check_modules, check_start
from bilevelbench.model.own_data import OwnData
from bilevelbench.model.own_level import OwnLevel
from bilevelbench.model.pytrees import Call, Function, Variables, check_alike, placed_tree
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.model.vmapped import OverLanes

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class OwnProblem:
    """The instance, and how its vectors become what its owner gave; `batch` is that of a loader among the data."""

    instance: Instance
    x: Variables
    y: Variables
    batch: int | None


def from_functions(
    f: Function,
    g: Function,
    x0: Any,
    y0: Any,
    *,
    data_f: Any = None,
    data_g: Any = None,
    constants: Mapping[str, Constant | float] | None = None,
    metrics: Mapping[str, Function] | None = None,
    mu_at: Function | None = None,
    x_limit: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> Instance:
    """An `Instance` for `Problem.build` from two functions that know nothing of lanes: `f(x, y)`, `g(x, y)`, one number each.

    x0 and y0 are tensors, nested dicts, lists and tuples of them, or modules; f and g get them in that shape, a module with its
    parameters replaced. With `data_g` (a tensor, a tuple or dict of tensors, a Dataset or a DataLoader) g is called as
    `g(x, y, batch)` and has to return the mean over the rows of its batch; the same for `data_f` and f. Data make the noise of
    the instance a `FiniteSum`. `metrics` are functions `(x, y)` to a number and `mu_at` one of x. Without L_g or L_gy among the
    `constants` the largest curvature of g in y is estimated at the start. Variables and data are moved to `device` and `dtype`.
    """
    own = own_problem(
        f, g, x0, y0, data_f=data_f, data_g=data_g, constants=constants, metrics=metrics, mu_at=mu_at, x_limit=x_limit,
        device=device, dtype=dtype,
    )  # fmt: skip
    estimate_curvature(own.instance)
    return own.instance


def own_problem(
    f: Function,
    g: Function,
    x0: Any,
    y0: Any,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    data_f: Any = None,
    data_g: Any = None,
    constants: Mapping[str, Constant | float] | None = None,
    metrics: Mapping[str, Function] | None = None,
    mu_at: Function | None = None,
    x_limit: float | None = None,
    order: PassOrder = "replacement",
) -> OwnProblem:
    """The same with the shapes of its variables, and no constant but those that are given."""
    x, y = (Variables(name, placed_tree(start, device, dtype)) for name, start in (("x0", x0), ("y0", y0)))
    check_alike(x.first, y.first)
    check_modules(x, y)
    upper, lower = (
        OneLane(name, Call(function, x, y), None if data is None else OwnData.of(f"data_{name}", data, device, dtype))
        for name, function, data in (("f", f, data_f), ("g", g, data_g))
    )
    check_start(upper, lower, x.flat, y.flat)
    instance = Instance(
        f=OwnLevel(upper), g=OwnLevel(lower), x0=x.flat, y0=y.flat, constants=constants or {},
        noise=_noise(upper, lower, order), x_limit=x_limit,
        metrics={name: OverLanes(name, OneLane(name, Call(metric, x, y))) for name, metric in (metrics or {}).items()},
        mu_at=None if mu_at is None else OverLanes("mu_at", OneLane("mu_at", Call(mu_at, x))),
    )  # fmt: skip
    instance.constants.problem = "your functions"
    batches = [level.data.batch for level in (lower, upper) if level.data is not None]
    return OwnProblem(instance, x, y, next((batch for batch in batches if batch), None))


def estimate_curvature(instance: Instance, until: float = math.inf) -> None:
    """Unless L_g or L_gy is known: the largest curvature of g in y at the start, as an estimate of L_gy, not counted.

    Whether there is a negative one is noted as well. `until` is when the clock says that this has taken long enough.
    """
    known = instance.constants
    if "L_g" in known or "L_gy" in known:
        return
    smallest, largest = lower_curvatures(instance, until)
    steepest = max(largest, -smallest)
    if not steepest > 0:
        raise InvalidInput("g shows no curvature in y at (x0, y0); the lower level has to be strongly convex")
    instance.is_bent = smallest < -(torch.finfo(instance.y0.dtype).eps ** 0.5) * largest
    instance.constants = Constants({**known.given, "L_gy": estimated(steepest)}, known.problem)


def seeded_module(make: Callable[[], M], generator: torch.Generator) -> M:
    """`make()` with weights that are drawn from `generator`, in torch's default dtype, for `Problem.build`.

        net = seeded_module(lambda: nn.Linear(8, 1), self.generator())

    torch's global generator, from which modules draw their weights, is where it was; the weights are drawn in float64, so that
    a run in float32 has the same ones, rounded.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]), default_dtype(torch.float64):
        torch.default_generator.manual_seed(seed)
        module = make()
    return module.to(torch.get_default_dtype())


def _noise(upper: OneLane, lower: OneLane, order: PassOrder) -> Noise:
    if upper.data is None and lower.data is None:
        if order != "replacement":
            raise InvalidInput(f"order={order!r}: there are no data to draw from; give data_f or data_g")
        return Exact()
    n_f, n_g = (1 if level.data is None else level.data.n for level in (upper, lower))
    return FiniteSum(n_f, n_g, order)
