"""What a method has to keep to, one property per function: its form, that it runs, and that it gets somewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import TypeAdapter, ValidationError

from bilevelbench.errors import InvalidInput, MissingConstant, faults
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.claim import Claim
from bilevelbench.model.problem import Problem
from bilevelbench.plan.trial import Budget
from bilevelbench.results.status import Status
from bilevelbench.testing.checks.common import check_documented, check_name, check_name_is_free, is_valid
from bilevelbench.testing.checks.oracle_use import (
    check_budget,
    check_calls,
    check_first_order,
    check_keeps_no_reference,
    check_masks,
    check_uses_is_honest,
)
from bilevelbench.testing.checks.repeatability import (
    check_dtype,
    check_global_randomness,
    check_lanes,
    check_same_seed_same_bits,
    check_step_is_pure,
    check_step_is_repeatable,
)
from bilevelbench.testing.checks.third_count import check_third_count
from bilevelbench.testing.outcome import Failure, Skip
from bilevelbench.testing.stepper import SUM, plain_toys, run, ten_steps, told, toys, way_out


def check_runs(method: Algorithm) -> None:
    """Ten steps on a small problem, exact and noisy, without an error; the meter and the instance's count agree."""
    for problem in toys(method):
        row = ten_steps(method, problem)
        if Status(row["status"]).broken:
            raise Failure(f"ten steps on the small problem {problem.name!r}", row["message"], way_out(row["message"]))


def check_claims(method: Algorithm) -> None:
    """Each claim has values of the right kind, a reference, and the oracle that the method asks."""
    for claim in method.claims:
        if not isinstance(claim, Claim):
            raise Failure("a tuple of Claim", repr(claim), "write claims = (Claim(...),)")
        where = f"the claim of {claim.place}"
        try:
            TypeAdapter(Claim).validate_python(vars(claim), strict=False)
        except ValidationError as error:
            raise Failure(f"{where} with values of the right kind", faults(error), "correct it") from None
        for wrong, seen, mend in (
            (not (math.isfinite(claim.eps_exp) and claim.eps_exp > 0), f"eps_exp = {claim.eps_exp}", "eps^-2 is 2"),
            (claim.kappa_exp is not None and claim.kappa_exp < 0, f"kappa_exp = {claim.kappa_exp}", "kappa^4 is 4"),
            (claim.log_power and not claim.tilde, f"log_power = {claim.log_power} and no tilde", "set tilde=True"),
            (claim.n_exp is not None and claim.n_exp < 0, f"n_exp = {claim.n_exp}", "n^1/2 is 0.5"),
            (
                claim.n_exp is not None and claim.setting != "finite_sum",
                f"n_exp = {claim.n_exp} in the setting {claim.setting!r}",
                "only a finite sum has a number of data: say setting='finite_sum'",
            ),
            (claim.table is not None and claim.table < 1, f"table = {claim.table}", "tables are counted from 1"),
            (
                claim.table is None and claim.source == "paper",
                "source = 'paper' and no table",
                "say which table, or source='other paper' for the one in `reference`",
            ),
            (not claim.reference, "no reference", "name the paper and the theorem"),
            (
                claim.oracle != "HVP" and not method.first_order(),
                f"oracle = {claim.oracle!r} beside second-order queries in `uses`",
                "say oracle='HVP', or do not ask for them",
            ),
        ):
            if wrong:
                raise Failure(f"{where} to be well formed", seen, mend)


def check_progress(method: Algorithm) -> None:
    """|grad phi| halves within 300 steps on an easy problem, with these parameters or after a small search."""
    problem, _ = toys(method)
    start = run([method], problem, [Budget(steps=1, cost=20_000)]).curve.columns["grad_phi"][0]
    limit = Budget(steps=300, cost=300_000, seconds=15)  # a machine may be busy
    best = math.inf
    for candidates in ([method], list(_rescaled(method, problem))):
        if not candidates:
            continue
        result = run(candidates, problem, [limit] * len(candidates), seeds=[0] * len(candidates), targets=(start / 2,))
        if any(row["status"] == Status.TARGET for row in result.runs):
            return
        best = min(
            [best, *(row["best_grad_phi"] for row in result.runs if row["best_grad_phi"] == row["best_grad_phi"])]
        )
    raise Failure(
        f"|grad phi| to fall from {start:.3g} to half of that within 300 steps on an easy problem",
        f"{best:.3g} at best, also with each parameter at 10, 0.1 and 0.01 times its value",
        "look at signs and step sizes: the hypergradient is f_x - J H^-1 f_y",
    )


def _rescaled(method: Algorithm, problem: Problem) -> Iterator[Algorithm]:
    constants = problem.build().constants
    given, cls = method.resolve(constants).given(), type(method)
    for name in sorted(cls.per_lane()):
        if isinstance(given[name], float):
            for factor in (10.0, 0.1, 0.01):
                one = {**given, name: factor * given[name]}
                if is_valid(cls, one, constants):
                    yield cls.model_validate(one)


def check_presets(method: Algorithm) -> None:
    """`from_theory` and `from_rate`, where there are any, give a method that runs."""
    own = [name for name in ("from_theory", "from_rate") if _overrides(type(method), name)]
    if not own:
        raise Skip("it has no preset")
    for preset in own:
        method_of, problem = _preset(type(method), preset)
        (row,) = run([method_of], problem, [Budget(steps=3, cost=20_000)]).runs
        if Status(row["status"]).broken:
            raise Failure(f"a run with {preset}(constants, 0.1)", row["message"], way_out(row["message"]))


def _preset(cls: type[Algorithm], preset: str) -> tuple[Algorithm, Problem]:
    refusals = []
    for problem in (*plain_toys(cls), SUM):  # some presets are for noise, some for finite sums
        try:
            return getattr(cls, preset)(problem.build().constants, 0.1), problem
        except (InvalidInput, MissingConstant) as error:
            refusals.append(str(error))
        except Exception as error:
            raise Failure(
                f"{preset}(constants, 0.1) to give a {cls.__name__}", told(error, cls.model_construct()), "fix it"
            ) from error
    raise Failure(f"{preset} to know parameters for a problem whose constants are all known", refusals[0], "fix it")


def _overrides(cls: type[Algorithm], name: str) -> bool:
    return getattr(cls, name).__func__ is not getattr(Algorithm, name).__func__


#: In this order; `runs` first, since a method that does not run fails everywhere.
ALGORITHM_CHECKS = (
    check_name,
    check_name_is_free,
    check_documented,
    check_claims,
    check_runs,
    check_uses_is_honest,
    check_first_order,
    check_step_is_pure,
    check_step_is_repeatable,
    check_global_randomness,
    check_same_seed_same_bits,
    check_lanes,
    check_masks,
    check_calls,
    check_budget,
    check_keeps_no_reference,
    check_dtype,
    check_progress,
    check_presets,
)

#: For a plugin of somebody whom nobody knows.
DEEP_CHECKS = (check_third_count,)
