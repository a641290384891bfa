"""Estimates of the hypergradient by themselves, for a training loop of one's own.

    phi(x) = f(x, y*(x)),   y*(x) = argmin over y of g(x, y)
    grad phi(x) = f_x - J v,   H v = f_y,   H = g_yy,  J = g_xy, at (x, y*(x))

`implicit` solves for v at the given y, `unrolled` differentiates through gradient steps on g, `penalty` compares gradients
of g at the minimisers of g and of f/lam + g. x and y are tensors, nested dicts, lists and tuples of them, or modules; f and g
are functions of both that return one number, say the losses on this step's batches. The estimate has the shape of x; of a
module it is a dict of gradients by the names of its parameters:

    for name, parameter in net.named_parameters():
        parameter.grad = estimate.grad[name]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bilevelbench.errors import InvalidInput, suggestion
from bilevelbench.model.derivatives import derive, through_descent
from bilevelbench.model.linear_solvers import Unmetered, conjugate_gradient, neumann_sum, richardson
from bilevelbench.model.one_lane import OneLane
from bilevelbench.model.own_checks import check_modules
from bilevelbench.model.own_level import OwnLevel
from bilevelbench.model.pytrees import Call, Function, Variables, check_alike
from bilevelbench.model.queries import COLUMNS, TOTALS

Solver = Literal["cg", "richardson", "neumann"]

__all__ = ["Hypergradient", "implicit", "penalty", "unrolled"]


@dataclass(frozen=True)
class Hypergradient:
    """An estimate: `grad` in the shape of x, and what it leaves behind, in the shape of y.

    `y` is where it was taken, of a module a state dict. `v` is H⁻¹ f_y as far as it was solved for (`implicit`) and `z`
    follows y*(x) (`penalty`): give them to the next call for a warm start. `counts` are calls by column, as in
    `Solution.counts`.
    """

    grad: Any
    y: Any
    counts: dict[str, int]
    v: Any = None
    z: Any = None


@torch.no_grad()
def implicit(
    f: Function,
    g: Function,
    x: Any,
    y: Any,
    *,
    solver: Solver = "cg",
    steps: int = 100,
    tolerance: float = 1e-10,
    step: float | None = None,
    v: Any = None,
) -> Hypergradient:
    """f_x - J v with H v = f_y at (x, y), by at most `steps` products with H; y is taken for y*(x).

    "cg" stops at a residual of `tolerance` |f_y|. "richardson", v <- v - step (H v - f_y), and "neumann", the sum of
    step (I - step H)^q f_y over q <= steps, need a `step` of at most 1/L, L the largest eigenvalue of H.
    `v` is where cg and Richardson start, zero without it.
    """
    if solver not in get_args(Solver):
        raise InvalidInput(f"solver={solver!r}{suggestion(str(solver), get_args(Solver))}")
    at = _Point(f, g, x, y)
    f_x, f_y = at.ask("grad_f", at.y0)
    start = torch.zeros_like(f_y) if v is None else at.like_y("v", v)

    def H(u: Tensor) -> Tensor:
        product: Tensor = at.ask("hvp_g_yy", at.y0, u)
        return product

    if solver == "cg":
        enough = tolerance * torch.linalg.vector_norm(f_y)
        found = conjugate_gradient(Unmetered(), H, f_y, start, _whole(steps), enough, cold=v is None)
    elif solver == "richardson":
        found = richardson(Unmetered(), H, f_y, start, _whole(steps), _length(step, solver))
    else:
        found = neumann_sum(Unmetered(), H, f_y, _whole(steps), _length(step, solver))
    return at.estimate(f_x - at.ask("jvp_g_xy", at.y0, found), y=at.y0, v=found)


@torch.no_grad()
def unrolled(
    f: Function, g: Function, x: Any, y: Any, *, steps: int = 10, step: float, one_graph: bool = False
) -> Hypergradient:
    """The gradient of f(x, Y_K(x)) in x, K = `steps`: Y_0 = y, Y_(t+1) = Y_t - step g_y(x, Y_t).

    Y_0 is a constant. The products run backwards through the steps, with K vectors of y's length in memory. With
    `one_graph` they run through one graph of all steps, which needs the memory of K graphs of g_y and takes g no second
    time: the same up to rounding, at the same counts, in half to two thirds of the time.
    """
    at, length = _Point(f, g, x, y), _length(step, "unrolled")
    if one_graph:
        return at.through_descent(_whole(steps), length)
    Y = [at.y0]
    for _ in range(_whole(steps)):
        Y.append(Y[-1] - length * at.ask("grad_g_y", Y[-1]))
    grad, q = at.ask("grad_f", Y[-1])
    for y_t in reversed(Y[1:-1]):
        Jq, Hq = at.ask("vp_g", y_t, q)
        grad, q = grad - length * Jq, q - length * Hq
    grad = grad - length * at.ask("jvp_g_xy", Y[0], q)
    return at.estimate(grad, y=Y[-1])


@torch.no_grad()
def penalty(
    f: Function, g: Function, x: Any, y: Any, *, lam: float, steps: int = 10, step: float, z: Any = None
) -> Hypergradient:
    """f_x(x, y) + lam (g_x(x, y) - g_x(x, z)), first-order: after `steps` gradient steps on f/lam + g from y and on g from z.

    It is off by about 1/lam where both have converged. z starts at y if it is not given.
    """
    if not 0 < lam < float("inf"):
        raise InvalidInput(f"lam={lam}: a penalty is a positive number, say 1000")
    at, length = _Point(f, g, x, y), _length(step, "penalty")
    towards, below = at.y0, at.y0 if z is None else at.like_y("z", z)
    for _ in range(_whole(steps)):
        below = below - length * at.ask("grad_g_y", below)
        towards = towards - length * (at.ask("grad_f_y", towards) / lam + at.ask("grad_g_y", towards))
    difference = at.ask("grad_g_x", towards) - at.ask("grad_g_x", below)
    return at.estimate(at.ask("grad_f_x", towards) + lam * difference, y=towards, z=below)


class _Point:
    """f and g at one x, as functions of one lane, and a count of what they are asked."""

    def __init__(self, f: Function, g: Function, x: Any, y: Any) -> None:
        self._x, self._y = Variables("x", x), Variables("y", y)
        check_alike(self._x.first, self._y.first)
        check_modules(self._x, self._y)
        upper, lower = (OneLane(name, Call(function, self._x, self._y)) for name, function in (("f", f), ("g", g)))
        self._levels = OwnLevel(upper), OwnLevel(lower)
        self._functions, self._asked = derive(*self._levels, {}), Counter[str]()
        self._x0, self.y0 = self._x.flat[None], self._y.flat[None]

    def ask(self, query: str, y: Tensor, *vector: Tensor) -> Any:
        self._asked[query] += 1
        return self._functions[query](self._x0, y, *vector)

    def through_descent(self, steps: int, length: float) -> Hypergradient:
        """`unrolled` by one graph. What its backward pass works out is counted as if it had been asked for."""
        grad, y = through_descent(*self._levels, self._x0, self.y0, steps, length)
        self._asked.update({"grad_g_y": steps, "grad_f": 1, "vp_g": steps - 1, "jvp_g_xy": 1})
        return self.estimate(grad, y=y)

    def like_y(self, name: str, given: Any) -> Tensor:
        """What an earlier call left behind."""
        return self._y.vector(name, given)[None]

    def estimate(self, grad: Tensor, *, y: Tensor, v: Tensor | None = None, z: Tensor | None = None) -> Hypergradient:
        counts = {name: sum(self._asked[query] for query in of) for name, of in (COLUMNS | TOTALS).items()}
        further = (None if t is None else self._y.derivative(t) for t in (v, z))
        return Hypergradient(self._x.derivative(grad), self._y.answer(y), counts, *further)


def _whole(steps: int) -> int:
    if not isinstance(steps, int) or steps < 1:
        raise InvalidInput(f"steps={steps!r}: give a whole number, 1 or more")
    return steps


def _length(step: float | None, of: str) -> float:
    if step is None or not 0 < step < float("inf"):
        raise InvalidInput(
            f"step={step}: {of} needs a positive step, at most 1/L with L the largest curvature of g in y"
        )
    return step
