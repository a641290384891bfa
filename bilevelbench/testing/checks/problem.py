"""What a problem has to keep to, one property per function. Everything is measured in float64, at points around the start."""

from __future__ import annotations

import torch

from bilevelbench.engine.sanity import check_instance
from bilevelbench.model.instance import Instance
from bilevelbench.model.problem import Problem
from bilevelbench.testing.checks.bounds import check_bounds
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
    check_hessian_of_phi,
    check_hypergradient,
    check_lower_solution,
)
from bilevelbench.testing.checks.noise import check_noise, check_oracle
from bilevelbench.testing.checks.stacking import check_lanes, check_points, check_stacked_data
from bilevelbench.testing.outcome import Failure
from bilevelbench.testing.points import build, first_difference, instance_of, lanes_of
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
    if another := first_difference(one, other, lanes_of(problem)):
        raise Failure(
            "two builds with one data_seed to be equal bit for bit",
            "other constants" if another == "constants" else f"another {another} the second time",
            "draw with generator=self.generator() and let nothing depend on time or the order of sets",
        )


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
    check_hessian_of_phi,
    check_lanes,
    check_points,
    check_stacked_data,
    check_constants,
    check_strong_convexity,
    check_lipschitz_gradients,
    check_lipschitz_hessians,
    check_slope_of_f,
    check_bounds,
    check_start,
    check_noise,
    check_oracle,
)
