"""Checks of a problem's derivatives: against autograd, finite differences and the implicit function theorem."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.model.derivatives import derive
from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import dot, norm
from bilevelbench.model.noise import Rows
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import PRODUCTS, QUERIES
from bilevelbench.testing.outcome import Failure, Skip
from bilevelbench.testing.points import DENSE, ask, instance_of, lanes_of, normal, off_by, points_of, some_rows

STEP = 1e-4  # of finite differences


def check_derivatives(problem: Problem) -> None:
    """Each derivative that the problem brings is that of f or g by autograd, also for a mini-batch; products at y*(x), too."""
    instance = instance_of(problem)
    if not instance.analytic:
        raise Skip("it brings no derivatives; autograd makes them")
    x, y = points_of(problem)
    by_autograd = derive(instance._raw["value_f"], instance._raw["value_g"], {})
    for query in sorted(instance.analytic):
        compare = functools.partial(_by_autograd, query, instance._raw[query], by_autograd[query])
        compare("", x, y)
        if (rows := some_rows(instance, QUERIES[query].level, len(x))) is not None:
            compare(" of a mini-batch", x, y, rows)
        if instance.reference is not None and query in PRODUCTS:  # arguments of non-smooth formulas would be zero there
            compare(" at y = y*(x)", x, instance.reference.y_star(x))


def _by_autograd(
    query: str, ours: Callable[..., Any], theirs: Callable[..., Any], what: str, x: Tensor, y: Tensor, *rows: Rows
) -> None:
    v = normal(*y.shape, seed=9)
    given, derived = (ask(function, query, x, y, v, *rows) for function in (ours, theirs))
    if len(given) != len(derived):
        raise Failure(f"{len(derived)} tensors from {query}", f"{len(given)}", "a joint gradient is (g_x, g_y)")
    for a, b in zip(given, derived, strict=True):
        off = off_by(a, b)
        if not off <= 1e-9:
            opposite = " (it has the opposite sign)" if off_by(-a, b) <= 1e-9 else ""
            raise Failure(
                f"{query}{what} to be the derivative of {QUERIES[query].level} by autograd",
                f"a relative difference of {off:.2g}{opposite}"
                + (f": shape {tuple(a.shape)} for {tuple(b.shape)}" if a.shape != b.shape else ""),
                f"correct {query}, or leave it out: autograd serves",
            )


def check_finite_differences(problem: Problem) -> None:
    """The gradients of f and g, and the products with H and J, against central differences along random directions."""
    instance = instance_of(problem)
    x, y = points_of(problem)
    v, dx = normal(len(x), instance.dy, seed=9), normal(len(x), instance.dx, seed=8)
    v, dx = v / norm(v), dx / norm(dx)
    answer = {query: functools.partial(ask, instance._raw[query], query) for query in QUERIES}
    for level in "fg":
        (value,) = answer[f"value_{level}"](x, y, v)
        for block, a, b in (("x", dx, torch.zeros_like(y)), ("y", torch.zeros_like(x), v)):
            high, low = (answer[f"value_{level}"](x + s * a, y + s * b, v)[0] for s in (STEP, -STEP))
            (gradient,) = answer[f"grad_{level}_{block}"](x, y, v)
            slope = dot(gradient, dx if block == "x" else v)
            _compare(
                f"grad_{level}_{block}", slope, (high - low) / (2 * STEP), norm(gradient), value.abs(),
                f"the slope of {level} along a direction of {block}",
            )  # fmt: skip
    for query in PRODUCTS:
        level = QUERIES[query].level
        g_y = answer[f"grad_{level}_y"]
        (size,) = (norm(t) for t in g_y(x, y, v))
        for output, product in zip(QUERIES[query].outputs, answer[query](x, y, v), strict=True):
            if output == "y":
                along_y = (g_y(x, y + STEP * v, v)[0] - g_y(x, y - STEP * v, v)[0]) / (2 * STEP)
                _compare(query, product, along_y, norm(product), size, f"the change of {level}_y along v")
            else:
                along_x = (g_y(x + STEP * dx, y, v)[0] - g_y(x - STEP * dx, y, v)[0]) / (2 * STEP)
                what = f"the change of <{level}_y, v> along x"
                _compare(query, dot(product, dx), dot(along_x, v), norm(product), size, what)


def _compare(query: str, ours: Tensor, difference: Tensor, scale: Tensor, size: Tensor, what: str) -> None:
    """`scale` is that of the derivative, `size` that of what was subtracted, whose rounding counts."""
    allowed = 1e-5 * (scale + 1e-3) + 100 * torch.finfo(torch.float64).eps * size / STEP
    off = (ours - difference).abs()
    if not bool((off <= allowed).all()):
        worst = int((off / allowed).amax(-1).reshape(-1).argmax())
        raise Failure(
            f"{query} to be {what}, by central differences",
            f"{float(ours[worst].flatten()[0]):.6g} where differences give {float(difference[worst].flatten()[0]):.6g}",
            "look at its sign and factors, and for .detach() or .item() inside f and g",
        )


def check_lower_solution(problem: Problem) -> None:
    """g_y(x, y*(x)) = 0, by the closed form or, without one, by the evaluator's solver; phi(x) = f(x, y*(x))."""
    instance = instance_of(problem)
    _skip_unsolved(problem, instance)
    x, y = points_of(problem)
    with torch.no_grad():
        if instance.reference is not None:
            solution, how = instance.reference.y_star(x), "correct Reference.y_star"
        else:
            solution = Evaluator(instance)._solve_lower(x, y)
            how = "is g strongly convex and twice differentiable in y?"
        left, start = norm(instance._raw["grad_g_y"](x, solution)), norm(instance._raw["grad_g_y"](x, y))
        if not bool((left <= (1e-8 if instance.reference is None else 1e-10) * (1 + start)).all()):
            raise Failure(
                "g_y(x, y*(x)) = 0", f"|g_y| = {float(left.max()):.2g} there, {float(start.max()):.2g} elsewhere", how
            )
        if instance.reference is not None:
            phi, value = instance.reference.phi(x), instance._raw["value_f"](x, solution)
            if not off_by(phi, value) <= 1e-9:
                raise Failure(
                    "phi(x) = f(x, y*(x))",
                    f"{float(phi.flatten()[0]):.6g} and {float(value.flatten()[0]):.6g}",
                    "correct Reference.phi",
                )


def check_hypergradient(problem: Problem) -> None:
    """grad phi against central differences of phi along random directions, and f_x - J H^-1 f_y where both are known."""
    instance = instance_of(problem)
    _skip_unsolved(problem, instance)
    evaluator, L = Evaluator(instance), lanes_of(problem)
    x, y = (t[:1].expand(L, -1) for t in points_of(problem, 0.5))
    d = normal(L, instance.dx, seed=8)
    d = d / norm(d)
    with torch.no_grad():
        gradient = evaluator.grad_phi(x, y)
        high, low = (evaluator(x + s * d, y).phi for s in (STEP, -STEP))
        solved = 1e-10 if instance.reference is None else 0.0
        _compare(
            "grad phi", dot(gradient, d), (high - low) / (2 * STEP), norm(gradient) + solved / STEP,
            high.abs(), "the slope of phi",
        )  # fmt: skip
        if instance.reference is not None:
            by_solver, given = _implicit(instance, x), instance.reference.grad_phi(x)
            if not off_by(given, by_solver) <= 1e-8:
                raise Failure(
                    "Reference.grad_phi = f_x - J H^-1 f_y",
                    f"a relative difference of {off_by(given, by_solver):.2g}",
                    "correct one of them",
                )
            every = _coordinates(instance.dx)
            wanted = (given @ every.mT).mT.unsqueeze(-1)
            _are_slopes("Reference.grad_phi", wanted, instance.reference.phi, x, every, "the slopes of phi")


def check_hessian_of_phi(problem: Problem) -> None:
    """Reference.hess_phi, where there is one, is the derivative of Reference.grad_phi."""
    reference = instance_of(problem).reference
    if reference is None or reference.hess_phi is None:
        raise Skip("it has no Reference.hess_phi; the evaluator takes differences")
    x, _ = points_of(problem)
    every = _coordinates(x.shape[-1])
    with torch.no_grad():
        given = (reference.hess_phi(x) @ every.mT).permute(2, 0, 1)
        _are_slopes("Reference.hess_phi", given, reference.grad_phi, x, every, "the derivative of grad_phi")


def _coordinates(d: int) -> Tensor:
    """Unit vectors of all coordinates, or of some that are spread evenly, (n, d)."""
    return torch.eye(d, dtype=torch.float64)[:: -(-d // DENSE)]


def _are_slopes(
    what: str, given: Tensor, function: Callable[[Tensor], Tensor], x: Tensor, directions: Tensor, of: str
) -> None:
    """`given` (n, L, .) against differences along n directions, extrapolated, so that their own error is of order STEP^4."""

    def slopes(h: float) -> Tensor:
        step = h * directions.unsqueeze(1)
        return (function(x + step) - function(x - step)) / (2 * h)

    wanted = (4 * slopes(STEP / 2) - slopes(STEP)) / 3
    rounding = 100 * torch.finfo(torch.float64).eps * float(function(x).abs().max()) / STEP
    off = float((given - wanted).abs().max()) if given.shape == wanted.shape else math.inf
    if not off <= 1e-6 * (1 + float(wanted.abs().max())) + rounding:
        seen = f"{off:.2g} between them" if math.isfinite(off) else f"{tuple(given.shape)} for {tuple(wanted.shape)}"
        raise Failure(f"{what} to be {of}, by differences in each coordinate", seen, "correct one of them")


def _skip_unsolved(problem: Problem, instance: Instance) -> None:
    if not problem.solves_phi and instance.reference is None:
        raise Skip("the problem declares that nobody solves its lower level")


def _implicit(instance: Instance, x: Tensor) -> Tensor:
    """f_x - J H^-1 f_y at y*(x)."""
    assert instance.reference is not None
    y = instance.reference.y_star(x)
    f_x, f_y = instance._raw["grad_f"](x, y)
    v = Evaluator(instance)._solve_linear(x, y, f_y)
    out: Tensor = f_x - instance._raw["jvp_g_xy"](x, y, v)
    return out
