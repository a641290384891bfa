"""What a problem has to keep to, one property per function. Everything is measured in float64, at points around the start."""

from __future__ import annotations

import torch
from torch import Tensor

from bilevelbench.engine.sanity import check_instance
from bilevelbench.model.instance import Instance
from bilevelbench.model.problem import Problem
from bilevelbench.model.queries import QUERIES
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.testing.checks.common import check_documented, check_name, check_name_is_free
from bilevelbench.testing.checks.constants import (
    check_constants,
    check_lipschitz_gradients,
    check_lipschitz_hessians,
    check_slope_of_f,
    check_start,
    check_strong_convexity,
)
from bilevelbench.testing.checks.derivatives import (
    check_derivatives,
    check_finite_differences,
    check_hypergradient,
    check_lower_solution,
)
from bilevelbench.testing.checks.noise import check_noise, check_oracle
from bilevelbench.testing.outcome import Failure, Skip
from bilevelbench.testing.points import ask, build, instance_of, lanes_of, normal, off_by, points_of
from bilevelbench.testing.stepper import own_randomness, random_states


def check_builds(problem: Problem) -> None:
    """`build` gives an Instance whose functions answer over lanes, with the right shapes, in both dtypes."""
    for dtype in (torch.float64, torch.float32):
        instance = build(problem, dtype) if dtype == torch.float32 else instance_of(problem)
        if not isinstance(instance, Instance):
            raise Failure("an Instance from `build`", type(instance).__name__, "return Instance(f=..., g=..., ...)")
        for name in ("x0", "y0"):
            if getattr(instance, name).dtype != dtype:
                raise Failure(
                    f"{name} in {dtype} when that is torch's default",
                    f"{getattr(instance, name).dtype}",
                    "make the data in float64 and end with .to(torch.get_default_dtype())",
                )
        check_instance(instance)


def check_build_is_deterministic(problem: Problem) -> None:
    """Two builds agree bit for bit, whatever the global random generators say, and leave those alone."""
    with own_randomness(1):
        before = random_states()
        one = build(problem)
        after = random_states()
    with own_randomness(2):
        other = build(problem)
    touched = [name for name in before if before[name] != after[name]]
    if touched:
        raise Failure(
            "`build` to leave the global random generators alone",
            f"that of {' and '.join(touched)} moved",
            "draw with generator=self.generator(), which belongs to data_seed",
        )
    x, y = points_of(problem)
    v = normal(len(x), one.dy, seed=9)
    pairs: list[tuple[str, Tensor, Tensor]] = [("x0", one.x0, other.x0), ("y0", one.y0, other.y0)]
    for query in QUERIES:
        ours, theirs = (ask(built._raw[query], query, x, y, v) for built in (one, other))
        pairs += [(query, a, b) for a, b in zip(ours, theirs, strict=True)]
    for name, a, b in pairs:
        if not torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)):
            raise Failure(
                "two builds with one data_seed to be equal bit for bit",
                f"another {name} the second time",
                "draw with generator=self.generator() and let nothing depend on time or the order of sets",
            )
    if one.constants.given != other.constants.given:
        raise Failure("equal constants in two builds", "other ones", "compute them from the data alone")


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
            raise Failure(f"metric {name!r} of shape ({L}, 1)", f"{shape}", "one number per lane, the last axis kept")


def check_points(problem: Problem) -> None:
    """With points="stack" each function takes points in front, also of one argument only; closed forms always do."""
    instance, L = instance_of(problem), lanes_of(problem)
    x, y = points_of(problem)
    v = normal(L, instance.dy, seed=9)
    X, Y = (torch.stack([t, 0.5 * t, -t]) for t in (x, y))
    if instance.points == "stack":
        for query in QUERIES:
            single = [ask(instance._raw[query], query, X[p], Y[p], v) for p in range(3)]
            mixed = [ask(instance._raw[query], query, x, Y[p], v) for p in range(3)]
            for what, parts, answer in (
                ("x and y", single, ask(instance._raw[query], query, X, Y, v.expand(3, -1, -1))),
                ("y alone", mixed, ask(instance._raw[query], query, x, Y, v)),
            ):
                for block, a in enumerate(answer):
                    wanted = torch.stack([part[block] for part in parts])
                    if not off_by(a, wanted) <= 1e-9:
                        raise Failure(
                            f"{query} at three stacked points of {what} to be {tuple(wanted.shape)}, point by point",
                            f"{tuple(a.shape)}" if a.shape != wanted.shape else "other values",
                            'let it broadcast over axes on the left, or say points="loop"',
                        )
    if instance.reference is not None:
        for name, width in (("y_star", instance.dy), ("phi", 1), ("grad_phi", instance.dx)):
            with torch.no_grad():
                shape = tuple(getattr(instance.reference, name)(X).shape)
            if shape != (3, L, width):
                raise Failure(
                    f"Reference.{name} of shape (3, {L}, {width}) at 3 points", f"{shape}", "let it broadcast"
                )
    elif instance.points != "stack":
        raise Skip('points="loop" and no closed forms: it is asked point by point')


def check_stacked_data(problem: Problem) -> None:
    """`build_lanes` puts data sets side by side as `build` makes them one by one; `take` picks some."""
    if not problem.stackable():
        raise Skip("it has no `build_lanes`")
    seeds = list(problem.data_sets[:2])
    order = [seeds[0], seeds[1], seeds[0], seeds[1]]
    with default_dtype(torch.float64):
        stacked = problem.build_lanes(order)
        single = [type(problem).model_validate({**dict(problem), "data_seed": seed}).build() for seed in order]
        picked = stacked.take(torch.tensor([1, 1]))
    x, y = (t[:1].expand(4, -1) for t in points_of(problem))
    v = normal(1, stacked.dy, seed=9).expand(4, -1)
    for query in QUERIES:
        answers = ask(stacked._raw[query], query, x, y, v)
        of_pick = ask(picked._raw[query], query, x[:2], y[:2], v[:2])
        for lane, one in enumerate(single):
            for a, b in zip(answers, ask(one._raw[query], query, x[:1], y[:1], v[:1]), strict=True):
                if not off_by(a[lane : lane + 1], b) <= 1e-9:
                    raise Failure(
                        f"{query} of data set {order[lane]} in a stack to be what `build` gives for it",
                        "another answer",
                        "stack the data along the lane axis in the order of data_seeds",
                    )
        for a, b in zip(of_pick, answers, strict=True):
            if not off_by(a[:1], b[1:2]) <= 1e-9:
                raise Failure(f"take(lanes) to keep the data of those lanes for {query}", "others", "index_select them")


#: In this order; `builds` first, since a problem that cannot be built fails everywhere.
PROBLEM_CHECKS = (
    check_name,
    check_name_is_free,
    check_documented,
    check_builds,
    check_build_is_deterministic,
    check_derivatives,
    check_finite_differences,
    check_lower_solution,
    check_hypergradient,
    check_lanes,
    check_points,
    check_stacked_data,
    check_constants,
    check_strong_convexity,
    check_lipschitz_gradients,
    check_lipschitz_hessians,
    check_slope_of_f,
    check_start,
    check_noise,
    check_oracle,
)
