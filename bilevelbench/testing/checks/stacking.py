"""Checks of the axes in front of a problem's vectors: lanes side by side, points stacked, and data sets in lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from bilevelbench.model.instance import Instance
from bilevelbench.model.noise import Rows
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import QUERIES
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.testing.outcome import Failure, Skip
from bilevelbench.testing.points import around, ask, instance_of, lanes_of, normal, off_by, points_of, some_rows

#: Which of x, y and v carry the points; the others have one value for all of them.
_CARRIERS = ("xyv", "yv", "x", "y", "v")
_POINTS = 3


def check_lanes(problem: Problem) -> None:
    """A lane's answers do not depend on the other lanes, and points stacked in front are answered one by one."""
    instance, L = instance_of(problem), lanes_of(problem)
    if L == 1:
        raise Skip("it declares max_lanes = 1")
    x, y = points_of(problem)
    v = normal(L, instance.dy, seed=9)
    for query in sorted(QUERIES, key=lambda name: QUERIES[name].order):  # a wrong value spoils its derivatives
        together = ask(instance._raw[query], query, x, y, v)
        for lane in range(L):
            alone = ask(instance._raw[query], query, x[lane : lane + 1], y[lane : lane + 1], v[lane : lane + 1])
            for a, b in zip(together, alone, strict=True):
                if not off_by(a[lane : lane + 1], b) <= 1e-9:
                    raise Failure(
                        f"{query} of a lane to be the same in any company",
                        f"another answer for lane {lane} of {L} than for it alone",
                        "reduce the last axis only, `(...).sum(-1, keepdim=True)` or dot(a, b): the axis before it is the lane",
                    )
    for name, metric in instance.metrics.items():
        with torch.no_grad():
            shape = tuple(metric(x, y).shape)
        if shape != (L, 1):
            raise Failure(f"metric {name!r} of shape ({L}, 1)", f"{shape}", "one number a lane, the last axis kept")


def check_points(problem: Problem) -> None:
    """With points="stack" each function takes points in front, also of one argument only; closed forms always do."""
    instance = instance_of(problem)
    if instance.reference is None and instance.points != "stack":
        raise Skip('points="loop" and no closed forms: it is asked point by point')
    _check_points(instance, lanes_of(problem))
    if problem.stackable():
        with default_dtype(torch.float64):
            stack = problem.build_lanes(problem.data_sets[:2])
        _check_points(stack, 2)


def _check_points(instance: Instance, L: int) -> None:
    x, y = around(instance, L)
    one = {"x": x, "y": y, "v": normal(L, instance.dy, seed=9)}
    many = {name: torch.stack([value, 0.5 * value, -value]) for name, value in one.items()}
    if instance.points == "stack":
        for query, kind in QUERIES.items():
            for carriers in dict.fromkeys(c if kind.takes_vector else c.removesuffix("v") for c in _CARRIERS):
                if carriers:
                    at = [many[name] if name in carriers else one[name] for name in one]
                    for rows in _rows(instance, kind.level, L):
                        _compare_points(instance._raw[query], query, at, rows, " and ".join(carriers))
    for name, function in _closed_forms(instance):
        with torch.no_grad():
            together = function(many["x"])
            wanted = torch.stack([function(point) for point in many["x"]])
        if not off_by(together, wanted) <= 1e-9:
            raise Failure(
                f"Reference.{name} at three points to be {tuple(wanted.shape)}, point by point",
                f"{tuple(together.shape)}" if together.shape != wanted.shape else "other values",
                "let it broadcast over axes on the left",
            )


def _rows(instance: Instance, level: str, L: int) -> Iterator[tuple[Rows, ...]]:
    """The whole sum; and of a finite sum a mini-batch that all points share, and one for each of them."""
    yield ()
    for shape in ((L,), (_POINTS, L)):
        if (rows := some_rows(instance, level, *shape)) is not None:
            yield (rows,)


def _compare_points(
    function: Callable[..., Any], query: str, at: list[Tensor], rows: tuple[Rows, ...], carriers: str
) -> None:
    x, y, v = at
    answer = ask(function, query, x, y, v, *rows)
    each = zip(*(a if a.dim() == 3 else [a] * _POINTS for a in at), strict=True)
    parts = [ask(function, query, x, y, v, *(r.at(p, _POINTS) for r in rows)) for p, (x, y, v) in enumerate(each)]
    for block, a in enumerate(answer):
        wanted = torch.stack([part[block] for part in parts])
        if not off_by(a, wanted) <= 1e-9:
            raise Failure(
                f"{query}{' of a mini-batch' if rows else ''} at three stacked points of {carriers} to be "
                f"{tuple(wanted.shape)}, point by point",
                f"{tuple(a.shape)}" if a.shape != wanted.shape else "other values",
                'let it broadcast over axes on the left, or say points="loop"',
            )


def _closed_forms(instance: Instance) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    for name in ("y_star", "phi", "grad_phi", "hess_phi"):
        function = getattr(instance.reference, name, None)
        if function is not None:
            yield name, function


def check_stacked_data(problem: Problem) -> None:
    """`build_lanes` puts data sets side by side as `build` makes them one by one; `take` picks some."""
    if not problem.stackable():
        raise Skip("it has no `build_lanes`")
    one, two = problem.data_sets[:2]
    order = [one, two, one, two]
    with default_dtype(torch.float64):
        stacked = problem.build_lanes(order)
        single = {
            seed: type(problem).model_validate({**dict(problem), "data_seed": seed}).build() for seed in (one, two)
        }
        picked = stacked.take(torch.tensor([1, 1]))
    x, y = (t[:1].expand(4, -1) for t in points_of(problem))
    v = normal(1, stacked.dy, seed=9).expand(4, -1)
    of_stack = _all_answers(stacked, x, y, v)
    for lane, seed in enumerate(order):
        for name, wanted in _all_answers(single[seed], x[:1], y[:1], v[:1]).items():
            if not off_by(of_stack[name][lane : lane + 1], wanted) <= 1e-9:
                raise Failure(
                    f"{name} of data set {seed} in a stack to be what `build` gives for it",
                    "another answer",
                    "stack the data along the lane axis in the order of data_seeds",
                )
        _same_constants(stacked, lane, single[seed], seed)
    for name, answer in _all_answers(picked, x[:2], y[:2], v[:2]).items():
        if not off_by(answer, of_stack[name][[1, 1]]) <= 1e-9:
            raise Failure(f"take(lanes) to keep the data of those lanes for {name}", "others", "index_select them")


def _all_answers(instance: Instance, x: Tensor, y: Tensor, v: Tensor) -> dict[str, Tensor]:
    """The start, all queries and all closed forms, the lane in front."""
    answers = {"x0": instance.x0.expand(len(x), -1), "y0": instance.y0.expand(len(x), -1)}
    for query in QUERIES:
        for block, answer in enumerate(ask(instance._raw[query], query, x, y, v)):
            answers[f"{query}[{block}]" if block else query] = answer
    with torch.no_grad():
        return answers | {f"Reference.{name}": function(x) for name, function in _closed_forms(instance)}


def _same_constants(stack: Instance, lane: int, single: Instance, seed: int) -> None:
    mine, wanted = stack.constants.at(lane), single.constants
    for name in wanted.given:
        if not abs(mine[name] - wanted[name]) <= 1e-9 * (abs(wanted[name]) + 1e-9):
            raise Failure(
                f"{name} of data set {seed} in a stack to be {wanted[name]:.6g}, as `build` gives it",
                f"{mine[name]:.6g}",
                "give a constant that depends on the data one value for each lane, in the order of data_seeds",
            )
