"""Checks of a problem's derivatives: against autograd, finite differences and the implicit function theorem."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.model.derivatives import derive
from bilevelbench.model.instance import Instance
from bilevelbench.model.lanes import dot, norm
from bilevelbench.model.noise import FiniteSum, Rows
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import PRODUCTS, QUERIES
from bilevelbench.testing.outcome import Failure, Skip
from bilevelbench.testing.points import ask, instance_of, lanes_of, normal, off_by, points_of

STEP = 1e-4  # of finite differences


def check_derivatives(problem: Problem) -> None:
    """Each derivative that the problem brings is that of f or g by autograd, also for a mini-batch."""
    instance = instance_of(problem)
    if not instance.analytic:
        raise Skip("it brings no derivatives; autograd makes them")
    x, y = points_of(problem)
    v = normal(len(x), instance.dy, seed=9)
    by_autograd = derive(instance._raw["value_f"], instance._raw["value_g"], {})
    for what, rows_of in (("", lambda level: ()), (" of a mini-batch", functools.partial(_some_rows, problem))):
        for query in sorted(instance.analytic):
            level = QUERIES[query].level
            rows = rows_of(level)
            if rows is None:
                continue
            ours = ask(instance._raw[query], query, x, y, v, *rows)
            theirs = ask(by_autograd[query], query, x, y, v, *rows)
            if len(ours) != len(theirs):
                raise Failure(f"{len(theirs)} tensors from {query}", f"{len(ours)}", "a joint gradient is (g_x, g_y)")
            for a, b in zip(ours, theirs, strict=True):
                off = off_by(a, b)
                if not off <= 1e-7:
                    opposite = " (it has the opposite sign)" if off_by(-a, b) <= 1e-7 else ""
                    raise Failure(
                        f"{query}{what} to be the derivative of {level} by autograd",
                        f"a relative difference of {off:.2g}{opposite}"
                        + (f": shape {tuple(a.shape)} for {tuple(b.shape)}" if a.shape != b.shape else ""),
                        f"correct {query}, or leave it out: autograd serves",
                    )


def _some_rows(problem: Problem, level: str) -> tuple[Rows] | None:
    noise = instance_of(problem).noise
    if not isinstance(noise, FiniteSum):
        return None
    n, L = (noise.n_f if level == "f" else noise.n_g), lanes_of(problem)
    index = torch.randint(n, (L, 3), generator=torch.Generator().manual_seed(5))
    return (Rows(index, torch.full((L, 3), 1 / 3, dtype=torch.float64)),)


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
        (product,), (size,) = answer[query](x, y, v), (norm(t) for t in g_y(x, y, v))
        if QUERIES[query].outputs == ("y",):
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
        if not bool((left <= 1e-8 * (1 + start)).all()):
            raise Failure(
                "g_y(x, y*(x)) = 0", f"|g_y| = {float(left.max()):.2g} there, {float(start.max()):.2g} elsewhere", how
            )
        if instance.reference is not None:
            phi, value = instance.reference.phi(x), instance._raw["value_f"](x, solution)
            if not off_by(phi, value) <= 1e-8:
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
            if not off_by(given, by_solver) <= 1e-6:
                raise Failure(
                    "Reference.grad_phi = f_x - J H^-1 f_y",
                    f"a relative difference of {off_by(given, by_solver):.2g}",
                    "correct one of them",
                )


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
